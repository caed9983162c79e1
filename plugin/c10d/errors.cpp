#include "plugin/c10d/errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/exception.h>

namespace torch_ucx {

namespace {

[[noreturn]] void throw_failure(transport::Failure failure, const std::string& text) {
  using transport::Failure;
  switch (failure) {
    case Failure::timed_out:
      C10D_THROW_ERROR(TimeoutError, text);
    case Failure::peer_failed:
    case Failure::peer_left:
    case Failure::unreachable:
      C10D_THROW_ERROR(DistNetworkError, text);
    default:
      C10_THROW_ERROR(DistBackendError, text);
  }
}

}  // namespace

std::exception_ptr torch_exception(transport::Failure failure, const std::string& text) noexcept {
  try {
    throw_failure(failure, text);
  } catch (...) {
    return std::current_exception();
  }
}

void rethrow_as_torch() {
  try {
    throw;
  } catch (const ArgumentError& error) {
    C10_THROW_ERROR(ValueError, error.what());
  } catch (const StoreError& error) {
    C10_THROW_ERROR(DistStoreError, error.what());
  } catch (const Error& error) {
    C10_THROW_ERROR(DistBackendError, error.what());
  }
}

}  // namespace torch_ucx
