// Which process on which host: enough to tell "same host", and to watch a process there without
// mistaking another one that got the same pid later.
#pragma once

#include <cstdint>
#include <string>

namespace torch_ucx::transport {

struct HostIdentity {
  std::string host_name;            // for messages only
  std::string boot_id;              // /proc/sys/kernel/random/boot_id
  std::uint64_t pid_namespace = 0;  // inode of /proc/self/ns/pid
  std::uint64_t pid = 0;
  std::uint64_t start_time = 0;  // field 22 of /proc/<pid>/stat, clock ticks since boot

  bool operator==(const HostIdentity&) const = default;

  [[nodiscard]] static HostIdentity of_this_process();

  // Shared memory with the other process is possible.
  [[nodiscard]] bool same_host(const HostIdentity& other) const { return boot_id == other.boot_id; }
  // The other's pid means the same process here.
  [[nodiscard]] bool same_pid_space(const HostIdentity& other) const {
    return same_host(other) && pid_namespace == other.pid_namespace;
  }
  // "rank's process" for messages: "pid 123 on host-a".
  [[nodiscard]] std::string describe() const;
};

// Start time of a process in clock ticks since boot, 0 where it does not exist (or is a zombie:
// dead for all purposes of a peer).
[[nodiscard]] std::uint64_t start_time_of(std::uint64_t pid);

}  // namespace torch_ucx::transport
