// Engine: first contact with peers, farewell of groups, mailboxes of closed groups.
#include <algorithm>
#include <utility>

#include "plugin/transport/engine.h"
#include "plugin/transport/error_mode.h"
#include "plugin/transport/host_hooks.h"
#include "plugin/ucp/log.h"
#include "plugin/ucp/status.h"

namespace torch_ucx::transport {

namespace {

using Stage = GroupPeer::Stage;

// How long a farewell waits for the other side's acknowledgement. It comes from the peer's helper
// thread, whatever the program there does; only a stopped or dead process does not answer.
constexpr std::chrono::milliseconds kFarewell{2000};

// How long a greeting goes unanswered before the store is asked about its rank again.
constexpr std::chrono::milliseconds kGreetingReview{1000};

// One that left before this rank made contact never was.
bool attached(const GroupPeer& peer) {
  return peer.stage == Stage::ready || (peer.stage == Stage::left && peer.peer != nullptr);
}

// UCX has no way to the address: perhaps it is out of date.
struct NoEndpoint : Error {
  using Error::Error;
};

}  // namespace

// ---- finding and greeting ----------------------------------------------------------------------

void Engine::want_peer(Group& group, int rank) noexcept {
  GroupPeer& peer = group.peer(rank);
  if (peer.stage != Stage::unknown) return;
  peer.since = Clock::now();
  if (rank == group.rank()) {
    // Messages to oneself go through UCX too, so that they match like all others. No greeting is
    // due.
    try {
      AddressBlob self = group.address();
      peer.peer = &connect(self);
      peer.peer->heard = true;
      peer.mailbox = group.mailbox_;
      peer.nonce = group.nonce_;
      peer.stage = Stage::ready;
      post_to_ready(peer);
    } catch (const std::exception& error) {
      refuse_peer(group, rank, error.what());
    }
    return;
  }
  if (group.resolver_ == nullptr) {
    refuse_peer(group, rank, "the group has no way to find its peers");
    return;
  }
  peer.stage = Stage::resolving;
  group.resolver_->want(rank, 0);
}

void Engine::refuse_peer(Group& group, int rank, const std::string& reason) noexcept {
  GroupPeer& peer = group.peer(rank);
  peer.stage = Stage::failed;
  peer.reason = reason;
  fail_queued(peer, Failure::unreachable);
  for (Request* request = in_flight_.front(); request != nullptr;) {
    Request* next = RequestList::next(*request);
    if (request->group_.get() == &group && request->peer_ == rank) {
      fail(*request, Failure::unreachable);
    }
    request = next;
  }
  fail_sourceless(group);
}

void Engine::check_versions(const AddressBlob& blob) const {
  const auto mine = ucp::library_version();
  if (options_.allow_version_mismatch) return;
  if (mine.major == blob.ucx.major && mine.minor == blob.ucx.minor) return;
  throw Error("it runs UCX " + blob.ucx.to_string() + " (" + blob.host.describe() +
              "), this rank runs UCX " + mine.to_string() + " (" + host_.describe() +
              "): use one UCX everywhere, or set TORCH_UCX_ALLOW_VERSION_MISMATCH=1 on all ranks");
}

Peer& Engine::connect(const AddressBlob& blob) {
  auto& slot = peers_[blob.engine];
  if (slot != nullptr) return *slot;
  auto peer = std::make_unique<Peer>();
  peer->engine = this;
  peer->id = blob.engine;
  peer->host = blob.host;
  peer->ucx = blob.ucx;
  if (blob.engine != id_ &&
      watch_->start(host_, blob.host, peer.get(), peer->watch) == PeerWatch::Start::dead) {
    peer->failed = true;
    peer->failure = "its process has ended (" + blob.host.describe() + ")";
    slot = std::move(peer);
    return *slot;
  }
  AddressBlob self;
  self.error_mode = options_.error_mode;
  self.host = host_;
  self.ucx = ucp::library_version();
  self.tls = ucp::user_setting("TLS");
  try {
    const bool peer_mode = peer_error_mode(self, blob);
    peer->endpoint = ucp::Endpoint(*worker_, blob.worker_address, peer_mode,
                                   &Engine::on_endpoint_error, peer.get());
  } catch (const ArgumentError&) {  // the error modes contradict each other
    peers_.erase(blob.engine);
    throw;
  } catch (const Error& error) {
    peers_.erase(blob.engine);
    const std::string mine = ucp::user_setting("TLS");
    throw NoEndpoint(
        std::string(error.what()) + ": no transport connects " + host_.describe() +
        " (UCX_TLS=" + (mine.empty() ? "unset" : mine) + ") and " + blob.host.describe() +
        " (UCX_TLS=" + (blob.tls.empty() ? "unset" : blob.tls) +
        "); let both have one in common (tcp reaches everywhere; self is for messages to "
        "oneself, sm for one host)");
  }
  slot = std::move(peer);
  return *slot;
}

void Engine::peer_found(Group& group, int rank, const AddressBlob& blob) {
  GroupPeer& peer = group.peer(rank);
  if (group.closed()) return;
  const bool replaced = peer.stage == Stage::greeting && peer.nonce != blob.nonce;
  if (peer.stage != Stage::resolving && !replaced) return;  // it has greeted first
  try {
    check_versions(blob);
    Peer& remote = connect(blob);
    if (remote.failed) {
      // Perhaps of an earlier attempt of the job: give a fresh address a chance.
      group.resolver_->want(rank, blob.nonce);
      return;
    }
    peer.peer = &remote;
    peer.mailbox = blob.mailbox;
    peer.nonce = blob.nonce;
    greet(group, rank, peer);
  } catch (const NoEndpoint& error) {
    // Or it has closed the group since it published this address: the store will say.
    peer.reason = error.what();
    group.resolver_->want(rank, blob.nonce);
  } catch (const std::exception& error) {
    refuse_peer(group, rank, error.what());
  }
}

void Engine::greet(Group& group, int rank, GroupPeer& peer) {
  peer.stage = Stage::greeting;
  peer.since = Clock::now();
  peer.reason.clear();
  set_pending();
  ControlMessage hello;
  hello.kind = ControlMessage::Kind::hello;
  hello.mailbox = peer.mailbox;
  hello.nonce = peer.nonce;
  hello.rank = static_cast<std::uint32_t>(group.rank());
  hello.target = static_cast<std::uint32_t>(rank);
  hello.bytes = group.address().encode();
  send_control(*peer.peer, hello);
  greetings_.push_back({&group, rank, peer.since});
}

void Engine::review_greetings(Clock::time_point now) noexcept {
  std::erase_if(greetings_, [](const Greeting& greeting) {
    return greeting.group->peer(greeting.rank).stage != Stage::greeting;
  });
  for (Greeting& greeting : greetings_) {
    if (now - greeting.asked_at < kGreetingReview) continue;
    greeting.asked_at = now;
    Group& group = *greeting.group;
    if (group.resolver_ != nullptr) {
      group.resolver_->want(greeting.rank, group.peer(greeting.rank).nonce);
    }
  }
}

void Engine::attach(Group& group, int rank, GroupPeer& peer) noexcept {
  peer.stage = Stage::ready;
  peer.since = Clock::now();
  peer.reason.clear();
  if (log_enabled(LogLevel::debug)) {
    log(LogLevel::debug, "group \"" + group.name() + "\" rank " + std::to_string(group.rank()) +
                             ": attached to rank " + std::to_string(rank) + " (" +
                             peer.peer->host.describe() + ")");
  }
  post_to_ready(peer);
}

// ---- control messages --------------------------------------------------------------------------

void Engine::send_control(Peer& peer, const ControlMessage& message) noexcept {
  if (peer.failed || !peer.endpoint) return;
  outgoing_control_.push_front(OutgoingControl{message.encode(), this, {}});
  OutgoingControl& outgoing = outgoing_control_.front();
  outgoing.self = outgoing_control_.begin();
  ucp_request_param_t param;
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;  // the receiver's handler then has the bytes at once
  param.cb.send = &Engine::on_control_sent;
  param.user_data = &outgoing;
  const ucp::CallResult result(ucp_am_send_nbx(peer.endpoint.get(), kControlMessageId, nullptr, 0,
                                               outgoing.bytes.data(), outgoing.bytes.size(),
                                               &param));
  if (result.in_flight()) {
    progress_->note_in_flight();
    return;
  }
  if (result.status != UCS_OK && log_enabled(LogLevel::debug)) {
    log(LogLevel::debug,
        std::string("control message not sent: ") + ucs_status_string(result.status));
  }
  outgoing_control_.pop_front();
}

void Engine::on_control_sent(void* ucx_request, ucs_status_t, void* user_data) {
  auto& outgoing = *static_cast<OutgoingControl*>(user_data);
  ucp_request_free(ucx_request);
  outgoing.engine->outgoing_control_.erase(outgoing.self);
}

ucs_status_t Engine::on_active_message(void* argument, const void*, size_t, void* data,
                                       size_t length, const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;  // never sent by us
  const auto* bytes = static_cast<const std::byte*>(data);
  auto& engine = *static_cast<Engine*>(argument);
  engine.events_.push_back(Event{Event::Kind::control, {bytes, bytes + length}, nullptr, UCS_OK});
  return UCS_OK;
}

void Engine::on_control(std::span<const std::byte> data) {
  const ControlMessage message = ControlMessage::decode(data);
  switch (message.kind) {
    case ControlMessage::Kind::hello:
      on_hello(message);
      break;
    case ControlMessage::Kind::welcome:
      on_welcome(message);
      break;
    case ControlMessage::Kind::refuse:
      on_refuse(message);
      break;
    case ControlMessage::Kind::close:
      on_close(message);
      break;
    case ControlMessage::Kind::close_ack:
      on_close_ack(message);
      break;
  }
}

Group* Engine::find_group(const ControlMessage& message) const noexcept {
  const auto* entry = mailboxes_.find(message.mailbox);
  if (entry == nullptr || entry->state != MailboxTable::Entry::State::live) return nullptr;
  if (entry->nonce != message.nonce) return nullptr;
  if (message.rank >= static_cast<std::uint32_t>(entry->group->size())) return nullptr;
  return entry->group;
}

void Engine::on_hello(const ControlMessage& message) {
  const AddressBlob blob = AddressBlob::decode(message.bytes);
  Peer& remote = connect(blob);
  if (remote.failed) return;
  remote.heard = true;
  ControlMessage answer;
  answer.kind = ControlMessage::Kind::welcome;
  answer.mailbox = blob.mailbox;
  answer.nonce = blob.nonce;
  answer.rank = message.target;
  answer.target = message.rank;
  Group* group = find_group(message);
  const auto refuse = [&](const std::string& reason) {
    answer.kind = ControlMessage::Kind::refuse;
    const auto text = std::as_bytes(std::span(reason.data(), reason.size()));
    answer.bytes.assign(text.begin(), text.end());
    send_control(remote, answer);
  };
  // One that is closing still has messages to deliver, perhaps to this rank; its farewell comes
  // after.
  if (group == nullptr) {
    refuse("");
    return;
  }
  try {
    check_versions(blob);
  } catch (const Error& error) {
    refuse(error.what());
    return;
  }
  GroupPeer& peer = group->peer(static_cast<int>(message.rank));
  if (peer.stage == Stage::left && peer.peer == nullptr) {
    refuse("");  // it has closed the group since it said hello
    return;
  }
  if (attached(peer)) {
    if (peer.nonce != blob.nonce) {
      refuse("its rank " + std::to_string(message.rank) + " is already taken by " +
             peer.peer->host.describe());
      return;
    }
    send_control(remote, answer);
    return;
  }
  peer.peer = &remote;
  peer.mailbox = blob.mailbox;
  peer.nonce = blob.nonce;
  send_control(remote, answer);
  attach(*group, static_cast<int>(message.rank), peer);
}

void Engine::on_welcome(const ControlMessage& message) {
  Group* group = find_group(message);
  if (group == nullptr) return;
  GroupPeer& peer = group->peer(static_cast<int>(message.rank));
  if (peer.stage != Stage::greeting) return;
  peer.peer->heard = true;
  attach(*group, static_cast<int>(message.rank), peer);
}

void Engine::on_refuse(const ControlMessage& message) {
  Group* group = find_group(message);
  if (group == nullptr) return;
  const int rank = static_cast<int>(message.rank);
  GroupPeer& peer = group->peer(rank);
  if (peer.stage != Stage::greeting) return;
  peer.peer->heard = true;
  if (!message.bytes.empty()) {
    const std::string reason(reinterpret_cast<const char*>(message.bytes.data()),
                             message.bytes.size());
    refuse_peer(*group, rank, "it refused contact: " + reason);
    return;
  }
  peer.reason = "it closed the group before this rank made contact";
  mark_left(*group, rank, peer);
}

void Engine::mark_left(Group& group, int rank, GroupPeer& peer) noexcept {
  peer.stage = Stage::left;
  peer.close_received = true;
  fail_queued(peer, Failure::peer_left);
  // All that it sent has arrived before its close: receives still unmatched will stay so, and sends
  // it has not taken will not be taken.
  for (Request* request = in_flight_.front(); request != nullptr;) {
    Request* next = RequestList::next(*request);
    if (request->group_.get() == &group && request->peer_ == rank) {
      take_or_fail(*request, Failure::peer_left);
    }
    request = next;
  }
  fail_sourceless(group);
}

void Engine::on_close(const ControlMessage& message) {
  const auto* entry = mailboxes_.find(message.mailbox);
  if (entry == nullptr || entry->nonce != message.nonce) return;
  ControlMessage ack;
  ack.kind = ControlMessage::Kind::close_ack;
  ack.target = message.rank;
  ack.rank = message.target;
  if (entry->state == MailboxTable::Entry::State::closing) {
    if (const auto expected = mailboxes_.note_close(message.mailbox, message.rank)) {
      ack.mailbox = expected->mailbox;
      ack.nonce = expected->nonce;
      send_control(*expected->peer, ack);
      retire_mailboxes();
    }
    return;
  }
  Group* group = find_group(message);
  if (group == nullptr) return;
  const int rank = static_cast<int>(message.rank);
  GroupPeer& peer = group->peer(rank);
  if (peer.stage == Stage::greeting) {
    peer.peer->heard = true;
    attach(*group, rank, peer);
  }
  if (peer.stage != Stage::ready) return;
  ack.mailbox = peer.mailbox;
  ack.nonce = peer.nonce;
  send_control(*peer.peer, ack);
  peer.reason = "it has closed its side of the group";
  mark_left(*group, rank, peer);
}

void Engine::on_close_ack(const ControlMessage& message) {
  Group* group = find_group(message);
  if (group == nullptr) return;
  group->peer(static_cast<int>(message.rank)).close_acked = true;
}

// ---- closing a group ---------------------------------------------------------------------------

std::string Engine::lost_sends(Group& group) {
  std::string text;
  std::size_t count = 0;
  const auto add = [&](const Request& request) {
    if (request.group_.get() != &group || request.kind_ != Request::Kind::send || request.done())
      return;
    if (++count <= 4) {
      text += (count == 1 ? "" : "; ") + std::to_string(request.bytes_) + " bytes to rank " +
              std::to_string(request.peer_) + " with tag " + std::to_string(request.user_tag_);
    }
  };
  for (Request* request = in_flight_.front(); request; request = RequestList::next(*request)) {
    add(*request);
  }
  for (const auto& peer : group.peers_) {
    if (peer == nullptr) continue;
    for (Request* request = peer->queued.front(); request; request = RequestList::next(*request)) {
      add(*request);
    }
  }
  if (count > 4) text += "; and " + std::to_string(count - 4) + " more";
  return text;
}

void Engine::close_group(Group& group, std::chrono::milliseconds linger) {
  // 1. Sends already posted are delivered, if the peers take them. New operations are refused.
  {
    const ProgressEngine::Guard guard(*progress_);
    progress_->drain_submissions();
    if (group.closing_) return;
    group.closing_ = true;
  }
  const auto sends_gone = [&] {
    const ProgressEngine::Guard guard(*progress_);
    return group.sends_ == 0;
  };
  if (linger.count() > 0) progress_->wait_uninterrupted(sends_gone, Clock::now() + linger);

  // 2. What is left is named and given up; receives are withdrawn; every attached rank is told.
  {
    const ProgressEngine::Guard guard(*progress_);
    const std::string lost = lost_sends(group);
    if (!lost.empty()) {
      log(LogLevel::warn, "rank " + std::to_string(group.rank()) + " closed group \"" +
                              group.name() + "\" before these sends were taken: " + lost);
    }
    for (Request* request = in_flight_.front(); request != nullptr;) {
      Request* next = RequestList::next(*request);
      if (request->group_.get() == &group) fail(*request, Failure::group_closed);
      request = next;
    }
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto& peer = group.peers_[static_cast<std::size_t>(rank)];
      if (peer == nullptr || rank == group.rank()) continue;
      fail_queued(*peer, Failure::group_closed);
    }
  }
  std::vector<bool> told(static_cast<std::size_t>(group.size()), false);
  // Says close to every attached rank that has not been told; whether one still owes its answer.
  const auto say_close = [&] {
    bool all = true;
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto index = static_cast<std::size_t>(rank);
      const auto& peer = group.peers_[index];
      if (peer == nullptr || rank == group.rank()) continue;
      if (attached(*peer) && !told[index] && !peer->peer->failed) {
        ControlMessage close;
        close.kind = ControlMessage::Kind::close;
        close.mailbox = peer->mailbox;
        close.nonce = peer->nonce;
        close.rank = static_cast<std::uint32_t>(group.rank());
        close.target = static_cast<std::uint32_t>(rank);
        send_control(*peer->peer, close);
        told[index] = true;
      }
      // One that is being greeted will answer, and must then be told too.
      const bool pending = peer->stage == Stage::greeting || peer->stage == Stage::ready;
      if (pending && !peer->close_acked && !(peer->peer != nullptr && peer->peer->failed))
        all = false;
    }
    return all;
  };
  const auto farewell_done = [&] {
    const ProgressEngine::Guard guard(*progress_);
    return say_close();
  };
  progress_->wait_uninterrupted(farewell_done, Clock::now() + kFarewell);

  // 3. The mailbox rests until every attached rank has said close as well.
  {
    const ProgressEngine::Guard guard(*progress_);
    say_close();  // to one that has made contact in the meantime
    std::vector<MailboxTable::Entry::Expected> expected;
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto& peer = group.peers_[static_cast<std::size_t>(rank)];
      if (peer == nullptr || rank == group.rank() || peer->peer == nullptr) continue;
      if ((peer->stage == Stage::ready || peer->stage == Stage::greeting) &&
          !peer->close_received && !peer->peer->failed) {
        expected.push_back(
            {static_cast<std::uint32_t>(rank), peer->peer, peer->mailbox, peer->nonce});
      }
    }
    mailboxes_.begin_closing(group.mailbox_, static_cast<std::uint32_t>(group.rank()),
                             std::move(expected));
    std::erase(groups_, &group);
    std::erase_if(greetings_, [&](const Greeting& greeting) { return greeting.group == &group; });
    group.resolver_.reset();
    group.closed_.store(true);
    retire_mailboxes();
  }
  reap();
  group_closed();
}

// ---- mailboxes of closed groups ----------------------------------------------------------------

void Engine::drain_mailbox(std::uint16_t number) noexcept {
  const Tag tag = static_cast<Tag>(number) << detail::kMailboxShift;
  for (;;) {
    ucp_tag_recv_info_t info;
    const ucp_tag_message_h message = ucp_tag_probe_nb(worker_->get(), tag, kMailboxMask, 1, &info);
    if (message == nullptr) return;
    discard(message);
  }
}

void Engine::retire_mailboxes() noexcept {
  for (const std::uint16_t number : mailboxes_.closing()) drain_mailbox(number);
  for (const std::uint16_t number : mailboxes_.drained_candidates()) mailboxes_.release(number);
  if (mailboxes_.closing_count() > 0) set_pending();
}

}  // namespace torch_ucx::transport
