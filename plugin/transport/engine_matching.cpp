// Engine: matching beyond UCX's exact one: any source, any tag, messages of another class, probes.
//
// UCX matches 64-bit tags under a mask. An exact receive is posted with the full mask, also in the
// class: that is UCX's hashed fast path. So a message of another class stays in UCX's unexpected
// queue, and the receive stays incomplete. When a driver of progress has been idle for a while,
// look_again() probes for such messages; on a hit the receive is withdrawn from UCX and the message
// taken by its handle instead. A receive that cannot be withdrawn has been matched already, and is
// left alone. All under the engine's lock, without progress in between: what was probed is still
// there.
#include <new>

#include "plugin/transport/engine.h"
#include "plugin/ucp/log.h"
#include "plugin/ucp/status.h"

namespace torch_ucx::transport {

namespace {

// Groups up to this size make contact with every rank when an any-source receive is posted, so that
// the death of the last possible sender is noticed.
constexpr int kContactAllSize = 64;

}  // namespace

Engine::Match Engine::wildcard_match(const Group& group, int src,
                                     std::uint64_t tag) const noexcept {
  Match match{static_cast<Tag>(group.mailbox_) << detail::kMailboxShift, kExactMask & ~kClassMask};
  if (src == kAnySource) {
    match.mask &= ~kRankMask;
  } else {
    match.tag |= static_cast<Tag>(src) << detail::kRankShift;
  }
  if (tag == kAnyTag) {
    match.mask &= ~kUserTagMask;
  } else {
    match.tag |= tag;
  }
  return match;
}

std::optional<MessageClass> Engine::other_class(const Group& group, Match match,
                                                MessageClass own) noexcept {
  ucp_tag_recv_info_t info;
  const Tag base = match.tag & ~kClassMask;
  const Tag exact = match.mask | kClassMask;
  const auto is_other = [&](MessageClass message_class) {
    return message_class != own && message_class < group.options_.class_count;
  };
  // The oldest of any class. This walks UCX's queue: fine where a wildcard does so anyway, or where
  // a message is known to be there; else ask UCX's hash for each class first (some ns each).
  const auto oldest = [&]() -> std::optional<MessageClass> {
    if (ucp_tag_probe_nb(worker_->get(), base, match.mask & ~kClassMask, 0, &info) == nullptr) {
      return std::nullopt;
    }
    return class_of(info.sender_tag);
  };
  if (exact != kExactMask) {
    const auto first = oldest();
    if (!first || is_other(*first)) return first;
  }
  for (int candidate = 0; candidate < group.options_.class_count; ++candidate) {
    const auto message_class = static_cast<MessageClass>(candidate);
    if (!is_other(message_class)) continue;
    const Tag tag = base | static_cast<Tag>(message_class) << detail::kClassShift;
    if (ucp_tag_probe_nb(worker_->get(), tag, exact, 0, &info) == nullptr) continue;
    // There is one. Take the oldest, unless that is one that is not meant (a collective's).
    const auto first = oldest();
    return first && is_other(*first) ? first : message_class;
  }
  return std::nullopt;
}

void Engine::look_again(std::uint64_t generation) noexcept {
  if (looked_at_ == generation && !unlooked_) return;
  looked_at_ = generation;
  unlooked_ = false;
  // From the oldest receive on: of several that could take a message, the one posted first does.
  for (Request* request = in_flight_.front(); request != nullptr;) {
    Request* next = RequestList::next(*request);
    if (request->kind_ == Request::Kind::receive) {
      request->retain();
      reconsider(*request);
      let_go(*request);
    }
    request = next;
  }
}

void Engine::reconsider(Request& request) noexcept {
  if (request.stage_ != Request::Stage::posted || request.matched_ || request.done()) return;
  if (request.kind_ != Request::Kind::receive) return;
  const Group& group = *request.group_;
  if (request.class_ >= group.options_.class_count) return;
  Match match{request.tag_, request.mask_};
  const auto found = other_class(group, match, request.class_);
  if (!found) return;
  withdrawing_ = &request;
  withdrawn_ = false;
  ucp_request_cancel(worker_->get(), request.ucx_request_);
  withdrawing_ = nullptr;
  if (!withdrawn_) {
    request.matched_ = true;  // a message of its own class is on its way into it
    return;
  }
  request.ucx_request_ = nullptr;
  match.tag = (match.tag & ~kClassMask) | static_cast<Tag>(*found) << detail::kClassShift;
  ucp_tag_recv_info_t info;
  const auto message = ucp_tag_probe_nb(worker_->get(), match.tag, match.mask, 1, &info);
  if (message == nullptr) {  // cannot be, without progress in between; then it waits on
    start_receive(request);
    return;
  }
  receive_taken(request, message, info);
}

void Engine::receive_taken(Request& request, ucp_tag_message_h message,
                           const ucp_tag_recv_info_t& info) noexcept {
  request.matched_ = true;
  request.taken_ = true;
  request.message_tag_ = info.sender_tag;
  request.message_bytes_ = info.length;
  void* into = request.buffer_;
  std::uint64_t room = request.bytes_;
  const MessageClass message_class = class_of(info.sender_tag);
  if (message_class != request.class_) {
    auto acceptance = request.accept(message_class, info.length);
    if (acceptance == Request::Acceptance::convert) {
      request.staging_.reset(new (std::nothrow) std::byte[info.length == 0 ? 1 : info.length]);
      into = request.staging_.get();
      room = info.length;
      if (into == nullptr) acceptance = Request::Acceptance::refuse;
    }
    if (acceptance == Request::Acceptance::refuse) {
      into = nullptr;  // UCX drops the bytes, and the sender completes
      room = 0;
    }
    request.refused_ = acceptance == Request::Acceptance::refuse;
  }
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.recv = &Engine::on_received;
  param.user_data = &request;
  const bool listed = request.stage_ == Request::Stage::posted;
  if (!listed) {  // in flight before the call: the callback may finish it
    request.hold();
    request.stage_ = Request::Stage::posted;
    in_flight_.push_back(request);
  }
  request.retain();
  const ucp::CallResult result(ucp_tag_msg_recv_nbx(worker_->get(), into, room, message, &param));
  if (!result.in_flight()) {
    complete_taken(request, result.status);
  } else if (request.stage_ == Request::Stage::posted) {
    set_pending();
    progress_->note_in_flight();
  }
  let_go(request);
}

void Engine::complete_taken(Request& request, ucs_status_t status) noexcept {
  if (request.stage_ != Request::Stage::posted) return;
  Outcome outcome;
  outcome.message_bytes = request.message_bytes_;
  outcome.source_rank = static_cast<std::int32_t>(rank_of(request.message_tag_));
  outcome.user_tag = user_tag_of(request.message_tag_);
  outcome.message_class = class_of(request.message_tag_);
  if (request.refused_) {
    outcome.failure = Failure::wrong_class;
  } else if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) {
    outcome.failure = means_peer_failed(status) ? Failure::peer_failed : Failure::ucx;
    outcome.ucx_status = static_cast<std::int8_t>(status);
  } else if (request.staging_ != nullptr && !request.done()) {
    begin_delivery(request, outcome);
    return;
  } else if (request.staging_ == nullptr && request.message_bytes_ > request.bytes_) {
    outcome.failure = Failure::truncated;
  } else if (request.staging_ == nullptr && request.message_bytes_ < request.bytes_) {
    outcome.failure = Failure::too_short;
  }
  finish(request, outcome);
}

