// Engine: deadlines, dead peers.
#include "plugin/transport/engine.h"
#include "plugin/ucp/log.h"

namespace torch_ucx::transport {

namespace {

using Stage = GroupPeer::Stage;

}  // namespace

bool means_peer_failed(ucs_status_t status) noexcept {
  switch (status) {
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CANCELED:
    case UCS_ERR_IO_ERROR:
      return true;
    default:
      return false;
  }
}

void Engine::fail_peer(Peer& peer, const std::string& reason) noexcept {
  if (peer.failed) return;
  peer.failed = true;
  peer.failure = reason;
  peer.watch = PeerWatch::Token();
  mailboxes_.note_failed(peer);
  bool was_in_use = false;
  for (Group* group : groups_) {
    for (int rank = 0; rank < group->size(); ++rank) {
      const auto& slot = group->peers_[static_cast<std::size_t>(rank)];
      if (slot == nullptr || slot->peer != &peer) continue;
      if (slot->stage == Stage::ready) {
        was_in_use = true;
        slot->stage = Stage::failed;
        slot->reason = reason;
      } else if (slot->stage == Stage::greeting) {
        // Never attached: perhaps the address was that of an earlier attempt.
        slot->stage = Stage::resolving;
        if (group->resolver_ != nullptr) group->resolver_->want(rank, slot->nonce);
      }
    }
  }
  for (Request* request = in_flight_.front(); request != nullptr;) {
    Request* next = RequestList::next(*request);
    if (request->peer_ == kAnySource) {
      request = next;
      continue;
    }
    const auto& slot = request->group_->peers_[static_cast<std::size_t>(request->peer_)];
    if (slot != nullptr && slot->peer == &peer && slot->stage == Stage::failed)
      fail(*request, Failure::peer_failed);
    request = next;
  }
  for (Group* group : groups_) fail_sourceless(*group);
  if (was_in_use) {
    log(LogLevel::info, "peer failed: " + reason);
    if (host_.same_host(peer.host)) tainted_.store(true);
  }
  if (peer.endpoint.handles_peer_errors() && !close_aborts(peer)) {
    if (void* closing = peer.endpoint.begin_close(true)) ucp_request_free(closing);
  }
}

void Engine::on_endpoint_error(void* argument, ucp_ep_h, ucs_status_t status) {
  auto& peer = *static_cast<Peer*>(argument);
  peer.engine->events_.push_back(Event{Event::Kind::endpoint_failed, {}, &peer, status});
}

void Engine::on_watch_event() noexcept {
  const ProgressEngine::Guard guard(*progress_);
  for (void* cookie : watch_->dead()) {
    auto& peer = *static_cast<Peer*>(cookie);
    progress_->read_last_words();
    fail_peer(peer, "its process has died (" + peer.host.describe() + ")");
  }
}

void Engine::expire(Clock::time_point now) noexcept {
  for (Request* request = in_flight_.front(); request != nullptr;) {
    Request* next = RequestList::next(*request);
    if (request->deadline_ <= now) fail(*request, Failure::timed_out);
    request = next;
  }
  for (Group* group : groups_) {
    if (group->queued_ == 0) continue;
    for (const auto& peer : group->peers_) {
      if (peer == nullptr) continue;
      for (Request* request = peer->queued.front(); request != nullptr;) {
        Request* next = RequestList::next(*request);
        if (request->deadline_ <= now) fail(*request, Failure::timed_out);
        request = next;
      }
    }
  }
}

void Engine::after_progress() noexcept {
  // Acting on an event can make UCX call back and leave another one: take them in batches.
  while (!events_.empty()) {
    const std::vector<Event> events = std::exchange(events_, {});
    for (const Event& event : events) {
      try {
        if (event.kind == Event::Kind::control) {
          on_control(event.data);
        } else {
          fail_peer(*event.peer, std::string("its connection broke: ") +
                                     ucs_status_string(event.status) + " (" +
                                     event.peer->host.describe() + ")");
        }
      } catch (const std::exception& error) {
        log(LogLevel::warn, std::string("control message ignored: ") + error.what());
      }
    }
  }
}

void Engine::housekeeping(Clock::time_point now) noexcept {
  expire(now);
  review_greetings(now);
  retire_mailboxes();
  bool pending = !in_flight_.empty() || !greetings_.empty() || mailboxes_.closing_count() > 0;
  for (const Group* group : groups_) pending = pending || group->queued_ > 0;
  pending_.store(pending);
}

bool Engine::needs_housekeeping() const noexcept { return pending_.load(); }

void Engine::on_helper_tick() noexcept {
  if (graveyard_.empty()) return;
  try {
    deliveries_->start();
    deliveries_->reap(graveyard_);
  } catch (const std::exception& error) {  // no thread to be had: the next poster reaps
    log(LogLevel::debug, error.what());
  }
}

}  // namespace torch_ucx::transport
