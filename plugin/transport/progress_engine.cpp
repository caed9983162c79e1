#include "plugin/transport/progress_engine.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "plugin/transport/host_hooks.h"
#include "plugin/transport/thread_setup.h"
#include "plugin/ucp/log.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {

namespace {

// Polls before the first sched_yield: enough for an 8-byte answer when both ranks have a core.
constexpr int kPollsBeforeYield = 50;
// Polls of a driver under one hold of the lock, about one us.
constexpr int kPollsPerHold = 25;
// Of the first polls, on a core that others want.
constexpr int kPollsOnSharedCore = 10;
// A yield that is over so soon has not let anybody else run.
constexpr std::chrono::microseconds kQuickYield{2};
constexpr int kPollsPerYieldLimit = 16;
// A yield that took so long has lost a time slice to somebody who computes.
constexpr std::chrono::microseconds kSliceLost{500};
// How long to block at once from then on; twice as long each time the next yield shows the same.
constexpr std::chrono::milliseconds kCrowdedFirst{5};
constexpr std::chrono::milliseconds kCrowdedLast{160};
// Yields of a waiter before it asks the client to look again (typed matching): long enough that an
// answer on its way, over tcp too, comes first.
constexpr int kPollsBeforeLook = 200;
// Yields of a thread that watches another one drive, before it sleeps.
constexpr int kFollowerYields = 400;
// Looks of the helper at a quiet engine before it sleeps deep.
constexpr int kTicksBeforeSleep = 20;
constexpr int kTickMs = 1;
// Ticks between its looks after operations that busy waiters do not look after.
constexpr int kTicksBetweenLooks = 10;
// Longest sleep of a waiter: bounds the answer to Ctrl-C where the signal does not interrupt poll.
constexpr std::chrono::milliseconds kInterruptPeriod{100};
// Yields of a polling thread for one that sleeps for the lock: it wakes up in some 10 us.
constexpr int kYieldsToContenders = 50;
// Progress calls in a row under one hold of the lock by a driver about to block.
constexpr int kDrainLimit = 64;
constexpr int kLastWordsLimit = 10'000;
// How long a fork waits for the lock: a progress call takes some ms at most.
constexpr std::chrono::seconds kForkPatience{1};
// ucp_worker_arm answers BUSY for as long as shared-memory sends are pending: back off between
// tries.
constexpr std::chrono::microseconds kArmBackoffFirst{50};
constexpr std::chrono::microseconds kArmBackoffLast{1000};

// Takes one from a counter at the end of a scope.
class CountedDown {
 public:
  explicit CountedDown(std::atomic<int>* counter) noexcept : counter_(counter) {}
  CountedDown(const CountedDown&) = delete;
  CountedDown& operator=(const CountedDown&) = delete;
  ~CountedDown() {
    if (counter_ != nullptr) counter_->fetch_sub(1);
  }

 private:
  std::atomic<int>* counter_;
};

// Orders "done is set, then the sleepers are counted" against "a sleeper is counted, then it looks
// at done". On x86 the locked instructions in between do.
void fence_completions() {
#if !defined(__x86_64__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

// How long the core was gone.
Clock::duration yield_core() {
  const auto begin = Clock::now();
  ::sched_yield();
  return Clock::now() - begin;
}

int remaining_ms(Clock::time_point deadline, std::chrono::milliseconds limit) {
  const auto rest = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(rest.count(), 0, limit.count()));
}

}  // namespace

ProgressEngine::Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

ProgressEngine::ProgressEngine(ucp::Worker& worker, Client& client, ProgressMode mode,
                               std::chrono::microseconds spin, int watch_fd,
                               std::chrono::milliseconds longest_sleep)
    : worker_(worker),
      client_(client),
      mode_(mode),
      spin_(spin),
      watch_fd_(watch_fd),
      longest_sleep_ms_(static_cast<int>(longest_sleep.count())),
      kick_fd_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (kick_fd_.get() < 0) throw Error("eventfd failed: no descriptors left?");
  join_forks();
}

ProgressEngine::~ProgressEngine() {
  stop_helper();
  leave_forks();
}

