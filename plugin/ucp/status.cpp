#include "plugin/ucp/status.h"

namespace torch_ucx::ucp {

void check(ucs_status_t status, const std::string& what) {
  if (status != UCS_OK) throw Error(what + ": " + ucs_status_string(status));
}

}  // namespace torch_ucx::ucp
