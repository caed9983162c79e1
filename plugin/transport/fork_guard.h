// Tells whether this process was forked since a moment in time, without a system call: UCX cannot
// be used in a forked child, and its memory there is a copy of somebody else's connections.
#pragma once

#include <cstdint>

namespace torch_ucx::transport {

class ForkGuard {
 public:
  ForkGuard() noexcept;
  // True in a child forked after this object was made.
  [[nodiscard]] bool forked() const noexcept;

 private:
  std::uint32_t generation_;
};

}  // namespace torch_ucx::transport