void ProgressEngine::start_helper() {
  helper_owns_role_.store(mode_ == ProgressMode::thread);
  helper_ = start_thread("ucx-progress", [this] {
    if (mode_ == ProgressMode::caller) {
      helper_watch();
    } else {
      helper_main();
    }
  });
}

void ProgressEngine::stop_helper() noexcept {
  if (helper_ == nullptr) return;
  stopping_.store(true);
  write_kick();
  helper_->join();
  helper_.reset();
  helper_owns_role_.store(false);
  wake_followers();
}

void ProgressEngine::abandon() noexcept { [[maybe_unused]] auto* forgotten = helper_.release(); }

void ProgressEngine::write_kick() noexcept {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(kick_fd_.get(), &one, sizeof one);
}

void ProgressEngine::read_kick() noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(kick_fd_.get(), &count, sizeof count);
  kicked_.store(false);
}

bool ProgressEngine::arm() noexcept {
  if (ended_) return false;
  signaled_ = false;
  armed_.fetch_add(1);
  try {
    if (worker_.arm()) return true;
  } catch (const Error& error) {
    log(LogLevel::error, error.what());
  }
  armed_.fetch_sub(1);
  return false;
}

void ProgressEngine::signal_armed() noexcept {
  if (std::exchange(signaled_, true)) return;
  worker_.signal();
}

// ---- fork --------------------------------------------------------------------------------------

void ProgressEngine::stop_for_fork() noexcept {
  const auto patience = Clock::now() + kForkPatience;
  contenders_.fetch_add(1);
  const CountedDown leave(&contenders_);
  while (!mutex_.try_lock()) {
    if (Clock::now() >= patience) return;
    ::sched_yield();
  }
  stopped_for_fork_ = true;
}

void ProgressEngine::go_on_in_parent() noexcept {
  if (std::exchange(stopped_for_fork_, false)) unlock();
}

void ProgressEngine::go_on_in_child() noexcept {
  [[maybe_unused]] auto* the_parents = submissions_.take_all();
  contenders_.store(0);
  if (std::exchange(stopped_for_fork_, false)) mutex_.unlock();
}

// ---- the lock and the submission queue ---------------------------------------------------------

void ProgressEngine::drain_submissions() noexcept {
  if (submissions_.empty()) return;
  completed_ = true;  // what completes at once has somebody who waits for it by now
  for (Request* request = submissions_.take_all(); request != nullptr;) {
    Request* next = RequestStack::next(*request);
    client_.post(*request);
    request = next;
  }
}

void ProgressEngine::lock_contended() {
  contenders_.fetch_add(1);
  mutex_.lock();
  contenders_.fetch_sub(1);
}

void ProgressEngine::give_way() const noexcept {
  for (int i = 0; i < kYieldsToContenders && contenders_.load(std::memory_order_relaxed) > 0; ++i) {
    if (yield_core() >= kSliceLost) return;
  }
}

void ProgressEngine::unlock() noexcept {
  for (;;) {
    drain_submissions();
    const bool completed = std::exchange(completed_, false);
    if (completed && armed_.load() > 0 && driver_.load() == Driver::waiter) signal_armed();
    mutex_.unlock();
    if (completed) fence_completions();
    if (completed && followers_asleep_.load() > 0) wake_followers();
    // A thread that found the lock taken may have pushed after the drain: whoever sees the queue
    // filled with the lock free posts it. (The pusher tries the lock once more after its push.)
    if (submissions_.empty() || !mutex_.try_lock()) return;
  }
}

void ProgressEngine::submit(Request& request) noexcept {
  if (mutex_.try_lock()) {
    const Guard guard(*this, std::adopt_lock);
    drain_submissions();
    client_.post(request);
    return;
  }
  request.hold();
  submissions_.push(request);
  if (mutex_.try_lock()) const Guard guard(*this, std::adopt_lock);
}

