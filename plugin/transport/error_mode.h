// Which error-handling mode a pair of endpoints uses. Both ends compute it from both addresses and
// get the same answer, because UCX refuses pairs that differ.
#pragma once

#include <string_view>

#include "plugin/transport/address_blob.h"

namespace torch_ucx::transport {

// On one host, UCX below this version in mode none with CMA aborts the survivor when a peer dies.
inline constexpr ucp::LibraryVersion kNoneModeSurvives{1, 22, 0};

// Whether a UCX_TLS list (comma-separated; "^" in front: all but these; "": unset) lets shared
// memory carry messages.
[[nodiscard]] bool allows_shared_memory(std::string_view tls);

// True: UCP_ERR_HANDLING_MODE_PEER. Symmetric: peer_error_mode(a, b) == peer_error_mode(b, a).
// Mode none is chosen only on one host, with UCX that survives it, and where both sides' UCX_TLS
// let shared memory carry the messages: a broken connection over a network is told only in mode
// peer. A wish of one side wins over "automatic" of the other; contradicting wishes throw
// ArgumentError.
[[nodiscard]] bool peer_error_mode(const AddressBlob& a, const AddressBlob& b);

}  // namespace torch_ucx::transport
