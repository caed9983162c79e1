// Lines for people, on stderr. Never on the data path. TORCH_UCX_LOG_LEVEL: error, warn (default),
// info or debug.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace torch_ucx {

enum class LogLevel { error, warn, info, debug };

// As TORCH_UCX_LOG_LEVEL spells them, in either case; nothing for other texts.
[[nodiscard]] std::optional<LogLevel> parse_log_level(std::string_view text);

[[nodiscard]] bool log_enabled(LogLevel level) noexcept;

// Writes one line "[torch_ucx] <level>: <text>" in a single write. Never throws.
void log(LogLevel level, const std::string& text) noexcept;

}  // namespace torch_ucx
