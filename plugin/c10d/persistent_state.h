// What a PersistentOperation holds.
#pragma once

#include <cstdint>

#include "plugin/c10d/tensor_request.h"
#include "torch_ucx/c10d/persistent_operation.h"

namespace torch_ucx {

struct PersistentOperation::State {
  transport::Ref<TensorRequest> request;
  const void* data = nullptr;  // of the buffer, when it was made
  std::uint64_t bytes = 0;
  bool copies = false;  // a send from a view: its elements are gathered at each start
};

}  // namespace torch_ucx
