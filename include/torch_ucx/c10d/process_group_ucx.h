// The backend "ucx" of torch.distributed: point-to-point messages of tensors over UCX.
//
// Lifetime: shutdown(), abort(), the destructor and shutdown_all() end in one teardown, which runs
// once and is bounded in time. A Work may outlive its group.
//
// Thread rule: any thread may call any method. Nothing here blocks but the constructor (it talks to
// the store), waitProbe(), take() with a time-out, and the teardown.
//
// Errors: c10::ValueError for an argument that is not allowed, before anything is posted;
// c10::DistBackendError, DistNetworkError and DistStoreError for UCX, a peer and the store;
// c10d::TimeoutError for a deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "torch_ucx/c10d/persistent_operation.h"
#include "torch_ucx/export.h"

namespace c10d {
// torch 2.6 does not have it yet; this repeats the later ones' declaration.
enum class ErrorType;
}  // namespace c10d

namespace torch_ucx {

class LiveGroup;

// The virtuals that not every supported torch has are declared without "override", so that they
// override wherever the base has them.
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Winconsistent-missing-override"
#pragma clang diagnostic ignored "-Wsuggest-override"
#endif

class TORCH_UCX_API ProcessGroupUCX final : public c10d::Backend {
 public:
  static constexpr const char* kName = "ucx";

  struct TORCH_UCX_API Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout);
    Options(const Options&) = default;
    ~Options() override;

    virtual c10::intrusive_ptr<c10d::Backend::Options> clone() const;  // since torch 2.14
  };

  // Publishes this rank's address in the store; contact with the others is made at first use.
  // options: copied; null for the defaults. group_name, for messages only. global_ranks: of the
  // group's ranks in order, empty when they are the same.
  ProcessGroupUCX(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                  const c10::intrusive_ptr<Options>& options = nullptr,
                  const std::string& group_name = "", std::vector<std::uint64_t> global_ranks = {});
  ~ProcessGroupUCX() override;

  // Tears down all groups that this process has open; for the end of a program.
  static void shutdown_all() noexcept;

  const std::string getBackendName() const override { return kName; }
  bool supportsCoalescing() const { return false; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions();
  void setTimeout(std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int dstRank,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int srcRank,
                                      int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  // As the tag of a receive or probe: any tag. As the source of a probe: any rank.
  static constexpr int kAnyTag = std::numeric_limits<int>::min();
  static constexpr int kAnySource = -1;

  // A message that waits to be received.
  struct WaitingMessage {
    int source;  // group rank
    int tag;
    c10::ScalarType dtype;  // of the sender's tensor
    std::uint64_t bytes;
  };
  // One that take() took out of matching: only recvMessage() gets it now. Copies mean the same
  // message; when the last is gone unreceived it is discarded.
  class TORCH_UCX_API Message {
   public:
    [[nodiscard]] const WaitingMessage& info() const noexcept { return info_; }

   private:
    friend class ProcessGroupUCX;
    struct State;
    Message(std::shared_ptr<State> state, WaitingMessage info);
    std::shared_ptr<State> state_;
    WaitingMessage info_;
  };

  // A message that a receive with this source and tag would get; without waiting, and waiting up to
  // timeout (0: the group's) for one to come.
  std::optional<WaitingMessage> probe(int source, int tag);
  std::optional<WaitingMessage> waitProbe(int source, int tag, std::chrono::milliseconds timeout);
  // The same, and takes it out of matching (MPI's matched probe). timeout: none: without waiting.
  std::optional<Message> take(int source, int tag,
                              std::optional<std::chrono::milliseconds> timeout);
  // Receives a message that was taken; once.
  c10::intrusive_ptr<c10d::Work> recvMessage(std::vector<at::Tensor>& tensors,
                                             const Message& message);

  // Prepares a send or receive that is started many times; nothing is posted yet. Arguments as of
  // send and recv; source may be kAnySource, the tag of a receive kAnyTag.
  PersistentOperation::Pointer sendInit(const at::Tensor& tensor, int dstRank, int tag);
  PersistentOperation::Pointer recvInit(const at::Tensor& tensor, int source, int tag);

  c10::intrusive_ptr<c10d::Work> barrier(
      const c10d::BarrierOptions& opts = c10d::BarrierOptions()) override;

  // Counts collectives: the same number on all ranks that have issued the same ones.
  void setSequenceNumberForGroup() override;
  std::uint64_t getSequenceNumberForGroup() override;

  // What the latest failed operation failed for.
  c10d::ErrorType getError();

  // Delivers what was sent as far as the peers take it in time (TORCH_UCX_LINGER_S).
  void shutdown();
  // Gives up what has not been taken yet.
  void abort();

 private:
  c10::intrusive_ptr<c10d::Work> receive(std::vector<at::Tensor>& tensors, int source, int tag,
                                         c10d::OpType type, const char* title);

  const c10::intrusive_ptr<Options> options_;
  std::shared_ptr<LiveGroup> live_;
  std::atomic<std::uint64_t> collectives_{0};
  std::atomic<std::uint64_t> messages_{0};
};

#if defined(__clang__)
#pragma clang diagnostic pop
#endif

}  // namespace torch_ucx
