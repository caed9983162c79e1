#include "plugin/ucp/context.h"

#include "plugin/ucp/status.h"

namespace torch_ucx::ucp {

Context::Context(const Config& config, const char* name) {
  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_TAG | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 0;
  params.name = name;
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config.get(), &context);
  if (status != UCS_OK) {
    const std::string tls = user_setting("TLS");
    const std::string devices = user_setting("NET_DEVICES");
    throw Error(std::string("UCX could not be initialised: ") + ucs_status_string(status) +
                (tls.empty() ? "" : " (UCX_TLS=" + tls + ")") +
                (devices.empty() ? "" : " (UCX_NET_DEVICES=" + devices + ")"));
  }
  context_.reset(context);
}

}  // namespace torch_ucx::ucp
