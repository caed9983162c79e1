// Where a thread of ours may run, and what it is called.
#include "plugin/transport/thread_setup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

namespace torch_ucx::transport {
namespace {

cpu_set_t cores_of_caller() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  EXPECT_EQ(::sched_getaffinity(0, sizeof cores, &cores), 0);
  return cores;
}

cpu_set_t first_of(const cpu_set_t& cores) {
  cpu_set_t first;
  CPU_ZERO(&first);
  int core = 0;
  while (!CPU_ISSET(core, &cores)) ++core;
  CPU_SET(core, &first);
  return first;
}

// Makes a thread of ours; its cores once it has been set up.
cpu_set_t cores_of_new_thread() {
  std::atomic<bool> set_up{false};
  cpu_set_t cores;
  const auto thread = start_thread("ucx-test", [&] {
    while (!set_up.load()) std::this_thread::yield();
    cores = cores_of_caller();
  });
  set_up.store(true);
  thread->join();
  return cores;
}

TEST(ThreadSetup, AThreadBoundToOneCoreDoesNotBindOursToIt) {
  const cpu_set_t all = cores_of_caller();
  cpu_set_t ours;
  std::thread bound([&] {  // the main thread stays where it is
    const cpu_set_t one = first_of(all);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(cores_of_this_thread(), 1);
    ours = cores_of_new_thread();
  });
  bound.join();
  EXPECT_TRUE(CPU_EQUAL(&ours, &all));
}

TEST(ThreadSetup, AProcessWithOneCoreKeepsToIt) {
  const cpu_set_t all = cores_of_caller();
  const cpu_set_t one = first_of(all);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const cpu_set_t ours = cores_of_new_thread();
  EXPECT_TRUE(CPU_EQUAL(&ours, &one));
  ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
}

TEST(ThreadSetup, ANameAndNoSignals) {
  std::string name(16, '\0');
  sigset_t blocked;
  std::atomic<bool> set_up{false};
  const auto thread = start_thread("ucx-test", [&] {
    while (!set_up.load()) std::this_thread::yield();
    pthread_getname_np(pthread_self(), name.data(), name.size());
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  });
  set_up.store(true);
  thread->join();
  EXPECT_STREQ(name.c_str(), "ucx-test");
  EXPECT_TRUE(sigismember(&blocked, SIGINT));
  EXPECT_TRUE(sigismember(&blocked, SIGTERM));
  EXPECT_FALSE(sigismember(&blocked, SIGSEGV));
}

}  // namespace
}  // namespace torch_ucx::transport
