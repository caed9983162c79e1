#include "plugin/c10d/barrier.h"

#include <algorithm>
#include <utility>

#include "plugin/ucp/log.h"
#include "torch_ucx/transport/tag.h"

namespace torch_ucx {

namespace {

using transport::Clock;
using transport::Failure;
using transport::Ref;

class Departure final : public transport::Request {};

// What completes a future can throw: a callback of the user's, or a future completed already.
void run_quietly(const std::function<void()>& then) noexcept {
  try {
    then();
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("a barrier's continuation failed: ") + error.what());
  }
}

}  // namespace

// The message that ends a round. Its reference to the barrier makes a cycle until the round has
// ended.
class Barrier::Arrival final : public transport::Request {
 public:
  explicit Arrival(std::shared_ptr<Barrier> barrier) : barrier_(std::move(barrier)) {}

 private:
  void on_done() noexcept override { barrier_->advance(); }

  const std::shared_ptr<Barrier> barrier_;
};

std::shared_ptr<Barrier> Barrier::start(std::shared_ptr<transport::Group> group,
                                        std::uint64_t number) {
  const auto tag = static_cast<std::uint32_t>(number & transport::kMaxUserTag);
  auto barrier = std::make_shared<Barrier>(Key{}, std::move(group), tag);
  barrier->advance();
  return barrier;
}

Barrier::Barrier(Key, std::shared_ptr<transport::Group> group, std::uint32_t tag)
    : group_(std::move(group)), tag_(tag) {}

Barrier::~Barrier() = default;

void Barrier::advance() noexcept {
  std::function<void()> then;
  {
    const std::lock_guard lock(mutex_);
    if (done()) return;
    try {
      if (!step()) return;
    } catch (const std::exception& error) {
      finish(Failure::ucx, std::string("ucx barrier: ") + error.what());
    }
    then = std::exchange(then_, nullptr);
  }
  if (then) run_quietly(then);
}

bool Barrier::step() {
  for (;;) {
    if (arrival_) {
      // Either the message comes later, and on_done with it, or it is here.
      if (group_->notify(*arrival_)) return false;
      if (!arrival_->outcome().ok()) {
        finish(arrival_->outcome().failure, "ucx barrier: " + arrival_->describe());
        return true;
      }
    }
    distance_ = distance_ == 0 ? 1 : distance_ * 2;
    if (distance_ >= group_->size()) {
      finish(Failure::none, "");
      return true;
    }
    start_round(distance_);
  }
}

void Barrier::start_round(int distance) {
  const int size = group_->size();
  const int rank = group_->rank();
  // The sources of all rounds differ, so one tag serves them.
  arrival_ = Ref<Arrival>::make(shared_from_this());
  group_->receive(arrival_, nullptr, 0, (rank - distance + size) % size,
                  transport::kClassCollective, tag_);
  group_->send(Ref<Departure>::make(), nullptr, 0, (rank + distance) % size,
               transport::kClassCollective, tag_);
}

void Barrier::finish(Failure failure, std::string reason) noexcept {
  failure_ = failure;
  reason_ = std::move(reason);
  arrival_ = {};
  done_.store(true, std::memory_order_release);
}

void Barrier::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!done()) {
    Ref<Arrival> arrival;
    {
      const std::lock_guard lock(mutex_);
      arrival = arrival_;
    }
    if (!arrival) continue;
    auto left = std::chrono::milliseconds(0);
    if (timeout.count() > 0) {
      left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
      left = std::max(left, std::chrono::milliseconds(1));
    }
    group_->wait(*arrival, left);
    advance();
  }
}

void Barrier::when_done(std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (!done()) {
      then_ = std::move(then);
      return;
    }
  }
  run_quietly(then);
}

}  // namespace torch_ucx
