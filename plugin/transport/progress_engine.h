// Who calls ucp_worker_progress, and when: the threads that wait, and a helper thread when none
// does.
//
// Lock: one mutex guards the worker and all that the engine keeps about it. Guard is the only way
// to hold it; letting go first posts what other threads left in the submission queue.
//
// Driver: at most one thread drives: a waiter, else the helper. A waiter steals the role from the
// helper with one compare-and-swap, no system call.
//
// Waiter: polls a few times, then yields its core between polls; when nothing has moved for `spin`
// it arms the worker and blocks on its event descriptor. Other waiters watch their own condition,
// yield, then sleep until the driver leaves or completes something. Where a yield costs a time
// slice, because somebody computes on that core, it blocks instead of yielding for a while: the
// scheduler favours who slept over who yielded.
//
// Helper: looks once a millisecond while threads come and go; becomes the driver, armed and blocked
// without time-out, when nobody drives and nothing moved for a tick; sleeps deep while a waiter
// drives. So completion never depends on a caller, and idling costs nothing.
//
// Two modes differ from that: with ProgressMode::caller the helper only watches for dead peers;
// with ProgressMode::thread it always drives, polls for a while before it blocks, and waiters
// watch it.
//
// The states and the lost wake-ups they avoid (all seq_cst):
//  - a poster that leaves something in flight signals whoever is blocked on the armed worker: an
//    armed shared-memory worker is not woken by its own pending sends. So does whoever completes a
//    request without being the driver. signaled_, reset at each arming, makes that one system call
//    per sleep.
//  - a thread that gives the driver role up kicks the helper if that sleeps deep (it would not come
//    to drive); the helper sets asleep_ before it looks at driver_ a last time. Only the helper
//    reads the kick descriptor: two readers would swallow each other's wake-ups.
//  - under the lock, before it arms, a driver checks that it still is the driver: another may have
//    taken the role and consumed the event it is about to wait for.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "plugin/transport/fork_guard.h"
#include "plugin/transport/request.h"
#include "plugin/ucp/worker.h"
#include "torch_ucx/transport/options.h"

namespace torch_ucx::transport {

class ProgressEngine final : private StillAtFork {
 public:
  // What the owner does in the course of progress. All but on_watch_event run under the lock.
  class Client {
   public:
    // Posts a request that went through the submission queue.
    virtual void post(Request& request) noexcept = 0;
    // After a progress call: acts on what UCX callbacks left behind.
    virtual void after_progress() noexcept = 0;
    // Deadlines, closing mailboxes; at most every kHousekeepingPeriod while work is pending.
    virtual void housekeeping(Clock::time_point now) noexcept = 0;
    // A driver found nothing to do for a while, at this generation of progress: receives that are
    // still unmatched may take another message.
    virtual void look_again(std::uint64_t generation) noexcept = 0;
    // Something is pending that needs housekeeping by time even if no event comes.
    [[nodiscard]] virtual bool needs_housekeeping() const noexcept = 0;
    // On the helper thread, without the lock: the watched descriptor became readable.
    virtual void on_watch_event() noexcept = 0;
    // On the helper thread, without the lock, about once a tick while awake and before sleeping.
    virtual void on_helper_tick() noexcept = 0;

   protected:
    ~Client() = default;
  };

  enum class WaitResult : std::uint8_t { done, deadline };

  static constexpr std::chrono::milliseconds kHousekeepingPeriod{100};

  // watch_fd: a descriptor the helper watches besides (-1: none); borrowed. longest_sleep: of the
  // helper as the driver, for workers that lose wake-ups (-1 ms: without limit).
  ProgressEngine(ucp::Worker& worker, Client& client, ProgressMode mode,
                 std::chrono::microseconds spin, int watch_fd,
                 std::chrono::milliseconds longest_sleep);
  ProgressEngine(const ProgressEngine&) = delete;
  ProgressEngine& operator=(const ProgressEngine&) = delete;
  ~ProgressEngine();

  void start_helper();
  // Ends the helper thread (idempotent). Waiters still drive.
  void stop_helper() noexcept;
  // The worker is about to be destroyed: no progress from now on; waits for other threads to leave
  // wait(), which they do because all their operations have ended, at most until the limit.
  void end(std::chrono::milliseconds limit) noexcept;
  // In a forked child: forget the thread, which does not exist there.
  void abandon() noexcept;

  class [[nodiscard]] Guard {
   public:
    explicit Guard(ProgressEngine& engine) : engine_(engine) { engine_.lock(); }
    Guard(ProgressEngine& engine, std::adopt_lock_t) noexcept : engine_(engine) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() { engine_.unlock(); }

   private:
    ProgressEngine& engine_;
  };

  // Posts request through Client::post, now where the lock is free, else by whoever holds it. Never
  // waits for a long progress call. Order among the submissions of one thread is kept.
  void submit(Request& request) noexcept;

  // Calls act under the lock where it is free now; false: it was not.
  template <typename Act>
  bool try_locked(const Act& act) {
    if (!mutex_.try_lock()) return false;
    const Guard guard(*this, std::adopt_lock);
    act();
    return true;
  }

  // For several at once: enqueue each, then flush. What was enqueued is posted at the latest by the
  // flush, in order.
  void enqueue(Request& request) noexcept { submissions_.push(request); }
  void flush_submissions() noexcept {
    try_locked([] {});
  }

  // For who asks whether something is done and does not wait: one progress call, where the lock is
  // free.
  void try_step() noexcept {
    try_locked([this] { step(); });
  }

  // Under the lock: posts what is in the submission queue now (letting go of the lock does so too).
  void drain_submissions() noexcept;

