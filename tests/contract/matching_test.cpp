// The transport's contract, matching beyond the exact one: messages of another class, any source,
// any tag, probes and taken messages.
#include <algorithm>
#include <set>

#include "tests/contract/engine_pair.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::contract {
namespace {

using transport::kAnySource;
using transport::kAnyTag;
using transport::MessageClass;

// Classes of these tests: unsigned integers of 1, 2, 4 and 8 bytes.
constexpr MessageClass kU8 = 1, kU16 = 2, kU32 = 3, kU64 = 4;
std::size_t width(MessageClass message_class) { return std::size_t{1} << (message_class - 1); }

std::vector<std::byte> numbers(MessageClass message_class, std::size_t count, unsigned first = 1) {
  std::vector<std::byte> data(count * width(message_class));
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t value = (first + i) % 200;
    std::memcpy(data.data() + i * width(message_class), &value, width(message_class));
  }
  return data;
}

struct TypedRequest final : Request {
  TypedRequest(MessageClass message_class, std::size_t count)
      : data(count * width(message_class), std::byte{0xee}), own(message_class) {}
  Acceptance accept(MessageClass other, std::uint64_t bytes) const noexcept override {
    if (bytes == data.size()) return Acceptance::as_it_is;
    return bytes / width(other) == data.size() / width(own) ? Acceptance::convert
                                                            : Acceptance::refuse;
  }
  bool deliver(MessageClass other, std::span<const std::byte> message) noexcept override {
    for (std::size_t i = 0; i < data.size() / width(own); ++i) {
      std::uint64_t value = 0;
      std::memcpy(&value, message.data() + i * width(other), width(other));
      std::memcpy(data.data() + i * width(own), &value, width(own));
    }
    return true;
  }
  std::string class_name(MessageClass c) const override {
    return "u" + std::to_string(8 * width(c));
  }
  std::vector<std::byte> data;
  MessageClass own;
};

class Matching : public EnginePair {
 public:
  void SetUp() override { make_typed(2); }
  void make_typed(int size) {
    ranks.clear();
    engines.clear();
    store = std::make_unique<rendezvous::MemoryStore>();
    for (int rank = 0; rank < size; ++rank) {
      engines.push_back(Engine::create(EngineOptions::from_environment()));
      ranks.emplace_back();
      ranks.back().group = engines.back()->create_group(GroupOptions{rank, size, "test", 20s, 46});
      ranks.back().membership =
          rendezvous::Membership::join(ranks.back().group, store->clone(), "test/");
    }
  }
  Ref<BufferRequest> send(int from, int to, MessageClass message_class, std::vector<std::byte> data,
                          std::uint64_t tag = 0) {
    return ranks[static_cast<std::size_t>(from)].send(std::move(data), to, tag, message_class);
  }
  Ref<TypedRequest> receive(int at, int from, MessageClass message_class, std::size_t count,
                            std::uint64_t tag = 0) {
    auto request = Ref<TypedRequest>::make(message_class, count);
    ranks[static_cast<std::size_t>(at)].group->receive(
        request, request->data.data(), request->data.size(), from, message_class, tag);
    return request;
  }
  void finish(int at, const Ref<TypedRequest>& request) {
    ranks[static_cast<std::size_t>(at)].group->wait(*request);
    ASSERT_TRUE(request->outcome().ok()) << request->describe();
  }
  // What rank 0 has sent to rank 1 is there: messages come in the order of their sending.
  void all_have_come() {
    send(0, 1, kU8, numbers(kU8, 1), 999);
    finish(1, receive(1, 0, kU8, 1, 999));
  }
  // Runs body with the message sent before the receive is posted, and after.
  template <typename Post, typename Send>
  void both_orders(const Send& send_it, const Post& post_and_check) {
    for (const bool early : {true, false}) {
      if (early) {
        const auto sent = send_it();
        std::this_thread::sleep_for(3ms);
        post_and_check([] {});
        ranks[0].finish(sent);
      } else {
        Ref<BufferRequest> sent;
        post_and_check([&] {
          std::this_thread::sleep_for(3ms);
          sent = send_it();
        });
        ranks[0].finish(sent);
      }
    }
  }
};

