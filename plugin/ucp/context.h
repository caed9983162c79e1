// Owner of a ucp_context_h with the features the transport uses: tag matching for messages, active
// messages for control, wakeup for blocking waits.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>

#include "plugin/ucp/config.h"

namespace torch_ucx::ucp {

class Context {
 public:
  explicit Context(const Config& config, const char* name);
  [[nodiscard]] ucp_context_h get() const { return context_.get(); }

  // Leaves it to the end of the process.
  void abandon() noexcept { [[maybe_unused]] auto* left = context_.release(); }

 private:
  struct Release {
    void operator()(ucp_context_h context) const { ucp_cleanup(context); }
  };
  std::unique_ptr<std::remove_pointer_t<ucp_context_h>, Release> context_;
};

}  // namespace torch_ucx::ucp
