#include "plugin/transport/presets.h"

#include "plugin/transport/error_mode.h"

namespace torch_ucx::transport {

namespace {

// The version whose choice was measured.
constexpr ucp::LibraryVersion kMeasured{1, 22, 0};

}  // namespace

void apply_presets(ucp::Config& config, const ucp::LibraryVersion& version) {
  // Shared memory together with error handling; without it mode peer falls back to the network.
  // (UCX warns of the setting where no shared-memory transport is enabled.)
  if (allows_shared_memory(ucp::user_setting("TLS"))) config.set_default("MM_ERROR_HANDLING", "y");
  // Between processes of one host UCX 1.22 changes to rendezvous too early for messages of 8 and
  // 16 KB. Between hosts its choice stands.
  if (version >= kMeasured) config.set_default("RNDV_THRESH", "intra:64K,inter:auto");
}

}  // namespace torch_ucx::transport
