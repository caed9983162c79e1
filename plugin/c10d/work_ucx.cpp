#include "plugin/c10d/work_ucx.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "plugin/c10d/errors.h"
#include "plugin/transport/group.h"
#include "plugin/transport/host_hooks.h"

namespace torch_ucx {

namespace {

using c10::ivalue::Future;

// The base class builds a RecordFunction, which allocates, for any title: give it one only when
// something records.
bool recording() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

c10d::WorkResult result_of(transport::Failure failure) {
  switch (failure) {
    case transport::Failure::none:
      return c10d::WorkResult::SUCCESS;
    case transport::Failure::timed_out:
      return c10d::WorkResult::TIMEOUT;
    default:
      return c10d::WorkResult::COMM_ERROR;
  }
}

}  // namespace

WorkUCX::WorkUCX(int rank, c10d::OpType type, const char* title,
                 const std::vector<at::Tensor>& tensors, std::uint64_t sequence_number)
    : WorkUCX(rank, type, title, tensors, sequence_number, recording()) {}

WorkUCX::WorkUCX(int rank, c10d::OpType type, const char* title,
                 const std::vector<at::Tensor>& tensors, std::uint64_t sequence_number,
                 bool profiled)
    : c10d::Work(rank, type, profiled ? title : nullptr,
                 profiled ? std::optional(tensors) : std::nullopt),
      profiled_(profiled),
      sequence_number_(sequence_number) {}

WorkUCX::~WorkUCX() = default;

void WorkUCX::end_profile_event() {
  if (!profiled_) return;
  std::function<void()> end;
  {
    const std::lock_guard lock(mutex_);
    end = std::exchange(recordFunctionEndCallback_, nullptr);
  }
  if (end) end();
}

bool WorkUCX::isCompleted() {
  if (!done()) {
    poll();
    if (!done()) return false;
  }
  end_profile_event();
  return true;
}

bool WorkUCX::isSuccess() const { return done() && failure() == transport::Failure::none; }

std::exception_ptr WorkUCX::exception() const { return done() ? failure_exception() : nullptr; }

bool WorkUCX::wait(std::chrono::milliseconds timeout) {
  if (!done()) {
    // Python's Work.wait has released the GIL, but not every caller from C++ has.
    const transport::BlockingSection blocking;
    await(std::max(timeout, std::chrono::milliseconds(0)));
  }
  end_profile_event();
  if (failure() != transport::Failure::none) std::rethrow_exception(failure_exception());
  return true;
}

void WorkUCX::synchronize() { wait(kNoTimeout); }

void WorkUCX::blockCurrentStream() { wait(kNoTimeout); }

c10::intrusive_ptr<Future> WorkUCX::getFuture() { return future(); }

c10::intrusive_ptr<Future> WorkUCX::getFutureResult() {
  auto result = c10::make_intrusive<Future>(c10::IntType::get());
  // The callback keeps this Work, and the future of the operation the callback, until it completes.
  auto self = c10::intrusive_ptr<WorkUCX>::reclaim_copy(this);
  future()->addCallback([result, self](Future&) {
    result->markCompleted(c10::IValue(static_cast<std::int64_t>(result_of(self->failure()))));
  });
  return result;
}

// ---- send, recv --------------------------------------------------------------------------------

PointToPointWork::PointToPointWork(int rank, c10d::OpType type, const char* title,
                                   const std::vector<at::Tensor>& tensors,
                                   std::uint64_t sequence_number,
                                   transport::Ref<TensorRequest> request)
    : WorkUCX(rank, type, title, tensors, sequence_number), request_(std::move(request)) {}

PointToPointWork::~PointToPointWork() = default;

void PointToPointWork::poll() noexcept { request_->group()->poll_as_caller(); }

void PointToPointWork::await(std::chrono::milliseconds timeout) {
  request_->group()->wait(*request_, timeout);
}

int PointToPointWork::sourceRank() const {
  if (opType_ == c10d::OpType::SEND) return c10d::Work::sourceRank();  // throws
  if (done() && request_->outcome().source_rank >= 0) return request_->outcome().source_rank;
  TORCH_CHECK(request_->peer() != transport::kAnySource,
              "ucx: the source of a receive from any source is known once it has completed");
  return request_->peer();
}

int PointToPointWork::tag() const {
  if (!request_->any_tag()) return static_cast<int>(request_->user_tag());
  TORCH_CHECK(done() && request_->outcome().source_rank >= 0,
              "ucx: the tag of a receive with any tag is known once it has completed");
  return static_cast<int>(request_->outcome().user_tag);
}

std::vector<at::Tensor> PointToPointWork::result() {
  TORCH_CHECK(isCompleted(), "ucx: the operation has not completed: wait for it before result()");
  return {request_->tensor()};
}

// ---- barrier -----------------------------------------------------------------------------------

BarrierWork::BarrierWork(int rank, std::uint64_t sequence_number, std::shared_ptr<Barrier> barrier,
                         std::chrono::milliseconds timeout)
    : WorkUCX(rank, c10d::OpType::BARRIER, "ucx:barrier", {}, sequence_number),
      barrier_(std::move(barrier)),
      timeout_(timeout) {}

BarrierWork::~BarrierWork() = default;

void BarrierWork::await(std::chrono::milliseconds timeout) {
  if (timeout_.count() > 0) timeout = timeout.count() > 0 ? std::min(timeout, timeout_) : timeout_;
  barrier_->wait(timeout);
}

std::exception_ptr BarrierWork::failure_exception() const {
  return failure() == transport::Failure::none
             ? nullptr
             : torch_exception(barrier_->failure(), barrier_->reason());
}

c10::intrusive_ptr<Future> BarrierWork::future() {
  c10::intrusive_ptr<Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (future_ != nullptr) return future_;
    future = future_ = c10::make_intrusive<Future>(c10::ListType::ofTensors());
  }
  barrier_->when_done([future, barrier = barrier_.get()] {
    if (barrier->failure() == transport::Failure::none) {
      future->markCompleted(c10::IValue(c10::List<at::Tensor>()));
    } else {
      future->setError(torch_exception(barrier->failure(), barrier->reason()));
    }
  });
  return future;
}

}  // namespace torch_ucx
