#include "plugin/transport/host_hooks.h"

namespace torch_ucx::transport {

namespace {
constexpr HostHooks kNoHooks{};
std::atomic<const HostHooks*> installed{&kNoHooks};
}  // namespace

void install_host_hooks(const HostHooks* hooks) noexcept {
  installed.store(hooks == nullptr ? &kNoHooks : hooks, std::memory_order_release);
}

const HostHooks& host_hooks() noexcept { return *installed.load(std::memory_order_acquire); }

}  // namespace torch_ucx::transport
