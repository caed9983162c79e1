// What a waiting thread must do for the language it is called from. The C++ library knows no
// Python: the Python module installs these, C++ programs leave them empty.
#pragma once

#include <atomic>

#include "torch_ucx/export.h"

namespace torch_ucx::transport {

struct HostHooks {
  // Called now and then by a thread that waits, with no lock held. May throw to end the wait
  // (Python: KeyboardInterrupt); a receive waited for is withdrawn.
  void (*check_interrupt)() = nullptr;
  // Around a blocking section that the caller may have entered holding the GIL; what begin returns
  // goes to end.
  void* (*begin_blocking)() = nullptr;
  void (*end_blocking)(void*) = nullptr;
};

// Set once, before the first engine. The object must live for ever.
TORCH_UCX_API void install_host_hooks(const HostHooks* hooks) noexcept;
[[nodiscard]] TORCH_UCX_API const HostHooks& host_hooks() noexcept;

// Releases the GIL, if this thread holds it, for the scope.
class BlockingSection {
 public:
  BlockingSection() noexcept
      : token_(host_hooks().begin_blocking != nullptr ? host_hooks().begin_blocking() : nullptr) {}
  BlockingSection(const BlockingSection&) = delete;
  BlockingSection& operator=(const BlockingSection&) = delete;
  ~BlockingSection() {
    if (token_ != nullptr) host_hooks().end_blocking(token_);
  }

 private:
  void* token_;
};

}  // namespace torch_ucx::transport
