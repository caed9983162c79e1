// Control messages: round trip, truncation at every byte, unknown kinds.
#include "plugin/transport/control.h"

#include <gtest/gtest.h>

#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {
namespace {

ControlMessage sample(ControlMessage::Kind kind) {
  ControlMessage message;
  message.kind = kind;
  message.mailbox = 0x1234;
  message.nonce = 0xfedcba9876543210ULL;
  message.rank = 65'535;
  message.target = 7;
  for (int i = 0; i < 100; ++i) message.bytes.push_back(static_cast<std::byte>(i));
  return message;
}

TEST(Control, RoundTripOfEveryKind) {
  using enum ControlMessage::Kind;
  for (const auto kind : {hello, welcome, refuse, close, close_ack}) {
    const auto message = sample(kind);
    const auto copy = ControlMessage::decode(message.encode());
    EXPECT_EQ(copy.kind, kind);
    EXPECT_EQ(copy.mailbox, message.mailbox);
    EXPECT_EQ(copy.nonce, message.nonce);
    EXPECT_EQ(copy.rank, message.rank);
    EXPECT_EQ(copy.target, message.target);
    EXPECT_EQ(copy.bytes, message.bytes);
  }
}

TEST(Control, WhatIsCutShortOrMadeUpIsRefused) {
  const auto bytes = sample(ControlMessage::Kind::hello).encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW((void)ControlMessage::decode(std::span(bytes).first(size)), Error) << size;
  }
  auto surplus = bytes;
  surplus.push_back(std::byte{0});
  EXPECT_THROW((void)ControlMessage::decode(surplus), Error);
  for (const int kind : {0, 6, 255}) {
    auto unknown = bytes;
    unknown[0] = static_cast<std::byte>(kind);
    EXPECT_THROW((void)ControlMessage::decode(unknown), Error) << kind;
  }
  // A length that promises more than there is.
  auto greedy = bytes;
  greedy[19] = greedy[20] = greedy[21] = greedy[22] = std::byte{0xff};
  EXPECT_THROW((void)ControlMessage::decode(greedy), Error);
}

}  // namespace
}  // namespace torch_ucx::transport
