// Which libucp this process has bound. Nothing here creates a UCX context or starts a thread.
#pragma once

#include <compare>
#include <string>

#include "torch_ucx/export.h"

namespace torch_ucx::ucp {

struct TORCH_UCX_API LibraryVersion {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;

  auto operator<=>(const LibraryVersion&) const = default;
  [[nodiscard]] std::string to_string() const;
};

// The oldest UCX whose API this code uses (UCP_OP_ATTR_FIELD_MEMH, 1.13).
inline constexpr LibraryVersion kOldestSupported{1, 13, 0};

// Version that the bound libucp reports of itself (not that of the headers).
[[nodiscard]] TORCH_UCX_API LibraryVersion library_version();

// Path of the file that libucp was loaded from; "unknown" where the loader does not tell.
[[nodiscard]] TORCH_UCX_API std::string library_path();

}  // namespace torch_ucx::ucp
