// The clock of deadlines, and a cheap reading of it for the data path.
#pragma once

#include <time.h>

#include <chrono>

namespace torch_ucx::transport {

using Clock = std::chrono::steady_clock;

// How far coarse_now() may lie behind Clock::now(): a tick of the slowest kernel clock, 100 Hz.
inline constexpr std::chrono::milliseconds kCoarseLag{10};

// The same clock as the kernel last updated it: some ns instead of some tens.
[[nodiscard]] inline Clock::time_point coarse_now() noexcept {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return Clock::time_point(std::chrono::seconds(time.tv_sec) +
                           std::chrono::nanoseconds(time.tv_nsec));
}

}  // namespace torch_ucx::transport
