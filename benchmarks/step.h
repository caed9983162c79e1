// A step of the ladder: one way to move messages between two processes, and what is measured of it.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/support/directory_store.h"

namespace torch_ucx::benchmarks {

inline constexpr int kWindow = 64;         // messages in flight
inline constexpr std::size_t kAnswer = 8;  // bytes of the message that answers them
inline constexpr std::size_t kMostBytes = 16u << 20;

// Both ranks call the same function with the same arguments.
struct Step {
  const char* name;
  // So many messages of so many bytes there and back, one at a time.
  std::function<void(std::size_t bytes, int count)> ping_pongs;
  // So many windows: kWindow messages from rank 0 to rank 1, then one answer of kAnswer bytes.
  std::function<void(std::size_t bytes, int count)> windows;
};

// The steps of this program (steps_transport.cpp or steps_c10d.cpp), connected to the other rank.
std::vector<Step> make_steps(int rank, support::DirectoryStore& store);

// The loop of Step::ping_pongs: send() and receive() return when the message is done.
template <typename Send, typename Receive>
void ping_pongs(int rank, int count, const Send& send, const Receive& receive) {
  for (int i = 0; i < count; ++i) {
    if (rank == 0) send();
    receive();
    if (rank == 1) send();
  }
}

}  // namespace torch_ucx::benchmarks
