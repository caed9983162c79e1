#include "plugin/transport/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace torch_ucx::transport {

std::uint64_t start_time_of(std::uint64_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return 0;
  // The command name (field 2) may hold spaces and parentheses: count fields from its last ')'.
  const auto close = text.rfind(')');
  if (close == std::string::npos) return 0;
  std::istringstream fields(text.substr(close + 1));
  std::string field;
  for (int index = 3; fields >> field; ++index) {
    if (index == 3 && (field == "Z" || field == "X")) return 0;
    if (index == 22) return std::stoull(field);
  }
  return 0;
}

HostIdentity HostIdentity::of_this_process() {
  HostIdentity identity;
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) == 0) identity.host_name = name;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  struct stat info {};
  if (stat("/proc/self/ns/pid", &info) == 0) identity.pid_namespace = info.st_ino;
  identity.pid = static_cast<std::uint64_t>(getpid());
  identity.start_time = start_time_of(identity.pid);
  return identity;
}

std::string HostIdentity::describe() const {
  return "pid " + std::to_string(pid) + " on " + (host_name.empty() ? "unknown host" : host_name);
}

}  // namespace torch_ucx::transport
