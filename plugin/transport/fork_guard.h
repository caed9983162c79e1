// What fork() means for UCX: it cannot be used in a forked child, and its memory there is a copy of
// somebody else's connections.
#pragma once

#include <cstdint>

namespace torch_ucx::transport {

// Tells whether this process was forked since the guard was made, without a system call.
class ForkGuard {
 public:
  ForkGuard() noexcept;
  // True in a child forked after this object was made.
  [[nodiscard]] bool forked() const noexcept;

 private:
  std::uint32_t generation_;
};

// Something that stands still while the process forks: a lock that another thread holds at that
// moment (UCX's own, the allocator's inside it) would stay locked in the child for ever.
class StillAtFork {
 public:
  StillAtFork(const StillAtFork&) = delete;
  StillAtFork& operator=(const StillAtFork&) = delete;

 protected:
  StillAtFork() = default;
  ~StillAtFork() = default;

  // Between these two no fork happens in the middle of what stop_for_fork keeps out.
  void join_forks();
  void leave_forks() noexcept;

 private:
  friend struct ForkHandlers;

  // Before the fork, on the thread that forks. Bounded in time: that thread may hold it itself (a
  // handler of a crash).
  virtual void stop_for_fork() noexcept = 0;
  // After it.
  virtual void go_on_in_parent() noexcept = 0;
  virtual void go_on_in_child() noexcept = 0;
};

}  // namespace torch_ucx::transport
