#include "plugin/transport/address_blob.h"

#include <sys/random.h>

#include <algorithm>

#include "plugin/transport/wire.h"

namespace torch_ucx::transport {

namespace {

constexpr std::uint32_t kMagic = 0x58435554;  // "TUCX"
constexpr std::size_t kChecksumBytes = 8;

// FNV-1a, 64 bits (Fowler, Noll, Vo): guards against a damaged store value, not against an
// attacker.
std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const std::byte byte : bytes) {
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

std::vector<std::byte> AddressBlob::encode() const {
  WireWriter out;
  out.number(kMagic);
  out.number(kFormat);
  out.number(static_cast<std::uint16_t>(ucx.major));
  out.number(static_cast<std::uint16_t>(ucx.minor));
  out.number(static_cast<std::uint16_t>(ucx.patch));
  out.text(plugin_version);
  out.number(static_cast<std::uint8_t>(error_mode));
  out.number(engine[0]);
  out.number(engine[1]);
  out.number(mailbox);
  out.number(nonce);
  out.text(host.host_name);
  out.text(host.boot_id);
  out.number(host.pid_namespace);
  out.number(host.pid);
  out.number(host.start_time);
  out.text(tls);
  out.bytes(worker_address);
  auto bytes = out.take();
  WireWriter tail;
  tail.number(checksum(bytes));
  const auto sum = tail.take();
  bytes.insert(bytes.end(), sum.begin(), sum.end());
  return bytes;
}

AddressBlob AddressBlob::decode(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  try {
    if (in.number<std::uint32_t>() != kMagic) throw Error("it is not an address of torch_ucx");
    const auto format = in.number<std::uint16_t>();
    if (format != kFormat) {
      throw Error("its format is " + std::to_string(format) + ", this torch_ucx reads format " +
                  std::to_string(kFormat) + ": use the same torch_ucx on all ranks");
    }
    if (bytes.size() < kChecksumBytes) throw Error("message is cut short");
    const auto body = bytes.first(bytes.size() - kChecksumBytes);
    WireReader tail(bytes.last(kChecksumBytes));
    if (tail.number<std::uint64_t>() != checksum(body))
      throw Error("it is damaged (wrong checksum)");

    AddressBlob blob;
    blob.ucx.major = in.number<std::uint16_t>();
    blob.ucx.minor = in.number<std::uint16_t>();
    blob.ucx.patch = in.number<std::uint16_t>();
    blob.plugin_version = in.text();
    const auto wish = in.number<std::uint8_t>();
    if (wish > static_cast<std::uint8_t>(ErrorModeWish::peer))
      throw Error("its error mode is unknown");
    blob.error_mode = static_cast<ErrorModeWish>(wish);
    blob.engine[0] = in.number<std::uint64_t>();
    blob.engine[1] = in.number<std::uint64_t>();
    blob.mailbox = in.number<std::uint16_t>();
    blob.nonce = in.number<std::uint64_t>();
    blob.host.host_name = in.text();
    blob.host.boot_id = in.text();
    blob.host.pid_namespace = in.number<std::uint64_t>();
    blob.host.pid = in.number<std::uint64_t>();
    blob.host.start_time = in.number<std::uint64_t>();
    blob.tls = in.text();
    blob.worker_address = in.bytes();
    (void)in.number<std::uint64_t>();
    if (!in.at_end()) throw Error("it has surplus bytes");
    if (blob.mailbox > kMaxMailbox) throw Error("its mailbox does not fit the tag");
    return blob;
  } catch (const Error& error) {
    throw Error(std::string("address of ") + std::to_string(bytes.size()) +
                " bytes is refused: " + error.what());
  }
}

std::uint64_t random_bits() {
  std::uint64_t bits = 0;
  // At most 256 bytes: never interrupted, never short once the pool is seeded (getrandom(2)).
  if (getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    throw Error("getrandom failed");
  }
  return bits;
}

}  // namespace torch_ucx::transport
