// The 64-bit tag of a message on the wire.
//
//    63         53 52              37 36        31 30                                    0
//   +-------------+------------------+------------+---------------------------------------+
//   | mailbox  11 | source rank   16 | class    6 | user tag                           31 |
//   +-------------+------------------+------------+---------------------------------------+
//
// mailbox      the receiving process's number for its group; learnt by the sender at first contact
// source rank  the sender's rank in the group, 0 .. 65,535
// class        what the bytes are: the dtype code of a tensor, or one of the reserved classes
// user tag     the tag the program gave, 0 .. 2^31 - 1
//
// A value that does not fit is refused; it never spills into the next field.
#pragma once

#include <cstdint>
#include <stdexcept>

namespace torch_ucx::transport {

using Tag = std::uint64_t;

inline constexpr unsigned kUserTagBits = 31;
inline constexpr unsigned kClassBits = 6;
inline constexpr unsigned kRankBits = 16;
inline constexpr unsigned kMailboxBits = 11;
static_assert(kUserTagBits + kClassBits + kRankBits + kMailboxBits == 64);

inline constexpr std::uint64_t kMaxUserTag = (1ULL << kUserTagBits) - 1;
inline constexpr std::uint64_t kMaxClass = (1ULL << kClassBits) - 1;
inline constexpr std::uint64_t kMaxRank = (1ULL << kRankBits) - 1;
inline constexpr std::uint64_t kMaxMailbox = (1ULL << kMailboxBits) - 1;

// What the bytes of a message are. 0 .. kLastDtype are c10::ScalarType values (torch 2.13 has 46,
// 0 .. 45); the transport itself attaches no meaning to them.
using MessageClass = std::uint8_t;
inline constexpr MessageClass kLastDtype = 61;
inline constexpr MessageClass kClassCollective = 62;
// Never on a user's message. Control messages travel as UCX active messages (control.h says why);
// the class stays reserved so that a tagged control message can be told apart if one is needed.
inline constexpr MessageClass kClassControl = 63;

namespace detail {
inline constexpr unsigned kClassShift = kUserTagBits;
inline constexpr unsigned kRankShift = kClassShift + kClassBits;
inline constexpr unsigned kMailboxShift = kRankShift + kRankBits;
}  // namespace detail

inline constexpr Tag kMailboxMask = kMaxMailbox << detail::kMailboxShift;
inline constexpr Tag kRankMask = kMaxRank << detail::kRankShift;
inline constexpr Tag kClassMask = kMaxClass << detail::kClassShift;
inline constexpr Tag kUserTagMask = kMaxUserTag;
inline constexpr Tag kExactMask = ~Tag{0};
static_assert((kMailboxMask ^ kRankMask ^ kClassMask ^ kUserTagMask) == kExactMask);

// Throws std::out_of_range, naming the field, for a value that does not fit.
[[nodiscard]] constexpr Tag make_tag(std::uint64_t mailbox, std::uint64_t rank,
                                     std::uint64_t message_class, std::uint64_t user_tag) {
  if (mailbox > kMaxMailbox) throw std::out_of_range("tag: mailbox does not fit 11 bits");
  if (rank > kMaxRank) throw std::out_of_range("tag: source rank does not fit 16 bits");
  if (message_class > kMaxClass) throw std::out_of_range("tag: class does not fit 6 bits");
  if (user_tag > kMaxUserTag) throw std::out_of_range("tag: user tag does not fit 31 bits");
  return mailbox << detail::kMailboxShift | rank << detail::kRankShift |
         message_class << detail::kClassShift | user_tag;
}

[[nodiscard]] constexpr std::uint32_t mailbox_of(Tag tag) {
  return static_cast<std::uint32_t>((tag & kMailboxMask) >> detail::kMailboxShift);
}
[[nodiscard]] constexpr std::uint32_t rank_of(Tag tag) {
  return static_cast<std::uint32_t>((tag & kRankMask) >> detail::kRankShift);
}
[[nodiscard]] constexpr MessageClass class_of(Tag tag) {
  return static_cast<MessageClass>((tag & kClassMask) >> detail::kClassShift);
}
[[nodiscard]] constexpr std::uint32_t user_tag_of(Tag tag) {
  return static_cast<std::uint32_t>(tag & kUserTagMask);
}

}  // namespace torch_ucx::transport
