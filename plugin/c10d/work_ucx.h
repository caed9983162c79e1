// The Work objects of the backend. Dropping one in flight is safe: the engine keeps what it needs.
//
// Thread rule: any thread may call any method; isCompleted() is one atomic load.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "plugin/c10d/barrier.h"
#include "plugin/c10d/tensor_request.h"
#include "torch_ucx/export.h"

namespace torch_ucx {

#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#pragma clang diagnostic ignored "-Wsuggest-override"
#endif

class TORCH_UCX_API WorkUCX : public c10d::Work {
 public:
  ~WorkUCX() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  // Of a failed operation; null for one that is pending or went well.
  std::exception_ptr exception() const override;

  // timeout: kNoTimeout (0) and kUnsetTimeout (-1) leave the operation's own deadline, the group's
  // time-out, as the only one. Throws the operation's exception if it failed.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  // CPU tensors know no stream: these wait.
  void synchronize() override;
  void blockCurrentStream();

  // Completed on a thread of the engine's, never on one that drives progress.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  // The same with a c10d::WorkResult as its value, and no error.
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;

  std::uint64_t getSequencenumber() const override { return sequence_number_; }

 protected:
  // title: a string literal, of the event in a profile.
  WorkUCX(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& tensors,
          std::uint64_t sequence_number);

  [[nodiscard]] virtual bool done() const noexcept = 0;
  // It is not done, and somebody asks.
  virtual void poll() noexcept = 0;
  // Until done; called only when it is not yet.
  virtual void await(std::chrono::milliseconds timeout) = 0;
  // The next two only once it is done.
  [[nodiscard]] virtual transport::Failure failure() const noexcept = 0;
  [[nodiscard]] virtual std::exception_ptr failure_exception() const = 0;
  [[nodiscard]] virtual c10::intrusive_ptr<c10::ivalue::Future> future() = 0;

 private:
  WorkUCX(int rank, c10d::OpType type, const char* title, const std::vector<at::Tensor>& tensors,
          std::uint64_t sequence_number, bool profiled);
  void end_profile_event();

  const bool profiled_;
  const std::uint64_t sequence_number_;
};

class TORCH_UCX_API PointToPointWork final : public WorkUCX {
 public:
  PointToPointWork(int rank, c10d::OpType type, const char* title,
                   const std::vector<at::Tensor>& tensors, std::uint64_t sequence_number,
                   transport::Ref<TensorRequest> request);
  ~PointToPointWork() override;

  // Group rank of the sender, of a receive; of one from any source only once it is done.
  int sourceRank() const override;
  // Tag of the message; of a receive with any tag only once it is done.
  int tag() const;
  std::vector<at::Tensor> result() override;

 protected:
  bool done() const noexcept override { return request_->done(); }
  void poll() noexcept override;
  void await(std::chrono::milliseconds timeout) override;
  transport::Failure failure() const noexcept override { return request_->outcome().failure; }
  std::exception_ptr failure_exception() const override { return request_->failure(); }
  c10::intrusive_ptr<c10::ivalue::Future> future() override { return request_->future(); }

 private:
  const transport::Ref<TensorRequest> request_;
};

class TORCH_UCX_API BarrierWork final : public WorkUCX {
 public:
  // timeout: of the barrier where it is positive, else the group's counts.
  BarrierWork(int rank, std::uint64_t sequence_number, std::shared_ptr<Barrier> barrier,
              std::chrono::milliseconds timeout);
  ~BarrierWork() override;

  std::vector<at::Tensor> result() override { return {}; }

 protected:
  bool done() const noexcept override { return barrier_->done(); }
  void poll() noexcept override { barrier_->poll(); }
  void await(std::chrono::milliseconds timeout) override;
  transport::Failure failure() const noexcept override { return barrier_->failure(); }
  std::exception_ptr failure_exception() const override;
  c10::intrusive_ptr<c10::ivalue::Future> future() override;

 private:
  const std::shared_ptr<Barrier> barrier_;
  const std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_
};

#if defined(__clang__)
#pragma clang diagnostic pop
#endif

}  // namespace torch_ucx
