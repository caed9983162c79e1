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

void check_memory(const PersistentOperation::State& state) {
  const at::Tensor& buffer = state.request->buffer();
  TORCH_CHECK_VALUE(
      buffer.const_data_ptr() == state.data && message_bytes_of(buffer) == state.bytes,
      "ucx: the tensor of a persistent operation has been resized or moved: make a new "
      "operation for it");
}

// All that start() may refuse.
void check(const PersistentOperation::State& state) {
  check_memory(state);
  with_torch_errors([&] { state.request->group()->check_startable(*state.request); });
}

void check_given(const std::vector<PersistentOperation::Pointer>& operations) {
  for (const auto& operation : operations) {
    TORCH_CHECK_VALUE(operation != nullptr,
                      "ucx: the list of persistent operations has an element that is None");
  }
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
  if (state_->copies) {  // not while UCX may still read the buffer
    check(*state_);
    state_->request->fill_buffer();
  } else {
    check_memory(*state_);
  }
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
  // Null where another thread has started it again, against the rule.
  if (auto failure = state_->request->failure()) std::rethrow_exception(std::move(failure));
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
  check_given(operations);
  for (const auto& operation : operations) check(*operation->state_);
  for (const auto& operation : operations) {
    if (operation->state_->copies) operation->state_->request->fill_buffer();
  }
  const auto requests = Access::requests_of(operations);
  with_torch_errors([&] {
    for_each_group(
        requests, [](transport::Group& group, const auto& of_group) { group.start_all(of_group); });
  });
}

void PersistentOperation::waitAll(const std::vector<Pointer>& operations,
                                  std::chrono::milliseconds timeout) {
  check_given(operations);
  const auto requests = Access::requests_of(operations);
  const bool all_done = std::all_of(requests.begin(), requests.end(),
                                    [](const auto& request) { return request->done(); });
  if (!all_done) {
    const transport::BlockingSection blocking;
    const auto deadline = Clock::now() + timeout;
    const auto wait_for_group = [&](transport::Group& group, const auto& of_group) {
      group.wait_all(of_group, timeout.count() > 0 ? transport::left_until(deadline)
                                                   : std::chrono::milliseconds(0));
    };
    try {
      for_each_group(requests, wait_for_group);
    } catch (...) {  // interrupted: also in the groups whose turn had not come
      for (const auto& request : requests) {
        if (!request->done()) request->group()->withdraw_interrupted(*request);
      }
      throw;
    }
  }
  for (const auto& operation : operations) {
    if (!operation->state_->request->outcome().ok()) operation->throw_failure();
  }
}

}  // namespace torch_ucx
