#include "torch_ucx/transport/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <string>

#include "plugin/ucp/log.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {

namespace {

// The first six are read here (LOG_LEVEL is checked); the rest by the logger, the Python layer and
// the build.
constexpr std::array<std::string_view, 10> kPluginOptions{
    "SPIN_US",   "PROGRESS", "LINGER_S",  "ERROR_MODE", "ALLOW_VERSION_MISMATCH",
    "LOG_LEVEL", "LIBUCP",   "TORCH_DIR", "TORCH_SPEC", "VENV",
};

[[noreturn]] void refuse(const char* variable, std::string_view value, const char* allowed) {
  throw ArgumentError(std::string(variable) + "=" + std::string(value) + ": allowed is " + allowed);
}

template <typename T>
T number(const char* variable, std::string_view value, T low, T high, const char* allowed) {
  T parsed{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size() || parsed < low || parsed > high) {
    refuse(variable, value, allowed);
  }
  return parsed;
}

}  // namespace

bool is_plugin_option(std::string_view name) {
  return std::find(kPluginOptions.begin(), kPluginOptions.end(), name) != kPluginOptions.end();
}

EngineOptions EngineOptions::from_environment() {
  EngineOptions options;
  if (const char* value = std::getenv("TORCH_UCX_SPIN_US")) {
    options.spin = std::chrono::microseconds(number<long>(
        "TORCH_UCX_SPIN_US", value, 0, 1'000'000, "a whole number of microseconds, 0 to 1000000"));
  }
  if (const char* value = std::getenv("TORCH_UCX_PROGRESS")) {
    const std::string_view text = value;
    if (text == "auto") {
      options.progress = ProgressMode::automatic;
    } else if (text == "caller") {
      options.progress = ProgressMode::caller;
    } else if (text == "thread") {
      options.progress = ProgressMode::thread;
    } else {
      refuse("TORCH_UCX_PROGRESS", text, "auto, caller or thread");
    }
  }
  if (const char* value = std::getenv("TORCH_UCX_LINGER_S")) {
    const auto seconds = number<double>("TORCH_UCX_LINGER_S", value, 0.0, 86400.0,
                                        "a number of seconds, 0 to 86400");
    options.linger = std::chrono::milliseconds(static_cast<long>(seconds * 1000));
  }
  if (const char* value = std::getenv("TORCH_UCX_ERROR_MODE")) {
    const std::string_view text = value;
    if (text == "auto") {
      options.error_mode = ErrorModeWish::automatic;
    } else if (text == "none") {
      options.error_mode = ErrorModeWish::none;
    } else if (text == "peer") {
      options.error_mode = ErrorModeWish::peer;
    } else {
      refuse("TORCH_UCX_ERROR_MODE", text, "auto, none or peer");
    }
  }
  if (const char* value = std::getenv("TORCH_UCX_LOG_LEVEL")) {
    if (!parse_log_level(value)) {
      refuse("TORCH_UCX_LOG_LEVEL", value, "error, warn, info or debug");
    }
  }
  if (const char* value = std::getenv("TORCH_UCX_ALLOW_VERSION_MISMATCH")) {
    options.allow_version_mismatch =
        number<int>("TORCH_UCX_ALLOW_VERSION_MISMATCH", value, 0, 1, "0 or 1") == 1;
  }
  return options;
}

}  // namespace torch_ucx::transport
