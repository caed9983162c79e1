#include "plugin/ucp/config.h"

#include <unistd.h>

#include <cstdlib>

#include "plugin/ucp/status.h"

namespace torch_ucx::ucp {

namespace {
constexpr std::string_view kOverridePrefix = "TORCH_UCX_";
}

Config::Config() {
  ucp_config_t* config = nullptr;
  check(ucp_config_read(nullptr, nullptr, &config), "reading UCX's configuration");
  config_.reset(config);
}

void Config::override_from_environment(bool (*is_plugin_option)(std::string_view name)) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (!text.starts_with(kOverridePrefix) || equals == std::string_view::npos) continue;
    const std::string name(text.substr(kOverridePrefix.size(), equals - kOverridePrefix.size()));
    const std::string value(text.substr(equals + 1));
    if (is_plugin_option(name)) continue;
    const ucs_status_t status = ucp_config_modify(config_.get(), name.c_str(), value.c_str());
    if (status != UCS_OK) {
      throw ArgumentError("TORCH_UCX_" + name + "=" + value +
                          " is neither an option of torch_ucx nor accepted by UCX as " + name +
                          " (" + ucs_status_string(status) + ")");
    }
  }
}

bool Config::set_default(const std::string& name, const std::string& value) {
  if (std::getenv(("UCX_" + name).c_str()) != nullptr ||
      std::getenv(("TORCH_UCX_" + name).c_str()) != nullptr) {
    return false;
  }
  return ucp_config_modify(config_.get(), name.c_str(), value.c_str()) == UCS_OK;
}

std::string user_setting(const std::string& name) {
  for (const char* prefix : {"TORCH_UCX_", "UCX_"}) {
    if (const char* value = std::getenv((prefix + name).c_str())) return value;
  }
  return "";
}

}  // namespace torch_ucx::ucp
