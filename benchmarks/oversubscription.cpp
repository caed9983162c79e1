// What 8-byte messages take on a host that has fewer cores than ranks: ping-pongs of neighbours
// (ranks 0 and 1, 2 and 3, ...; all pairs at once), a message that goes round the ring of all
// ranks, and an exchange that ends when every rank has heard of every other one, as a barrier does.
// The pairs' ping-pongs also by UCX's own calls, which poll and never yield.
//
//   oversubscription RANKS all|one REPEATS    RANKS: even. all: on all cores; one: on one of them
//
// Prints one line of JSON for each measure of each repeat. UCX_TLS chooses UCX's transports,
// LD_LIBRARY_PATH its version.
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/cores.h"
#include "benchmarks/raw_ucp.h"
#include "benchmarks/step.h"
#include "plugin/rendezvous/membership.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/group.h"
#include "tests/support/rank_processes.h"

namespace torch_ucx::benchmarks {
namespace {

using rendezvous::Membership;
using support::DirectoryStore;
using support::RankProcesses;
using transport::Engine;
using transport::EngineOptions;
using transport::Group;
using transport::GroupOptions;
using transport::Ref;
using transport::Request;

using Seconds = std::chrono::duration<double>;

// A measurement is repeated with more rounds until it takes so long: several time slices.
constexpr Seconds kEnough{0.04};
constexpr int kFirstCount = 4;
constexpr int kMostGrowth = 32;
// Raw ranks on one core take a time slice for each message, and may find themselves there late.
constexpr std::chrono::milliseconds kTooLong{200};
constexpr int kRoundsPerLook = 16;

class Self {
 public:
  Self(int rank, int ranks, DirectoryStore& store)
      : rank_(rank),
        ranks_(ranks),
        pair_store_(pair_directory(store, rank / 2)),
        raw_(pair_store_, rank % 2),
        group_(Engine::create(EngineOptions::from_environment())
                   ->create_group(GroupOptions{rank, ranks, "ranks", std::chrono::minutes(2)})),
        membership_(Membership::join(group_, store.clone(), "ranks/")) {}
  Self(const Self&) = delete;
  Self& operator=(const Self&) = delete;
  ~Self() {
    group_->close(std::chrono::seconds(1));
    membership_->leave();
  }

  [[nodiscard]] bool leads() const { return rank_ == 0; }

  // Ends early where it takes too long: the message that says so is the last one there.
  int raw_pairs(int count) {
    const auto end = std::chrono::steady_clock::now() + kTooLong;
    for (int i = 1;; ++i) {
      bool last = i == count;
      if (rank_ % 2 == 0) {
        last = last || (i % kRoundsPerLook == 0 && std::chrono::steady_clock::now() > end);
        raw_send(last);
        raw_receive();
      } else {
        last = raw_receive() != 0;
        raw_send(0);
      }
      if (last) return i;
    }
  }

  int pairs(int count) {
    ping_pongs(
        rank_ % 2, count, [&] { send(rank_ ^ 1, out_); }, [&] { receive(rank_ ^ 1); });
    return count;
  }

  int ring(int count) {
    for (int i = 0; i < count; ++i) {
      if (rank_ == 0) send(at(1), out_);
      receive(at(-1));
      if (rank_ != 0) send(at(1), out_);
    }
    return count;
  }

  int exchanges(int count) {
    for (int i = 0; i < count; ++i) {
      for (int distance = 1; distance < ranks_; distance *= 2) {
        const auto received = post_receive(at(-distance));
        send(at(distance), out_);
        group_->wait(*received);
      }
    }
    return count;
  }

  // Rank 0's number, on all ranks.
  int agree(int number) {
    if (rank_ != 0) {
      receive(0);
      return static_cast<int>(in_);
    }
    for (int rank = 1; rank < ranks_; ++rank) send(rank, number);
    return number;
  }

 private:
  static std::filesystem::path pair_directory(const DirectoryStore& store, int pair) {
    auto directory = store.directory() / ("pair" + std::to_string(pair));
    std::filesystem::create_directories(directory);
    return directory;
  }
  [[nodiscard]] int at(int distance) const { return (rank_ + distance + ranks_) % ranks_; }

