#include "torch_ucx/ucp/error.h"

namespace torch_ucx {

// Out of line, so that each class has one exported vtable and typeinfo.
Error::~Error() = default;
ArgumentError::~ArgumentError() = default;

}  // namespace torch_ucx
