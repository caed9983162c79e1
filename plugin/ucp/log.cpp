#include "plugin/ucp/log.h"

#include <unistd.h>

#include <cctype>
#include <cstdlib>

namespace torch_ucx {

namespace {

LogLevel level_from_environment() {
  const char* value = std::getenv("TORCH_UCX_LOG_LEVEL");
  // A text that is none is refused when a group is made (EngineOptions).
  return value == nullptr ? LogLevel::warn : parse_log_level(value).value_or(LogLevel::warn);
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

std::optional<LogLevel> parse_log_level(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "error") return LogLevel::error;
  if (lower == "warn") return LogLevel::warn;
  if (lower == "info") return LogLevel::info;
  if (lower == "debug") return LogLevel::debug;
  return std::nullopt;
}

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
