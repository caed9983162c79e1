// Turns this project's errors into the exceptions of torch, which Python users see as ValueError,
// torch.distributed.DistBackendError and so on. The one place where that is decided.
#pragma once

#include <exception>
#include <string>

#include "plugin/transport/request.h"
#include "torch_ucx/transport/outcome.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx {

// The store could not be reached, or refused.
class StoreError final : public Error {
 public:
  using Error::Error;
};

// The exception for an operation that failed so. Not for Failure::none.
[[nodiscard]] std::exception_ptr torch_exception(transport::Failure failure,
                                                 const std::string& text) noexcept;

// Must be called from a catch block: throws torch's exception in place of ours, others as they are.
[[noreturn]] void rethrow_as_torch();

template <typename Function>
decltype(auto) with_torch_errors(const Function& function) {
  try {
    return function();
  } catch (...) {
    rethrow_as_torch();
  }
}

}  // namespace torch_ucx
