// What a rank publishes for its group: how to reach it, and who it is.
//
// On the wire (all integers little-endian):
//   "TUCX" | format u16 | UCX major u16, minor u16, patch u16 | plugin version text | error wish u8
//   | engine id 2 x u64 | mailbox u16 | nonce u64 | host name text, boot id text, pid namespace
//   u64, pid u64, start time u64 | UCX_TLS text | worker address bytes | FNV-1a checksum u64
//
// decode() accepts exactly this: another magic, another format, a wrong checksum, missing or
// surplus bytes throw Error, and the text says which.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugin/transport/host_identity.h"
#include "torch_ucx/transport/options.h"
#include "torch_ucx/transport/tag.h"
#include "torch_ucx/ucp/library.h"

namespace torch_ucx::transport {

// Random 128 bits that name one engine (one UCX worker) for its lifetime.
using EngineId = std::array<std::uint64_t, 2>;

struct AddressBlob {
  static constexpr std::uint16_t kFormat = 1;

  ucp::LibraryVersion ucx;
  std::string plugin_version;
  ErrorModeWish error_mode = ErrorModeWish::automatic;
  EngineId engine{};
  std::uint16_t mailbox = 0;
  // Random 64 bits of this rank's membership in this group: tells attempts apart, and a mailbox's
  // owner from the next one.
  std::uint64_t nonce = 0;
  HostIdentity host;
  std::string tls;                        // the user's UCX_TLS, for messages
  std::vector<std::byte> worker_address;  // empty: it has closed the group

  [[nodiscard]] bool closed() const noexcept { return worker_address.empty(); }

  bool operator==(const AddressBlob&) const = default;

  [[nodiscard]] std::vector<std::byte> encode() const;
  [[nodiscard]] static AddressBlob decode(std::span<const std::byte> bytes);
};

// Random bits from the kernel.
[[nodiscard]] std::uint64_t random_bits();

}  // namespace torch_ucx::transport