void ProgressEngine::end(std::chrono::milliseconds limit) noexcept {
  {
    const Guard guard(*this);
    ended_ = true;
    signaled_ = false;
    if (armed_.load() > 0) signal_armed();
    completed_ = true;
  }
  wake_followers();
  const auto deadline = Clock::now() + limit;
  while ((following_.load() > 0 || driver_.load() == Driver::waiter) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

unsigned ProgressEngine::step() noexcept {
  if (ended_) return 0;
  const unsigned moved = worker_.progress();
  client_.after_progress();
  // A thread that follows may wait for any arrival (a probe), not only for a completion.
  if (moved != 0 && followers_asleep_.load() > 0) completed_ = true;
  if (moved != 0) generation_.store(generation_.load(std::memory_order_relaxed) + 1);
  return moved;
}

void ProgressEngine::read_last_words() noexcept {
  for (int i = 0; i < kLastWordsLimit && step() != 0; ++i) {
  }
}

void ProgressEngine::maybe_housekeeping(Clock::time_point now) noexcept {
  if (ended_ || now - housekept_at_ < kHousekeepingPeriod) return;
  housekept_at_ = now;
  client_.housekeeping(now);
}

// ---- waiting -----------------------------------------------------------------------------------

bool ProgressEngine::take_role_as_waiter() noexcept {
  if (helper_owns_role_.load()) return false;
  Driver current = driver_.load();
  while (current != Driver::waiter) {
    if (driver_.compare_exchange_weak(current, Driver::waiter)) return true;
  }
  return false;
}

void ProgressEngine::leave_role() noexcept {
  driver_.store(Driver::none);
  if (asleep_.load()) kick();
  if (followers_asleep_.load() > 0) wake_followers();
}

void ProgressEngine::wake_followers() noexcept {
  const std::lock_guard lock(follower_mutex_);
  ++wake_count_;
  follower_wake_.notify_all();
}

void ProgressEngine::check_interrupt(Interrupt interrupt) {
  if (interrupt == Interrupt::allowed && host_hooks().check_interrupt != nullptr) {
    host_hooks().check_interrupt();
  }
}

ProgressEngine::WaitResult ProgressEngine::wait(Condition done, Clock::time_point deadline,
                                                Interrupt interrupt) {
  while (!done()) {
    if (take_role_as_waiter()) {
      struct Leave {
        ProgressEngine& engine;
        ~Leave() { engine.leave_role(); }
      } const leave{*this};
      return drive(done, deadline, interrupt);
    }
    following_.fetch_add(1);
    const CountedDown leave_wait(&following_);
    follow(done, deadline);
    if (!done() && Clock::now() >= deadline) return WaitResult::deadline;
    check_interrupt(interrupt);
  }
  return WaitResult::done;
}

ProgressEngine::WaitResult ProgressEngine::drive(Condition done, Clock::time_point deadline,
                                                 Interrupt interrupt) {
  // Where others wanted the core during the last yield, they will want it now.
  int polls = polls_per_yield_ > 1 ? 0 : kPollsBeforeYield - kPollsOnSharedCore;
  auto backoff = kArmBackoffFirst;
  Clock::time_point spin_until{};
  Clock::time_point look_up_at{};
  bool yields = false;
  for (;;) {
    give_way();
    // While a transfer is under way, a pause would cost more than its polls: spin anew.
    if (done.takes_no_lock) {
      const Guard guard(*this);
      const int count = polls < kPollsBeforeYield
                            ? std::min(kPollsPerHold, kPollsBeforeYield - polls)
                            : polls_per_yield_;
      for (int i = 0; i < count; ++i) {
        if (step() != 0) {
          polls = std::min(polls, kPollsBeforeYield - 1);
          yields = false;
        }
        if (done()) return WaitResult::done;
        drain_submissions();
      }
      polls += polls < kPollsBeforeYield ? count : 1;
    } else {
      const Guard guard(*this);
      if (step() != 0) {
        polls = std::min(polls, kPollsBeforeYield - 1);
        yields = false;
      }
      ++polls;
    }
    if (done()) return WaitResult::done;
    if (polls < kPollsBeforeYield) {
      yields = false;
      continue;
    }
    const auto now = Clock::now();
    if (now >= deadline) return WaitResult::deadline;
    if (!yields) spin_until = now + spin_;
    yields = true;
    if (look_up_at == Clock::time_point{}) look_up_at = now + kInterruptPeriod;
    if (now >= look_up_at) {
      look_up_at = now + kInterruptPeriod;
      check_interrupt(interrupt);
      const Guard guard(*this);
      maybe_housekeeping(now);
    }
    if (polls == kPollsBeforeLook) {
      const Guard guard(*this);
      if (!ended_) client_.look_again(generation_.load());
    }
    if (now < spin_until && now >= crowded_until_) {
      const auto gone = yield_core();
      // Nobody wants the core: let go of it less often.
      polls_per_yield_ =
          gone < kQuickYield ? std::min(2 * polls_per_yield_, kPollsPerYieldLimit) : 1;
      if (gone >= kSliceLost) {
        crowded_until_ = now + gone + crowded_for_;
        crowded_for_ = std::min(2 * crowded_for_, kCrowdedLast);
      } else {
        crowded_for_ = kCrowdedFirst;
      }
      continue;
    }

    bool armed = false;
    {
      const Guard guard(*this);
      if (step() != 0) {
        polls = kPollsBeforeYield - 1;
        yields = false;
        backoff = kArmBackoffFirst;
        continue;
      }
      if (!ended_) client_.look_again(generation_.load());
      armed = arm();
    }
    const CountedDown disarm(armed ? &armed_ : nullptr);  // done() may throw
    if (done()) return WaitResult::done;
    if (!armed) {
      const auto pause = std::min<Clock::duration>(backoff, deadline - now);
      if (pause > Clock::duration::zero()) std::this_thread::sleep_for(pause);
      backoff = std::min(backoff * 2, kArmBackoffLast);
      continue;
    }
    pollfd event{worker_.event_fd(), POLLIN, 0};
    const int ready = ::poll(&event, 1, remaining_ms(deadline, kInterruptPeriod));
    if (ready < 0) check_interrupt(interrupt);  // a signal came
    if (ready > 0) {  // something comes: worth another spin; a mere time-out is not
      polls = 0;
      backoff = kArmBackoffFirst;
    }
  }
}

void ProgressEngine::follow(Condition done, Clock::time_point deadline) {
  for (int i = 0; i < kFollowerYields; ++i) {
    if (done() || !driven()) return;
    if (yield_core() >= kSliceLost) break;
  }
  std::uint64_t seen = 0;
  {
    const std::lock_guard lock(follower_mutex_);
    followers_asleep_.fetch_add(1);
    seen = wake_count_;
  }
  const CountedDown awake(&followers_asleep_);
  fence_completions();
  // Looked at after followers_asleep_ was raised: a driver that completes or leaves later sees it,
  // and counts. Without the mutex, because done() may take the engine's lock, which wakes
  // followers.
  if (!done() && driven()) {
    std::unique_lock lock(follower_mutex_);
    follower_wake_.wait_until(lock, std::min(deadline, Clock::now() + kInterruptPeriod),
                              [&] { return wake_count_ != seen; });
  }
}

// ---- the helper thread -------------------------------------------------------------------------

void ProgressEngine::helper_poll(bool with_worker, int timeout_ms) noexcept {
  std::array<pollfd, 3> events{{{kick_fd_.get(), POLLIN, 0},
                                {watch_fd_, POLLIN, 0},  // poll ignores a negative descriptor
                                {with_worker ? worker_.event_fd() : -1, POLLIN, 0}}};
  if (::poll(events.data(), events.size(), timeout_ms) <= 0) return;
  if (events[0].revents != 0) read_kick();
  if (events[1].revents != 0) client_.on_watch_event();
}

int ProgressEngine::sleep_limit_ms() const noexcept {
  return client_.needs_housekeeping() ? static_cast<int>(kHousekeepingPeriod.count()) : -1;
}

void ProgressEngine::helper_watch() noexcept {
  // Without asleep_: no waiter that leaves need wake it.
  while (!stopping_.load()) {
    client_.on_helper_tick();
    helper_poll(false, sleep_limit_ms());
    if (client_.needs_housekeeping()) {
      const Guard guard(*this);
      maybe_housekeeping(Clock::now());
    }
  }
}

void ProgressEngine::helper_main() noexcept {
  int quiet_ticks = 0;
  int busy_ticks = 0;
  std::uint64_t seen = generation_.load();
  while (!stopping_.load()) {
    client_.on_helper_tick();
    const std::uint64_t now_at = generation_.load();
    const bool moved = std::exchange(seen, now_at) != now_at;
    if (driver_.load() == Driver::none && !moved) {
      Driver expected = Driver::none;
      if (driver_.compare_exchange_strong(expected, Driver::helper)) {
        helper_drive();
        quiet_ticks = 0;
        seen = generation_.load();
        continue;
      }
    }
    quiet_ticks = moved ? 0 : quiet_ticks + 1;
    if (quiet_ticks < kTicksBeforeSleep) {
      // Waiters that are never idle (a ping-pong) do not look after other operations.
      if (++busy_ticks >= kTicksBetweenLooks && client_.needs_housekeeping()) {
        busy_ticks = 0;
        const Guard guard(*this);
        maybe_housekeeping(Clock::now());
        if (!ended_) client_.look_again(generation_.load());
      }
      helper_poll(false, kTickMs);
      continue;
    }
    // A waiter drives and has nothing to do: nobody needs the helper until that one leaves.
    asleep_.store(true);
    if (driver_.load() != Driver::none && !stopping_.load()) helper_poll(false, sleep_limit_ms());
    asleep_.store(false);
    if (client_.needs_housekeeping() && mutex_.try_lock()) {
      const Guard guard(*this, std::adopt_lock);
      maybe_housekeeping(Clock::now());
    }
  }
}

void ProgressEngine::helper_drive() noexcept {
  auto backoff = kArmBackoffFirst;
  // With ProgressMode::thread: polls on after something moved. On a core that it shares with the
  // waiters it would only be in their way.
  const bool polls_on = mode_ == ProgressMode::thread && cores_of_this_thread() > 1;
  Clock::time_point poll_until{};
  Clock::time_point tick_at{};
  int ticks = 0;
  int quiet_polls = 0;
  while (!stopping_.load()) {
    bool armed = false;
    if (polls_on) {
      give_way();
      if (quiet_polls >= kPollsBeforeYield && yield_core() >= kSliceLost) poll_until = {};
      // What else it has to do, however busy the network is.
      if (const auto now = coarse_now(); now >= tick_at) {
        tick_at = now + std::chrono::milliseconds(kTickMs);
        client_.on_helper_tick();
        helper_poll(false, 0);
        if (++ticks % kTicksBetweenLooks == 0) {
          const Guard guard(*this);
          if (!ended_) client_.look_again(generation_.load());
        }
      }
    }
    {
      const Guard guard(*this);
      if (driver_.load() != Driver::helper) return;  // stolen: the event is the waiter's
      const auto now = Clock::now();
      maybe_housekeeping(now);
      int drained = 0;
      while (step() != 0 && ++drained < kDrainLimit) {
      }
      if (drained > 0) {
        backoff = kArmBackoffFirst;
        poll_until = now + spin_;
        quiet_polls = 0;
      }
      if (drained == kDrainLimit) continue;  // busy: let others at the lock, then go on at once
      if (polls_on && now < poll_until) {
        if (++quiet_polls == kPollsBeforeLook && !ended_) client_.look_again(generation_.load());
        continue;
      }
      if (!ended_) client_.look_again(generation_.load());
      armed = arm();
    }
    client_.on_helper_tick();
    if (armed) {
      // asleep_ too: a waiter that steals the role and leaves again must wake this thread.
      asleep_.store(true);
      const int limit = sleep_limit_ms();
      if (!stopping_.load()) helper_poll(true, limit < 0 ? longest_sleep_ms_ : limit);
      asleep_.store(false);
      armed_.fetch_sub(1);
      backoff = kArmBackoffFirst;
      poll_until = Clock::now() + spin_;
      quiet_polls = 0;
    } else {
      std::this_thread::sleep_for(backoff);
      backoff = std::min(backoff * 2, kArmBackoffLast);
    }
  }
  Driver expected = Driver::helper;
  driver_.compare_exchange_strong(expected, Driver::none);
}

}  // namespace torch_ucx::transport
