// Errors of the control path (set-up, options, connecting). The data path returns an Outcome.
#pragma once

#include <stdexcept>
#include <string>

#include "torch_ucx/export.h"

namespace torch_ucx {

// UCX, or the system underneath it, could not do what was asked.
class TORCH_UCX_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

// The caller gave something that is not allowed: the text says what, and what is.
class TORCH_UCX_API ArgumentError : public Error {
 public:
  using Error::Error;
  ~ArgumentError() override;
};

}  // namespace torch_ucx
