#include "plugin/transport/control.h"

#include "plugin/transport/wire.h"

namespace torch_ucx::transport {

std::vector<std::byte> ControlMessage::encode() const {
  WireWriter out;
  out.number(static_cast<std::uint8_t>(kind));
  out.number(mailbox);
  out.number(nonce);
  out.number(rank);
  out.number(target);
  out.bytes(bytes);
  return out.take();
}

ControlMessage ControlMessage::decode(std::span<const std::byte> data) {
  WireReader in(data);
  ControlMessage message;
  const auto kind = in.number<std::uint8_t>();
  if (kind < static_cast<std::uint8_t>(Kind::hello) ||
      kind > static_cast<std::uint8_t>(Kind::close_ack)) {
    throw Error("control message of unknown kind " + std::to_string(kind));
  }
  message.kind = static_cast<Kind>(kind);
  message.mailbox = in.number<std::uint16_t>();
  message.nonce = in.number<std::uint64_t>();
  message.rank = in.number<std::uint32_t>();
  message.target = in.number<std::uint32_t>();
  message.bytes = in.bytes();
  if (!in.at_end()) throw Error("control message has surplus bytes");
  return message;
}

}  // namespace torch_ucx::transport
