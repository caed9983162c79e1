#include "plugin/ucp/worker.h"

#include "plugin/ucp/status.h"

namespace torch_ucx::ucp {

Worker::Worker(const Context& context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  check(ucp_worker_create(context.get(), &params, &worker), "creating a UCX worker");
  worker_.reset(worker);
  check(ucp_worker_get_efd(worker, &event_fd_), "getting the UCX worker's event descriptor");
}

std::vector<std::byte> Worker::address() const {
  ucp_address_t* address = nullptr;
  size_t length = 0;
  check(ucp_worker_get_address(worker_.get(), &address, &length),
        "getting the UCX worker's address");
  const auto* bytes = reinterpret_cast<const std::byte*>(address);
  std::vector<std::byte> copy(bytes, bytes + length);
  ucp_worker_release_address(worker_.get(), address);
  return copy;
}

bool Worker::arm() {
  const ucs_status_t status = ucp_worker_arm(worker_.get());
  if (status == UCS_ERR_BUSY) return false;
  check(status, "arming the UCX worker");
  return true;
}

}  // namespace torch_ucx::ucp
