// Instructions of one 8-byte send + receive + both waits between two engines of one process, for
// callgrind (ci/bench-instructions runs it): stable where times on a shared machine are not.
//
//   message_instructions CLASSES POSTED UNEXPECTED
//     CLASSES     classes that may match each other (46: as torch's groups; 0: typed matching off)
//     POSTED      receives posted on other tags
//     UNEXPECTED  messages on other tags that nobody receives
#include <valgrind/callgrind.h>

#include <cstdlib>

#include "plugin/rendezvous/memory_store.h"
#include "tests/support/rank.h"

using namespace torch_ucx;            // NOLINT: a program
using namespace torch_ucx::contract;  // NOLINT

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int classes = std::atoi(argv[1]);
  const unsigned posted = static_cast<unsigned>(std::atoi(argv[2]));
  const unsigned unexpected = static_cast<unsigned>(std::atoi(argv[3]));
  constexpr int kWarmUp = 200;
  constexpr int kMessages = 1000;

  rendezvous::MemoryStore store;
  std::vector<std::shared_ptr<Engine>> engines;
  std::vector<Rank> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    engines.push_back(Engine::create({}));
    ranks.emplace_back();
    ranks.back().group = engines.back()->create_group(GroupOptions{rank, 2, "bench", 60s, classes});
    ranks.back().membership =
        rendezvous::Membership::join(ranks.back().group, store.clone(), "bench/");
  }
  std::vector<std::byte> from(8);
  std::vector<std::byte> to(8);
  const auto message = [&] {
    const auto received = Ref<BufferRequest>::make(std::vector<std::byte>());
    const auto sent = Ref<BufferRequest>::make(std::vector<std::byte>());
    ranks[1].group->receive(received, to.data(), to.size(), 0, 1, 0);
    ranks[0].group->send(sent, from.data(), from.size(), 1, 1, 0);
    ranks[1].group->wait(*received);
    ranks[0].group->wait(*sent);
  };
  for (unsigned i = 0; i < posted; ++i) ranks[1].receive(8, 0, 100 + i);
  for (unsigned i = 0; i < unexpected; ++i) ranks[0].send(pattern(8, i), 1, 100'000 + i);
  for (int i = 0; i < kWarmUp; ++i) message();
  CALLGRIND_TOGGLE_COLLECT;
  for (int i = 0; i < kMessages; ++i) message();
  CALLGRIND_TOGGLE_COLLECT;
  for (auto& rank : ranks) rank.close(std::chrono::milliseconds(0));
  return 0;
}
