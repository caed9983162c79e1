#include "plugin/transport/callback_thread.h"

#include <pthread.h>
#include <signal.h>

#include "plugin/transport/thread_setup.h"

namespace torch_ucx::transport {

namespace {

std::atomic<int>& self_stopped() {
  static std::atomic<int> count{0};
  return count;
}

}  // namespace

CallbackThread::CallbackThread(const char* name, std::function<void(Request&)> deliver)
    : name_(name) {
  state_->deliver = std::move(deliver);
}

CallbackThread::~CallbackThread() { stop(); }

void CallbackThread::start() {
  if (started()) return;
  const std::lock_guard lock(thread_mutex_);
  if (started()) return;
  thread_ = start_thread(name_, [state = state_] { run(state); });
  started_.store(true, std::memory_order_release);
}

void CallbackThread::enqueue(Request& request) noexcept {
  state_->done.push(request);
  const std::lock_guard lock(state_->mutex);
  state_->wake.notify_one();
}

void CallbackThread::enqueue_delivery(Request& request) noexcept {
  state_->deliveries.push(request);
  const std::lock_guard lock(state_->mutex);
  state_->wake.notify_one();
}

void CallbackThread::reap(RequestStack& graveyard) noexcept {
  for (Request* request = graveyard.take_all(); request != nullptr;) {
    Request* next = RequestStack::next(*request);
    state_->dead.push(*request);
    request = next;
  }
  const std::lock_guard lock(state_->mutex);
  state_->wake.notify_one();
}

void CallbackThread::drain(State& state) {
  for (Request* request = state.deliveries.take_all(); request != nullptr;) {
    Request* next = RequestStack::next(*request);
    state.deliver(*request);
    request = next;
  }
  for (Request* request = state.done.take_all(); request != nullptr;) {
    Request* next = RequestStack::next(*request);
    request->telling_.store(false, std::memory_order_release);
    request->on_done();
    request->release();
    request = next;
  }
  for (Request* request = state.dead.take_all(); request != nullptr;) {
    Request* next = RequestStack::next(*request);
    delete request;
    request = next;
  }
}

void CallbackThread::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->wake.wait(lock, [&] {
      return state->stopping || !state->done.empty() || !state->dead.empty() ||
             !state->deliveries.empty();
    });
    const bool stopping = state->stopping;
    lock.unlock();
    drain(*state);
    lock.lock();
    if (stopping && state->done.empty() && state->dead.empty() && state->deliveries.empty()) {
      if (state->detached) self_stopped().fetch_sub(1);
      return;
    }
  }
}

void CallbackThread::stop() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->wake.notify_one();
  }
  const std::lock_guard lock(thread_mutex_);
  if (thread_ == nullptr) {
    drain(*state_);
    return;
  }
  if (thread_->get_id() == std::this_thread::get_id()) {
    {
      const std::lock_guard state_lock(state_->mutex);
      state_->detached = true;
    }
    self_stopped().fetch_add(1);
    thread_->detach();
  } else {
    thread_->join();
  }
  thread_.reset();
}

void CallbackThread::wait_for_stopped(std::chrono::milliseconds limit) noexcept {
  const auto deadline = Clock::now() + limit;
  while (self_stopped().load() > 0 && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void CallbackThread::abandon() noexcept {
  [[maybe_unused]] auto* forgotten_thread = thread_.release();
  // The mutex may have been held at the fork: never touch the old state again.
  [[maybe_unused]] auto* forgotten_state = new std::shared_ptr<State>(std::move(state_));
  state_ = std::make_shared<State>();
}

}  // namespace torch_ucx::transport