TEST_F(Matching, EqualCountsOfAnotherClassAreConverted) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{5}, std::size_t{1} << 20}) {
    both_orders([&] { return send(0, 1, kU64, numbers(kU64, count), 3); },
                [&](const auto& now) {
                  const auto received = receive(1, 0, kU32, count, 3);
                  now();
                  finish(1, received);
                  EXPECT_EQ(received->data, numbers(kU32, count));
                  EXPECT_TRUE(received->outcome().converted);
                  EXPECT_EQ(received->outcome().message_class, kU64);
                  EXPECT_EQ(received->outcome().message_bytes, 8 * count);
                  EXPECT_EQ(received->outcome().source_rank, 0);
                });
  }
}

TEST_F(Matching, EqualBytesOfAnotherClassAreTakenAsTheyAre) {
  for (const std::size_t count : {std::size_t{5}, std::size_t{1} << 20}) {
    both_orders([&] { return send(0, 1, kU8, numbers(kU8, 4 * count)); },
                [&](const auto& now) {
                  const auto received = receive(1, 0, kU32, count);
                  now();
                  finish(1, received);
                  EXPECT_EQ(received->data, numbers(kU8, 4 * count));
                  EXPECT_FALSE(received->outcome().converted);
                });
  }
}

TEST_F(Matching, NeitherIsAnErrorWithBothClassesAndSizesAndTheNextMessageIsIntact) {
  for (const std::size_t count : {std::size_t{5}, std::size_t{1} << 20}) {
    both_orders([&] { return send(0, 1, kU64, numbers(kU64, count)); },
                [&](const auto& now) {
                  const auto received = receive(1, 0, kU32, count + 2);
                  now();
                  ranks[1].group->wait(*received);
                  EXPECT_EQ(received->outcome().failure, Failure::wrong_class);
                  const auto text = received->describe();
                  EXPECT_NE(text.find("the message is u64 of " + std::to_string(8 * count) +
                                      " bytes, the receive buffer is u32 of " +
                                      std::to_string(4 * (count + 2)) + " bytes"),
                            std::string::npos)
                      << text;
                  EXPECT_EQ(received->data,
                            std::vector<std::byte>(4 * (count + 2), std::byte{0xee}));
                  send(0, 1, kU32, numbers(kU32, 7));
                  const auto next = receive(1, 0, kU32, 7);
                  finish(1, next);
                  EXPECT_EQ(next->data, numbers(kU32, 7));
                });
  }
}

TEST_F(Matching, OwnClassComesFirstEvenIfYounger) {
  send(0, 1, kU64, numbers(kU64, 5, 10), 1);
  send(0, 1, kU32, numbers(kU32, 5, 20), 1);
  all_have_come();
  const auto own = receive(1, 0, kU32, 5, 1);
  finish(1, own);
  EXPECT_EQ(own->data, numbers(kU32, 5, 20));
  const auto other = receive(1, 0, kU32, 5, 1);
  finish(1, other);
  EXPECT_EQ(other->data, numbers(kU32, 5, 10));
}

TEST_F(Matching, AmongOtherClassesTheOldestComesFirst) {
  send(0, 1, kU64, numbers(kU64, 5, 10), 1);
  send(0, 1, kU8, numbers(kU8, 20, 20), 1);
  send(0, 1, kU16, numbers(kU16, 5, 30), 1);
  all_have_come();
  const std::vector<std::byte> expected[] = {numbers(kU32, 5, 10), numbers(kU8, 20, 20),
                                             numbers(kU32, 5, 30)};
  for (const auto& data : expected) {
    const auto received = receive(1, 0, kU32, 5, 1);
    finish(1, received);
    EXPECT_EQ(received->data, data);
  }
}

