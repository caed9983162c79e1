// The thread that runs what may call into user code: continuations of futures, deliveries of
// values, and destructors of requests whose last reference was the engine's. Started when first
// needed.
//
// An engine has two: what runs user code may wait for a delivery, and must not hold it up.
//
// Thread rule: any thread may call, also under the engine's lock; what runs here holds no lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "plugin/transport/request.h"

namespace torch_ucx::transport {

class CallbackThread {
 public:
  // deliver is called on the thread for each request given to enqueue_delivery.
  // name: of the thread, at most 15 characters, a literal.
  CallbackThread(const char* name, std::function<void(Request&)> deliver);
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;
  ~CallbackThread();

  // Starts the thread unless it runs.
  void start();
  [[nodiscard]] bool started() const noexcept { return started_.load(std::memory_order_acquire); }

  // Runs request.on_done() there, then drops the reference handed over.
  void enqueue(Request& request) noexcept;

  // Runs deliver(request) there. The request must have a reference of somebody until then.
  void enqueue_delivery(Request& request) noexcept;

  // Deletes the requests of a stack (each with no references left) there.
  void reap(RequestStack& graveyard) noexcept;

  // Runs what is queued, then ends the thread. Called from the thread itself (a continuation that
  // destroys its group) it only marks the end. Idempotent.
  void stop() noexcept;

  // Waits until no thread that stopped itself runs any more, at most until the limit: what it runs
  // may need an interpreter that is about to end.
  static void wait_for_stopped(std::chrono::milliseconds limit) noexcept;

  // In a forked child the thread does not exist: forget it.
  void abandon() noexcept;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable wake;
    RequestStack done;
    RequestStack deliveries;
    std::function<void(Request&)> deliver;
    RequestStack dead;
    bool stopping = false;
    bool detached = false;  // counted among those that stopped themselves
  };
  static void run(const std::shared_ptr<State>& state);
  static void drain(State& state);

  const char* const name_;
  // Shared with the thread, which may outlive this object when it stops itself.
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::atomic<bool> started_{false};
  std::mutex thread_mutex_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace torch_ucx::transport
