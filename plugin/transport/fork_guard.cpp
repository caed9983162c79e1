#include "plugin/transport/fork_guard.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

namespace torch_ucx::transport {

namespace {

std::atomic<std::uint32_t> generation{0};

// Never destroyed: processes fork at exit too.
struct Registry {
  std::mutex mutex;
  std::vector<StillAtFork*> members;
};
Registry& registry() {
  static auto* const instance = new Registry;  // NOLINT: see above
  return *instance;
}

}  // namespace

struct ForkHandlers {
  static void prepare() {
    registry().mutex.lock();
    for (auto* member : registry().members) member->stop_for_fork();
  }
  static void parent() {
    for (auto* member : registry().members) member->go_on_in_parent();
    registry().mutex.unlock();
  }
  static void child() {
    generation.fetch_add(1, std::memory_order_relaxed);
    for (auto* member : registry().members) member->go_on_in_child();
    registry().members.clear();  // nobody uses them here
    registry().mutex.unlock();
  }
  static void install() noexcept {
    [[maybe_unused]] static const int registered = pthread_atfork(&prepare, &parent, &child);
  }
};

ForkGuard::ForkGuard() noexcept {
  ForkHandlers::install();
  generation_ = generation.load(std::memory_order_relaxed);
}

bool ForkGuard::forked() const noexcept {
  return generation.load(std::memory_order_relaxed) != generation_;
}

void StillAtFork::join_forks() {
  ForkHandlers::install();
  const std::lock_guard lock(registry().mutex);
  registry().members.push_back(this);
}

void StillAtFork::leave_forks() noexcept {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().members, this);
}

}  // namespace torch_ucx::transport
