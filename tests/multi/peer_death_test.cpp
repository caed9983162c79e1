// Ranks as real processes: one of them dies. The survivor is told by name, soon, and is not
// disturbed.
#include "tests/support/rank.h"
#include "tests/support/rank_processes.h"

namespace torch_ucx::contract {
namespace {

using support::DirectoryStore;
using support::RankProcesses;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBig = std::size_t{64} << 20;

std::shared_ptr<Engine> engine() { return Engine::create(EngineOptions::from_environment()); }

// Waits for the request, which must fail because rank `peer` died, long before its time-out.
void expect_death(const Rank& self, const Ref<BufferRequest>& request, const std::string& peer) {
  const auto start = Clock::now();
  self.wait(request);
  const auto text = request->describe();
  RANK_CHECK(!request->outcome().ok(), "completed");
  RANK_CHECK(request->outcome().failure == Failure::peer_failed ||
                 request->outcome().failure == Failure::unreachable,
             text);
  RANK_CHECK(text.find("rank " + peer) != std::string::npos, text);
  RANK_CHECK(Clock::now() - start < 15s, text);
}

class PeerDeath : public ::testing::Test {
 protected:
  // Rank 0 survives, rank 1 is killed when it has posted "ready", rank 2 lives on beside.
  void run(const RankProcesses::Body& survivor, const RankProcesses::Body& victim,
           const RankProcesses::Body& bystander = nullptr) {
    processes.start(survivor);
    processes.start(victim);
    if (bystander) processes.start(bystander);
    auto store = processes.store();
    RankProcesses::await(store, "ready");
    std::this_thread::sleep_for(100ms);
    processes.kill(1);
    EXPECT_EQ(processes.wait(1), 128 + SIGKILL);
    RankProcesses::post(store, "killed");
    EXPECT_EQ(processes.wait(0), 0);
    if (bystander) {
      EXPECT_EQ(processes.wait(2), 0);
    }
  }
  RankProcesses processes;
};

TEST_F(PeerDeath, InASmallReceive) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        self.finish(self.send(pattern(8, 1), 1));
        expect_death(self, self.receive(8, 1, 5), "1");
        expect_death(self, self.send(pattern(8, 1), 1), "1");  // and from then on at once
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        self.finish(self.receive(8, 0));
        RankProcesses::post(store, "ready");
        ::pause();
      });
}

TEST_F(PeerDeath, InTheMiddleOfABigSendThatItNeverTakes) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        self.finish(self.send(pattern(8, 1), 1));
        expect_death(self, self.send(pattern(kBig, 1), 1, 5), "1");
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        self.finish(self.receive(8, 0));
        RankProcesses::post(store, "ready");
        ::pause();
      });
}

TEST_F(PeerDeath, WhileBigMessagesFlowToIt) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        for (;;) {
          const auto sent = self.send(pattern(kBig / 8, 1), 1);
          self.wait(sent);
          if (sent->outcome().ok()) continue;
          RANK_CHECK(sent->outcome().failure == Failure::peer_failed, sent->describe());
          return;
        }
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        for (int i = 0;; ++i) {
          self.finish(self.receive(kBig / 8, 0));
          if (i == 2) RankProcesses::post(store, "ready");
        }
      });
}

TEST_F(PeerDeath, WhileBigMessagesFlowFromIt) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        for (;;) {
          const auto received = self.receive(kBig / 8, 1);
          self.wait(received);
          if (received->outcome().ok()) continue;
          RANK_CHECK(received->outcome().failure == Failure::peer_failed, received->describe());
          return;
        }
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        for (int i = 0;; ++i) {
          self.finish(self.send(pattern(kBig / 8, 1), 0));
          if (i == 2) RankProcesses::post(store, "ready");
        }
      });
}

TEST_F(PeerDeath, BeforeAnyTrafficButAfterItsAddressWasPublished) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        RankProcesses::await(store, "killed");
        expect_death(self, self.receive(8, 1, 5), "1");
        expect_death(self, self.send(pattern(8, 1), 1), "1");
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        RankProcesses::post(store, "ready");
        ::pause();
      });
}

TEST_F(PeerDeath, WithAReceivePostedAndNothingEverSent) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        const auto received = self.receive(8, 1, 5);
        RankProcesses::await(store, "killed");
        expect_death(self, received, "1");
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        RankProcesses::post(store, "ready");
        ::pause();
      });
}

TEST_F(PeerDeath, DoesNotDisturbALivingPeer) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 3, "job", 60s);
        const auto from_victim = self.receive(8, 1, 5);
        const auto from_living = self.receive(8, 2, 5);
        self.finish(from_living);
        RANK_CHECK(from_living->data == pattern(8, 2), "wrong data");
        expect_death(self, from_victim, "1");
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 3, "job", 60s);
        self.finish(self.send(pattern(8, 1), 0));
        RankProcesses::post(store, "ready");
        ::pause();
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 2, 3, "job", 60s);
        RankProcesses::await(store, "killed");
        std::this_thread::sleep_for(500ms);
        self.finish(self.send(pattern(8, 2), 0, 5));
      });
}

TEST_F(PeerDeath, MessagesItHadSentAreStillDelivered) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        const auto first = self.receive(8, 1);
        self.finish(first);
        RankProcesses::await(store, "killed");
        std::this_thread::sleep_for(200ms);
        const auto left_behind = self.receive(8, 1, 1);
        self.finish(left_behind);
        RANK_CHECK(left_behind->data == pattern(8, 7), "wrong data");
        expect_death(self, self.receive(8, 1, 1), "1");
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        self.finish(self.send(pattern(8, 1), 0));
        self.finish(self.send(pattern(8, 7), 0, 1));
        RankProcesses::post(store, "ready");
        ::pause();
      });
}

TEST_F(PeerDeath, IsToldOnceAlsoWhenAForkedChildLivesOn) {
  run(
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 0, 2, "job", 60s);
        self.finish(self.send(pattern(8, 1), 1));
        const pid_t child = ::fork();  // has the descriptors of the watch open too
        if (child == 0) {
          std::this_thread::sleep_for(4s);
          ::_exit(0);
        }
        expect_death(self, self.receive(8, 1, 5), "1");
        const auto cpu = [] {
          timespec time{};
          ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
          return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
        };
        const double before = cpu();
        std::this_thread::sleep_for(2s);
        RANK_CHECK(cpu() - before < 0.2, std::to_string(cpu() - before));
        ::waitpid(child, nullptr, 0);
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        self.finish(self.receive(8, 0));
        RankProcesses::post(store, "ready");
        ::pause();
      });
}

TEST_F(PeerDeath, TaintsTheEngineAndTheNextGroupGetsAFreshOne) {
  run(
      [](int, DirectoryStore& store) {
        const auto first = Engine::acquire({});
        Rank self(first, store, 0, 2, "job", 60s);
        self.finish(self.send(pattern(8, 1), 1));
        expect_death(self, self.receive(8, 1, 5), "1");
        RANK_CHECK(first->tainted(), "not tainted");
        const auto second = Engine::acquire({});
        RANK_CHECK(second != first, "same engine");
        Rank alone(second, store, 0, 1, "next", 60s);
        const auto received = alone.receive(8, 0);
        alone.send(pattern(8, 3), 0);
        alone.finish(received);
      },
      [](int, DirectoryStore& store) {
        Rank self(engine(), store, 1, 2, "job", 60s);
        self.finish(self.receive(8, 0));
        RankProcesses::post(store, "ready");
        ::pause();
      });
}

}  // namespace
}  // namespace torch_ucx::contract
