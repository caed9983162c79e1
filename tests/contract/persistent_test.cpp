// Persistent operations: prepared once, started many times.
#include <cstring>
#include <functional>

#include "tests/contract/engine_pair.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::contract {
namespace {

class Persistent : public EnginePair {
 public:
  Ref<BufferRequest> send_init(std::size_t bytes, std::uint64_t tag = 3) {
    auto request = Ref<BufferRequest>::make(bytes);
    ranks[0].group->init_send(request, request->data.data(), bytes, 1, 1, tag);
    return request;
  }
  Ref<BufferRequest> receive_init(std::size_t bytes, std::uint64_t tag = 3, int source = 0) {
    auto request = Ref<BufferRequest>::make(bytes);
    ranks[1].group->init_receive(request, request->data.data(), bytes, source, 1, tag);
    return request;
  }
  static void fill(const Ref<BufferRequest>& request, unsigned seed) {
    const auto data = pattern(request->data.size(), seed);
    if (!data.empty()) std::memcpy(request->data.data(), data.data(), data.size());
  }
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(Persistent, EachStartMovesWhatTheBufferHoldsThen) {
  for (const std::size_t bytes : {0, 8, 5000, 1 << 20}) {
    const auto sent = send_init(bytes);
    const auto received = receive_init(bytes);
    ranks[0].finish(sent);  // done before the first start
    ranks[1].finish(received);
    const unsigned rounds = bytes < 10'000 ? 1000 : 20;
    for (unsigned round = 0; round < rounds; ++round) {
      fill(sent, round);
      // Either side first.
      if (round % 2 == 0) ranks[1].group->start(received);
      ranks[0].group->start(sent);
      if (round % 2 == 1) ranks[1].group->start(received);
      ranks[1].finish(received);
      ranks[0].finish(sent);
      ASSERT_EQ(received->data, pattern(bytes, round));
      ASSERT_EQ(received->outcome().source_rank, 0);
      ASSERT_EQ(received->outcome().message_bytes, bytes);
    }
  }
}

TEST_F(Persistent, MatchOrdinaryMessagesInOrder) {
  const auto sent = send_init(16);
  const auto received = receive_init(16, 4);
  for (unsigned round = 0; round < 50; ++round) {
    fill(sent, round);
    ranks[0].group->start(sent);
    const auto ordinary = ranks[1].receive(16, 0, 3);
    ranks[1].finish(ordinary);
    ASSERT_EQ(ordinary->data, pattern(16, round));
    ranks[0].finish(sent);

    ranks[1].group->start(received);
    ranks[0].finish(ranks[0].send(pattern(16, round + 100), 1, 4));
    ranks[1].finish(received);
    ASSERT_EQ(received->data, pattern(16, round + 100));
  }
}

TEST_F(Persistent, AnySourceAndAnyTagTellWhatCame) {
  const auto received = receive_init(8, transport::kAnyTag, transport::kAnySource);
  for (unsigned tag : {7u, 9u}) {
    ranks[1].group->start(received);
    ranks[0].finish(ranks[0].send(pattern(8, tag), 1, tag));
    ranks[1].finish(received);
    EXPECT_EQ(received->data, pattern(8, tag));
    EXPECT_EQ(received->outcome().user_tag, tag);
    EXPECT_EQ(received->outcome().source_rank, 0);
  }
}

TEST_F(Persistent, ManyInOneCallInOrder) {
  std::vector<Ref<Request>> sends;
  std::vector<Ref<Request>> receives;
  std::vector<Ref<BufferRequest>> to;
  for (unsigned i = 0; i < 64; ++i) {
    const auto sent = send_init(32);
    fill(sent, i);
    sends.emplace_back(sent);
    to.push_back(receive_init(32));
    receives.emplace_back(to.back());
  }
  for (int round = 0; round < 20; ++round) {
    ranks[1].group->start_all(receives);
    ranks[0].group->start_all(sends);
    for (unsigned i = 0; i < 64; ++i) {
      ranks[1].finish(to[i]);
      ASSERT_EQ(to[i]->data, pattern(32, i));
      std::fill(to[i]->data.begin(), to[i]->data.end(), std::byte{0});
    }
    for (const auto& sent : sends) ranks[0].group->wait(*sent);
  }
}

TEST_F(Persistent, StartWhileUnderWayIsRefused) {
  const auto received = receive_init(8);
  ranks[1].group->start(received);
  const std::string text = refusal([&] { ranks[1].group->start(received); });
  EXPECT_EQ(text,
            "ucx persistent receive on rank 1 of group \"test\", 8 bytes: it is still under way: "
            "wait for it before it is started again");
  // One of a list that cannot be started: none is.
  const auto other = receive_init(8, 5);
  const std::vector<Ref<Request>> both{other, received};
  EXPECT_NE(refusal([&] { ranks[1].group->start_all(both); }).find("under way"), std::string::npos);
  EXPECT_TRUE(other->done());
  // The same one twice: once is all.
  const std::vector<Ref<Request>> twice{other, other};
  EXPECT_NE(refusal([&] { ranks[1].group->start_all(twice); }).find("under way"),
            std::string::npos);
  EXPECT_FALSE(other->done());
  ranks[0].finish(ranks[0].send(pattern(8, 1), 1, 5));
  ranks[1].finish(other);
  ranks[0].finish(ranks[0].send(pattern(8, 2), 1, 3));
  ranks[1].finish(received);
  EXPECT_EQ(received->data, pattern(8, 2));
}

TEST_F(Persistent, ReceiveThatTimedOutStartsAgain) {
  const auto received = receive_init(8);
  for (int round = 0; round < 3; ++round) {
    ranks[1].group->start(received);
    ranks[1].wait(received, 50ms);
    EXPECT_EQ(received->outcome().failure, Failure::timed_out);
  }
  ranks[1].group->start(received);
  ranks[0].finish(ranks[0].send(pattern(8, 6), 1, 3));
  ranks[1].finish(received);
  EXPECT_EQ(received->data, pattern(8, 6));
}

TEST_F(Persistent, SendWhoseBufferUcxStillHasIsRefusedUntilItIsBack) {
  constexpr std::size_t kBig = 4 << 20;
  ranks[0].finish(ranks[0].send(pattern(8, 1), 1, 9));  // contact
  const auto sent = send_init(kBig);
  fill(sent, 1);
  ranks[0].group->start(sent);
  ranks[0].wait(sent, 100ms);
  ASSERT_EQ(sent->outcome().failure, Failure::timed_out);
  ASSERT_TRUE(sent->outcome().buffer_in_use);
  EXPECT_EQ(refusal([&] { ranks[0].group->start(sent); }),
            "ucx persistent send on rank 0 of group \"test\", 4194304 bytes: its last start "
            "failed, and UCX still has the buffer: make a new operation");
  // Taken after all, it is UCX's no more.
  const auto late = ranks[1].receive(kBig, 0, 3);
  ranks[1].finish(late);
  for (int i = 0; i < 5000 && engines[0]->snapshot().quarantined > 0; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  fill(sent, 2);
  ranks[0].group->start(sent);
  const auto received = ranks[1].receive(kBig, 0, 3);
  ranks[1].finish(received);
  ranks[0].finish(sent);
  EXPECT_EQ(received->data, pattern(kBig, 2));
}

TEST_F(Persistent, PeerThatLeftFailsEachStartAndBadArgumentsNone) {
  const auto sent = send_init(8);
  const auto received = ranks[1].receive(8, 0, 3);
  ranks[0].group->start(sent);
  ranks[1].finish(received);
  ranks[0].finish(sent);
  ranks[1].close();
  for (int i = 0; i < 2; ++i) {
    ranks[0].group->start(sent);
    ranks[0].wait(sent, 10s);
    EXPECT_EQ(sent->outcome().failure, Failure::peer_left) << sent->describe();
  }
  const auto request = Ref<BufferRequest>::make(std::size_t{8});
  EXPECT_EQ(refusal([&] { ranks[0].group->init_send(request, request->data.data(), 8, 2, 1, 0); }),
            "ucx send on rank 0 of group \"test\": destination rank 2 is outside the group; "
            "allowed is 0 to 1");
}

// Counts those that live, and those that were told of their end.
struct Watched final : Request {
  explicit Watched(std::size_t bytes) : data(bytes) { ++alive; }
  ~Watched() override { --alive; }
  void on_done() noexcept override { ++told; }
  std::vector<std::byte> data;
  inline static std::atomic<int> alive{0};
  inline static std::atomic<int> told{0};
};

TEST_F(Persistent, TheLastHandleMayGoAtAnyTime) {
  constexpr int kRounds = 600;
  Watched::alive = Watched::told = 0;
  int asked = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::size_t bytes = round % 20 == 0 ? 1 << 20 : 8;
    auto received = Ref<Watched>::make(bytes);
    auto sent = Ref<Watched>::make(bytes);
    ranks[1].group->init_receive(received, received->data.data(), bytes, 0, 1, 5);
    ranks[0].group->init_send(sent, sent->data.data(), bytes, 1, 1, 5);
    ranks[1].group->start(received);
    if (round % 3 == 0 && ranks[1].group->notify(*received)) ++asked;
    // Another thread has a handle too, and lets go of it at the same time, or while it waits.
    std::thread other([received, group = ranks[1].group, waits = round % 2 == 0] {
      if (waits) group->wait(*received);
    });
    ranks[0].group->start(sent);
    sent = {};
    received = {};
    other.join();
  }
  for (int i = 0; i < 10'000 && (Watched::alive != 0 || Watched::told != asked); ++i) {
    ranks[0].group->poll();  // reaped by the next who posts, or by a helper
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(Watched::alive, 0);
  EXPECT_EQ(Watched::told, asked);
}

TEST_F(Persistent, ThreadsOfTheirOwnTags) {
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto sent = send_init(64, 100 + t);
      const auto received = receive_init(64, 100 + t);
      for (unsigned round = 0; round < 300; ++round) {
        fill(sent, round * 4 + t);
        ranks[1].group->start(received);
        ranks[0].group->start(sent);
        if (round % 3 == 0) {
          while (!received->done()) {
            ranks[1].group->poll();
            std::this_thread::yield();
          }
        }
        ranks[1].finish(received);
        ranks[0].finish(sent);
        ASSERT_EQ(received->data, pattern(64, round * 4 + t));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace torch_ucx::contract
