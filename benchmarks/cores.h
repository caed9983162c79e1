// Which cores the calling thread, and threads that it starts later, may run on.
#pragma once

#include <sched.h>

namespace torch_ucx::benchmarks {

// This thread's core number `index` (of those that it has, around and around), and no other.
inline void pin(int index) {
  cpu_set_t all;
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  int skip = index % CPU_COUNT(&all);
  int core = 0;
  while (!CPU_ISSET(core, &all) || skip-- > 0) ++core;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

// Moves to a core of this rank's own, and lets the scheduler go on from there: two ranks that spin
// on one core get nowhere until it parts them, which takes long.
inline void spread(int rank) {
  cpu_set_t all;
  if (::sched_getaffinity(0, sizeof all, &all) != 0) return;
  pin(rank);
  ::sched_setaffinity(0, sizeof all, &all);
}

}  // namespace torch_ucx::benchmarks
