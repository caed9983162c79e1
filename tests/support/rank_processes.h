// Runs each rank of a small job as a process of its own, forked before anything of UCX exists.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/directory_store.h"

namespace torch_ucx::support {

class RankProcesses {
 public:
  using Body = std::function<void(int rank, DirectoryStore& store)>;

  RankProcesses() {
    std::string name = (std::filesystem::temp_directory_path() / "torch_ucx_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    directory_ = name;
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    for (const pid_t pid : pids_) {
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
    }
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  // Forks one rank. The body ends the process with exit status 0 by returning; a failed CHECK or an
  // exception makes it 1.
  void start(const Body& body) {
    const int rank = static_cast<int>(pids_.size());
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      int status = 1;
      try {
        DirectoryStore store(directory_);
        body(rank, store);
        status = failed_ ? 1 : 0;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::fflush(nullptr);
      ::_exit(status);
    }
    pids_.push_back(pid);
  }

  void kill(int rank, int signal = SIGKILL) const {
    ::kill(pids_[static_cast<std::size_t>(rank)], signal);
  }
  [[nodiscard]] pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  // Exit status of a rank; 128 + signal where one ended it; -1 where it still ran at the limit.
  int wait(int rank, std::chrono::seconds limit = std::chrono::seconds(40)) {
    auto& pid = pids_[static_cast<std::size_t>(rank)];
    const auto end = std::chrono::steady_clock::now() + limit;
    for (;;) {
      int status = 0;
      if (::waitpid(pid, &status, WNOHANG) == pid) {
        pid = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
      if (std::chrono::steady_clock::now() > end) return -1;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  // Ranks tell each other things outside UCX: a rank posts a word, others wait for it.
  static void post(DirectoryStore& store, const std::string& word) {
    store.set("word-" + word, {});
  }
  static void await(DirectoryStore& store, const std::string& word) {
    while (!store.try_get({"word-" + word})[0]) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[nodiscard]] DirectoryStore store() const { return DirectoryStore(directory_); }

  static void note_failure() { failed_ = true; }

 private:
  inline static bool failed_ = false;
  std::filesystem::path directory_;
  std::vector<pid_t> pids_;
};

// In a rank's process: like EXPECT_TRUE, but shows in the exit status.
#define RANK_CHECK(condition, text)                                           \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
                   std::string(text).c_str());                                \
      ::torch_ucx::support::RankProcesses::note_failure();                    \
    }                                                                         \
  } while (false)

}  // namespace torch_ucx::support
