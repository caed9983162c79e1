// UCX's configuration for one context: UCX_* from the environment, TORCH_UCX_<NAME> over it, and
// defaults of our own only where the user set neither.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <string_view>

namespace torch_ucx::ucp {

class Config {
 public:
  // Reads UCX_*. Throws Error where UCX cannot.
  //
  // ucp_config_read(prefix) would read TORCH_UCX_* too, but then warns of every plugin option as an
  // "unused environment variable"; therefore the overrides go through override_from_environment.
  Config();

  // Applies every TORCH_UCX_<NAME>=value of the environment for which is_plugin_option(NAME) is
  // false to UCX's option NAME. Throws ArgumentError for a name or value that UCX does not know.
  // UCX 1.13 cannot tell an unknown name from a transport's option here, and does not take the
  // latter this way (it warns "invalid configurations" when the worker is made): there UCX_<NAME>
  // must be used for them.
  void override_from_environment(bool (*is_plugin_option)(std::string_view name));

  // Sets option NAME (without prefix) unless the user set UCX_NAME or TORCH_UCX_NAME. Returns
  // whether it was set; false also where this UCX has no such option.
  bool set_default(const std::string& name, const std::string& value);

  [[nodiscard]] ucp_config_t* get() const { return config_.get(); }

 private:
  struct Release {
    void operator()(ucp_config_t* config) const { ucp_config_release(config); }
  };
  std::unique_ptr<ucp_config_t, Release> config_;
};

// Value of TORCH_UCX_NAME, else UCX_NAME, else "" (what the user asked for; for messages).
[[nodiscard]] std::string user_setting(const std::string& name);

}  // namespace torch_ucx::ucp
