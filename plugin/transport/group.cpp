#include "plugin/transport/group.h"

#include <utility>

#include "plugin/transport/engine.h"
#include "plugin/transport/host_hooks.h"
#include "plugin/ucp/config.h"
#include "plugin/ucp/log.h"
#include "torch_ucx/build_config.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {

Group::Group(Key, std::shared_ptr<Engine> engine, GroupOptions options)
    : engine_(std::move(engine)),
      options_(std::move(options)),
      timeout_ms_(options_.timeout.count()),
      peers_(static_cast<std::size_t>(options_.size)) {}

Group::~Group() = default;

AddressBlob Group::address() const {
  AddressBlob blob;
  blob.ucx = ucp::library_version();
  blob.plugin_version = TORCH_UCX_VERSION_STRING;
  blob.error_mode = engine_->options_.error_mode;
  blob.engine = engine_->id_;
  blob.mailbox = mailbox_;
  blob.nonce = nonce_;
  blob.host = engine_->host_;
  blob.tls = ucp::user_setting("TLS");
  blob.worker_address = engine_->worker_address_;
  return blob;
}

AddressBlob Group::closed_address() const {
  AddressBlob blob = address();
  blob.worker_address.clear();
  return blob;
}

void Group::set_resolver(std::shared_ptr<PeerResolver> resolver) {
  const ProgressEngine::Guard guard(*engine_->progress_);
  resolver_ = std::move(resolver);
}

void Group::peer_found(int rank, const AddressBlob& blob) {
  const ProgressEngine::Guard guard(*engine_->progress_);
  engine_->peer_found(*this, rank, blob);
}

void Group::peer_not_found(int rank, const std::string& reason, NotFound what) {
  const ProgressEngine::Guard guard(*engine_->progress_);
  GroupPeer& entry = peer(rank);
  if (what == NotFound::left) engine_->progress_->read_last_words();
  const bool greeted = entry.stage == GroupPeer::Stage::greeting;
  if (entry.stage != GroupPeer::Stage::resolving && !greeted) return;
  if (what == NotFound::left) {
    entry.reason = reason;
    engine_->mark_left(*this, rank, entry);
    return;
  }
  if (greeted) return;  // it may still answer
  // Why an address that was found was of no use says more than that no other has come.
  const std::string cause = entry.reason.empty() ? reason : entry.reason;
  if (what == NotFound::dead) {
    engine_->refuse_peer(*this, rank, cause);
  } else {
    // It may still greet this rank by itself: receives from it go on.
    entry.reason = cause;
    engine_->fail_queued(entry, Failure::unreachable);
  }
  entry.stage = GroupPeer::Stage::unknown;
  wants_all_ = false;
}

bool Group::engine_forked() const { return engine_->forked(); }

void Group::refuse_peer(int rank, const char* operation, const char* role) const {
  throw ArgumentError(
      std::string("ucx ") + operation + " on rank " + std::to_string(options_.rank) +
      " of group \"" + options_.name + "\": " + role + " rank " + std::to_string(rank) +
      " is outside the group; allowed is 0 to " + std::to_string(options_.size - 1));
}

void Group::refuse_fork() const {
  throw Error(
      "this process was forked from the one that made the group, and UCX cannot be used in a "
      "forked child: start it with the \"spawn\" or \"forkserver\" method, or make the group in "
      "the child");
}

void Group::refuse_message(MessageClass message_class, std::uint64_t user_tag) const {
  if (user_tag > kMaxUserTag) {
    throw ArgumentError("tag " + std::to_string(user_tag) + " is outside 0 to " +
                        std::to_string(kMaxUserTag));
  }
  throw ArgumentError("message class " + std::to_string(message_class) + " is not for messages");
}

