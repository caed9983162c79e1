// Owner of a ucp_ep_h: the connection from this worker to one other.
//
// Thread rule: under the lock of the engine that owns the worker. Closing needs progress, so the
// destructor only gives the endpoint up; begin_close() is the orderly way.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <span>

#include "plugin/ucp/status.h"
#include "plugin/ucp/worker.h"

namespace torch_ucx::ucp {

class Endpoint {
 public:
  // Called by progress when the peer fails (only in mode peer); must not call UCX.
  using ErrorHandler = void (*)(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  Endpoint() = default;

  // Throws Error where UCX refuses (UNREACHABLE: no transport in common).
  Endpoint(Worker& worker, std::span<const std::byte> address, bool peer_error_handling,
           ErrorHandler handler, void* argument);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  Endpoint(Endpoint&& other) noexcept;
  Endpoint& operator=(Endpoint&& other) noexcept;
  ~Endpoint();

  [[nodiscard]] ucp_ep_h get() const { return endpoint_; }
  [[nodiscard]] bool handles_peer_errors() const { return peer_error_handling_; }
  explicit operator bool() const { return endpoint_ != nullptr; }

  // Starts closing: force (legal only where handles_peer_errors()) ends what is in flight with
  // CANCELED, else what was sent is flushed first. The handle is gone at once; the request
  // returned, if any, completes by progress and is the caller's to free.
  [[nodiscard]] void* begin_close(bool force) noexcept;

  // Flush: completes once everything sent so far has been delivered to the peer's worker.
  [[nodiscard]] CallResult begin_flush(ucp_send_nbx_callback_t callback, void* argument);

 private:
  ucp_ep_h endpoint_ = nullptr;
  bool peer_error_handling_ = false;
};

}  // namespace torch_ucx::ucp
