// The tag: both ends of every field, and nothing spills.
#include "torch_ucx/transport/tag.h"

#include <gtest/gtest.h>

namespace torch_ucx::transport {
namespace {

TEST(Tag, LayoutIsTheDocumentedOne) {
  EXPECT_EQ(make_tag(0, 0, 0, 0), 0u);
  EXPECT_EQ(make_tag(0, 0, 0, kMaxUserTag), 0x0000'0000'7fff'ffffULL);
  EXPECT_EQ(make_tag(0, 0, kMaxClass, 0), 0x0000'001f'8000'0000ULL);
  EXPECT_EQ(make_tag(0, kMaxRank, 0, 0), 0x001f'ffe0'0000'0000ULL);
  EXPECT_EQ(make_tag(kMaxMailbox, 0, 0, 0), 0xffe0'0000'0000'0000ULL);
  EXPECT_EQ(make_tag(kMaxMailbox, kMaxRank, kMaxClass, kMaxUserTag), ~0ULL);
}

TEST(Tag, RoundTripAtBothEndsOfEveryField) {
  for (const std::uint64_t mailbox : {std::uint64_t{0}, std::uint64_t{1}, kMaxMailbox}) {
    for (const std::uint64_t rank : {std::uint64_t{0}, std::uint64_t{1}, kMaxRank}) {
      for (const std::uint64_t message_class : {std::uint64_t{0}, std::uint64_t{1}, kMaxClass}) {
        for (const std::uint64_t user :
             {std::uint64_t{0}, std::uint64_t{1} << 16, std::uint64_t{1} << 24, kMaxUserTag}) {
          const Tag tag = make_tag(mailbox, rank, message_class, user);
          EXPECT_EQ(mailbox_of(tag), mailbox);
          EXPECT_EQ(rank_of(tag), rank);
          EXPECT_EQ(class_of(tag), message_class);
          EXPECT_EQ(user_tag_of(tag), user);
        }
      }
    }
  }
}

TEST(Tag, RefusesWhatDoesNotFit) {
  EXPECT_THROW((void)make_tag(kMaxMailbox + 1, 0, 0, 0), std::out_of_range);
  EXPECT_THROW((void)make_tag(0, kMaxRank + 1, 0, 0), std::out_of_range);
  EXPECT_THROW((void)make_tag(0, 0, kMaxClass + 1, 0), std::out_of_range);
  EXPECT_THROW((void)make_tag(0, 0, 0, kMaxUserTag + 1), std::out_of_range);
  EXPECT_THROW((void)make_tag(0, 0, 0, ~0ULL), std::out_of_range);
}

TEST(Tag, HasRoomForWhatIsPromised) {
  EXPECT_GE(kMaxRank + 1, 65'536u);
  EXPECT_GE(kMaxMailbox + 1, 1'000u);
  EXPECT_EQ(kMaxUserTag, (1ULL << 31) - 1);
  static_assert(make_tag(3, 2, 1, 7) == (3ULL << 53 | 2ULL << 37 | 1ULL << 31 | 7));
}

}  // namespace
}  // namespace torch_ucx::transport
