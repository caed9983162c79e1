#include "torch_ucx/ucp/library.h"

#include <dlfcn.h>
#include <ucp/api/ucp.h>

namespace torch_ucx::ucp {

std::string LibraryVersion::to_string() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

LibraryVersion library_version() {
  LibraryVersion version;
  ucp_get_version(&version.major, &version.minor, &version.patch);
  return version;
}

std::string library_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&ucp_get_version), &info) == 0 || info.dli_fname == nullptr) {
    return "unknown";
  }
  return info.dli_fname;
}

}  // namespace torch_ucx::ucp