TEST_F(Matching, CompletesWithNobodyWaiting) {
  const auto received = receive(1, 0, kU32, 5);
  send(0, 1, kU64, numbers(kU64, 5));
  for (int i = 0; i < 5000 && !received->done(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(received->done());
  EXPECT_EQ(received->data, numbers(kU32, 5));
}

TEST_F(Matching, MatchedByItsOwnClassBetweenLookAndWithdrawal) {
  // A big message of the right class is on its way into the receive while one of another class
  // waits on the same tag: the receive must keep its own.
  for (unsigned round = 0; round < 20; ++round) {
    const std::size_t count = std::size_t{2} << 20;
    const auto received = receive(1, 0, kU32, count, 5);
    send(0, 1, kU64, numbers(kU64, 3, 50), 5);
    const auto sent = send(0, 1, kU32, numbers(kU32, count, round), 5);
    ranks[1].group->wait(*received);
    if (received->outcome().failure == Failure::wrong_class) {
      // The other class was seen first, while nothing of its own had come: allowed; its own is
      // next.
      const auto own = receive(1, 0, kU32, count, 5);
      finish(1, own);
      ASSERT_EQ(own->data, numbers(kU32, count, round));
    } else {
      ASSERT_TRUE(received->outcome().ok()) << received->describe();
      ASSERT_EQ(received->data, numbers(kU32, count, round));
      const auto other = receive(1, 0, kU64, 3, 5);
      finish(1, other);
      ASSERT_EQ(other->data, numbers(kU64, 3, 50));
    }
    ranks[0].finish(sent);
  }
}

TEST_F(Matching, TwoThreadsWaitForMessagesOfOtherClasses) {
  for (unsigned round = 0; round < 30; ++round) {
    const auto one = receive(1, 0, kU32, 5, 1);
    const auto two = receive(1, 0, kU16, 6, 2);
    std::thread waiter([&] { ranks[1].group->wait(*one); });
    std::thread other([&] { ranks[1].group->wait(*two); });
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    send(0, 1, kU64, numbers(kU64, 5, round), 1);
    send(0, 1, kU64, numbers(kU64, 6, round), 2);
    waiter.join();
    other.join();
    ASSERT_EQ(one->data, numbers(kU32, 5, round));
    ASSERT_EQ(two->data, numbers(kU16, 6, round));
  }
}

TEST_F(Matching, AmongTenThousandOtherMessages) {
  for (unsigned i = 0; i < 10'000; ++i) send(0, 1, kU8, numbers(kU8, 8), 1000 + i % 7);
  send(0, 1, kU64, numbers(kU64, 5), 1);
  const auto received = receive(1, 0, kU32, 5, 1);
  finish(1, received);
  EXPECT_EQ(received->data, numbers(kU32, 5));
  const auto any = receive(1, kAnySource, kU32, 2, 1003);
  finish(1, any);
  EXPECT_EQ(any->data, numbers(kU8, 8));
  const auto found = ranks[1].group->probe(kAnySource, 1004);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->bytes, 8u);
}

TEST_F(Matching, OrderAmongPostedReceivesIsKept) {
  std::vector<Ref<TypedRequest>> receives;
  for (unsigned i = 0; i < 300; ++i) receives.push_back(receive(1, 0, kU32, 5, 1));
  for (unsigned i = 0; i < 300; ++i) send(0, 1, kU64, numbers(kU64, 5, i % 100), 1);
  for (unsigned i = 0; i < 300; ++i) {
    finish(1, receives[i]);
    ASSERT_EQ(receives[i]->data, numbers(kU32, 5, i % 100)) << i;
  }
}

TEST_F(Matching, LookedAfterWhileAnotherPairOfOperationsNeverRests) {
  // One thread that ping-pongs without a pause must not keep other operations from their ends.
  const auto other_class = receive(1, 0, kU32, 5, 50);
  ranks[1].group->set_timeout(500ms);
  const auto expires = receive(1, 0, kU32, 5, 51);
  ranks[1].group->set_timeout(20s);
  send(0, 1, kU64, numbers(kU64, 5), 50);
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (!(other_class->done() && expires->done()) && std::chrono::steady_clock::now() < end) {
    const auto received = receive(1, 0, kU32, 1, 1);
    const auto sent = send(0, 1, kU32, numbers(kU32, 1), 1);
    finish(1, received);
    ranks[0].finish(sent);
  }
  ASSERT_TRUE(other_class->done());
  EXPECT_EQ(other_class->data, numbers(kU32, 5));
  ASSERT_TRUE(expires->done());
  EXPECT_EQ(expires->outcome().failure, Failure::timed_out);
}

TEST_F(Matching, CallbackMayWaitForAMessageThatIsConverted) {
  struct Nested final : Request {
    explicit Nested(Matching& test_) : test(test_), data(8) {}
    void on_done() noexcept override {
      const auto inner = test.receive(1, 0, kU32, 5, 2);
      test.send(0, 1, kU64, numbers(kU64, 5), 2);
      test.ranks[1].group->wait(*inner);
      right.store(inner->outcome().ok() && inner->data == numbers(kU32, 5));
      told.store(true);
    }
    Matching& test;
    std::vector<std::byte> data;
    std::atomic<bool> told{false};
    std::atomic<bool> right{false};
  };
  auto outer = Ref<Nested>::make(*this);
  ranks[1].group->receive(outer, outer->data.data(), 8, 0, kU8, 1);
  ASSERT_TRUE(ranks[1].group->notify(*outer));
  send(0, 1, kU8, numbers(kU8, 8), 1);
  for (int i = 0; i < 10'000 && !outer->told; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(outer->right);
}

TEST_F(Matching, ProbesEndWhenNothingCanCome) {
  ranks[0].finish(send(0, 1, kU32, numbers(kU32, 5), 1));
  auto taken = ranks[1].group->wait_take(0, 1);
  ASSERT_TRUE(taken);
  std::thread prober([&] {
    EXPECT_THROW((void)ranks[1].group->wait_probe(0, 2), Error);  // rank 0 leaves meanwhile
  });
  std::this_thread::sleep_for(20ms);
  ranks[0].close();
  prober.join();
  const auto group = ranks[1].group;
  ranks[1].close();
  EXPECT_THROW((void)group->probe(0, 1), Error);
  EXPECT_THROW((void)group->wait_take(transport::kAnySource, 1), Error);
  auto request = Ref<TypedRequest>::make(kU32, std::size_t{5});
  group->receive(request, request->data.data(), 20, kU32, std::move(taken));
  ASSERT_TRUE(request->done());
  EXPECT_EQ(request->outcome().failure, Failure::group_closed);
}

TEST_F(Matching, PostedReceivesByTheHundred) {
  std::vector<Ref<TypedRequest>> receives;
  for (unsigned i = 0; i < 400; ++i) receives.push_back(receive(1, 0, kU32, 5, i));
  for (unsigned i = 400; i-- > 0;) send(0, 1, kU64, numbers(kU64, 5, i % 100), i);
  for (unsigned i = 0; i < 400; ++i) {
    finish(1, receives[i]);
    ASSERT_EQ(receives[i]->data, numbers(kU32, 5, i % 100)) << i;
  }
}

TEST_F(Matching, AnySourceTellsTheSenderEarlyAndLate) {
  make_typed(4);
  for (const bool early : {true, false}) {
    for (const std::size_t count : {std::size_t{5}, std::size_t{1} << 20}) {
      std::vector<Ref<TypedRequest>> receives;
      std::vector<Ref<BufferRequest>> sends;
      const auto send_all = [&] {
        for (int rank = 1; rank < 4; ++rank) {
          sends.push_back(
              send(rank, 0, kU32, numbers(kU32, count, static_cast<unsigned>(rank)), 7));
        }
      };
      if (early) {
        send_all();
        std::this_thread::sleep_for(20ms);
      }
      for (int i = 0; i < 3; ++i) receives.push_back(receive(0, kAnySource, kU32, count, 7));
      if (!early) send_all();
      std::set<int> sources;
      for (const auto& received : receives) {
        finish(0, received);
        const int source = received->outcome().source_rank;
        sources.insert(source);
        EXPECT_EQ(received->data, numbers(kU32, count, static_cast<unsigned>(source)));
      }
      EXPECT_EQ(sources, (std::set{1, 2, 3}));
      for (std::size_t i = 0; i < 3; ++i) ranks[i + 1].finish(sends[i]);
    }
  }
}

TEST_F(Matching, AnySourceIsFairAndKeepsEachSendersOrder) {
  make_typed(4);
  constexpr unsigned kEach = 100;
  std::vector<std::thread> senders;
  for (int rank = 1; rank < 4; ++rank) {
    senders.emplace_back([&, rank] {
      for (unsigned i = 0; i < kEach; ++i) {
        ranks[static_cast<std::size_t>(rank)].finish(send(rank, 0, kU32, numbers(kU32, 2, i), 1));
      }
    });
  }
  std::vector<unsigned> next(4, 0);
  for (unsigned i = 0; i < 3 * kEach; ++i) {
    const auto received = receive(0, kAnySource, kU32, 2, 1);
    finish(0, received);
    auto& expected = next[static_cast<std::size_t>(received->outcome().source_rank)];
    ASSERT_EQ(received->data, numbers(kU32, 2, expected++));
  }
  for (auto& sender : senders) sender.join();
}

TEST_F(Matching, AnySourceTakesAnotherClassToo) {
  make_typed(3);
  for (const bool early : {true, false}) {
    Ref<TypedRequest> received;
    if (!early) received = receive(0, kAnySource, kU32, 5, 2);
    send(2, 0, kU64, numbers(kU64, 5, 9), 2);
    std::this_thread::sleep_for(5ms);
    if (early) received = receive(0, kAnySource, kU32, 5, 2);
    finish(0, received);
    EXPECT_EQ(received->data, numbers(kU32, 5, 9));
    EXPECT_EQ(received->outcome().source_rank, 2);
    EXPECT_TRUE(received->outcome().converted);
  }
}

TEST_F(Matching, AnyTagTellsTheTag) {
  for (const bool early : {true, false}) {
    Ref<TypedRequest> received;
    if (!early) received = receive(1, 0, kU32, 5, kAnyTag);
    send(0, 1, kU32, numbers(kU32, 5, 4), transport::kMaxUserTag);
    std::this_thread::sleep_for(5ms);
    if (early) received = receive(1, kAnySource, kU32, 5, kAnyTag);
    finish(1, received);
    EXPECT_EQ(received->data, numbers(kU32, 5, 4));
    EXPECT_EQ(received->outcome().user_tag, transport::kMaxUserTag);
    EXPECT_EQ(received->outcome().source_rank, 0);
  }
}

TEST_F(Matching, AnySourceSizeMismatchAndTimeOut) {
  for (const bool early : {true, false}) {
    Ref<TypedRequest> received;
    if (!early) received = receive(1, kAnySource, kU32, 5);
    send(0, 1, kU32, numbers(kU32, 7));
    std::this_thread::sleep_for(5ms);
    if (early) received = receive(1, kAnySource, kU32, 5);
    ranks[1].group->wait(*received);
    EXPECT_EQ(received->outcome().failure, Failure::truncated) << received->describe();
    EXPECT_EQ(received->outcome().message_bytes, 28u);
  }
  const auto nothing = receive(1, kAnySource, kU32, 5);
  ranks[1].group->wait(*nothing, 100ms);
  EXPECT_EQ(nothing->outcome().failure, Failure::timed_out);
  EXPECT_NE(nothing->describe().find("from any rank, tag 0, 20 bytes: Timed out"),
            std::string::npos)
      << nothing->describe();
}

TEST_F(Matching, AnySourceFailsWhenEveryOtherRankHasLeft) {
  make_typed(3);
  for (const int rank : {1, 2}) {
    const auto hello = receive(0, rank, kU32, 5);
    send(rank, 0, kU32, numbers(kU32, 5));
    finish(0, hello);
  }
  const auto received = receive(0, kAnySource, kU32, 5);
  const auto last = receive(0, kAnySource, kU32, 5, 8);
  send(2, 0, kU32, numbers(kU32, 5, 3), 8);
  std::thread one([&] { ranks[1].close(); });
  ranks[2].close();
  one.join();
  ranks[0].group->wait(*received);
  EXPECT_EQ(received->outcome().failure, Failure::peer_left) << received->describe();
  finish(0, last);
  EXPECT_EQ(last->data, numbers(kU32, 5, 3));
}

TEST_F(Matching, ProbeTellsWhatWaitsAndLeavesIt) {
  EXPECT_FALSE(ranks[1].group->probe(0, 4).has_value());
  EXPECT_FALSE(ranks[1].group->wait_probe(0, 4, 50ms).has_value());
  send(0, 1, kU16, numbers(kU16, 9), 4);
  for (const int src : {0, kAnySource}) {
    for (const std::uint64_t tag : {std::uint64_t{4}, kAnyTag}) {
      const auto found = ranks[1].group->wait_probe(src, tag);
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->source, 0);
      EXPECT_EQ(found->user_tag, 4u);
      EXPECT_EQ(found->message_class, kU16);
      EXPECT_EQ(found->bytes, 18u);
    }
  }
  EXPECT_FALSE(ranks[1].group->probe(0, 5).has_value());
  const auto received = receive(1, 0, kU16, 9, 4);
  finish(1, received);
  EXPECT_EQ(received->data, numbers(kU16, 9));
  EXPECT_FALSE(ranks[1].group->probe(0, 4).has_value());
}

TEST_F(Matching, TakenMessageGoesToItsReceiverOnly) {
  for (const std::size_t count : {std::size_t{6}, std::size_t{1} << 20}) {
    const auto first_sent = send(0, 1, kU32, numbers(kU32, count, 1), 4);
    const auto second_sent = send(0, 1, kU32, numbers(kU32, count, 2), 4);
    auto message = ranks[1].group->wait_take(kAnySource, kAnyTag);
    ASSERT_TRUE(message);
    EXPECT_EQ(message.info().bytes, 4 * count);
    const auto ordinary = receive(1, 0, kU32, count, 4);
    finish(1, ordinary);
    EXPECT_EQ(ordinary->data, numbers(kU32, count, 2));
    auto request = Ref<TypedRequest>::make(kU32, count);
    ranks[1].group->receive(request, request->data.data(), request->data.size(), kU32,
                            std::move(message));
    finish(1, request);
    EXPECT_EQ(request->data, numbers(kU32, count, 1));
    EXPECT_EQ(request->outcome().source_rank, 0);
    ranks[0].finish(first_sent);
    ranks[0].finish(second_sent);
  }
}

TEST_F(Matching, TakenMessageThatIsDroppedLetsItsSenderGoOn) {
  const auto sent = send(0, 1, kU32, numbers(kU32, 1 << 20), 4);
  { const auto message = ranks[1].group->wait_take(0, 4); }
  ranks[0].finish(sent);
  auto request = Ref<TypedRequest>::make(kU32, std::size_t{1});
  EXPECT_THROW(
      ranks[1].group->receive(request, request->data.data(), 4, kU32, transport::TakenMessage()),
      ArgumentError);
}

TEST_F(Matching, ThreadsThatProbeFollowOneThatDrives) {
  // One thread drives in a long wait; others probe (with the lock) while messages complete.
  const auto long_wait = receive(1, 0, kU32, 1, 99);
  std::thread driver([&] { ranks[1].group->wait(*long_wait); });
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (unsigned i = 0; i < 100; ++i) {
        if (t == 0) {
          (void)ranks[1].group->wait_probe(0, 55, 1ms);  // never comes
          continue;
        }
        send(1, 1, kU32, numbers(kU32, 3, i), t);
        auto message = ranks[1].group->wait_take(1, t);
        ASSERT_TRUE(message);
        auto request = Ref<TypedRequest>::make(kU32, std::size_t{3});
        ranks[1].group->receive(request, request->data.data(), 12, kU32, std::move(message));
        finish(1, request);
        ASSERT_EQ(request->data, numbers(kU32, 3, i));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  send(0, 1, kU32, numbers(kU32, 1), 99);
  driver.join();
  EXPECT_TRUE(long_wait->outcome().ok());
}

TEST_F(Matching, ThreadsTakeMessagesOfUnknownSize) {
  constexpr unsigned kMessages = 200;
  std::atomic<unsigned> total{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (unsigned i = 0; i < kMessages / 2; ++i) {
        auto message = ranks[1].group->wait_take(kAnySource, 3);
        ASSERT_TRUE(message);
        const std::size_t count = message.info().bytes / 4;
        auto request = Ref<TypedRequest>::make(kU32, count);
        ranks[1].group->receive(request, request->data.data(), request->data.size(), kU32,
                                std::move(message));
        finish(1, request);
        ASSERT_EQ(request->data, numbers(kU32, count, static_cast<unsigned>(count)));
        total += static_cast<unsigned>(count);
      }
    });
  }
  unsigned expected = 0;
  for (unsigned i = 1; i <= kMessages; ++i) {
    send(0, 1, kU32, numbers(kU32, i, i), 3);
    expected += i;
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(total, expected);
}

}  // namespace
}  // namespace torch_ucx::contract
