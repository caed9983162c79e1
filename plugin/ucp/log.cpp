#include "plugin/ucp/log.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace torch_ucx {

namespace {

LogLevel level_from_environment() {
  const char* value = std::getenv("TORCH_UCX_LOG_LEVEL");
  const std::string_view text = value == nullptr ? "warn" : value;
  if (text == "error") return LogLevel::error;
  if (text == "info") return LogLevel::info;
  if (text == "debug") return LogLevel::debug;
  return LogLevel::warn;
}

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return "error";
    case LogLevel::warn:
      return "warning";
    case LogLevel::info:
      return "info";
    case LogLevel::debug:
      return "debug";
  }
  return "";
}

}  // namespace

bool log_enabled(LogLevel level) noexcept {
  static const LogLevel threshold = level_from_environment();
  return level <= threshold;
}

void log(LogLevel level, const std::string& text) noexcept {
  if (!log_enabled(level)) return;
  try {
    const std::string line = std::string("[torch_ucx] ") + name_of(level) + ": " + text + "\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (...) {  // out of memory: a log line is not worth more
  }
}

}  // namespace torch_ucx
