// How this project starts a thread: all signals blocked (they belong to the program's threads), a
// name that shows in ps, top and debuggers, and not tied to one core by its creator.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <memory>
#include <thread>
#include <utility>

namespace torch_ucx::transport {

// How many cores the calling thread may run on.
[[nodiscard]] int cores_of_this_thread() noexcept;

// Where a thread that serves the whole process may run, when the calling one is bound to a single
// core (OMP_PROC_BIND binds the main thread so): wherever any thread of the process may. A job that
// was given one core stays there.
[[nodiscard]] cpu_set_t cores_of_process() noexcept;

// name: at most 15 characters.
template <typename Function>
[[nodiscard]] std::unique_ptr<std::thread> start_thread(const char* name, Function function) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  // The synchronous ones stay: a fault in the thread must reach its handler (faulthandler).
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
    sigdelset(&all, fault);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  auto thread = std::make_unique<std::thread>(std::move(function));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread->native_handle(), name);
  if (cores_of_this_thread() == 1) {
    const cpu_set_t cores = cores_of_process();
    pthread_setaffinity_np(thread->native_handle(), sizeof cores, &cores);
  }
  return thread;
}

}  // namespace torch_ucx::transport
