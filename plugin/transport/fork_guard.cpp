#include "plugin/transport/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace torch_ucx::transport {

namespace {

std::atomic<std::uint32_t> generation{0};

void count_child() { generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

ForkGuard::ForkGuard() noexcept {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, &count_child);
  generation_ = generation.load(std::memory_order_relaxed);
}

bool ForkGuard::forked() const noexcept {
  return generation.load(std::memory_order_relaxed) != generation_;
}

}  // namespace torch_ucx::transport
