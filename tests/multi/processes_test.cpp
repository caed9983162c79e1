// Ranks as real processes: leaving at different times, forking, idling, disagreeing transports.
#include <sys/resource.h>

#include "tests/support/rank.h"
#include "tests/support/rank_processes.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::contract {
namespace {

using support::DirectoryStore;
using support::RankProcesses;

std::shared_ptr<Engine> engine() { return Engine::create(EngineOptions::from_environment()); }

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Processes, SenderThatLeavesAtOnceIsHeardALittleLater) {
  for (const std::size_t bytes :
       {std::size_t{8}, std::size_t{4000}, std::size_t{100'000}, std::size_t{4} << 20}) {
    RankProcesses processes;
    processes.start([=](int, DirectoryStore& store) {
      Rank self(engine(), store, 0, 2, "job", 30s);
      for (unsigned i = 0; i < 5; ++i) self.send(pattern(bytes, i), 1);
    });
    processes.start([=](int, DirectoryStore& store) {
      Rank self(engine(), store, 1, 2, "job", 30s);
      std::this_thread::sleep_for(500ms);
      for (unsigned i = 0; i < 5; ++i) {
        const auto received = self.receive(bytes, 0);
        self.finish(received);
        RANK_CHECK(received->data == pattern(bytes, i), "wrong data");
      }
      std::this_thread::sleep_for(200ms);
    });
    EXPECT_EQ(processes.wait(0), 0) << bytes;
    EXPECT_EQ(processes.wait(1), 0) << bytes;
  }
}

TEST(Processes, MadeAndClosedAgainAndAgainWithOneRankLate) {
  RankProcesses processes;
  for (int r = 0; r < 2; ++r) {
    processes.start([](int rank, DirectoryStore& store) {
      for (unsigned round = 0; round < 20; ++round) {
        if (rank == static_cast<int>(round % 2)) std::this_thread::sleep_for(10ms);
        Rank self(Engine::acquire({}), store, rank, 2, "again", 30s);
        for (unsigned i = 0; i < 3; ++i) {
          const auto received = self.receive(1000, 1 - rank);
          self.send(pattern(1000, round * 10 + i), 1 - rank);
          self.finish(received);
          RANK_CHECK(received->data == pattern(1000, round * 10 + i), "wrong data");
        }
      }
    });
  }
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST(Processes, ForkedChildIsToldAndLeavesQuietly) {
  RankProcesses processes;
  processes.start([](int, DirectoryStore& store) {
    auto self = Rank(engine(), store, 0, 1, "job", 30s);
    const auto before = self.receive(8, 0);
    const pid_t child = ::fork();
    if (child == 0) {
      int status = 0;
      try {
        self.send(pattern(8, 1), 0);
        status = 1;
      } catch (const Error& error) {
        if (std::string(error.what()).find("forked") == std::string::npos) status = 2;
      }
      self.close();  // quiet and at once
      ::_exit(status);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    RANK_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, std::to_string(status));
    self.send(pattern(8, 2), 0);  // the parent goes on
    self.finish(before);
    RANK_CHECK(before->data == pattern(8, 2), "wrong data");
  });
  EXPECT_EQ(processes.wait(0), 0);
}

TEST(Processes, IdlingAndBlockedWaitsCostAlmostNoCpu) {
  RankProcesses processes;
  processes.start([](int, DirectoryStore& store) {
    Rank self(engine(), store, 0, 2, "job", 30s);
    self.finish(self.send(pattern(8, 1), 1));
    const double start = cpu_seconds();
    std::this_thread::sleep_for(3s);  // idle
    RANK_CHECK(cpu_seconds() - start < 0.06, std::to_string(cpu_seconds() - start));
    self.finish(self.send(pattern(8, 1), 1));
  });
  processes.start([](int, DirectoryStore& store) {
    Rank self(engine(), store, 1, 2, "job", 30s);
    self.finish(self.receive(8, 0));
    const double start = cpu_seconds();
    self.finish(self.receive(8, 0));  // blocked
    RANK_CHECK(cpu_seconds() - start < 0.06, std::to_string(cpu_seconds() - start));
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST(Processes, SenderProgressesWhileItsProgramComputes) {
  RankProcesses processes;
  processes.start([](int, DirectoryStore& store) {
    Rank self(engine(), store, 0, 2, "job", 30s);
    self.finish(self.send(pattern(8, 1), 1));
    const auto sent = self.send(pattern(std::size_t{64} << 20, 3), 1, 2);
    RankProcesses::await(store, "got it");  // never enters the transport meanwhile
    self.finish(sent);
  });
  processes.start([](int, DirectoryStore& store) {
    Rank self(engine(), store, 1, 2, "job", 30s);
    self.finish(self.receive(8, 0));
    const auto received = self.receive(std::size_t{64} << 20, 0, 2);
    self.finish(received);
    RANK_CHECK(received->data == pattern(std::size_t{64} << 20, 3), "wrong data");
    RankProcesses::post(store, "got it");
  });
  EXPECT_EQ(processes.wait(0), 0);
  EXPECT_EQ(processes.wait(1), 0);
}

TEST(Processes, FourRanksOnFewCoresExchangeWithEachOther) {
  RankProcesses processes;
  for (int r = 0; r < 4; ++r) {
    processes.start([](int rank, DirectoryStore& store) {
      Rank self(engine(), store, rank, 4, "job", 30s);
      for (unsigned round = 0; round < 200; ++round) {
        std::vector<Ref<BufferRequest>> receives;
        for (int peer = 0; peer < 4; ++peer) receives.push_back(self.receive(256, peer, round % 7));
        for (int peer = 0; peer < 4; ++peer) {
          self.send(pattern(256, round * 16 + static_cast<unsigned>(rank * 4 + peer)), peer,
                    round % 7);
        }
        for (int peer = 0; peer < 4; ++peer) {
          const auto& received = receives[static_cast<std::size_t>(peer)];
          self.finish(received);
          RANK_CHECK(
              received->data == pattern(256, round * 16 + static_cast<unsigned>(peer * 4 + rank)),
              "wrong data");
        }
      }
    });
  }
  for (int r = 0; r < 4; ++r) EXPECT_EQ(processes.wait(r), 0);
}

}  // namespace
}  // namespace torch_ucx::contract
