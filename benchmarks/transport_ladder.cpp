// What the transport costs above UCX's own calls: latency, bandwidth and message rate between two
// processes, raw UCP, transport and persistent operations side by side in one run, interleaved.
//
//   transport_ladder [REPEATS]    medians (and minima) of so many repeats, 9 if not given
//
// Latency is half a ping-pong. Bandwidth and rate are those of 64 messages in flight, answered by
// one. Choose UCX's transports with UCX_TLS, its version with LD_LIBRARY_PATH.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "benchmarks/raw_ucp.h"
#include "tests/support/rank.h"
#include "tests/support/rank_processes.h"

namespace torch_ucx::benchmarks {
namespace {

using contract::BufferRequest;
using contract::Rank;
using support::DirectoryStore;
using support::RankProcesses;
using transport::Engine;
using transport::EngineOptions;
using transport::Ref;
using Seconds = std::chrono::duration<double>;

constexpr std::size_t kWindow = 64;
constexpr std::array<std::size_t, 5> kSizes{8, 4096, 65'536, 1 << 20, 16 << 20};

// A way to move messages between this process and the other one.
struct Step {
  const char* name;
  // count ping-pongs, or count windows, of so many bytes.
  std::function<void(std::size_t bytes, int count)> ping_pong;
  std::function<void(std::size_t bytes, int count)> windows;
};

struct Buffers {
  std::vector<std::byte> out = std::vector<std::byte>(kSizes.back());
  std::vector<std::byte> in = std::vector<std::byte>(kSizes.back());
};

Step raw_step(RawUcp& raw, Buffers& memory, int rank) {
  using Operation = RawUcp::Operation;
  const auto send = [&](std::size_t bytes) {
    Operation operation;
    raw.send(operation, memory.out.data(), bytes);
    raw.wait(operation);
  };
  const auto receive = [&](std::size_t bytes) {
    Operation operation;
    raw.receive(operation, memory.in.data(), bytes);
    raw.wait(operation);
  };
  return {"raw",
          [=](std::size_t bytes, int count) {
            for (int i = 0; i < count; ++i) {
              if (rank == 0) send(bytes);
              receive(bytes);
              if (rank == 1) send(bytes);
            }
          },
          [=, &raw, &memory](std::size_t bytes, int count) {
            std::array<Operation, kWindow> operations;
            for (int i = 0; i < count; ++i) {
              for (auto& operation : operations) {
                if (rank == 0) {
                  raw.send(operation, memory.out.data(), bytes);
                } else {
                  raw.receive(operation, memory.in.data(), bytes);
                }
              }
              for (auto& operation : operations) raw.wait(operation);
              if (rank == 0) {
                receive(8);
              } else {
                send(8);
              }
            }
          }};
}

Step transport_step(Rank& self, Buffers& memory, int rank) {
  const auto post = [&self, &memory, rank](bool sends, std::size_t bytes) {
    auto request = Ref<BufferRequest>::make(std::vector<std::byte>());
    if (sends) {
      self.group->send(request, memory.out.data(), bytes, 1 - rank, 1, 0);
    } else {
      self.group->receive(request, memory.in.data(), bytes, 1 - rank, 1, 0);
    }
    return request;
  };
  const auto move = [=, &self](bool sends, std::size_t bytes) {
    self.group->wait(*post(sends, bytes));
  };
  return {"transport",
          [=](std::size_t bytes, int count) {
            for (int i = 0; i < count; ++i) {
              if (rank == 0) move(true, bytes);
              move(false, bytes);
              if (rank == 1) move(true, bytes);
            }
          },
          [=, &self](std::size_t bytes, int count) {
            std::array<Ref<BufferRequest>, kWindow> requests;
            for (int i = 0; i < count; ++i) {
              for (auto& request : requests) request = post(rank == 0, bytes);
              for (auto& request : requests) self.group->wait(*request);
              move(rank == 1, 8);
            }
          }};
}

Step persistent_step(Rank& self, Buffers& memory, int rank) {
  const auto prepare = [&self, &memory, rank](bool sends, std::size_t bytes) {
    auto request = Ref<BufferRequest>::make(std::vector<std::byte>());
    if (sends) {
      self.group->init_send(request, memory.out.data(), bytes, 1 - rank, 1, 0);
    } else {
      self.group->init_receive(request, memory.in.data(), bytes, 1 - rank, 1, 0);
    }
    return request;
  };
  return {"persistent",
          [=, &self](std::size_t bytes, int count) {
            const auto sent = prepare(true, bytes);
            const auto received = prepare(false, bytes);
            const auto move = [&](const Ref<BufferRequest>& request) {
              self.group->start(request);
              self.group->wait(*request);
            };
            for (int i = 0; i < count; ++i) {
              if (rank == 0) move(sent);
              move(received);
              if (rank == 1) move(sent);
            }
          },
          [=, &self](std::size_t bytes, int count) {
            std::vector<Ref<transport::Request>> requests;
            for (std::size_t i = 0; i < kWindow; ++i) {
              requests.emplace_back(prepare(rank == 0, bytes));
            }
            const auto answer = prepare(rank == 1, 8);
            for (int i = 0; i < count; ++i) {
              self.group->start_all(requests);
              self.group->wait_all(requests);
              self.group->start(answer);
              self.group->wait(*answer);
            }
          }};
}

struct Result {
  std::vector<double> seconds;
  [[nodiscard]] double median() {
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }
  [[nodiscard]] double least() { return *std::min_element(seconds.begin(), seconds.end()); }
};

// Both ranks run the same schedule; rank 0 prints.
void run(int rank, DirectoryStore& store, int repeats) {
  Buffers memory;
  RawUcp raw(store, rank);
  Rank self(Engine::create(EngineOptions::from_environment()), store, rank, 2, "ladder",
            std::chrono::minutes(5));
  const std::vector<Step> steps{raw_step(raw, memory, rank), transport_step(self, memory, rank),
                                persistent_step(self, memory, rank)};
  const auto table = [&](const char* title, const char* unit, auto operation, auto count_of,
                         auto figure) {
    if (rank == 0) {
      std::printf("\n%s\n%10s", title, "bytes");
      for (const auto& step : steps) std::printf(" %12s (best)", step.name);
      std::printf("   %s\n", unit);
    }
    for (const std::size_t bytes : kSizes) {
      const int count = count_of(bytes);
      std::vector<Result> results(steps.size());
      for (int repeat = -1; repeat < repeats; ++repeat) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const auto begin = std::chrono::steady_clock::now();
          (steps[i].*operation)(bytes, count);
          const Seconds taken = std::chrono::steady_clock::now() - begin;
          if (repeat >= 0) results[i].seconds.push_back(taken.count() / count);
        }
      }
      if (rank != 0) continue;
      std::printf("%10zu", bytes);
      for (auto& result : results) {
        std::printf(" %10.3f %8.3f", figure(bytes, result.median()), figure(bytes, result.least()));
      }
      const double floor = results[0].median();
      for (std::size_t i = 1; i < results.size(); ++i) {
        std::printf("   %s/raw %.2f", steps[i].name, results[i].median() / floor);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  };
  table(
      "latency one way", "us", &Step::ping_pong,
      [](std::size_t bytes) { return bytes <= 65'536      ? 2000
                                     : bytes <= (1 << 20) ? 100
                                                          : 10; },
      [](std::size_t, double seconds) { return 1e6 * seconds / 2; });
  table(
      "64 in flight", "us a message", &Step::windows,
      [](std::size_t bytes) { return bytes <= 4096     ? 200
                                     : bytes <= 65'536 ? 40
                                                       : 2; },
      [](std::size_t, double seconds) { return 1e6 * seconds / kWindow; });
}

}  // namespace
}  // namespace torch_ucx::benchmarks

int main(int argc, char** argv) {
  using namespace torch_ucx::benchmarks;  // NOLINT: a program
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 9;
  if (repeats < 1) return 2;
  RankProcesses processes;
  for (int i = 0; i < 2; ++i) {
    processes.start([=](int rank, DirectoryStore& store) { run(rank, store, repeats); });
  }
  return processes.wait(0, std::chrono::minutes(10)) != 0 || processes.wait(1) != 0;
}
