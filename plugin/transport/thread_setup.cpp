#include "plugin/transport/thread_setup.h"

#include <charconv>
#include <filesystem>
#include <string>
#include <system_error>

namespace torch_ucx::transport {

int cores_of_this_thread() noexcept {
  cpu_set_t cores;
  return ::sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

cpu_set_t cores_of_process() noexcept {
  cpu_set_t all;
  CPU_ZERO(&all);
  cpu_set_t one;
  if (::sched_getaffinity(0, sizeof one, &one) == 0) CPU_OR(&all, &all, &one);
  try {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      const std::string name = entry.path().filename();
      pid_t thread = 0;
      std::from_chars(name.data(), name.data() + name.size(), thread);
      if (thread != 0 && ::sched_getaffinity(thread, sizeof one, &one) == 0)
        CPU_OR(&all, &all, &one);
    }
  } catch (const std::exception&) {  // no /proc: where this thread may run
  }
  return all;
}

}  // namespace torch_ucx::transport
