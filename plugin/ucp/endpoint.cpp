#include "plugin/ucp/endpoint.h"

#include <utility>

#include "plugin/ucp/quiet.h"

namespace torch_ucx::ucp {

Endpoint::Endpoint(Worker& worker, std::span<const std::byte> address, bool peer_error_handling,
                   ErrorHandler handler, void* argument)
    : peer_error_handling_(peer_error_handling) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = peer_error_handling ? UCP_ERR_HANDLING_MODE_PEER : UCP_ERR_HANDLING_MODE_NONE;
  if (peer_error_handling) {
    params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.err_handler.cb = handler;
    params.err_handler.arg = argument;
  }
  const QuietScope quiet(QuietScope::Keep::nothing);  // the caller knows whose address it is
  check(ucp_ep_create(worker.get(), &params, &endpoint_), "creating a UCX endpoint");
}

Endpoint::Endpoint(Endpoint&& other) noexcept
    : endpoint_(std::exchange(other.endpoint_, nullptr)),
      peer_error_handling_(other.peer_error_handling_) {}

Endpoint& Endpoint::operator=(Endpoint&& other) noexcept {
  if (this != &other) {
    std::swap(endpoint_, other.endpoint_);
    std::swap(peer_error_handling_, other.peer_error_handling_);
  }
  return *this;
}

// ucp_worker_destroy ends endpoints that were not closed; closing one here would need progress.
Endpoint::~Endpoint() = default;

void* Endpoint::begin_close(bool force) noexcept {
  ucp_ep_h endpoint = std::exchange(endpoint_, nullptr);
  if (endpoint == nullptr) return nullptr;
  ucp_request_param_t param{};
  if (force && peer_error_handling_) {
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  }
  const CallResult result(ucp_ep_close_nbx(endpoint, &param));
  return result.request;
}

CallResult Endpoint::begin_flush(ucp_send_nbx_callback_t callback, void* argument) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = callback;
  param.user_data = argument;
  return CallResult(ucp_ep_flush_nbx(endpoint_, &param));
}

}  // namespace torch_ucx::ucp
