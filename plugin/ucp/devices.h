// Devices of this host, as far as UCX's known troubles depend on them.
#pragma once

namespace torch_ucx::ucp {

// Whether UCX could use verbs here: a device is there. Reads sysfs.
[[nodiscard]] bool host_has_verbs() noexcept;

}  // namespace torch_ucx::ucp