void Group::prepare(Request& request, Request::Kind kind, void* data, std::uint64_t bytes, int peer,
                    MessageClass message_class, std::uint64_t user_tag) {
  if (kind == Request::Kind::send) {
    check_peer(peer, "send", "destination");
  } else if (peer != kAnySource) {
    check_peer(peer, "recv", "source");
  }
  const bool any_tag = kind == Request::Kind::receive && user_tag == kAnyTag;
  if ((user_tag > kMaxUserTag && !any_tag) || message_class > kMaxClass ||
      message_class == kClassControl) {
    refuse_message(message_class, any_tag ? 0 : user_tag);
  }
  check_not_forked();
  engine_->reap();
  request.kind_ = kind;
  request.class_ = message_class;
  request.peer_ = peer;
  request.any_tag_ = any_tag;
  request.user_tag_ = any_tag ? 0 : static_cast<std::uint32_t>(user_tag);
  request.tag_ = static_cast<Tag>(message_class) << detail::kClassShift | request.user_tag_;
  if (kind == Request::Kind::send) {
    request.tag_ |= static_cast<Tag>(options_.rank) << detail::kRankShift;
  } else {
    request.tag_ |= static_cast<Tag>(mailbox_) << detail::kMailboxShift;
    request.mask_ = any_tag ? kExactMask & ~kUserTagMask : kExactMask;
    if (peer == kAnySource) {
      request.mask_ &= ~kRankMask;
    } else {
      request.tag_ |= static_cast<Tag>(peer) << detail::kRankShift;
    }
  }
  request.buffer_ = data;
  request.bytes_ = bytes;
  request.group_ = shared_from_this();
  set_deadline(request, coarse_now());
}

void Group::set_deadline(Request& request, Clock::time_point now) noexcept {
  request.posted_at_ = now;
  request.deadline_ = request.posted_at_ + kCoarseLag + timeout();
}

void Group::send(const Ref<Request>& request, const void* data, std::uint64_t bytes, int dst,
                 MessageClass message_class, std::uint64_t user_tag) {
  // UCX takes sends as const void*; one pointer serves both kinds of request.
  prepare(*request, Request::Kind::send, const_cast<void*>(data), bytes, dst, message_class,
          user_tag);
  engine_->progress_->submit(*request);
}

void Group::receive(const Ref<Request>& request, void* data, std::uint64_t bytes, int src,
                    MessageClass message_class, std::uint64_t user_tag) {
  prepare(*request, Request::Kind::receive, data, bytes, src, message_class, user_tag);
  engine_->progress_->submit(*request);
}

// ---- persistent operations ---------------------------------------------------------------------

void Group::make_persistent(Request& request) {
  request.persistent_ = true;
  request.done_.store(true, std::memory_order_release);
  if (request.peer_ == kAnySource) return;
  // Contact is made now, so that no start waits for it.
  const ProgressEngine::Guard guard(*engine_->progress_);
  if (!closing_) engine_->want_peer(*this, request.peer_);
}

void Group::init_send(const Ref<Request>& request, const void* data, std::uint64_t bytes, int dst,
                      MessageClass message_class, std::uint64_t user_tag) {
  prepare(*request, Request::Kind::send, const_cast<void*>(data), bytes, dst, message_class,
          user_tag);
  make_persistent(*request);
}

void Group::init_receive(const Ref<Request>& request, void* data, std::uint64_t bytes, int src,
                         MessageClass message_class, std::uint64_t user_tag) {
  prepare(*request, Request::Kind::receive, data, bytes, src, message_class, user_tag);
  make_persistent(*request);
}

void Group::refuse_start(const Request& request, const char* why) const {
  throw Error(std::string("ucx ") +
              (request.kind_ == Request::Kind::send ? "persistent send" : "persistent receive") +
              " on rank " + std::to_string(rank()) + " of group \"" + options_.name + "\", " +
              std::to_string(request.bytes_) + " bytes: " + why);
}

void Group::check_startable(const Request& request) const {
  check_not_forked();
  check_idle(request);
  if (!request.outcome_.buffer_in_use) return;
  const ProgressEngine::Guard guard(*engine_->progress_);
  if (request.stage_ != Request::Stage::finished) {
    refuse_start(request,
                 "its last start failed, and UCX still has the buffer: make a new operation");
  }
}

void Group::renew(Request& request, Clock::time_point now) noexcept {
  set_deadline(request, now);
  request.held_ = true;
  request.done_.store(false, std::memory_order_relaxed);
}

void Group::start(const Ref<Request>& request) {
  check_startable(*request);
  renew(*request, coarse_now());
  engine_->progress_->submit(*request);
}

void Group::start_all(std::span<const Ref<Request>> requests) {
  for (const auto& request : requests) check_startable(*request);
  const auto now = coarse_now();
  auto& progress = *engine_->progress_;
  const bool posted = progress.try_locked([&] {
    progress.drain_submissions();
    for (const auto& request : requests) {
      check_idle(*request);  // it may be in the list twice
      renew(*request, now);
      engine_->post(*request);
    }
  });
  if (posted) return;
  struct Flush {  // also when one is refused
    ProgressEngine& progress;
    ~Flush() { progress.flush_submissions(); }
  } const flush{progress};
  for (const auto& request : requests) {
    check_idle(*request);
    renew(*request, now);
    progress.enqueue(*request);
  }
}

