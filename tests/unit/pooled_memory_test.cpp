// The cache of small objects: what comes back, across threads, and that a thread's end frees it.
#include "plugin/transport/pooled_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <set>
#include <thread>
#include <vector>

namespace {

// Blocks that the allocator has given and not got back.
std::atomic<long> outstanding{0};

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  ++outstanding;
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr) --outstanding;
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { ::operator delete(memory); }

namespace torch_ucx::transport {
namespace {

template <std::size_t Bytes>
struct Sized : PooledMemory {
  virtual ~Sized() = default;
  std::array<char, Bytes> content{};
};
using Small = Sized<100>;
using Large = Sized<4000>;

TEST(PooledMemory, WhatWasDeletedComesBack) {
  auto first = std::make_unique<Small>();
  const void* at = first.get();
  first.reset();
  const long before = outstanding.load();
  for (int i = 0; i < 100; ++i) {
    auto again = std::make_unique<Small>();
    EXPECT_EQ(again.get(), at);
    again->content.fill(static_cast<char>(i));
  }
  EXPECT_EQ(outstanding.load(), before);  // no allocation
}

TEST(PooledMemory, AWindowOfObjectsAllocatesNothingAfterTheFirst) {
  std::vector<std::unique_ptr<Small>> window(64);
  const auto turn = [&] {
    for (auto& object : window) object = std::make_unique<Small>();
    std::set<const void*> distinct;
    for (auto& object : window) distinct.insert(object.get());
    EXPECT_EQ(distinct.size(), window.size());
    for (auto& object : window) object.reset();
  };
  turn();
  const long before = outstanding.load();
  turn();
  turn();
  EXPECT_EQ(outstanding.load(), before);
}

TEST(PooledMemory, ThroughAVirtualDestructorByTheSizeOfWhatItIs) {
  struct Derived final : Small {
    std::array<char, 300> more{};
  };
  std::unique_ptr<Small> object = std::make_unique<Derived>();
  const void* at = object.get();
  object.reset();
  EXPECT_NE(static_cast<void*>(std::make_unique<Small>().get()), at);
  EXPECT_EQ(static_cast<void*>(std::make_unique<Derived>().get()), at);
}

TEST(PooledMemory, LargeObjectsAreNotKept) {
  const long before = outstanding.load();
  auto object = std::make_unique<Large>();
  EXPECT_EQ(outstanding.load(), before + 1);
  object.reset();
  EXPECT_EQ(outstanding.load(), before);
}

TEST(PooledMemory, AThreadThatEndsFreesWhatItKept) {
  std::vector<std::unique_ptr<Small>> made(3000);
  for (auto& object : made) object = std::make_unique<Small>();
  const long before = outstanding.load();
  std::thread([&] {
    for (auto& object : made) object.reset();  // of another thread, and more than are kept
  }).join();
  EXPECT_EQ(outstanding.load(), before - 3000);
}

}  // namespace
}  // namespace torch_ucx::transport
