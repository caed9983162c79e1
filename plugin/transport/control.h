// Control messages between engines: first contact and farewell of groups.
//
// They travel as UCX active messages, not as tagged ones: an unknown sender's tagged message needs
// a wildcard receive, and while one of those is posted every arrival leaves UCX's hashed fast path.
// Active messages go through the same lane as eager and rendezvous headers, so a farewell arrives
// after everything that was sent before it.
//
//   hello      to a mailbox whose owner's address is known: "I am rank r of your group; here is my
//              address". Answered by welcome or refuse. After either side got the other's hello or
//              welcome, the two are attached: each may send, each owes the other a close.
//   welcome    hello accepted
//   refuse     hello not accepted, with the reason
//   close      "nothing more comes from me to this mailbox"; the last message of an attachment
//   close_ack  the close, and so all that was sent before it, has arrived
//
// On the wire: kind u8 | mailbox u16 | nonce u64 | rank u32 | target u32 | bytes. Mailbox and nonce
// are those of the receiver's membership; rank is the sender's rank in the group, target the
// receiver's (an engine that has closed the group no longer knows its rank there, and answers with
// it). bytes: hello: the sender's address blob; refuse: text, empty for "closed"; else empty.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace torch_ucx::transport {

// UCX active-message id of all of them.
inline constexpr unsigned kControlMessageId = 1;

struct ControlMessage {
  enum class Kind : std::uint8_t { hello = 1, welcome, refuse, close, close_ack };

  Kind kind = Kind::hello;
  std::uint16_t mailbox = 0;
  std::uint64_t nonce = 0;
  std::uint32_t rank = 0;
  std::uint32_t target = 0;
  std::vector<std::byte> bytes;

  [[nodiscard]] std::vector<std::byte> encode() const;
  // Throws Error for anything that encode() does not make.
  [[nodiscard]] static ControlMessage decode(std::span<const std::byte> data);
};

}  // namespace torch_ucx::transport
