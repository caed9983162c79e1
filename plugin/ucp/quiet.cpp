#include "plugin/ucp/quiet.h"

#include <ucs/config/global_opts.h>

#include <array>
#include <cstdlib>

namespace torch_ucx::ucp {

QuietScope::QuietScope(Keep keep) noexcept {
  if (std::getenv("UCX_LOG_LEVEL") != nullptr) return;
  try {
    std::array<char, 32> level{};
    if (ucs_global_opts_get_value("LOG_LEVEL", level.data(), level.size()) != UCS_OK) return;
    before_ = level.data();
    ucs_global_opts_set_value("LOG_LEVEL", keep == Keep::errors ? "error" : "fatal");
  } catch (...) {  // out of memory: then not quiet
  }
}

QuietScope::~QuietScope() {
  if (!before_.empty()) ucs_global_opts_set_value("LOG_LEVEL", before_.c_str());
}

}  // namespace torch_ucx::ucp