  // Under the lock: something was left in flight. Called after posting.
  void note_in_flight() noexcept {
    if (armed_.load() > 0) signal_armed();
  }

  // Under the lock: one progress call and what follows from it; the number of things that moved.
  unsigned step() noexcept;

  // Under the lock: progress until nothing moves, within bounds: what a peer that is gone had
  // already written is read before its operations are failed.
  void read_last_words() noexcept;

  // Drives, or watches others drive, until done() or the deadline. done is called without the lock.
  // Exceptions of HostHooks::check_interrupt pass through, the driver role given up.
  template <typename Done>
  WaitResult wait(const Done& done, Clock::time_point deadline) {
    return wait(condition(done), deadline, Interrupt::allowed);
  }

  // The same for a condition that takes no lock and throws nothing: it is looked at under the lock
  // too, which is then not let go of between the first polls.
  template <typename Done>
  WaitResult wait_for_flags(const Done& done, Clock::time_point deadline) {
    Condition flags = condition(done);
    flags.takes_no_lock = true;
    return wait(flags, deadline, Interrupt::allowed);
  }

  // The same, but interrupts are left pending: for tear-down, which must run to its end.
  template <typename Done>
  WaitResult wait_uninterrupted(const Done& done, Clock::time_point deadline) {
    return wait(condition(done), deadline, Interrupt::held_back);
  }

  // Under the lock: a request that was in flight completed; other waiters are told when the lock is
  // let go.
  void note_completion() noexcept { completed_ = true; }

  // Wakes the helper; any thread.
  void kick() noexcept {
    if (!kicked_.exchange(true)) write_kick();
  }

 private:
  enum class Driver : std::uint8_t { none, waiter, helper };

  struct Condition {
    const void* object;
    bool (*function)(const void*);
    bool takes_no_lock = false;
    bool operator()() const { return function(object); }
  };

  template <typename Done>
  static Condition condition(const Done& done) {
    return {&done, [](const void* object) { return (*static_cast<const Done*>(object))(); }};
  }

  enum class Interrupt : std::uint8_t { allowed, held_back };

  class Descriptor {
   public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor();
    [[nodiscard]] int get() const { return fd_; }

   private:
    int fd_;
  };

  void stop_for_fork() noexcept override;
  void go_on_in_parent() noexcept override;
  void go_on_in_child() noexcept override;

  void lock() {
    if (!mutex_.try_lock()) lock_contended();
  }
  void lock_contended();
  // A thread that polls would take the lock again before one that sleeps for it has woken up.
  void give_way() const noexcept;
  void unlock() noexcept;
  void signal_armed() noexcept;
  [[nodiscard]] bool arm() noexcept;
  void write_kick() noexcept;
  void read_kick() noexcept;
  void wake_followers() noexcept;

  WaitResult wait(Condition done, Clock::time_point deadline, Interrupt interrupt);
  WaitResult drive(Condition done, Clock::time_point deadline, Interrupt interrupt);
  static void check_interrupt(Interrupt interrupt);
  void follow(Condition done, Clock::time_point deadline);
  bool take_role_as_waiter() noexcept;
  // Another thread drives for the waiters; no need to.
  [[nodiscard]] bool driven() const noexcept {
    return driver_.load() == Driver::waiter || helper_owns_role_.load();
  }
  void leave_role() noexcept;

  void helper_main() noexcept;
  void helper_watch() noexcept;
  void helper_drive() noexcept;
  // Polls kick, watch and (with_worker) the worker's events.
  void helper_poll(bool with_worker, int timeout_ms) noexcept;
  [[nodiscard]] int sleep_limit_ms() const noexcept;
  void maybe_housekeeping(Clock::time_point now) noexcept;

  ucp::Worker& worker_;
  Client& client_;
  const ProgressMode mode_;
  const std::chrono::microseconds spin_;
  const int watch_fd_;
  const int longest_sleep_ms_;
  const Descriptor kick_fd_;

  std::mutex mutex_;
  bool completed_ = false;            // guarded by mutex_
  bool ended_ = false;                // guarded by mutex_: no worker any more
  bool signaled_ = false;             // guarded by mutex_: signalled since the last arming
  Clock::time_point housekept_at_{};  // guarded by mutex_
  bool stopped_for_fork_ = false;     // guarded by mutex_
  int polls_per_yield_ = 2;           // of the waiter that drives; 1: others want its core
  // Of the waiter that drives: until when it blocks instead of yielding, and how long the next
  // time.
  Clock::time_point crowded_until_{};
  std::chrono::milliseconds crowded_for_{5};
  RequestStack submissions_;

  std::atomic<int> contenders_{0};  // threads that sleep for the lock
  std::atomic<Driver> driver_{Driver::none};
  std::atomic<bool> helper_owns_role_{false};  // ProgressMode::thread, while the helper runs
  std::atomic<std::uint64_t> generation_{
      0};                            // bumped, under the lock, when progress moved something
  std::atomic<int> armed_{0};        // threads that block, or are about to, on the armed worker
  std::atomic<bool> asleep_{false};  // the helper blocks, or is about to, not as the driver
  std::atomic<bool> kicked_{false};  // a kick was written and not yet read
  std::atomic<bool> stopping_{false};
  std::atomic<int> following_{0};  // threads in wait() that do not drive

  std::mutex follower_mutex_;
  std::condition_variable follower_wake_;
  std::uint64_t wake_count_ = 0;  // guarded by follower_mutex_
  std::atomic<int> followers_asleep_{0};

  std::unique_ptr<std::thread> helper_;
};

}  // namespace torch_ucx::transport
