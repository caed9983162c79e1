// Requests by themselves: references, the list, the lock-free stack.
#include "plugin/transport/request.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace torch_ucx::transport {
namespace {

struct Counted final : Request {
  explicit Counted(int number_) : number(number_) { ++alive; }
  ~Counted() override { --alive; }
  int number;
  inline static std::atomic<int> alive{0};
};

TEST(Request, StartsPendingAndDiesWithItsLastReference) {
  {
    auto first = Ref<Counted>::make(1);
    EXPECT_FALSE(first->done());
    EXPECT_EQ(Counted::alive, 1);
    const Ref<Request> second = first;  // NOLINT: the copy is the point
    first = Ref<Counted>();
    EXPECT_FALSE(first);
    EXPECT_EQ(Counted::alive, 1);
    EXPECT_EQ(second.get()->peer(), -1);
  }
  EXPECT_EQ(Counted::alive, 0);
}

TEST(RequestList, KeepsOrderThroughRemovals) {
  std::vector<Ref<Counted>> requests;
  RequestList list;
  for (int i = 0; i < 5; ++i) {
    requests.push_back(Ref<Counted>::make(i));
    list.push_back(*requests.back());
  }
  list.remove(*requests[2]);
  list.remove(*requests[0]);
  list.remove(*requests[4]);
  std::vector<int> left;
  for (Request* r = list.front(); r != nullptr; r = RequestList::next(*r)) {
    left.push_back(static_cast<Counted*>(r)->number);
  }
  EXPECT_EQ(left, (std::vector{1, 3}));
  EXPECT_EQ(list.size(), 2u);
  list.remove(*requests[1]);
  list.remove(*requests[3]);
  EXPECT_TRUE(list.empty());
}

TEST(RequestStack, GivesBackOldestFirstAndLosesNothingUnderThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 5000;
  std::vector<std::vector<Ref<Counted>>> requests(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEach; ++i) {
      requests[static_cast<std::size_t>(t)].push_back(Ref<Counted>::make(t * kEach + i));
    }
  }
  RequestStack stack;
  std::vector<std::thread> threads;
  std::atomic<int> running{kThreads};
  for (auto& mine : requests) {
    threads.emplace_back([&] {
      for (auto& request : mine) stack.push(*request);
      --running;
    });
  }
  std::vector<int> last(kThreads, -1);
  int taken = 0;
  while (running > 0 || !stack.empty()) {
    for (Request* r = stack.take_all(); r != nullptr;) {
      Request* next = RequestStack::next(*r);
      const int number = static_cast<Counted*>(r)->number;
      int& previous = last[static_cast<std::size_t>(number / kEach)];
      EXPECT_LT(previous, number);  // the order of each thread is kept
      previous = number;
      ++taken;
      r = next;
    }
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(taken, kThreads * kEach);
}

}  // namespace
}  // namespace torch_ucx::transport
