#include "torch_ucx/c10d/process_group_ucx.h"

#include <mutex>
#include <utility>

#include "plugin/c10d/errors.h"
#include "plugin/c10d/live_group.h"
#include "plugin/c10d/persistent_state.h"
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
    group.class_count = static_cast<int>(c10::ScalarType::NumOptions);
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
  auto request = send_request(tensors);
  const at::Tensor& buffer = request->buffer();
  auto work = c10::make_intrusive<PointToPointWork>(rank_, OpType::SEND, "ucx:send", tensors,
                                                    messages_.fetch_add(1), request);
  with_torch_errors([&] {
    live_->group().send(request, buffer.const_data_ptr(), message_bytes_of(buffer), dstRank,
                        message_class_of(buffer), user_tag);
  });
  return work;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::recv(std::vector<at::Tensor>& tensors, int srcRank,
                                                     int tag) {
  // To the transport, any source is a negative number too.
  TORCH_CHECK_VALUE(srcRank >= 0 && srcRank < size_, "ucx recv on rank ", rank_, " of group \"",
                    live_->group().name(), "\": source rank ", srcRank,
                    " is outside the group; allowed is 0 to ", size_ - 1);
  return receive(tensors, srcRank, tag, OpType::RECV, "ucx:recv");
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::recvAnysource(std::vector<at::Tensor>& tensors,
                                                              int tag) {
  return receive(tensors, transport::kAnySource, tag, OpType::RECVANYSOURCE, "ucx:recvAnySource");
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::receive(std::vector<at::Tensor>& tensors,
                                                        int source, int tag, OpType type,
                                                        const char* title) {
  const auto user_tag = tag == kAnyTag ? transport::kAnyTag : checked_tag(tag, "recv");
  auto request = receive_request(tensors, "recv");
  const at::Tensor& buffer = request->buffer();
  auto work = c10::make_intrusive<PointToPointWork>(rank_, type, title, tensors,
                                                    messages_.fetch_add(1), request);
  with_torch_errors([&] {
    live_->group().receive(request, buffer.mutable_data_ptr(), message_bytes_of(buffer), source,
                           message_class_of(buffer), user_tag);
  });
  return work;
}

// ---- persistent operations ---------------------------------------------------------------------

PersistentOperation::Pointer ProcessGroupUCX::sendInit(const at::Tensor& tensor, int dstRank,
                                                       int tag) {
  const auto user_tag = checked_tag(tag, "send_init");
  auto state = std::make_unique<PersistentOperation::State>();
  state->request = persistent_send_request({tensor});
  const at::Tensor& buffer = state->request->buffer();
  state->copies = !buffer.is_same(state->request->tensor());
  state->data = buffer.const_data_ptr();
  state->bytes = message_bytes_of(buffer);
  with_torch_errors([&] {
    live_->group().init_send(state->request, state->data, state->bytes, dstRank,
                             message_class_of(buffer), user_tag);
  });
  return c10::make_intrusive<PersistentOperation>(std::move(state));
}

PersistentOperation::Pointer ProcessGroupUCX::recvInit(const at::Tensor& tensor, int source,
                                                       int tag) {
  const auto user_tag = tag == kAnyTag ? transport::kAnyTag : checked_tag(tag, "recv_init");
  auto state = std::make_unique<PersistentOperation::State>();
  state->request = receive_request({tensor}, "recv_init");
  const at::Tensor& buffer = state->request->buffer();
  state->data = buffer.const_data_ptr();
  state->bytes = message_bytes_of(buffer);
  with_torch_errors([&] {
    live_->group().init_receive(state->request, buffer.mutable_data_ptr(), state->bytes, source,
                                message_class_of(buffer), user_tag);
  });
  return c10::make_intrusive<PersistentOperation>(std::move(state));
}

// ---- probes ------------------------------------------------------------------------------------

struct ProcessGroupUCX::Message::State {
  transport::TakenMessage taken;
  std::mutex mutex;
};

ProcessGroupUCX::Message::Message(std::shared_ptr<State> state, WaitingMessage info)
    : state_(std::move(state)), info_(info) {}

namespace {

int checked_source(int source, int size) {
  TORCH_CHECK_VALUE(source == ProcessGroupUCX::kAnySource || (source >= 0 && source < size),
                    "ucx probe: source rank ", source, " is outside the group; allowed is 0 to ",
                    size - 1, " or any source");
  return source;
}

std::uint64_t probed_tag(int tag) {
  return tag == ProcessGroupUCX::kAnyTag ? transport::kAnyTag : checked_tag(tag, "probe");
}

ProcessGroupUCX::WaitingMessage info_of(const transport::ProbeResult& found) {
  return {found.source, static_cast<int>(found.user_tag),
          static_cast<c10::ScalarType>(found.message_class), found.bytes};
}

}  // namespace

std::optional<ProcessGroupUCX::WaitingMessage> ProcessGroupUCX::probe(int source, int tag) {
  const auto found = with_torch_errors(
      [&] { return live_->group().probe(checked_source(source, size_), probed_tag(tag)); });
  return found ? std::optional(info_of(*found)) : std::nullopt;
}

std::optional<ProcessGroupUCX::WaitingMessage> ProcessGroupUCX::waitProbe(
    int source, int tag, std::chrono::milliseconds timeout) {
  const auto found = with_torch_errors([&] {
    return live_->group().wait_probe(checked_source(source, size_), probed_tag(tag), timeout);
  });
  return found ? std::optional(info_of(*found)) : std::nullopt;
}

std::optional<ProcessGroupUCX::Message> ProcessGroupUCX::take(
    int source, int tag, std::optional<std::chrono::milliseconds> timeout) {
  auto taken = with_torch_errors([&] {
    checked_source(source, size_);
    return timeout ? live_->group().wait_take(source, probed_tag(tag), *timeout)
                   : live_->group().take(source, probed_tag(tag));
  });
  if (!taken) return std::nullopt;
  const WaitingMessage info = info_of(taken.info());
  auto state = std::make_shared<Message::State>();
  state->taken = std::move(taken);
  return Message(std::move(state), info);
}

c10::intrusive_ptr<c10d::Work> ProcessGroupUCX::recvMessage(std::vector<at::Tensor>& tensors,
                                                            const Message& message) {
  auto request = receive_request(tensors, "recv");
  const at::Tensor& buffer = request->buffer();
  auto work = c10::make_intrusive<PointToPointWork>(rank_, OpType::RECV, "ucx:recv", tensors,
                                                    messages_.fetch_add(1), request);
  with_torch_errors([&] {
    const std::lock_guard lock(message.state_->mutex);
    live_->group().receive(request, buffer.mutable_data_ptr(), message_bytes_of(buffer),
                           message_class_of(buffer), std::move(message.state_->taken));
  });
  return work;
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