void Group::dispose(Request& request) noexcept {
  if (!engine_->forked()) {
    const auto engine = engine_;  // until the lock is let go of, whoever has the group last
    const ProgressEngine::Guard guard(*engine->progress_);
    // A continuation may have it still.
    if (engine->take_over(request) || !request.drop_reference()) return;
  }
  delete &request;
}

void Group::poll() noexcept {
  if (!engine_->forked()) engine_->progress_->try_step();
}

void Group::poll_as_caller() noexcept {
  if (engine_->options_.progress == ProgressMode::caller) poll();
}

// ---- waiting -----------------------------------------------------------------------------------

void Group::wait(Request& request, std::chrono::milliseconds timeout) {
  if (request.done()) return;
  check_not_forked();
  auto deadline = request.deadline_;
  if (timeout.count() > 0) deadline = std::min(deadline, Clock::now() + timeout);
  const auto done = [&request] { return request.done(); };
  try {
    if (engine_->progress_->wait_for_flags(done, deadline) == ProgressEngine::WaitResult::done)
      return;
  } catch (...) {
    withdraw_interrupted(request);
    throw;
  }
  {
    const ProgressEngine::Guard guard(*engine_->progress_);
    engine_->progress_->drain_submissions();
    engine_->fail(request, Failure::timed_out);
  }
  // Not failed only where its message has come and is being put in its place.
  while (!request.done()) {
    engine_->progress_->wait(done, Clock::now() + std::chrono::milliseconds(100));
  }
}

void Group::withdraw_interrupted(Request& request) noexcept {
  if (request.kind_ != Request::Kind::receive || engine_->forked()) return;
  const ProgressEngine::Guard guard(*engine_->progress_);
  engine_->progress_->drain_submissions();
  engine_->fail(request, Failure::interrupted);
}

void Group::wait_all(std::span<const Ref<Request>> requests, std::chrono::milliseconds timeout) {
  if (requests.empty()) return;
  check_not_forked();
  auto deadline = requests.front()->deadline_;
  if (timeout.count() > 0) deadline = std::min(deadline, Clock::now() + timeout);
  std::size_t done_count = 0;
  const auto all_done = [&] {
    while (done_count < requests.size() && requests[done_count]->done()) ++done_count;
    return done_count == requests.size();
  };
  try {
    // One drive for all of them; what is left at the first deadline is then waited for one by one.
    if (engine_->progress_->wait_for_flags(all_done, deadline) == ProgressEngine::WaitResult::done)
      return;
    for (const auto& request : requests.subspan(done_count)) {
      wait(*request, timeout.count() > 0 ? left_until(deadline) : std::chrono::milliseconds(0));
    }
  } catch (...) {
    for (const auto& request : requests) withdraw_interrupted(*request);
    throw;
  }
}

// ---- probes ------------------------------------------------------------------------------------

void Group::check_matching(int src, std::uint64_t user_tag) const {
  if (src != kAnySource) check_peer(src, "probe", "source");
  if (user_tag > kMaxUserTag && user_tag != kAnyTag) refuse_message(0, user_tag);
  check_not_forked();
}

std::optional<ProbeResult> Group::look_for(int src, std::uint64_t user_tag, void** taken) {
  if (closing_) throw Error("ucx probe: group \"" + options_.name + "\" was closed on this rank");
  if (src == kAnySource) {
    engine_->want_all(*this);
  } else {
    engine_->want_peer(*this, src);
  }
  return engine_->probe(*this, engine_->wildcard_match(*this, src, user_tag), taken);
}

void Group::check_sender(int src) {
  const bool gone = src == kAnySource ? engine_->no_source_left(*this) != Failure::none
                                      : peer(src).stage == GroupPeer::Stage::left ||
                                            peer(src).stage == GroupPeer::Stage::failed;
  if (!gone) return;
  throw Error("ucx probe on rank " + std::to_string(rank()) + " of group \"" + options_.name +
              "\": no message waits, and none will come: " +
              (src == kAnySource ? "all other ranks have left or failed"
                                 : "rank " + std::to_string(src) + ": " + peer(src).reason));
}

std::optional<ProbeResult> Group::probe(int src, std::uint64_t user_tag) {
  check_matching(src, user_tag);
  const ProgressEngine::Guard guard(*engine_->progress_);
  engine_->progress_->drain_submissions();
  if (!closing_) engine_->progress_->step();
  return look_for(src, user_tag, nullptr);
}

