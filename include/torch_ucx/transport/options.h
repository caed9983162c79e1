// Options of the engine. Every one has an environment variable TORCH_UCX_<NAME>; all other
// TORCH_UCX_<NAME> variables are handed to UCX as overrides of UCX_<NAME>.
#pragma once

#include <chrono>
#include <string_view>

#include "torch_ucx/export.h"

namespace torch_ucx::transport {

// Whether endpoints detect the failure of their peer. UCX refuses pairs of different modes, so both
// ends decide from both ends' wishes (error_mode.h).
enum class ErrorModeWish : unsigned char { automatic = 0, none = 1, peer = 2 };

// Who makes progress (calls ucp_worker_progress).
enum class ProgressMode : unsigned char {
  automatic,  // whoever waits, else a helper thread, which sleeps while nothing moves
  caller,     // only who waits, or asks whether an operation is done: for cores that are all taken
  thread,     // the helper thread, which polls for `spin` after all that moves: for a core to spare
};

struct TORCH_UCX_API EngineOptions {
  // TORCH_UCX_SPIN_US: how long a waiting thread polls (yielding its core) before it blocks.
  std::chrono::microseconds spin{1000};
  // TORCH_UCX_PROGRESS: auto, caller or thread.
  ProgressMode progress = ProgressMode::automatic;
  // TORCH_UCX_LINGER_S: how long closing a group waits for sends that the peer has not taken yet.
  std::chrono::milliseconds linger{10'000};
  // TORCH_UCX_ERROR_MODE: auto, none or peer.
  ErrorModeWish error_mode = ErrorModeWish::automatic;
  // TORCH_UCX_ALLOW_VERSION_MISMATCH: 1 lets peers with different UCX minor versions connect.
  bool allow_version_mismatch = false;

  // Reads the environment. Throws ArgumentError that names variable, value and what is allowed.
  [[nodiscard]] static EngineOptions from_environment();
};

// Whether TORCH_UCX_<name> is an option of this project (and so not one of UCX's).
[[nodiscard]] TORCH_UCX_API bool is_plugin_option(std::string_view name);

}  // namespace torch_ucx::transport
