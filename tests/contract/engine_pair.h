// Two (or more) engines in one process, joined by a store in memory: the smallest real job.
#pragma once

#include "plugin/rendezvous/memory_store.h"
#include "tests/support/rank.h"

namespace torch_ucx::contract {

class EnginePair : public ::testing::Test {
 public:
  void SetUp() override { make(2); }
  void make(int size, std::chrono::milliseconds timeout = 20s) {
    ranks.clear();
    engines.clear();
    store = std::make_unique<rendezvous::MemoryStore>();
    for (int rank = 0; rank < size; ++rank) {
      engines.push_back(Engine::create(EngineOptions::from_environment()));
      ranks.emplace_back(engines.back(), *store, rank, size, "test", timeout);
    }
  }
  void TearDown() override {
    // Ranks of one process close at the same time, as real ones do.
    std::vector<std::thread> threads;
    for (auto& rank : ranks) threads.emplace_back([&rank] { rank.close(); });
    for (auto& thread : threads) thread.join();
    // Nothing keeps an engine but this: the connector's thread may be about to let go of a group.
    for (const auto& engine : engines) {
      for (int i = 0; i < 2000 && engine.use_count() != 1; ++i) std::this_thread::sleep_for(1ms);
      EXPECT_EQ(engine.use_count(), 1);
    }
  }

  std::unique_ptr<rendezvous::MemoryStore> store;
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<Rank> ranks;
};

}  // namespace torch_ucx::contract
