// What this project sets in UCX's configuration where the user set nothing. Each with the
// measurement behind it: docs/performance.md, "Presets".
#pragma once

#include "plugin/ucp/config.h"
#include "torch_ucx/ucp/library.h"

namespace torch_ucx::transport {

void apply_presets(ucp::Config& config, const ucp::LibraryVersion& version);

}  // namespace torch_ucx::transport
