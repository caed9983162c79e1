// The transport's contract, everything but the messages: time-outs, farewell, mailboxes, lifetimes.
#include <unistd.h>

#include <regex>

#include "tests/contract/engine_pair.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::contract {
namespace {

using Lifecycle = EnginePair;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <typename Condition>
bool eventually(const Condition& condition, std::chrono::milliseconds limit = 5s) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

TEST_F(Lifecycle, CompletesByItselfWithNobodyWaiting) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{16} << 20}) {
    const auto received = ranks[1].receive(bytes, 0);
    const auto sent = ranks[0].send(pattern(bytes, 1), 1);
    EXPECT_TRUE(eventually([&] { return received->done() && sent->done(); }));
    EXPECT_EQ(received->data, pattern(bytes, 1));
  }
}

TEST_F(Lifecycle, ReceiveTimesOutAndIsWithdrawn) {
  const auto received = ranks[1].receive(8, 0, 5);
  const auto start = std::chrono::steady_clock::now();
  ranks[1].wait(received, 300ms);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  EXPECT_GE(elapsed, 290ms);
  EXPECT_LT(elapsed, 5s);
  EXPECT_EQ(received->outcome().failure, Failure::timed_out);
  EXPECT_FALSE(received->outcome().buffer_in_use);
  EXPECT_TRUE(std::regex_search(
      received->describe(),
      std::regex("^ucx recv on rank 1 of group \"test\" from rank 0, tag 5, 8 bytes: Timed out "
                 "after [0-9]+\\.[0-9][0-9] s")))
      << received->describe();
  // The next message goes to the next receive, not into the old buffer.
  ranks[0].send(pattern(8, 2), 1, 5);
  const auto next = ranks[1].receive(8, 0, 5);
  ranks[1].finish(next);
  EXPECT_EQ(next->data, pattern(8, 2));
  EXPECT_EQ(received->data, std::vector<std::byte>(8));
}

TEST_F(Lifecycle, OperationsHaveTheGroupsDeadlineWithNobodyWaiting) {
  ranks[1].group->set_timeout(300ms);
  const auto received = ranks[1].receive(8, 0, 5);
  EXPECT_TRUE(eventually([&] { return received->done(); }));
  EXPECT_EQ(received->outcome().failure, Failure::timed_out);
}

TEST_F(Lifecycle, DeadlineOfASendThatWaitsForFirstContactComesByItself) {
  auto lonely = Rank(engines[0], *store, 0, 2, "alone", 300ms);
  std::this_thread::sleep_for(200ms);  // the helper is asleep
  const auto sent = lonely.send(pattern(8, 1), 1);
  EXPECT_TRUE(eventually([&] { return sent->done(); }));
  EXPECT_EQ(sent->outcome().failure, Failure::timed_out);
  lonely.close();
}

TEST_F(Lifecycle, UntakenBigSendTimesOutAndItsBufferIsKept) {
  // First contact, so that the send is in UCX's hands.
  ranks[0].finish(ranks[0].send(pattern(8, 1), 1, 1));
  const auto sent = ranks[0].send(pattern(8 << 20, 2), 1, 5);
  ranks[0].wait(sent, 200ms);
  EXPECT_EQ(sent->outcome().failure, Failure::timed_out);
  EXPECT_TRUE(sent->outcome().buffer_in_use);
  EXPECT_TRUE(contains(sent->describe(), "UCX may still read the buffer")) << sent->describe();
  EXPECT_EQ(engines[0]->snapshot().quarantined, 1u);
  // The peer takes it after all: the bytes are still there, and the quarantine empties.
  const auto late = ranks[1].receive(8 << 20, 0, 5);
  ranks[1].finish(late);
  EXPECT_EQ(late->data, pattern(8 << 20, 2));
  EXPECT_TRUE(eventually([&] { return engines[0]->snapshot().quarantined == 0; }));
}

