// How this project starts a thread: all signals blocked (they belong to the program's threads), a
// name that shows in ps, top and debuggers, and not tied to one core by its creator.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace torch_ucx::transport {

// How many cores the calling thread may run on.
[[nodiscard]] int cores_of_this_thread() noexcept;

// Where a thread that serves the whole process may run, when the calling one is bound to a single
// core (OMP_PROC_BIND binds the main thread so): wherever any thread of the process may. A job that
// was given one core stays there.
[[nodiscard]] cpu_set_t cores_of_process() noexcept;

// All signals are blocked for the scope, but for the synchronous ones: a fault must reach its
// handler (faulthandler).
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
      sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

// name: at most 15 characters.
template <typename Function>
[[nodiscard]] std::unique_ptr<std::thread> start_thread(const char* name, Function function) {
  std::optional<cpu_set_t> cores;
  if (cores_of_this_thread() == 1) cores = cores_of_process();
  const SignalsBlocked blocked;  // inherited by the thread
  auto thread = std::make_unique<std::thread>([cores, function = std::move(function)]() mutable {
    if (cores) ::sched_setaffinity(0, sizeof *cores, &*cores);
    function();
  });
  pthread_setname_np(thread->native_handle(), name);
  return thread;
}

}  // namespace torch_ucx::transport
