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

// What is left until a deadline as a time-out, which must not be 0 (no limit): at least 1 ms.
[[nodiscard]] inline std::chrono::milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return left.count() > 0 ? left : std::chrono::milliseconds(1);
}

}  // namespace torch_ucx::transport
