#include "torch_ucx/c10d/process_group_ucx.h"

#include <utility>

#include "plugin/c10d/errors.h"
#include "plugin/c10d/live_group.h"
#include "plugin/c10d/store_adapter.h"
#include "plugin/c10d/tensor_request.h"
#include "plugin/c10d/work_ucx.h"

namespace torch_ucx {

namespace {

using c10d::OpType;
using transport::Ref;

// torch 2.6's options have no names.
template <typename OptionsType>
void set_names(OptionsType& options, const std::string& group_name,
               std::vector<std::uint64_t> global_ranks) {
  if constexpr (requires { options.global_ranks_in_group; }) {
    options.group_name = group_name;
    options.global_ranks_in_group = std::move(global_ranks);
  }
}

c10::intrusive_ptr<ProcessGroupUCX::Options> copied(
    const c10::intrusive_ptr<ProcessGroupUCX::Options>& options, const std::string& group_name,
    std::vector<std::uint64_t> global_ranks) {
  auto copy = options == nullptr ? c10::make_intrusive<ProcessGroupUCX::Options>()
                                 : c10::make_intrusive<ProcessGroupUCX::Options>(*options);
  set_names(*copy, group_name, std::move(global_ranks));
  return copy;
}

std::uint64_t checked_tag(int tag, const char* operation) {
  TORCH_CHECK_VALUE(tag >= 0, "ucx ", operation, ": tag ", tag, " is negative; allowed is 0 to ",
                    transport::kMaxUserTag);
  return static_cast<std::uint64_t>(tag);
}

}  // namespace

ProcessGroupUCX::Options::Options(std::chrono::milliseconds timeout)
    : c10d::Backend::Options(kName, timeout) {}

ProcessGroupUCX::Options::~Options() = default;

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupUCX::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}

ProcessGroupUCX::ProcessGroupUCX(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                 const c10::intrusive_ptr<Options>& options,
                                 const std::string& group_name,
                                 std::vector<std::uint64_t> global_ranks)
    : c10d::Backend(rank, size), options_(copied(options, group_name, std::move(global_ranks))) {
  with_torch_errors([&] {
    transport::GroupOptions group;
    group.rank = rank;
    group.size = size;
    group.name = group_name;
    group.timeout = options_->timeout;
    const AdaptedStore adapted = adapt_store(store);
    live_ = LiveGroup::open(group, adapted.store, adapted.prefix);
  });
  init();
}

ProcessGroupUCX::~ProcessGroupUCX() { live_->close(); }

void ProcessGroupUCX::shutdown_all() noexcept { LiveGroup::close_all(); }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupUCX::getBackendOptions() { return options_; }

void ProcessGroupUCX::setTimeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() > 0, "ucx: a time-out of ", timeout.count(),
                    " ms is not allowed: it must be positive");
  options_->timeout = timeout;
  live_->group().set_timeout(timeout);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::send(std::vector<at::Tensor>& tensors, int dstRank,
                                                     int tag) {
  const auto user_tag = checked_tag(tag, "send");
  auto request = Ref<TensorRequest>::make(tensor_to_send(tensors));
  const at::Tensor& tensor = request->tensor();
  auto work = c10::make_intrusive<PointToPointWork>(rank_, OpType::SEND, "ucx:send", tensors,
                                                    messages_.fetch_add(1), request);
  with_torch_errors([&] {
    live_->group().send(request, tensor.const_data_ptr(), message_bytes_of(tensor), dstRank,
                        message_class_of(tensor), user_tag);
  });
  return work;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::recv(std::vector<at::Tensor>& tensors, int srcRank,
                                                     int tag) {
  const auto user_tag = checked_tag(tag, "recv");
  auto request = Ref<TensorRequest>::make(tensor_to_receive(tensors, "recv"));
  const at::Tensor& tensor = request->tensor();
  auto work = c10::make_intrusive<PointToPointWork>(rank_, OpType::RECV, "ucx:recv", tensors,
                                                    messages_.fetch_add(1), request);
  with_torch_errors([&] {
    live_->group().receive(request, tensor.mutable_data_ptr(), message_bytes_of(tensor), srcRank,
                           message_class_of(tensor), user_tag);
  });
  return work;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::recvAnysource(std::vector<at::Tensor>& /*tensors*/,
                                                              int /*tag*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "recvAnysource (recv without a source) is not supported by the "
                              "backend ucx yet: name the source");
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::barrier(const c10d::BarrierOptions& opts) {
  const std::uint64_t number = collectives_.fetch_add(1) + 1;
  auto barrier = with_torch_errors([&] { return Barrier::start(live_->shared_group(), number); });
  return c10::make_intrusive<BarrierWork>(rank_, number, std::move(barrier), opts.timeout);
}

void ProcessGroupUCX::setSequenceNumberForGroup() {}  // all ranks count from 0

std::uint64_t ProcessGroupUCX::getSequenceNumberForGroup() { return collectives_.load(); }

c10d::ErrorType ProcessGroupUCX::getError() {
  // c10d::ErrorType's values, which torch 2.6 does not define.
  constexpr int kSuccess = 0;
  constexpr int kTimeout = 1;
  constexpr int kCommunication = 2;
  constexpr int kRemote = 3;
  const auto error = [&] {
    switch (live_->group().last_failure()) {
      case transport::Failure::none:
      case transport::Failure::group_closed:
        return kSuccess;
      case transport::Failure::timed_out:
        return kTimeout;
      case transport::Failure::peer_failed:
      case transport::Failure::peer_left:
      case transport::Failure::unreachable:
        return kRemote;
      default:
        return kCommunication;
    }
  }();
  return static_cast<c10d::ErrorType>(error);
}

void ProcessGroupUCX::shutdown() { live_->close(); }

void ProcessGroupUCX::abort() { live_->close(std::chrono::milliseconds(0)); }

}  // namespace torch_ucx
