// Measures steps of the ladder between two processes with Google Benchmark: latency one way (half a
// ping-pong), and 64 messages in flight that one small message answers. Linked with
// steps_transport.cpp or steps_c10d.cpp.
//
//   transport_ladder [--benchmark_...]    all, once, or as Google Benchmark's options say
//   transport_ladder --commands           reads patterns of names, a line each, runs what matches
//                                         and prints one line of JSON for each benchmark:
//                                         benchmarks/ladder.py interleaves programs this way
//
// UCX_TLS chooses UCX's transports, LD_LIBRARY_PATH its version. Rank 0 runs the benchmarks; rank 1
// reads from a socket which of them it has to take part in. Both are forked before anything of UCX
// or torch exists.
#include <benchmark/benchmark.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/cores.h"
#include "benchmarks/step.h"
#include "tests/support/rank_processes.h"

namespace torch_ucx::benchmarks {
namespace {

using support::DirectoryStore;
using support::RankProcesses;

// The counts make a measurement long beside the clock and short beside what else the machine does.
struct Size {
  std::size_t bytes;
  int ping_pongs;
  int windows;
};
constexpr std::array<Size, 5> kSizes{
    {{8, 2000, 100}, {4096, 1000, 100}, {65'536, 500, 20}, {1 << 20, 60, 2}, {kMostBytes, 5, 1}}};

struct Measurement {
  std::string name;  // "latency/raw/8"
  const Step* step;
  std::function<void(std::size_t bytes, int count)> Step::*operation;
  std::size_t bytes;
  int count;
  int messages;  // of all counts, one after the other or together

  // Seconds.
  [[nodiscard]] double run(int rank) const {
    spread(rank);
    step->ping_pongs(bytes, 1);  // both ranks are there, and the caches warm
    const auto begin = std::chrono::steady_clock::now();
    (step->*operation)(bytes, count);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

std::vector<Measurement> measurements(const std::vector<Step>& steps) {
  std::vector<Measurement> all;
  for (const auto& size : kSizes) {
    for (const auto& step : steps) {
      std::string suffix("/");
      suffix.append(step.name).append("/").append(std::to_string(size.bytes));
      all.push_back({std::string("latency").append(suffix), &step, &Step::ping_pongs, size.bytes,
                     size.ping_pongs, 2 * size.ping_pongs});
      all.push_back({std::string("window").append(suffix), &step, &Step::windows, size.bytes,
                     size.windows, kWindow * size.windows});
    }
  }
  return all;
}

// Google Benchmark's own JSON has its context around each run.
class LineReporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const auto& run : runs) {
      std::printf("{\"name\": \"%s\", \"us\": %.6f}\n", run.run_name.function_name.c_str(),
                  run.GetAdjustedRealTime());
    }
    std::fflush(stdout);
  }
};

void lead(int socket, const std::vector<Measurement>& all, bool commands) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& measurement = all[i];
    benchmark::RegisterBenchmark(measurement.name.c_str(),
                                 [socket, i, &measurement](benchmark::State& state) {
                                   if (::write(socket, &i, sizeof i) != sizeof i)
                                     throw std::runtime_error("rank 1 is gone");
                                   // One batch, so that the clock is read once; its time is divided
                                   // by the messages.
                                   while (state.KeepRunningBatch(measurement.messages)) {
                                     state.SetIterationTime(measurement.run(0));
                                   }
                                 })
        ->UseManualTime()
        ->Iterations(measurement.messages)
        ->Unit(benchmark::kMicrosecond);
  }
  if (!commands) {
    benchmark::RunSpecifiedBenchmarks();
    return;
  }
  LineReporter reporter;
  for (std::string pattern; std::getline(std::cin, pattern);) {
    if (benchmark::RunSpecifiedBenchmarks(&reporter, pattern) == 0) {
      throw std::runtime_error("no benchmark matches " + pattern);
    }
  }
}

void follow(int socket, const std::vector<Measurement>& all) {
  for (std::size_t i = 0; ::read(socket, &i, sizeof i) == sizeof i;) (void)all[i].run(1);
}

void run(int rank, DirectoryStore& store, const std::array<int, 2>& sockets, bool commands) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(sockets[static_cast<std::size_t>(1 - rank)]);  // else rank 1 would not see rank 0's end
  const auto steps = make_steps(rank, store);
  const auto all = measurements(steps);
  if (rank == 0) {
    lead(sockets[0], all, commands);
    ::close(sockets[0]);
  } else {
    follow(sockets[1], all);
  }
}

}  // namespace
}  // namespace torch_ucx::benchmarks

int main(int argc, char** argv) {
  using namespace torch_ucx::benchmarks;  // NOLINT: a program
  const bool commands = argc == 2 && std::strcmp(argv[1], "--commands") == 0;
  if (!commands) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  }
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) return 1;
  RankProcesses processes;
  for (int i = 0; i < 2; ++i) {
    processes.start([=](int rank, DirectoryStore& store) { run(rank, store, sockets, commands); });
  }
  for (const int socket : sockets) ::close(socket);
  // A rank that has lost the other one spins: whichever ends first decides.
  for (;;) {
    for (int rank = 0; rank < 2; ++rank) {
      const int status = processes.wait(rank, std::chrono::seconds(0));
      if (status == -1) continue;
      return status != 0 || processes.wait(1 - rank) != 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}
