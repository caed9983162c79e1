// The transport's contract, messages: what is sent arrives, as it was, where it should, in order.
#include "tests/contract/engine_pair.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::contract {
namespace {

using PointToPoint = EnginePair;

TEST_F(PointToPoint, DeliversEverySizeSenderEarlyAndLate) {
  for (const std::size_t bytes : {0u, 1u, 8u, 960u, 1024u, 1088u, 8128u, 8192u, 8256u, 65472u,
                                  65536u, 65600u, 262080u, 262144u, 262208u, 1u << 20, 16u << 20}) {
    for (const bool sender_early : {true, false}) {
      const auto data = pattern(bytes, static_cast<unsigned>(bytes));
      Ref<BufferRequest> sent;
      Ref<BufferRequest> received;
      if (sender_early) {
        sent = ranks[0].send(data, 1);
        std::this_thread::sleep_for(2ms);
        received = ranks[1].receive(bytes, 0);
      } else {
        received = ranks[1].receive(bytes, 0);
        std::this_thread::sleep_for(2ms);
        sent = ranks[0].send(data, 1);
      }
      ranks[1].finish(received);
      ranks[0].finish(sent);
      EXPECT_EQ(received->data, data) << bytes;
      EXPECT_EQ(received->outcome().source_rank, 0);
      EXPECT_EQ(received->outcome().message_bytes, bytes);
    }
  }
}

TEST_F(PointToPoint, TagsMatchInAnyOrder) {
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{4} << 20}) {
    std::vector<Ref<BufferRequest>> sends;
    for (const unsigned tag : {1u, 2u, 3u})
      sends.push_back(ranks[0].send(pattern(bytes, tag), 1, tag));
    for (const unsigned tag : {3u, 1u, 2u}) {
      const auto received = ranks[1].receive(bytes, 0, tag);
      ranks[1].finish(received);
      EXPECT_EQ(received->data, pattern(bytes, tag));
      EXPECT_EQ(received->outcome().user_tag, tag);
    }
    for (const auto& sent : sends) ranks[0].finish(sent);
  }
}

TEST_F(PointToPoint, TagsAtTheEdgesAndGroupsAreDistinct) {
  std::vector<Rank> other;
  for (int rank = 0; rank < 2; ++rank) {
    other.emplace_back(engines[static_cast<std::size_t>(rank)], *store, rank, 2, "other");
  }
  const std::uint64_t tags[] = {0, 1u << 16, 1u << 24, transport::kMaxUserTag};
  unsigned seed = 0;
  for (const auto* pair : {&ranks, &other}) {
    for (const auto tag : tags) {
      (*pair)[0].send(pattern(16, ++seed), 1, tag);
    }
  }
  seed = 0;
  for (const auto* pair : {&ranks, &other}) {
    for (const auto tag : tags) {
      const auto received = (*pair)[1].receive(16, 0, tag);
      (*pair)[1].finish(received);
      EXPECT_EQ(received->data, pattern(16, ++seed)) << tag;
    }
  }
  std::thread closer([&] { other[0].close(); });
  other[1].close();
  closer.join();
}

TEST_F(PointToPoint, ClassesDoNotMatchEachOther) {
  ranks[0].send(pattern(8, 1), 1, 5, 6);
  ranks[0].send(pattern(8, 2), 1, 5, 7);
  const auto seven = ranks[1].receive(8, 0, 5, 7);
  const auto six = ranks[1].receive(8, 0, 5, 6);
  ranks[1].finish(seven);
  ranks[1].finish(six);
  EXPECT_EQ(seven->data, pattern(8, 2));
  EXPECT_EQ(six->data, pattern(8, 1));
  EXPECT_EQ(seven->outcome().message_class, 7);
}

TEST_F(PointToPoint, OrderOnOneTagIsKept) {
  constexpr unsigned kMessages = 5000;
  for (unsigned i = 0; i < kMessages; ++i) ranks[0].send(pattern(1 + i % 100, i), 1, 9);
  for (unsigned i = 0; i < kMessages; ++i) {
    const auto received = ranks[1].receive(1 + i % 100, 0, 9);
    ranks[1].finish(received);
    ASSERT_EQ(received->data, pattern(1 + i % 100, i)) << i;
  }
}

TEST_F(PointToPoint, MixedSizesKeepOrder) {
  const std::size_t sizes[] = {8, 1 << 20, 0, 9000, 64, 300000, 1};
  std::vector<Ref<BufferRequest>> sends;
  for (unsigned round = 0; round < 20; ++round) {
    for (const auto bytes : sizes) sends.push_back(ranks[0].send(pattern(bytes, round), 1, 3));
  }
  std::vector<Ref<BufferRequest>> receives;
  for (unsigned round = 0; round < 20; ++round) {
    for (const auto bytes : sizes) receives.push_back(ranks[1].receive(bytes, 0, 3));
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    ranks[1].finish(receives[i]);
    ASSERT_EQ(receives[i]->data, pattern(sizes[i % 7], static_cast<unsigned>(i / 7))) << i;
  }
  for (const auto& sent : sends) ranks[0].finish(sent);
}

