#include "plugin/ucp/devices.h"

#include <filesystem>
#include <system_error>

namespace torch_ucx::ucp {

bool host_has_verbs() noexcept {
  std::error_code error;
  return !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
}

}  // namespace torch_ucx::ucp
