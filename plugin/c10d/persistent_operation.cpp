#include "torch_ucx/c10d/persistent_operation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <utility>

#include "plugin/c10d/errors.h"
#include "plugin/c10d/persistent_state.h"
#include "plugin/transport/group.h"
#include "plugin/transport/host_hooks.h"

namespace torch_ucx {

namespace {

using transport::Clock;

// Before each start: the memory is what it was, and holds what is to be sent.
void prepare(const PersistentOperation::State& state) {
  const at::Tensor& buffer = state.request->buffer();
  TORCH_CHECK_VALUE(
      buffer.const_data_ptr() == state.data && message_bytes_of(buffer) == state.bytes,
      "ucx: the tensor of a persistent operation has been resized or moved: make a new "
      "operation for it");
  if (state.copies) state.request->fill_buffer();
}

using Requests = std::span<const transport::Ref<transport::Request>>;

// Calls act for each run of requests of one group.
template <typename Act>
void for_each_group(Requests requests, const Act& act) {
  while (!requests.empty()) {
    const auto& group = requests.front()->group();
    std::size_t count = 1;
    while (count < requests.size() && requests[count]->group() == group) ++count;
    act(*group, requests.first(count));
    requests = requests.subspan(count);
  }
}

}  // namespace

struct PersistentOperation::Access {
  static std::vector<transport::Ref<transport::Request>> requests_of(
      const std::vector<Pointer>& operations) {
    std::vector<transport::Ref<transport::Request>> requests;
    requests.reserve(operations.size());
    for (const auto& operation : operations) requests.emplace_back(operation->state_->request);
    return requests;
  }
};

PersistentOperation::PersistentOperation(std::unique_ptr<State> state) : state_(std::move(state)) {}

PersistentOperation::~PersistentOperation() = default;

void PersistentOperation::start() {
  prepare(*state_);
  with_torch_errors([&] { state_->request->group()->start(state_->request); });
}

bool PersistentOperation::test() {
  const auto& request = *state_->request;
  if (!request.done()) {
    request.group()->poll();
    if (!request.done()) return false;
  }
  if (!request.outcome().ok()) throw_failure();
  return true;
}

void PersistentOperation::wait(std::chrono::milliseconds timeout) {
  auto& request = *state_->request;
  if (!request.done()) {
    const transport::BlockingSection blocking;
    request.group()->wait(request, timeout);
  }
  if (!request.outcome().ok()) throw_failure();
}

void PersistentOperation::throw_failure() const {
  std::rethrow_exception(state_->request->failure());
}

int PersistentOperation::source() const {
  const auto& request = *state_->request;
  TORCH_CHECK(request.done() &&
                  (request.outcome().source_rank >= 0 || request.peer() != transport::kAnySource),
              "ucx: the source of a receive from any source is known once it has completed");
  return request.peer() == transport::kAnySource ? request.outcome().source_rank : request.peer();
}

int PersistentOperation::tag() const {
  const auto& request = *state_->request;
  TORCH_CHECK(!request.any_tag() || (request.done() && request.outcome().source_rank >= 0),
              "ucx: the tag of a receive with any tag is known once it has completed");
  return static_cast<int>(request.any_tag() ? request.outcome().user_tag : request.user_tag());
}

void PersistentOperation::startAll(const std::vector<Pointer>& operations) {
  for (const auto& operation : operations) prepare(*operation->state_);
  const auto requests = Access::requests_of(operations);
  with_torch_errors([&] {
    for_each_group(
        requests, [](transport::Group& group, const auto& of_group) { group.start_all(of_group); });
  });
}

void PersistentOperation::waitAll(const std::vector<Pointer>& operations,
                                  std::chrono::milliseconds timeout) {
  const auto requests = Access::requests_of(operations);
  const bool all_done = std::all_of(requests.begin(), requests.end(),
                                    [](const auto& request) { return request->done(); });
  if (!all_done) {
    const transport::BlockingSection blocking;
    const auto deadline = Clock::now() + timeout;
    for_each_group(requests, [&](transport::Group& group, const auto& of_group) {
      auto left = std::chrono::milliseconds(0);
      if (timeout.count() > 0) {
        left = std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()),
                        std::chrono::milliseconds(1));
      }
      group.wait_all(of_group, left);
    });
  }
  for (const auto& operation : operations) {
    if (!operation->state_->request->outcome().ok()) operation->throw_failure();
  }
}

}  // namespace torch_ucx