TEST_F(PointToPoint, SelfMessages) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{4} << 20}) {
    const auto received = ranks[0].receive(bytes, 0, 1);
    const auto sent = ranks[0].send(pattern(bytes, 3), 0, 1);
    ranks[0].finish(received);
    ranks[0].finish(sent);
    EXPECT_EQ(received->data, pattern(bytes, 3));
    EXPECT_EQ(received->outcome().source_rank, 0);
  }
}

TEST_F(PointToPoint, SizeMismatchIsAnErrorWithBothSizesAndTheNextMessageIsIntact) {
  const std::pair<std::size_t, std::size_t> cases[] = {
      {12, 8}, {12, 20}, {16 << 20, 8 << 20}, {16 << 20, 0}, {0, 8}, {8 << 20, 16 << 20}};
  for (const auto& [sent_bytes, room] : cases) {
    for (const bool early : {true, false}) {
      Ref<BufferRequest> sent;
      Ref<BufferRequest> received;
      if (early) {
        sent = ranks[0].send(pattern(sent_bytes, 1), 1, 4);
        std::this_thread::sleep_for(5ms);
        received = ranks[1].receive(room, 0, 4);
      } else {
        received = ranks[1].receive(room, 0, 4);
        std::this_thread::sleep_for(5ms);
        sent = ranks[0].send(pattern(sent_bytes, 1), 1, 4);
      }
      ranks[1].wait(received);
      EXPECT_EQ(received->outcome().failure,
                sent_bytes > room ? Failure::truncated : Failure::too_short)
          << received->describe();
      EXPECT_EQ(received->outcome().message_bytes, sent_bytes);
      const auto text = received->describe();
      EXPECT_NE(text.find(std::to_string(sent_bytes) + " bytes"), std::string::npos) << text;
      EXPECT_NE(text.find(std::to_string(room) + " bytes"), std::string::npos) << text;
      ranks[0].finish(sent);
      ranks[0].send(pattern(32, 2), 1, 4);
      const auto next = ranks[1].receive(32, 0, 4);
      ranks[1].finish(next);
      EXPECT_EQ(next->data, pattern(32, 2));
    }
  }
}

TEST_F(PointToPoint, BadArgumentsAreRefusedBeforeAnythingIsPosted) {
  auto request = Ref<BufferRequest>::make(std::size_t{8});
  const auto post = [&](int dst, transport::MessageClass message_class, std::uint64_t tag) {
    ranks[0].group->send(request, request->data.data(), 8, dst, message_class, tag);
  };
  const auto text = [&](int dst, transport::MessageClass message_class, std::uint64_t tag) {
    try {
      post(dst, message_class, tag);
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(text(2, 1, 0),
            "ucx send on rank 0 of group \"test\": destination rank 2 is outside the group; "
            "allowed is 0 to 1");
  EXPECT_EQ(text(-1, 1, 0),
            "ucx send on rank 0 of group \"test\": destination rank -1 is outside the group; "
            "allowed is 0 to 1");
  EXPECT_EQ(text(1, 1, transport::kMaxUserTag + 1), "tag 2147483648 is outside 0 to 2147483647");
  EXPECT_EQ(text(1, transport::kClassControl, 0), "message class 63 is not for messages");
  EXPECT_FALSE(request->done());
}

TEST_F(PointToPoint, ManyThreadsPostAndWait) {
  constexpr unsigned kThreads = 4;
  constexpr unsigned kRounds = 300;
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < kRounds; ++i) {
        const std::size_t bytes = i % 50 == 0 ? 200'000 : 64;
        const auto received = ranks[1].receive(bytes, 0, t);
        const auto sent = ranks[0].send(pattern(bytes, i * kThreads + t), 1, t);
        ranks[1].finish(received);
        ranks[0].finish(sent);
        ASSERT_EQ(received->data, pattern(bytes, i * kThreads + t));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_F(PointToPoint, BothDirectionsAtOnce) {
  for (unsigned round = 0; round < 30; ++round) {
    const std::size_t bytes = 2 << 20;
    const auto from1 = ranks[0].receive(bytes, 1);
    const auto from0 = ranks[1].receive(bytes, 0);
    const auto to1 = ranks[0].send(pattern(bytes, round), 1);
    const auto to0 = ranks[1].send(pattern(bytes, round + 1), 0);
    ranks[0].finish(to1);
    ranks[0].finish(from1);
    ranks[1].finish(to0);
    ranks[1].finish(from0);
    ASSERT_EQ(from1->data, pattern(bytes, round + 1));
    ASSERT_EQ(from0->data, pattern(bytes, round));
  }
}

TEST_F(PointToPoint, FourRanksInARing) {
  make(4);
  std::vector<Ref<BufferRequest>> receives;
  std::vector<Ref<BufferRequest>> sends;
  for (int rank = 0; rank < 4; ++rank) {
    const auto& self = ranks[static_cast<std::size_t>(rank)];
    sends.push_back(self.send(pattern(1000, static_cast<unsigned>(rank)), (rank + 1) % 4));
    receives.push_back(self.receive(1000, (rank + 3) % 4));
  }
  for (int rank = 0; rank < 4; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    ranks[index].finish(receives[index]);
    ranks[index].finish(sends[index]);
    EXPECT_EQ(receives[index]->data, pattern(1000, static_cast<unsigned>((rank + 3) % 4)));
    EXPECT_EQ(receives[index]->outcome().source_rank, (rank + 3) % 4);
  }
}

}  // namespace
}  // namespace torch_ucx::contract
