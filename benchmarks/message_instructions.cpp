// Instructions of an 8-byte message between two engines of one process, for callgrind
// (ci/bench-instructions runs it): stable where times on a shared machine are not.
//
//   message_instructions WHAT CLASSES POSTED UNEXPECTED
//     WHAT        what is counted, each with its wait: send, receive, message (both), or, of
//                 persistent operations, start-send, start-receive
//     CLASSES     classes that may match each other (46: as torch's groups; 0: typed matching off)
//     POSTED      receives posted on other tags
//     UNEXPECTED  messages on other tags that nobody receives
#include <valgrind/callgrind.h>

#include <cstdlib>
#include <string>

#include "plugin/rendezvous/memory_store.h"
#include "tests/support/rank.h"

using namespace torch_ucx;            // NOLINT: a program
using namespace torch_ucx::contract;  // NOLINT

namespace {

// While it lives callgrind counts, if asked to.
class Counted {
 public:
  explicit Counted(bool on) : on_(on) {
    if (on_) CALLGRIND_TOGGLE_COLLECT;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() {
    if (on_) CALLGRIND_TOGGLE_COLLECT;
  }

 private:
  const bool on_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string what = argv[1];
  const bool persistent = what.starts_with("start-");
  const bool sends = what == "send" || what == "start-send";
  const bool receives = what == "receive" || what == "start-receive";
  const bool both = what == "message";
  if (!sends && !receives && !both) return 2;
  const int classes = std::atoi(argv[2]);
  const unsigned posted = static_cast<unsigned>(std::atoi(argv[3]));
  const unsigned unexpected = static_cast<unsigned>(std::atoi(argv[4]));
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
  auto& sender = *ranks[0].group;
  auto& receiver = *ranks[1].group;
  std::vector<std::byte> from(8);
  std::vector<std::byte> to(8);
  const auto new_request = [] { return Ref<BufferRequest>::make(std::vector<std::byte>()); };
  const auto message = [&](bool count) {
    const Counted whole(count && both);
    Ref<BufferRequest> received;
    Ref<BufferRequest> sent;
    {
      const Counted counted(count && receives);
      received = new_request();
      receiver.receive(received, to.data(), to.size(), 0, 1, 0);
    }
    {
      const Counted counted(count && sends);
      sent = new_request();
      sender.send(sent, from.data(), from.size(), 1, 1, 0);
    }
    {
      const Counted counted(count && receives);
      receiver.wait(*received);
      received = {};
    }
    {
      const Counted counted(count && sends);
      sender.wait(*sent);
      sent = {};
    }
  };
  const auto prepared_receive = new_request();
  const auto prepared_send = new_request();
  if (persistent) {
    receiver.init_receive(prepared_receive, to.data(), to.size(), 0, 1, 0);
    sender.init_send(prepared_send, from.data(), from.size(), 1, 1, 0);
  }
  const auto start = [&](bool count) {
    {
      const Counted counted(count && receives);
      receiver.start(prepared_receive);
    }
    {
      const Counted counted(count && sends);
      sender.start(prepared_send);
    }
    {
      const Counted counted(count && receives);
      receiver.wait(*prepared_receive);
    }
    {
      const Counted counted(count && sends);
      sender.wait(*prepared_send);
    }
  };
  for (unsigned i = 0; i < posted; ++i) ranks[1].receive(8, 0, 100 + i);
  for (unsigned i = 0; i < unexpected; ++i) ranks[0].send(pattern(8, i), 1, 100'000 + i);
  for (int i = 0; i < kWarmUp + kMessages; ++i) {
    const bool count = i >= kWarmUp;
    if (persistent) {
      start(count);
    } else {
      message(count);
    }
  }
  for (auto& rank : ranks) rank.close(std::chrono::milliseconds(0));
  return 0;
}
