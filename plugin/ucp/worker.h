// Owner of a ucp_worker_h. The worker is single-threaded: every method but signal() is called under
// the lock of the engine that owns it.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "plugin/ucp/context.h"

namespace torch_ucx::ucp {

class Worker {
 public:
  explicit Worker(const Context& context);

  [[nodiscard]] ucp_worker_h get() const { return worker_.get(); }

  // The address by which others create endpoints to this worker; opaque bytes.
  [[nodiscard]] std::vector<std::byte> address() const;

  // Descriptor that becomes readable on events after arm() returned true; owned by the worker.
  [[nodiscard]] int event_fd() const { return event_fd_; }

  // One progress call; the number of things that moved.
  unsigned progress() { return ucp_worker_progress(worker_.get()); }

  // True: it is safe to block on event_fd(). False: there are events, progress first.
  [[nodiscard]] bool arm();

  // Makes a blocked event_fd() readable. The one method that any thread may call without the lock.
  void signal() { ucp_worker_signal(worker_.get()); }

  // Ends the worker early (idempotent). Requests that UCX still held are gone after this.
  void destroy() { worker_.reset(); }

  // Leaves it to the end of the process.
  void abandon() noexcept { [[maybe_unused]] auto* left = worker_.release(); }

 private:
  struct Release {
    void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
  };
  std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, Release> worker_;
  int event_fd_ = -1;
};

}  // namespace torch_ucx::ucp
