// Mailbox numbers: who may use one again, and when.
#include "plugin/transport/mailbox_table.h"

#include <gtest/gtest.h>

#include <set>

#include "plugin/transport/peer.h"
#include "torch_ucx/transport/tag.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {
namespace {

// The table only compares and hands back the pointer.
Group& some_group() {
  static int object;
  return reinterpret_cast<Group&>(object);
}

TEST(MailboxTable, NumbersRestAsLongAsPossible) {
  MailboxTable table;
  std::set<std::uint16_t> seen;
  for (std::size_t i = 0; i <= kMaxMailbox; ++i) {
    const auto number = table.open(some_group(), i);
    EXPECT_TRUE(seen.insert(number).second) << number;
    table.begin_closing(number, 0, {});
    ASSERT_EQ(table.drained_candidates(), std::vector{number});
    table.release(number);
  }
  EXPECT_EQ(seen.size(), kMaxMailbox + 1);
  EXPECT_EQ(table.open(some_group(), 1), 0);  // all others were handed out since
}

TEST(MailboxTable, ClosingEndsWhenEveryExpectedPeerHasClosedOrFailed) {
  MailboxTable table;
  Peer one;
  Peer two;
  const auto number = table.open(some_group(), 77);
  table.begin_closing(number, 3, {{1, &one, 11, 101}, {2, &two, 22, 202}, {5, &two, 55, 505}});
  EXPECT_EQ(table.closing_count(), 1u);
  EXPECT_EQ(table.live_count(), 0u);
  EXPECT_TRUE(table.drained_candidates().empty());
  EXPECT_EQ(table.find(number)->own_rank, 3u);

  const auto expected = table.note_close(number, 1);
  ASSERT_TRUE(expected.has_value());
  EXPECT_EQ(expected->mailbox, 11);
  EXPECT_EQ(expected->nonce, 101u);
  EXPECT_EQ(expected->peer, &one);
  EXPECT_FALSE(table.note_close(number, 1).has_value());  // said twice
  EXPECT_FALSE(table.note_close(number, 9).has_value());  // never expected
  EXPECT_TRUE(table.drained_candidates().empty());

  table.note_failed(two);
  EXPECT_EQ(table.drained_candidates(), std::vector{number});
  table.release(number);
  EXPECT_EQ(table.closing_count(), 0u);
  EXPECT_EQ(table.find(number)->state, MailboxTable::Entry::State::free);
}

TEST(MailboxTable, FullTableSaysWhatHoldsIt) {
  MailboxTable table;
  Peer peer;
  for (std::size_t i = 0; i <= kMaxMailbox; ++i) {
    const auto number = table.open(some_group(), i);
    if (i % 2 == 0) table.begin_closing(number, 0, {{1, &peer, 0, 0}});
  }
  try {
    (void)table.open(some_group(), 1);
    FAIL() << "opened one too many";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("has 1024 in live groups and 1024 in closed groups"),
              std::string::npos)
        << error.what();
  }
}

TEST(MailboxTable, NumbersOutsideDoNotExist) {
  const MailboxTable table;
  EXPECT_EQ(table.find(kMaxMailbox + 1), nullptr);
  ASSERT_NE(table.find(kMaxMailbox), nullptr);
}

}  // namespace
}  // namespace torch_ucx::transport
