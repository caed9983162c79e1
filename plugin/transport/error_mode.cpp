#include "plugin/transport/error_mode.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {

bool allows_shared_memory(std::string_view tls) {
  if (tls.empty() || tls.starts_with('^')) return true;
  constexpr std::array<std::string_view, 8> kNames{"all",   "sm",   "shm",   "mm",
                                                   "posix", "sysv", "xpmem", "shared_memory"};
  while (!tls.empty()) {
    const auto comma = std::min(tls.find(','), tls.size());
    const auto name = tls.substr(0, comma);
    if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
    tls.remove_prefix(std::min(comma + 1, tls.size()));
  }
  return false;
}

bool peer_error_mode(const AddressBlob& a, const AddressBlob& b) {
  const bool a_wishes = a.error_mode != ErrorModeWish::automatic;
  const bool b_wishes = b.error_mode != ErrorModeWish::automatic;
  if (a_wishes && b_wishes && a.error_mode != b.error_mode) {
    throw ArgumentError("TORCH_UCX_ERROR_MODE is \"none\" on one side and \"peer\" on the other (" +
                        a.host.describe() + "; " + b.host.describe() +
                        "): set the same on all ranks");
  }
  if (a_wishes) return a.error_mode == ErrorModeWish::peer;
  if (b_wishes) return b.error_mode == ErrorModeWish::peer;
  if (!a.host.same_host(b.host)) return true;
  if (!allows_shared_memory(a.tls) || !allows_shared_memory(b.tls)) return true;
  return a.ucx < kNoneModeSurvives || b.ucx < kNoneModeSurvives;
}

}  // namespace torch_ucx::transport
