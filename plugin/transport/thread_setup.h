// How this project starts a thread: all signals blocked (they belong to the program's threads), and
// a name that shows in ps, top and debuggers.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <memory>
#include <thread>
#include <utility>

namespace torch_ucx::transport {

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
  return thread;
}

}  // namespace torch_ucx::transport