std::optional<ProbeResult> Group::wait_probe(int src, std::uint64_t user_tag,
                                             std::chrono::milliseconds timeout) {
  check_matching(src, user_tag);
  std::optional<ProbeResult> found;
  const auto look = [&] {
    const ProgressEngine::Guard guard(*engine_->progress_);
    found = look_for(src, user_tag, nullptr);
    if (!found) check_sender(src);
    return found.has_value();
  };
  engine_->progress_->wait(look, Clock::now() + (timeout.count() > 0 ? timeout : this->timeout()));
  return found;
}

TakenMessage Group::take(int src, std::uint64_t user_tag) {
  check_matching(src, user_tag);
  const ProgressEngine::Guard guard(*engine_->progress_);
  engine_->progress_->drain_submissions();
  if (!closing_) engine_->progress_->step();
  TakenMessage message;
  if (const auto found = look_for(src, user_tag, &message.handle_)) {
    message.info_ = *found;
    message.group_ = shared_from_this();
  }
  return message;
}

TakenMessage Group::wait_take(int src, std::uint64_t user_tag, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + (timeout.count() > 0 ? timeout : this->timeout());
  for (;;) {
    TakenMessage message = take(src, user_tag);
    if (message) return message;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    // Another thread may take what was probed: then look on.
    if (left.count() <= 0 || !wait_probe(src, user_tag, left)) return {};
  }
}

void Group::receive(const Ref<Request>& request, void* data, std::uint64_t bytes,
                    MessageClass message_class, TakenMessage message) {
  if (!message || message.group_.get() != this) {
    throw ArgumentError("the message was not taken from group \"" + options_.name +
                        "\", or has been received already");
  }
  prepare(*request, Request::Kind::receive, data, bytes, message.info_.source, message_class,
          message.info_.user_tag);
  request->taken_ = true;
  request->message_tag_ = make_tag(mailbox_, static_cast<std::uint64_t>(message.info_.source),
                                   message.info_.message_class, message.info_.user_tag);
  request->message_bytes_ = message.info_.bytes;
  request->ucx_request_ = std::exchange(message.handle_, nullptr);
  engine_->progress_->submit(*request);
}

TakenMessage::TakenMessage(TakenMessage&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      info_(other.info_),
      group_(std::move(other.group_)) {}

TakenMessage& TakenMessage::operator=(TakenMessage&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(info_, other.info_);
  std::swap(group_, other.group_);
  return *this;
}

TakenMessage::~TakenMessage() {
  if (handle_ == nullptr || group_->engine_->forked()) return;
  if (!group_->closed()) {
    log(LogLevel::warn,
        "rank " + std::to_string(group_->rank()) + " of group \"" + group_->name() +
            "\" dropped a message that it had probed: " + std::to_string(info_.bytes) +
            " bytes from rank " + std::to_string(info_.source) + " with tag " +
            std::to_string(info_.user_tag));
  }
  group_->discard(handle_);
}

void Group::discard(void* message) noexcept {
  const ProgressEngine::Guard guard(*engine_->progress_);
  if (!engine_->shut_down_) engine_->discard(message);
}

bool Group::notify(Request& request) {
  if (request.done()) return false;
  check_not_forked();
  engine_->callbacks_->start();
  const BlockingSection blocking;  // a progress call may hold the lock for some ms
  const ProgressEngine::Guard guard(*engine_->progress_);
  if (request.done()) return false;
  request.notify_ = true;
  return true;
}

void Group::close(std::chrono::milliseconds linger) {
  if (engine_->forked()) return;
  engine_->close_group(*this, linger);
}

void Group::close() { close(engine_->options().linger); }

std::string Group::peer_reason(int rank) const {
  if (engine_->forked()) return "";  // the lock may have been held at the fork
  const ProgressEngine::Guard guard(*engine_->progress_);
  const auto& slot = peers_[static_cast<std::size_t>(rank)];
  if (slot == nullptr) return "";
  if (!slot->reason.empty()) return slot->reason;
  if (slot->peer != nullptr && slot->peer->failed) return slot->peer->failure;
  switch (slot->stage) {
    case GroupPeer::Stage::resolving:
      return "its address has not appeared in the store";
    case GroupPeer::Stage::greeting:
      return "it has not answered first contact (" + slot->peer->host.describe() + ")";
    default:
      return "";
  }
}

}  // namespace torch_ucx::transport
