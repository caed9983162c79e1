// Engine: set-up, groups, tear-down.
#include "plugin/transport/engine.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "plugin/transport/error_mode.h"
#include "plugin/transport/host_hooks.h"
#include "plugin/transport/presets.h"
#include "plugin/ucp/log.h"
#include "plugin/ucp/quiet.h"
#include "plugin/ucp/status.h"
#include "torch_ucx/build_config.h"

namespace torch_ucx::transport {

namespace {

// Longest wait for endpoints to close in order; what was sent has been acknowledged before.
constexpr std::chrono::milliseconds kEndpointClose{1000};

// Over UD a wake-up is lost now and then (a packet that UCX's own thread takes while the worker is
// being armed): one contact in a hundred was never answered over Soft-RoCE with UCX 1.13.
constexpr std::chrono::milliseconds kLongestSleepOverVerbs{100};

// Longest wait for other threads to leave their waits: their operations have been ended.
constexpr std::chrono::milliseconds kWaitersLeave{2000};

struct Registry {
  std::mutex mutex;
  std::weak_ptr<Engine> current;
};

// Never destroyed: engines may end during static destruction.
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

}  // namespace

std::shared_ptr<Engine> Engine::create(const EngineOptions& options) {
  return std::make_shared<Engine>(Key{}, options);
}

std::shared_ptr<Engine> Engine::current_or_new(const EngineOptions& options) {
  auto& current = registry().current;
  if (auto engine = current.lock()) {
    if (!engine->tainted() && !engine->forked() && engine->open_groups_ > 0) return engine;
  }
  auto engine = create(options);
  current = engine;
  return engine;
}

std::shared_ptr<Engine> Engine::acquire(const EngineOptions& options) {
  const std::lock_guard lock(registry().mutex);
  return current_or_new(options);
}

std::shared_ptr<Group> Engine::open_group(const EngineOptions& engine_options,
                                          const GroupOptions& group_options) {
  const std::lock_guard lock(registry().mutex);
  return current_or_new(engine_options)->make_group(group_options);
}

std::shared_ptr<Group> Engine::create_group(const GroupOptions& options) {
  const std::lock_guard lock(registry().mutex);
  return make_group(options);
}

Engine::Engine(Key, const EngineOptions& options)
    : options_(options), id_{random_bits(), random_bits()}, host_(HostIdentity::of_this_process()) {
  const auto version = ucp::library_version();
  if (version < ucp::kOldestSupported) {
    throw Error("libucp " + version.to_string() + " at " + ucp::library_path() +
                " is too old: torch_ucx needs UCX " + ucp::kOldestSupported.to_string() +
                " or newer");
  }
  log(LogLevel::info, "UCX " + version.to_string() + " from " + ucp::library_path());

  ucp::Config config;
  apply_presets(config, version);
  config.override_from_environment(&is_plugin_option);
  context_ = std::make_unique<ucp::Context>(config, "torch_ucx");
  worker_ = std::make_unique<ucp::Worker>(*context_);
  worker_address_ = worker_->address();

  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kControlMessageId;
  handler.cb = &Engine::on_active_message;
  handler.arg = this;
  ucp::check(ucp_worker_set_am_recv_handler(worker_->get(), &handler),
             "setting UCX's active-message handler");

  watch_ = std::make_unique<PeerWatch>();
  callbacks_ = std::make_unique<CallbackThread>("ucx-callback", nullptr);
  deliveries_ = std::make_unique<CallbackThread>("ucx-deliver", [this](Request& request) {
    const bool staged = request.staging_ != nullptr;
    const auto* bytes =
        staged ? request.staging_.get() : static_cast<const std::byte*>(request.buffer_);
    const bool delivered =
        request.deliver(request.outcome_.message_class, {bytes, request.outcome_.message_bytes});
    const ProgressEngine::Guard guard(*progress_);
    finish_delivery(request, delivered);
  });
  progress_ = std::make_unique<ProgressEngine>(
      *worker_, static_cast<ProgressEngine::Client&>(*this), options_.progress, options_.spin,
      watch_->fd(), has_verbs_ ? kLongestSleepOverVerbs : std::chrono::milliseconds(-1));
  progress_->start_helper();
}

Engine::~Engine() {
  if (!forked()) {
    shutdown();
    return;
  }
  // A forked child: the threads do not exist here, and UCX must not be touched. Leave it all be.
  progress_->abandon();
  callbacks_->abandon();
  deliveries_->abandon();
  [[maybe_unused]] auto* progress = progress_.release();
  [[maybe_unused]] auto* callbacks = callbacks_.release();
  [[maybe_unused]] auto* deliveries = deliveries_.release();
  [[maybe_unused]] auto* worker = worker_.release();
  [[maybe_unused]] auto* context = context_.release();
  for (auto& [id, peer] : peers_) [[maybe_unused]] auto* forgotten = peer.release();
}

std::shared_ptr<Group> Engine::make_group(const GroupOptions& options) {
  if (options.size < 1 || static_cast<std::uint64_t>(options.size) > kMaxRank + 1) {
    throw ArgumentError("group \"" + options.name + "\" has size " + std::to_string(options.size) +
                        ": allowed is 1 to " + std::to_string(kMaxRank + 1));
  }
  if (options.rank < 0 || options.rank >= options.size) {
    throw ArgumentError("rank " + std::to_string(options.rank) + " of group \"" + options.name +
                        "\" is outside 0 to " + std::to_string(options.size - 1));
  }
  if (options.timeout.count() <= 0) {
    throw ArgumentError("group \"" + options.name + "\" has a time-out of " +
                        std::to_string(options.timeout.count()) + " ms: it must be positive");
  }
  auto group = std::make_shared<Group>(Group::Key{}, shared_from_this(), options);
  {
    const ProgressEngine::Guard guard(*progress_);
    if (shut_down_) throw Error("the engine has been shut down");
    group->nonce_ = random_bits();
    retire_mailboxes();
    group->mailbox_ = mailboxes_.open(*group, group->nonce_);
    groups_.push_back(group.get());
  }
  ++open_groups_;
  return group;
}

void Engine::group_closed() noexcept {
  bool last = false;
  {
    auto& shared = registry();
    const std::lock_guard lock(shared.mutex);
    last = --open_groups_ == 0;
    if (last && shared.current.lock().get() == this) shared.current.reset();
  }
  if (last) shutdown();
}

Engine::Snapshot Engine::snapshot() {
  const ProgressEngine::Guard guard(*progress_);
  Snapshot snapshot;
  snapshot.live_groups = mailboxes_.live_count();
  snapshot.closing_mailboxes = mailboxes_.closing_count();
  snapshot.in_flight = in_flight_.size();
  snapshot.quarantined = quarantined_;
  snapshot.peers = peers_.size();
  return snapshot;
}

void Engine::close_endpoints() noexcept {
  // An orderly close flushes: acknowledgements of rendezvous and control messages still go out. A
  // forced one ends what is still in flight: to a dead peer, to one that never answered (a flush
  // would wait for the connection), or sends that nobody took. With any of these pending UCX 1.13
  // aborts in ucp_worker_destroy.
  std::vector<void*> closing;
  {
    const ProgressEngine::Guard guard(*progress_);
    for (auto& [id, peer] : peers_) {
      if (close_aborts(*peer)) continue;
      const bool force = peer->failed || !peer->heard || has_in_flight(*peer);
      if (void* request = peer->endpoint.begin_close(force)) closing.push_back(request);
    }
  }
  const auto all_closed = [&] {
    const ProgressEngine::Guard guard(*progress_);
    std::erase_if(closing, [](void* request) {
      if (ucp_request_check_status(request) == UCS_INPROGRESS) return false;
      ucp_request_free(request);
      return true;
    });
    if (!closing.empty()) return false;
    return std::none_of(peers_.begin(), peers_.end(), [&](const auto& entry) {
      return entry.second->endpoint.handles_peer_errors() && has_in_flight(*entry.second);
    });
  };
  progress_->wait_uninterrupted(all_closed, Clock::now() + kEndpointClose);
  const ProgressEngine::Guard guard(*progress_);
  // UCX 1.13 aborts in ucp_worker_destroy while a close is pending: give the requests up first.
  for (void* request : closing) ucp_request_free(request);
}

bool Engine::close_aborts(const Peer& peer) const noexcept {
  constexpr ucp::LibraryVersion kMended{1, 22, 0};
  return peer.endpoint && !peer.heard && ucp::library_version() < kMended && has_verbs_;
}

bool Engine::has_in_flight(const Peer& peer) const noexcept {
  for (Request* request = in_flight_.front(); request; request = RequestList::next(*request)) {
    if (request->peer_ == kAnySource) continue;
    const auto& slot = request->group_->peers_[static_cast<std::size_t>(request->peer_)];
    if (slot != nullptr && slot->peer == &peer) return true;
  }
  return false;
}

void Engine::shutdown() noexcept {
  if (forked()) return;
  {
    const ProgressEngine::Guard guard(*progress_);
    if (std::exchange(shut_down_, true)) return;
  }
  const BlockingSection blocking;
  progress_->stop_helper();
  close_endpoints();
  {
    const ProgressEngine::Guard guard(*progress_);
    for (const std::uint16_t number : mailboxes_.closing()) drain_mailbox(number);
    while (!taken_.empty()) discard(*taken_.begin());
  }
  progress_->end(kWaitersLeave);
  {
    const ProgressEngine::Guard guard(*progress_);
    // What is in flight now cannot be ended; whose it was has been said.
    std::optional<ucp::QuietScope> quiet;
    if (!in_flight_.empty()) quiet.emplace(ucp::QuietScope::Keep::errors);
    const bool leave = std::any_of(peers_.begin(), peers_.end(), [this](const auto& entry) {
      return close_aborts(*entry.second);
    });
    if (leave) {
      log(LogLevel::info, "UCX's worker is left as it is: a peer never answered, and UCX " +
                              ucp::library_version().to_string() +
                              " aborts when such a connection is closed");
      worker_->abandon();
      context_->abandon();
    } else {
      worker_->destroy();
    }
    context_.reset();
    // UCX is gone, and with it its hold on the buffers in quarantine; unless it was left.
    while (Request* request = leave ? nullptr : in_flight_.front()) {
      finish(*request, Outcome{.failure = Failure::group_closed});
    }
  }
  deliveries_->stop();
  callbacks_->stop();
  reap();
}

}  // namespace torch_ucx::transport
