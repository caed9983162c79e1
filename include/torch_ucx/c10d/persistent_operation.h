// A send or receive that is prepared once and started many times (MPI_Send_init, MPI_Recv_init):
// for halo exchanges and pipelines, where a start costs no more than UCX's own call, the lock and a
// few flags. Made by ProcessGroupUCX::sendInit and recvInit; matches ordinary sends and receives.
//
// The tensor's memory must stay what it was: one that is resized is refused by start().
//
// Errors as of ProcessGroupUCX: start() throws c10::DistBackendError when the last start is still
// under way; test() and wait() throw what the operation failed for, and it may be started again.
//
// Thread rule: any thread may use it, but not two at a time.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <vector>

#include "torch_ucx/export.h"

namespace torch_ucx {

class ProcessGroupUCX;

class TORCH_UCX_API PersistentOperation final : public c10::intrusive_ptr_target {
 public:
  using Pointer = c10::intrusive_ptr<PersistentOperation>;
  struct State;
  explicit PersistentOperation(std::unique_ptr<State> state);
  ~PersistentOperation() override;

  // Posts it. Never waits.
  void start();
  // Whether it is done; before the first start it is. Makes progress.
  bool test();
  // Until it is done, at most timeout (0: until its deadline, the group's time-out after start()).
  void wait(std::chrono::milliseconds timeout = {});

  // Of the last message: group rank of the other side, and tag. Once it is done.
  [[nodiscard]] int source() const;
  [[nodiscard]] int tag() const;

  // In order, under one hold of the lock for those of a group that follow each other.
  static void startAll(const std::vector<Pointer>& operations);
  // Until all are done, timeout as a whole; then throws the first failure, if any.
  static void waitAll(const std::vector<Pointer>& operations,
                      std::chrono::milliseconds timeout = {});

 private:
  struct Access;
  void throw_failure() const;

  const std::unique_ptr<State> state_;
};

}  // namespace torch_ucx
