// Engine: posting to UCX, completion, quarantine.
#include "plugin/transport/engine.h"
#include "plugin/ucp/status.h"

namespace torch_ucx::transport {

namespace {

// Why an operation with a peer that has left or failed fails.
Failure failure_of(const GroupPeer& peer) {
  if (peer.stage == GroupPeer::Stage::left) return Failure::peer_left;
  // One that was refused contact was never reached, and need not have died.
  return peer.peer != nullptr && peer.peer->failed ? Failure::peer_failed : Failure::unreachable;
}

Outcome failed(ucs_status_t status) {
  Outcome outcome;
  outcome.failure = means_peer_failed(status) ? Failure::peer_failed : Failure::ucx;
  outcome.ucx_status = static_cast<std::int8_t>(status);
  return outcome;
}

}  // namespace

[[gnu::flatten]] void Engine::post(Request& request) noexcept {
  Group& group = *request.group_;
  if (request.stage_ == Request::Stage::finished) request.renew();  // started again
  if (request.kind_ == Request::Kind::send) ++group.sends_;
  if (group.closing_) {
    if (request.taken_ && !shut_down_) discard(std::exchange(request.ucx_request_, nullptr));
    finish(request, Outcome{.failure = Failure::group_closed});
    return;
  }
  if (request.kind_ == Request::Kind::receive) {
    post_receive(request);
    return;
  }
  GroupPeer& peer = group.peer(request.peer_);
  if (peer.stage == GroupPeer::Stage::ready) {
    post_send(request, peer);
    return;
  }
  if (peer.stage == GroupPeer::Stage::left || peer.stage == GroupPeer::Stage::failed) {
    finish(request, Outcome{.failure = failure_of(peer)});
    return;
  }
  request.hold();
  request.stage_ = Request::Stage::queued;
  peer.queued.push_back(request);
  ++group.queued_;
  set_pending();
  want_peer(group, request.peer_);
}

void Engine::post_send(Request& request, GroupPeer& peer) noexcept {
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &Engine::on_sent;
  param.user_data = &request;
  const Tag tag = static_cast<Tag>(peer.mailbox) << detail::kMailboxShift | request.tag_;
  calling_ = &request;
  called_back_ = false;
  const ucp::CallResult result(
      ucp_tag_send_nbx(peer.peer->endpoint.get(), request.buffer_, request.bytes_, tag, &param));
  calling_ = nullptr;
  if (called_back_) {
    finish(request, call_outcome_);
  } else if (result.in_flight()) {
    begin_in_flight(request, result.request);
  } else if (result.status == UCS_OK) {
    finish(request, Outcome{.message_bytes = request.bytes_});
  } else {
    finish(request, failed(result.status));
  }
}

void Engine::post_receive(Request& request) noexcept {
  Group& group = *request.group_;
  if (request.taken_) {
    // Of a message that Group::take took: the handle waits in ucx_request_.
    const auto message =
        static_cast<ucp_tag_message_h>(std::exchange(request.ucx_request_, nullptr));
    taken_.erase(message);
    ucp_tag_recv_info_t info{};
    info.sender_tag = request.message_tag_;
    info.length = request.message_bytes_;
    receive_taken(request, message, info);
    return;
  }
  if (!start_receive(request)) return;
  unlooked_ = true;
  // Nothing of it has come yet. Will it ever? A peer that left or died sends nothing more; one not
  // yet known is looked for, so that its death is noticed.
  if (request.peer_ == kAnySource) {
    want_all(group);
    const Failure failure = no_source_left(group);
    if (failure != Failure::none) take_or_fail(request, failure);
    return;
  }
  GroupPeer& peer = group.peer(request.peer_);
  if (peer.stage == GroupPeer::Stage::unknown) {
    want_peer(group, request.peer_);
  } else if (peer.stage == GroupPeer::Stage::left || peer.stage == GroupPeer::Stage::failed) {
    take_or_fail(request, failure_of(peer));
  }
}

bool Engine::start_receive(Request& request) noexcept {
  // NO_IMM_CMPL: completion always comes through the callback, which alone tells the sender's
  // length in every case and every version of UCX (truncation on 1.22, all immediate ones up
  // to 1.15).
  ucp_request_param_t param;
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = &Engine::on_received;
  param.user_data = &request;
  calling_ = &request;
  called_back_ = false;
  const ucp::CallResult result(ucp_tag_recv_nbx(worker_->get(), request.buffer_, request.bytes_,
                                                request.tag_, request.mask_, &param));
  calling_ = nullptr;
  if (called_back_) {
    finish(request, call_outcome_);
    return false;
  }
  if (!result.in_flight()) {
    finish(request, failed(result.status));
    return false;
  }
  begin_in_flight(request, result.request);
  return true;
}

void Engine::post_to_ready(GroupPeer& peer) noexcept {
  while (Request* request = peer.queued.front()) {
    peer.queued.remove(*request);
    --request->group_->queued_;
    post_send(*request, peer);
  }
}

void Engine::begin_in_flight(Request& request, void* ucx_request) noexcept {
  request.ucx_request_ = ucx_request;
  if (request.stage_ != Request::Stage::posted) {  // not one that is posted a second time
    request.hold();
    request.stage_ = Request::Stage::posted;
    in_flight_.push_back(request);
  }
  set_pending();
  progress_->note_in_flight();
}

[[gnu::flatten]] void Engine::on_sent(void* ucx_request, ucs_status_t status, void* user_data) {
  auto& request = *static_cast<Request*>(user_data);
  Engine& engine = request.group_->engine();
  ucp_request_free(ucx_request);
  const Outcome outcome =
      status == UCS_OK ? Outcome{.message_bytes = request.bytes_} : failed(status);
  if (engine.calling_ == &request) {
    engine.called_back_ = true;
    engine.call_outcome_ = outcome;
    return;
  }
  engine.finish(request, outcome);
}

[[gnu::flatten]] void Engine::on_received(void* ucx_request, ucs_status_t status,
                                          const ucp_tag_recv_info_t* info, void* user_data) {
  auto& request = *static_cast<Request*>(user_data);
  Engine& engine = request.group_->engine();
  const ucp_tag_recv_info_t message = *info;  // lies in the UCX request
  ucp_request_free(ucx_request);
  if (request.taken_) {
    request.ucx_request_ = nullptr;
    engine.complete_taken(request, status);
    return;
  }
  if (status == UCS_ERR_CANCELED && engine.withdrawing_ == &request) {
    engine.withdrawn_ = true;
    return;
  }
  Outcome outcome;
  if (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED) {
    outcome.message_bytes = message.length;
    outcome.source_rank = static_cast<std::int32_t>(rank_of(message.sender_tag));
    outcome.message_class = class_of(message.sender_tag);
    outcome.user_tag = user_tag_of(message.sender_tag);
    if (status == UCS_ERR_MESSAGE_TRUNCATED || message.length > request.bytes_) {
      outcome.failure = Failure::truncated;
    } else if (message.length < request.bytes_) {
      outcome.failure = Failure::too_short;
    }
  } else if (status == UCS_ERR_CANCELED && engine.cancel_reason_ != Failure::none) {
    outcome.failure = engine.cancel_reason_;
  } else {
    outcome = failed(status);
  }
  if (engine.calling_ == &request) {
    engine.called_back_ = true;
    engine.call_outcome_ = outcome;
    return;
  }
  engine.finish(request, outcome);
}

void Engine::finish(Request& request, const Outcome& outcome) noexcept {
  if (request.delivers_ && outcome.ok() && request.stage_ != Request::Stage::delivering &&
      !request.done()) {
    begin_delivery(request, outcome);
    return;
  }
  if (request.stage_ == Request::Stage::posted) {
    in_flight_.remove(request);
    progress_->note_completion();
  } else if (request.stage_ == Request::Stage::queued) {
    progress_->note_completion();
  }
  request.stage_ = Request::Stage::finished;
  request.ucx_request_ = nullptr;
  const bool held = std::exchange(request.held_, false);  // it may be started again once it is done
  if (request.done()) {
    --quarantined_;
  } else {
    settle(request, outcome);
  }
  if (held && (!request.persistent_ || std::exchange(request.orphaned_, false))) let_go(request);
}

void Engine::settle(Request& request, const Outcome& outcome) noexcept {
  request.outcome_ = outcome;
  if (!outcome.ok()) {
    request.done_at_ = Clock::now();
    request.group_->last_failure_.store(outcome.failure);
  }
  if (request.kind_ == Request::Kind::send) --request.group_->sends_;
  if (std::exchange(request.notify_, false)) {
    request.retain();
    request.telling_.store(true, std::memory_order_relaxed);
    request.done_.store(true, std::memory_order_release);
    callbacks_->enqueue(request);
  } else {
    request.done_.store(true, std::memory_order_release);
  }
}

void Engine::fail(Request& request, Failure failure) noexcept {
  // Neither one whose message has come and is being put in its place (it will be done in a moment),
  // nor one that has just finished, which its user may have started again by now.
  if (request.stage_ != Request::Stage::queued && request.stage_ != Request::Stage::posted) return;
  if (request.done()) return;
  Outcome outcome{.failure = failure};
  if (request.stage_ == Request::Stage::queued) {
    GroupPeer& peer = request.group_->peer(request.peer_);
    peer.queued.remove(request);
    --request.group_->queued_;
    progress_->note_completion();
    finish(request, outcome);
    return;
  }
  if (request.kind_ == Request::Kind::receive && !request.taken_) {
    request.retain();  // the callback drops the engine's reference
    cancel_reason_ = failure;
    ucp_request_cancel(worker_->get(), request.ucx_request_);
    cancel_reason_ = Failure::none;
    const bool finished = request.stage_ == Request::Stage::finished;
    let_go(request);
    if (finished) return;
  }
  // A send, or a receive that a message has already been matched to: UCX goes on.
  outcome.buffer_in_use = true;
  ++quarantined_;
  progress_->note_completion();
  settle(request, outcome);
}

void Engine::take_or_fail(Request& request, Failure failure) noexcept {
  request.retain();
  reconsider(request);
  fail(request, failure);
  let_go(request);
}

void Engine::fail_queued(GroupPeer& peer, Failure failure) noexcept {
  while (Request* request = peer.queued.front()) fail(*request, failure);
}

void Engine::let_go(Request& request) noexcept {
  if (request.drop_reference() && !take_over(request)) graveyard_.push(request);
}

bool Engine::take_over(Request& request) noexcept {
  if (!request.persistent_ || !request.held_) return false;
  request.orphaned_ = true;
  return true;
}

void Engine::reap() noexcept {
  if (graveyard_.empty()) return;
  for (Request* request = graveyard_.take_all(); request != nullptr;) {
    Request* next = RequestStack::next(*request);
    delete request;
    request = next;
  }
}

}  // namespace torch_ucx::transport