TEST_F(Lifecycle, DroppedRequestsDeliverAndTheirMemoryIsFreed) {
  for (unsigned i = 0; i < 200; ++i) ranks[0].send(pattern(100'000, i), 1, 2);
  for (unsigned i = 0; i < 200; ++i) {
    const auto received = ranks[1].receive(100'000, 0, 2);
    ranks[1].finish(received);
    ASSERT_EQ(received->data, pattern(100'000, i));
  }
  EXPECT_TRUE(eventually([&] { return engines[0]->snapshot().in_flight == 0; }));
}

TEST_F(Lifecycle, NotifyRunsOnTheCallbackThread) {
  const auto received = ranks[1].receive(8, 0, 7);
  EXPECT_TRUE(ranks[1].group->notify(*received));
  EXPECT_FALSE(received->told.load());
  ranks[0].send(pattern(8, 1), 1, 7);
  EXPECT_TRUE(eventually([&] { return received->told.load(); }));
  EXPECT_TRUE(received->outcome().ok());
  EXPECT_FALSE(ranks[1].group->notify(*received));  // done already: the caller acts itself
}

TEST_F(Lifecycle, PeerThatLeftIsNamedAtOnceAndItsMessagesAreStillThere) {
  ranks[0].send(pattern(8, 1), 1, 1);
  ranks[0].send(pattern(300'000, 2), 1, 2);
  const auto hopeless = ranks[1].receive(8, 0, 9);
  std::thread leaver([&] { ranks[0].close(10s); });
  const auto big = ranks[1].receive(300'000, 0, 2);
  ranks[1].finish(big);
  EXPECT_EQ(big->data, pattern(300'000, 2));
  leaver.join();
  ranks[1].wait(hopeless);
  EXPECT_EQ(hopeless->outcome().failure, Failure::peer_left);
  EXPECT_TRUE(contains(hopeless->describe(),
                       "rank 0 sends nothing more: it has closed its side of the group"))
      << hopeless->describe();
  const auto small = ranks[1].receive(8, 0, 1);  // sent before it left
  ranks[1].finish(small);
  EXPECT_EQ(small->data, pattern(8, 1));
  const auto later = ranks[1].receive(8, 0, 1);
  ranks[1].wait(later);
  EXPECT_EQ(later->outcome().failure, Failure::peer_left);
  const auto send = ranks[1].send(pattern(8, 1), 0);
  ranks[1].wait(send);
  EXPECT_EQ(send->outcome().failure, Failure::peer_left);
}

TEST_F(Lifecycle, SendsThatNobodyTakesAreGivenUpInBoundedTimeAndNamed) {
  ranks[0].finish(ranks[0].send(pattern(8, 1), 1, 1));
  const auto lost = ranks[0].send(pattern(8 << 20, 2), 1, 5);
  const auto small = ranks[0].send(pattern(8, 2), 1, 6);
  const auto start = std::chrono::steady_clock::now();
  ::testing::internal::CaptureStderr();
  ranks[0].close(200ms);
  const auto text = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  EXPECT_TRUE(contains(text,
                       "rank 0 closed group \"test\" before these sends were taken: 8388608 "
                       "bytes to rank 1 with tag 5"))
      << text;
  EXPECT_EQ(lost->outcome().failure, Failure::group_closed);
  EXPECT_TRUE(small->outcome().ok());
}

TEST_F(Lifecycle, ContactWithARankThatIsLingeringIsMade) {
  // Rank 0 closes at once with a message undelivered; rank 1 makes contact by itself meanwhile.
  for (unsigned i = 0; i < 20; ++i) {
    const std::string name = std::string("linger").append(std::to_string(i));
    auto early = Rank(engines[0], *store, 0, 2, name);
    auto late = Rank(engines[1], *store, 1, 2, name);
    early.send(pattern(300'000, i), 1);
    std::thread closer([&] { early.close(10s); });
    const auto received = late.receive(300'000, 0);
    late.finish(received);
    ASSERT_EQ(received->data, pattern(300'000, i));
    closer.join();
    late.close();
  }
}

TEST_F(Lifecycle, WhatWasSentBeforeFirstContactIsDeliveredByClose) {
  // A group whose rank 1 comes late: rank 0 sends, closes, and is gone before rank 1 receives.
  auto early = Rank(engines[0], *store, 0, 2, "late");
  early.send(pattern(64, 3), 1);
  std::thread closer([&] { early.close(10s); });
  std::this_thread::sleep_for(200ms);
  auto late = Rank(engines[1], *store, 1, 2, "late");
  closer.join();
  std::this_thread::sleep_for(100ms);
  const auto received = late.receive(64, 0);
  late.finish(received);
  EXPECT_EQ(received->data, pattern(64, 3));
  late.close();
}

TEST_F(Lifecycle, RankThatNeverComesIsNamedInTheTimeOut) {
  auto lonely = Rank(engines[0], *store, 0, 2, "lonely");
  const auto sent = lonely.send(pattern(8, 1), 1);
  lonely.wait(sent, 200ms);
  EXPECT_EQ(sent->outcome().failure, Failure::timed_out);
  EXPECT_TRUE(contains(sent->describe(), "rank 1: its address has not appeared in the store"))
      << sent->describe();
  lonely.close();
}

TEST_F(Lifecycle, LateCallerLearnsThatThePeerHasLeft) {
  {
    auto early = Rank(engines[0], *store, 0, 2, "left");
    early.close();
  }
  auto late = Rank(engines[1], *store, 1, 2, "left");
  const auto received = late.receive(8, 0);
  late.wait(received, 10s);
  EXPECT_EQ(received->outcome().failure, Failure::peer_left) << received->describe();
  late.close();
}

TEST_F(Lifecycle, DamagedAddressIsNamed) {
  auto lonely = Rank(engines[0], *store, 0, 2, "damaged");
  rendezvous::Bytes garbage(100, std::byte{7});
  store->set("damaged/torch_ucx/0/2/1/1", garbage);
  const auto sent = lonely.send(pattern(8, 1), 1);
  lonely.wait(sent, 10s);
  EXPECT_EQ(sent->outcome().failure, Failure::unreachable);
  EXPECT_TRUE(contains(sent->describe(), "not an address of torch_ucx")) << sent->describe();
  lonely.close();
}

TEST_F(Lifecycle, OtherUcxVersionIsRefusedWithBothNamed) {
  auto one = Rank(engines[0], *store, 0, 2, "versions");
  auto blob = ranks[1].group->address();
  blob.ucx.minor += 1;
  store->set("versions/torch_ucx/0/2/1/1", blob.encode());
  const auto sent = one.send(pattern(8, 1), 1);
  one.wait(sent, 10s);
  EXPECT_EQ(sent->outcome().failure, Failure::unreachable);
  EXPECT_TRUE(contains(sent->describe(), "it runs UCX " + blob.ucx.to_string()))
      << sent->describe();
  EXPECT_TRUE(
      contains(sent->describe(), "this rank runs UCX " + ucp::library_version().to_string()))
      << sent->describe();
  one.close();
}

TEST_F(Lifecycle, AddressOfADeadProcessFailsSoonAndIsReplacedByAFreshOne) {
  auto one = Rank(engines[0], *store, 0, 2, "dead");
  auto blob = ranks[1].group->address();
  blob.host.start_time += 1;  // another process had this pid
  blob.engine[0] ^= 1;
  blob.nonce ^= 1;
  store->set("dead/torch_ucx/0/2/1/1", blob.encode());
  const auto sent = one.send(pattern(8, 1), 1);
  const auto start = std::chrono::steady_clock::now();
  one.wait(sent);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  EXPECT_EQ(sent->outcome().failure, Failure::unreachable);
  EXPECT_TRUE(contains(sent->describe(), "its process has died")) << sent->describe();
  // The rank comes back: the next operation finds it.
  auto other = Rank(engines[1], *store, 1, 2, "dead");
  const auto again = one.send(pattern(8, 4), 1);
  const auto received = other.receive(8, 0);
  other.finish(received);
  one.finish(again);
  EXPECT_EQ(received->data, pattern(8, 4));
  std::thread closer([&] { one.close(); });
  other.close();
  closer.join();
}

TEST_F(Lifecycle, GroupsOfOneNameAreCountedAtEachPlace) {
  const auto has = [&](const std::string& key) {
    const auto keys = store->keys();
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  const auto text = [](const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    return rendezvous::Bytes(bytes.begin(), bytes.end());
  };
  Rank(engines[0], *store, 0, 1, "again").close();
  Rank(engines[0], *store, 0, 1, "again").close();
  EXPECT_TRUE(has("again/torch_ucx/0/1/2/0"));
  // Another process was at this place, and closed the group, or died in it.
  store->set("again/torch_ucx/0/1/at/0", text("5 closed elsewhere 1 2 3"));
  Rank(engines[0], *store, 0, 1, "again").close();
  EXPECT_TRUE(has("again/torch_ucx/0/1/6/0"));
  store->set("again/torch_ucx/0/1/at/0", text("8 open elsewhere 1 2 3"));
  Rank(engines[0], *store, 0, 1, "again").close();
  EXPECT_TRUE(has("again/torch_ucx/0/1/8/0"));
  EXPECT_FALSE(has("again/torch_ucx/0/1/7/0"));
  // Held open by a process that lives: it has yet to leave, and this one begins the next.
  const auto self = transport::HostIdentity::of_this_process();
  const auto parent = static_cast<std::uint64_t>(::getppid());
  store->set("again/torch_ucx/0/1/at/0",
             text("20 open " + self.boot_id + " " + std::to_string(self.pid_namespace) + " " +
                  std::to_string(parent) + " " + std::to_string(transport::start_time_of(parent))));
  Rank(engines[0], *store, 0, 1, "again").close();
  EXPECT_TRUE(has("again/torch_ucx/0/1/21/0"));
}

TEST_F(Lifecycle, RankThatLeftBeforeContactIsNamed) {
  for (const bool address_known : {false, true}) {
    const std::string name = address_known ? "known" : "unknown";
    // An engine of its own, which ends with the group: its address leads nowhere then.
    auto leaver = Rank(Engine::create({}), *store, 1, 2, name);
    std::optional<Rank> one;
    if (address_known) {
      one.emplace(engines[0], *store, 0, 2, name);
      std::this_thread::sleep_for(100ms);  // it is fetched as soon as it is there
    }
    leaver.close();
    if (!address_known) one.emplace(engines[0], *store, 0, 2, name);
    const auto received = one->receive(8, 1);
    const auto sent = one->send(pattern(8, 1), 1);
    for (const auto& request : {received, sent}) {
      one->wait(request, 10s);
      EXPECT_EQ(request->outcome().failure, Failure::peer_left) << request->describe();
      EXPECT_TRUE(
          contains(request->describe(), "it closed the group before this rank made contact"))
          << request->describe();
    }
    one->close();
  }
}

TEST_F(Lifecycle, StoreThatIsGoneFailsFirstContactByName) {
  auto one = Rank(engines[0], *store, 0, 2, "storeless");
  store->break_down();
  const auto sent = one.send(pattern(8, 1), 1);
  one.wait(sent, 10s);
  EXPECT_EQ(sent->outcome().failure, Failure::unreachable);
  EXPECT_TRUE(contains(sent->describe(), "the store is gone")) << sent->describe();
  one.close();
}

TEST_F(Lifecycle, ThreadsThatWaitAreTakenOutBeforeTheEngineEnds) {
  for (unsigned round = 0; round < 10; ++round) {
    make(2);
    ranks[0].finish(ranks[0].send(pattern(8, 1), 1, 1));
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t) {
      threads.emplace_back([group = ranks[1].group, t] {
        auto request = Ref<BufferRequest>::make(std::size_t{8});
        group->receive(request, request->data.data(), 8, 0, 1, 100 + t);
        group->wait(*request);
        EXPECT_TRUE(request->outcome().failure == Failure::group_closed ||
                    request->outcome().failure == Failure::peer_left)
            << request->describe();
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(round));
    ranks[1].close();
    for (auto& thread : threads) thread.join();
  }
}

TEST_F(Lifecycle, OperationsAfterCloseFail) {
  auto group = ranks[0].group;
  std::thread closer([&] { ranks[1].close(); });
  ranks[0].close();
  closer.join();
  auto request = Ref<BufferRequest>::make(std::size_t{8});
  group->send(request, request->data.data(), 8, 1, 1, 0);
  ASSERT_TRUE(request->done());
  EXPECT_EQ(request->outcome().failure, Failure::group_closed);
  EXPECT_TRUE(contains(request->describe(), " closed ")) << request->describe();
}

TEST_F(Lifecycle, CloseWithdrawsReceives) {
  const auto first = ranks[0].receive(8, 1);
  ranks[1].send(pattern(8, 1), 0);
  ranks[0].finish(first);
  const auto received = ranks[0].receive(8, 1);
  ranks[0].close();
  ASSERT_TRUE(received->done());
  EXPECT_EQ(received->outcome().failure, Failure::group_closed);
  EXPECT_FALSE(received->outcome().buffer_in_use);
}

TEST_F(Lifecycle, MailboxRestsUntilThePeerHasClosedAndLateMessagesAreDrained) {
  auto a = Rank(engines[0], *store, 0, 2, "sub");
  auto b = Rank(engines[1], *store, 1, 2, "sub");
  const auto received = a.receive(8, 1);
  b.finish(b.send(pattern(8, 1), 0));
  a.finish(received);
  // Unread by a, sent before it closes; then a closes while b is still open.
  for (unsigned i = 0; i < 50; ++i) b.send(pattern(64, i), 0, 3);
  a.close();
  EXPECT_EQ(engines[0]->snapshot().closing_mailboxes, 1u);
  // b has learnt of it: what it sends now fails instead of arriving at the next group.
  const auto late = b.send(pattern(64, 1), 0, 3);
  b.wait(late);
  EXPECT_EQ(late->outcome().failure, Failure::peer_left);
  b.close();
  EXPECT_TRUE(eventually([&] { return engines[0]->snapshot().closing_mailboxes == 0; }));
  EXPECT_TRUE(eventually([&] { return engines[1]->snapshot().closing_mailboxes == 0; }));
}

TEST_F(Lifecycle, ManyMoreGroupsThanMailboxesOverALifetime) {
  const unsigned rounds = static_cast<unsigned>(transport::kMaxMailbox) + 100;
  for (unsigned i = 0; i < rounds; ++i) {
    const auto name = std::string("g").append(std::to_string(i));
    auto a = Rank(engines[0], *store, 0, 2, name);
    auto b = Rank(engines[1], *store, 1, 2, name);
    if (i % 16 == 0) {
      const auto received = b.receive(16, 0);
      a.send(pattern(16, i), 1);
      b.finish(received);
      ASSERT_EQ(received->data, pattern(16, i));
    }
    std::thread closer([&] { a.close(); });
    b.close();
    closer.join();
  }
  EXPECT_TRUE(eventually([&] { return engines[0]->snapshot().closing_mailboxes == 0; }));
  EXPECT_LE(store->keys().size(), 3 + 4 * (rendezvous::Membership::kGroupsKept + 2));
}

TEST_F(Lifecycle, AThousandLiveGroupsAndAClearErrorBeyondTheLimit) {
  std::vector<Rank> groups;
  const auto limit = transport::kMaxMailbox + 1;
  try {
    for (std::size_t i = 0; i <= limit; ++i) {
      groups.emplace_back(engines[0], *store, 0, 1, std::string("n").append(std::to_string(i)));
    }
    ADD_FAILURE() << "more groups than mailboxes";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "no mailbox is free for another group: of 2048"))
        << error.what();
  }
  EXPECT_EQ(groups.size(), limit - 1);  // one is the fixture's own
  const auto received = groups[1000].receive(8, 0);
  groups[1000].send(pattern(8, 1), 0);
  groups[1000].finish(received);
  EXPECT_EQ(received->data, pattern(8, 1));
}

TEST_F(Lifecycle, GroupBounds) {
  const auto refusal = [&](int rank, int size, std::chrono::milliseconds timeout) {
    try {
      (void)engines[0]->create_group(GroupOptions{rank, size, "bad", timeout});
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal(0, 65'537, 1s), "group \"bad\" has size 65537: allowed is 1 to 65536");
  EXPECT_EQ(refusal(0, 0, 1s), "group \"bad\" has size 0: allowed is 1 to 65536");
  EXPECT_EQ(refusal(2, 2, 1s), "rank 2 of group \"bad\" is outside 0 to 1");
  EXPECT_EQ(refusal(0, 2, 0s), "group \"bad\" has a time-out of 0 ms: it must be positive");
}

TEST_F(Lifecycle, LargestGroupSendsToItsLastRank) {
  auto first = Rank(engines[0], *store, 0, 65'536, "large");
  auto last = Rank(engines[1], *store, 65'535, 65'536, "large");
  const auto received = first.receive(24, 65'535, 8);
  last.send(pattern(24, 5), 0, 8);
  first.finish(received);
  EXPECT_EQ(received->data, pattern(24, 5));
  EXPECT_EQ(received->outcome().source_rank, 65'535);
  std::thread closer([&] { last.close(); });
  first.close();
  closer.join();
}

TEST_F(Lifecycle, SharedEngineEndsWithItsLastGroup) {
  std::weak_ptr<Engine> watched;
  {
    const auto engine = Engine::acquire({});
    watched = engine;
    auto a = engine->create_group(GroupOptions{0, 1, "a"});
    auto b = engine->create_group(GroupOptions{0, 1, "b"});
    EXPECT_EQ(Engine::acquire({}), engine);
    a->close();
    EXPECT_EQ(Engine::acquire({}), engine);
    b->close();
    EXPECT_NE(Engine::acquire({}), engine);
  }
  EXPECT_TRUE(eventually([&] { return watched.expired(); }));
}

}  // namespace
}  // namespace torch_ucx::contract