void Engine::begin_delivery(Request& request, const Outcome& outcome) noexcept {
  request.hold();
  if (request.stage_ == Request::Stage::posted) in_flight_.remove(request);
  request.stage_ = Request::Stage::delivering;
  request.outcome_ = outcome;
  try {
    deliveries_->start();
    deliveries_->enqueue_delivery(request);
  } catch (const std::exception& error) {  // no thread to be had
    log(LogLevel::error, error.what());
    finish_delivery(request, false);
  }
}

void Engine::finish_delivery(Request& request, bool delivered) noexcept {
  Outcome outcome = request.outcome_;
  outcome.converted = delivered && request.staging_ != nullptr;
  if (!delivered) outcome.failure = Failure::wrong_class;
  progress_->note_completion();
  finish(request, outcome);
}

// ---- probes ------------------------------------------------------------------------------------

std::optional<ProbeResult> Engine::probe(Group& group, Match match, void** taken) noexcept {
  const auto found = other_class(group, match, kClassControl);
  if (!found) return std::nullopt;
  const Tag tag = match.tag | static_cast<Tag>(*found) << detail::kClassShift;
  ucp_tag_recv_info_t info;
  const auto message = ucp_tag_probe_nb(worker_->get(), tag, match.mask | kClassMask,
                                        taken == nullptr ? 0 : 1, &info);
  if (message == nullptr) return std::nullopt;
  if (taken != nullptr) {
    *taken = message;
    taken_.insert(message);
  }
  return ProbeResult{static_cast<int>(rank_of(info.sender_tag)), user_tag_of(info.sender_tag),
                     class_of(info.sender_tag), info.length};
}

void Engine::discard(void* message) noexcept {
  taken_.erase(message);
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK;
  param.cb.recv = [](void* request, ucs_status_t, const ucp_tag_recv_info_t*, void*) {
    ucp_request_free(request);
  };
  const ucp::CallResult result(ucp_tag_msg_recv_nbx(
      worker_->get(), nullptr, 0, static_cast<ucp_tag_message_h>(message), &param));
  if (result.in_flight()) progress_->note_in_flight();
}

// ---- any source --------------------------------------------------------------------------------

void Engine::want_all(Group& group) noexcept {
  if (group.wants_all_ || group.size() > kContactAllSize) return;
  group.wants_all_ = true;
  for (int rank = 0; rank < group.size(); ++rank) want_peer(group, rank);
}

Failure Engine::no_source_left(Group& group) const noexcept {
  if (group.size() < 2) return Failure::none;  // oneself can always send
  bool left = false;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    const auto& peer = group.peers_[static_cast<std::size_t>(rank)];
    if (peer == nullptr) return Failure::none;
    if (peer->stage == GroupPeer::Stage::left) {
      left = true;
    } else if (peer->stage != GroupPeer::Stage::failed) {
      return Failure::none;
    }
  }
  return left ? Failure::peer_left : Failure::peer_failed;
}

void Engine::fail_sourceless(Group& group) noexcept {
  const Failure failure = no_source_left(group);
  if (failure == Failure::none) return;
  for (Request* request = in_flight_.front(); request != nullptr;) {
    Request* next = RequestList::next(*request);
    if (request->group_.get() == &group && request->peer_ == kAnySource) {
      take_or_fail(*request, failure);
    }
    request = next;
  }
}

}  // namespace torch_ucx::transport
