// The floor of the ladder: tag messages between two processes by UCX's own calls, one thread, no
// lock, nothing checked but the outcome.
#pragma once

#include <ucp/api/ucp.h>

#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "plugin/transport/error_mode.h"
#include "plugin/ucp/config.h"
#include "plugin/ucp/context.h"
#include "plugin/ucp/endpoint.h"
#include "plugin/ucp/worker.h"
#include "torch_ucx/rendezvous/key_value_store.h"
#include "torch_ucx/ucp/library.h"

namespace torch_ucx::benchmarks {

class RawUcp {
 public:
  RawUcp(rendezvous::KeyValueStore& store, int rank)
      : context_(config(), "raw"), worker_(context_) {
    store.set("raw" + std::to_string(rank), worker_.address());
    for (;;) {
      const auto values = store.try_get({"raw" + std::to_string(1 - rank)});
      if (values.front()) {
        endpoint_ = ucp::Endpoint(
            worker_, *values.front(), peer_mode(), [](void*, ucp_ep_h, ucs_status_t) {}, nullptr);
        return;
      }
      std::this_thread::yield();
    }
  }

  // One operation; done once the callback has run, or at once.
  struct Operation {
    bool done = false;
  };

  void send(Operation& operation, const void* data, std::size_t bytes) {
    post(operation, [&](const ucp_request_param_t& param) {
      return ucp_tag_send_nbx(endpoint_.get(), data, bytes, 1, &param);
    });
  }
  void receive(Operation& operation, void* data, std::size_t bytes) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.recv = [](void* request, ucs_status_t, const ucp_tag_recv_info_t*, void* user_data) {
      static_cast<Operation*>(user_data)->done = true;
      ucp_request_free(request);
    };
    param.user_data = &operation;
    operation.done = false;
    check(operation, ucp_tag_recv_nbx(worker_.get(), data, bytes, 1, ~ucp_tag_t{0}, &param));
  }
  void wait(const Operation& operation) {
    while (!operation.done) worker_.progress();
  }

 private:
  // The transport's error mode between processes of one host, which decides what UCX may use.
  static bool shared_memory() { return transport::allows_shared_memory(ucp::user_setting("TLS")); }
  static bool peer_mode() {
    return ucp::library_version() < transport::kNoneModeSurvives || !shared_memory();
  }
  static ucp::Config config() {
    ucp::Config config;
    if (shared_memory()) config.set_default("MM_ERROR_HANDLING", "y");
    return config;
  }

  template <typename Call>
  void post(Operation& operation, const Call& call) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = [](void* request, ucs_status_t, void* user_data) {
      static_cast<Operation*>(user_data)->done = true;
      ucp_request_free(request);
    };
    param.user_data = &operation;
    operation.done = false;
    check(operation, call(param));
  }
  static void check(Operation& operation, ucs_status_ptr_t result) {
    if (result == nullptr) {
      operation.done = true;
    } else if (UCS_PTR_IS_ERR(result)) {
      throw std::runtime_error(ucs_status_string(UCS_PTR_STATUS(result)));
    }
  }

  ucp::Context context_;
  ucp::Worker worker_;
  ucp::Endpoint endpoint_;
};

}  // namespace torch_ucx::benchmarks
