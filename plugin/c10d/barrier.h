// A barrier by dissemination: in round k each rank sends an empty message to the rank 2^k above it
// and waits for that of the rank 2^k below; after ceil(log2(size)) rounds it has heard, directly or
// not, from all. Advances by itself: whoever sees a round's message starts the next one.
//
// Thread rule: any thread may call any method.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "plugin/transport/group.h"
#include "plugin/transport/request.h"

namespace torch_ucx {

class Barrier final : public std::enable_shared_from_this<Barrier> {
  struct Key {};

 public:
  // number: of this barrier among the collectives of the group, the same on all ranks.
  [[nodiscard]] static std::shared_ptr<Barrier> start(std::shared_ptr<transport::Group> group,
                                                      std::uint64_t number);
  Barrier(Key, std::shared_ptr<transport::Group> group, std::uint32_t tag);
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  ~Barrier();

  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }

  // How and why it failed; only once done() is true.
  [[nodiscard]] transport::Failure failure() const noexcept { return failure_; }
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

  // Until it is done, or failed at the deadline (of the group, or after timeout unless that is
  // zero).
  void wait(std::chrono::milliseconds timeout);
  // Somebody asks whether it is done.
  void poll() noexcept { group_->poll_as_caller(); }

  // Calls then() once it is done: at once in this thread, or later on the callback thread.
  void when_done(std::function<void()> then);

 private:
  class Arrival;

  void advance() noexcept;
  // Under the lock. True once the barrier is done.
  bool step();
  void start_round(int distance);
  void finish(transport::Failure failure, std::string reason) noexcept;

  const std::shared_ptr<transport::Group> group_;
  const std::uint32_t tag_;

  std::mutex mutex_;
  transport::Ref<Arrival> arrival_;  // of the current round; guarded by mutex_
  int distance_ = 0;                 // guarded by mutex_
  std::function<void()> then_;       // guarded by mutex_
  transport::Failure failure_ = transport::Failure::none;  // written before done_
  std::string reason_;                                     // written before done_
  std::atomic<bool> done_{false};
};

}  // namespace torch_ucx