  void raw_send(std::int64_t value) {
    RawUcp::Operation operation;
    raw_.send(operation, &value, sizeof value);
    raw_.wait(operation);
  }
  std::int64_t raw_receive() {
    RawUcp::Operation operation;
    raw_.receive(operation, &in_, sizeof in_);
    raw_.wait(operation);
    return in_;
  }

  void send(int to, const std::int64_t& value) {
    auto request = Ref<Request>::make();
    group_->send(request, &value, sizeof value, to, kClass, 0);
    group_->wait(*request);
  }
  Ref<Request> post_receive(int from) {
    auto request = Ref<Request>::make();
    group_->receive(request, &in_, sizeof in_, from, kClass, 0);
    return request;
  }
  void receive(int from) { group_->wait(*post_receive(from)); }

  static constexpr transport::MessageClass kClass = 1;
  const int rank_;
  const int ranks_;
  const std::int64_t out_ = 0;
  std::int64_t in_ = 0;
  DirectoryStore pair_store_;
  RawUcp raw_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Membership> membership_;
};

struct Measure {
  const char* name;
  int (Self::*rounds)(int count);  // at most so many; how many there were
  int messages;                    // of a round, one after the other
};

// Of a round, until the last rank is through. Rank 0's clock and decisions; all ranks take part.
Seconds measure(Self& self, const Measure& measure) {
  Seconds each{};
  int count = kFirstCount;
  while ((count = self.agree(count)) != 0) {
    const auto begin = std::chrono::steady_clock::now();
    const int rounds = (self.*measure.rounds)(count);
    self.exchanges(1);
    const Seconds took = std::chrono::steady_clock::now() - begin;
    each = took / rounds;
    const double growth = 1.25 * kEnough / took;
    count =
        took >= kEnough ? 0 : static_cast<int>(count * std::clamp<double>(growth, 2, kMostGrowth));
  }
  return each;
}

struct Job {
  int ranks;
  bool one_core;
  int repeats;
};

void run(int rank, DirectoryStore& store, const Job& job) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (job.one_core) pin(0);
  Self self(rank, job.ranks, store);
  const std::array<Measure, 4> measures{{{"raw pairs", &Self::raw_pairs, 2},
                                         {"pairs", &Self::pairs, 2},
                                         {"ring", &Self::ring, job.ranks},
                                         {"exchange", &Self::exchanges, 1}}};
  // Not counted: first contact.
  for (const auto& each : measures) (self.*each.rounds)(1);
  for (int i = 0; i < job.repeats; ++i) {
    for (const auto& each : measures) {
      spread(rank);
      const auto took = measure(self, each);
      if (!self.leads()) continue;
      std::printf("{\"measure\": \"%s\", \"us\": %.6f}\n", each.name,
                  1e6 * took.count() / each.messages);
    }
  }
}

// Whether all ranks succeed. One that fails ends the job: the others may spin for it.
bool all_succeed(RankProcesses& processes, int ranks) {
  std::vector<bool> ended(static_cast<std::size_t>(ranks));
  while (std::find(ended.begin(), ended.end(), false) != ended.end()) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (ended[static_cast<std::size_t>(rank)]) continue;
      const int status = processes.wait(rank, std::chrono::seconds(0));
      if (status > 0) return false;
      ended[static_cast<std::size_t>(rank)] = status == 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace
}  // namespace torch_ucx::benchmarks

int main(int argc, char** argv) {
  using namespace torch_ucx::benchmarks;  // NOLINT: a program
  if (argc != 4) return 2;
  const std::string cores = argv[2];
  const Job job{std::atoi(argv[1]), cores == "one", std::atoi(argv[3])};
  if (job.ranks < 2 || job.ranks % 2 != 0 || (cores != "all" && !job.one_core)) return 2;
  RankProcesses processes;
  for (int i = 0; i < job.ranks; ++i) {
    processes.start([&](int rank, DirectoryStore& store) { run(rank, store, job); });
  }
  return all_succeed(processes, job.ranks) ? 0 : 1;
}
