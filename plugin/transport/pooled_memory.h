// Memory of the small objects that every message makes and drops: each thread keeps what it freed,
// so that the steady state allocates nothing. (glibc's own cache of a thread has seven blocks of a
// size; the 64 requests of a window go past it.)
#pragma once

#include <cstddef>

namespace torch_ucx::transport {

// Base of the classes whose objects are made by new and deleted through a virtual destructor or as
// what they are. Any thread may free what another one made.
class PooledMemory {
 public:
  static void* operator new(std::size_t bytes);
  static void operator delete(void* memory, std::size_t bytes) noexcept;

 protected:
  PooledMemory() = default;
  ~PooledMemory() = default;
};

}  // namespace torch_ucx::transport
