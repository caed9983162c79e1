#include "plugin/transport/pooled_memory.h"

#include <array>
#include <new>
#include <utility>

namespace torch_ucx::transport {

namespace {

constexpr std::size_t kStep = 64;  // bytes from one class of sizes to the next
// Larger objects are not kept. Under AddressSanitizer nothing is: it must see what is freed.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kClasses = 1;
#else
constexpr std::size_t kClasses = 10;
#endif
constexpr unsigned kMostKept = 1024;  // blocks of a class that a thread keeps

struct Block {
  Block* next;
};

// What this thread has freed. Trivial, so that reading it needs no guard, and so that it is still
// there when objects are freed after the thread's other destructors have run.
struct Kept {
  std::array<Block*, kClasses> blocks;
  std::array<unsigned, kClasses> counts;
  bool watched;  // a Release stands behind it
  bool ended;    // the thread ends: nothing is kept any more
};
thread_local constinit Kept kept{};

struct Release {
  ~Release() {
    kept.ended = true;
    for (Block*& list : kept.blocks) {
      while (list != nullptr) ::operator delete(std::exchange(list, list->next));
    }
  }
};

void watch() {
  static thread_local const Release release;
  kept.watched = true;
}

std::size_t class_of(std::size_t bytes) { return (bytes + kStep - 1) / kStep; }

}  // namespace

void* PooledMemory::operator new(std::size_t bytes) {
  const std::size_t index = class_of(bytes);
  if (index >= kClasses) return ::operator new(bytes);
  if (Block* block = kept.blocks[index]) {
    kept.blocks[index] = block->next;
    --kept.counts[index];
    return block;
  }
  return ::operator new(index* kStep);
}

void PooledMemory::operator delete(void* memory, std::size_t bytes) noexcept {
  const std::size_t index = class_of(bytes);
  if (index >= kClasses || kept.ended || kept.counts[index] >= kMostKept) {
    ::operator delete(memory);
    return;
  }
  if (!kept.watched) watch();
  kept.blocks[index] = new (memory) Block{kept.blocks[index]};
  ++kept.counts[index];
}

}  // namespace torch_ucx::transport
