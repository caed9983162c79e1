#include "plugin/c10d/live_group.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "plugin/transport/callback_thread.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/host_hooks.h"
#include "plugin/ucp/log.h"
#include "torch_ucx/transport/options.h"

namespace torch_ucx {

namespace {

// Longest wait at the end of the process for groups that other threads are closing, beyond the
// time that they may linger.
constexpr std::chrono::milliseconds kOthersClose{5000};

struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<LiveGroup>> groups;
  std::size_t closing = 0;  // threads in LiveGroup::close
  std::condition_variable closed;
};

// Never destroyed: groups may end during static destruction.
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

}  // namespace

std::shared_ptr<LiveGroup> LiveGroup::open(const transport::GroupOptions& options,
                                           const std::shared_ptr<rendezvous::KeyValueStore>& store,
                                           const std::string& prefix) {
  // From here on the destructor closes the group, whatever fails.
  auto live = std::make_shared<LiveGroup>(
      Key{}, transport::Engine::open_group(transport::EngineOptions::from_environment(), options));
  live->membership_ = rendezvous::Membership::join(live->group_, store, prefix);
  auto& open_groups = registry();
  const std::lock_guard lock(open_groups.mutex);
  std::erase_if(open_groups.groups, [](const auto& group) { return group.expired(); });
  open_groups.groups.push_back(live);
  return live;
}

LiveGroup::LiveGroup(Key, std::shared_ptr<transport::Group> group) : group_(std::move(group)) {}

LiveGroup::~LiveGroup() { close(); }

void LiveGroup::close(std::optional<std::chrono::milliseconds> linger) noexcept {
  // A forked child has none of the threads, and their locks may be held for ever.
  if (group_->engine().forked()) return;
  auto& open_groups = registry();
  {
    // One step: close_all() must not find it closed already, and nobody closing it.
    const std::lock_guard lock(open_groups.mutex);
    if (closed_.exchange(true)) return;
    ++open_groups.closing;
  }
  const transport::BlockingSection blocking;
  try {
    group_->close(linger.value_or(group_->engine().options().linger));
  } catch (const std::exception& error) {
    log(LogLevel::error, "closing group \"" + group_->name() + "\": " + error.what());
  }
  if (membership_ != nullptr) membership_->leave();
  const std::lock_guard lock(open_groups.mutex);
  --open_groups.closing;
  open_groups.closed.notify_all();
}

void LiveGroup::close_all() noexcept {
  std::vector<std::weak_ptr<LiveGroup>> groups;
  auto& open_groups = registry();
  {
    const std::lock_guard lock(open_groups.mutex);
    groups = std::exchange(open_groups.groups, {});
  }
  const auto begin = transport::Clock::now();
  auto limit = begin + kOthersClose;
  for (const auto& weak : groups) {
    const auto group = weak.lock();
    if (group == nullptr) continue;
    const auto spent =
        std::chrono::duration_cast<std::chrono::milliseconds>(transport::Clock::now() - begin);
    const auto linger = group->group().engine().options().linger;
    limit = std::max(limit, begin + linger + kOthersClose);
    group->close(std::max(linger - spent, std::chrono::milliseconds(0)));
  }
  {
    std::unique_lock lock(open_groups.mutex);
    open_groups.closed.wait_until(lock, limit, [&] { return open_groups.closing == 0; });
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - transport::Clock::now());
  transport::CallbackThread::wait_for_stopped(std::max(left, std::chrono::milliseconds(0)));
}

}  // namespace torch_ucx
