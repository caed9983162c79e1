// An engine: one UCX context and worker, with the mailboxes, peers, requests and threads that
// belong to them. Groups of a process share one engine (Engine::acquire); it ends with its last
// group.
//
// An object, not a singleton: after the death of a peer on this host the shared queues of UCX may
// be stuck, so the engine is tainted: it goes on for the groups it has, and new groups get a fresh
// one.
//
// Lock order: registry -> engine (ProgressEngine::Guard) -> callback queue. User code, the GIL and
// blocking calls are never reached under any of them.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "plugin/transport/address_blob.h"
#include "plugin/transport/callback_thread.h"
#include "plugin/transport/control.h"
#include "plugin/transport/fork_guard.h"
#include "plugin/transport/group.h"
#include "plugin/transport/mailbox_table.h"
#include "plugin/transport/peer.h"
#include "plugin/transport/peer_watch.h"
#include "plugin/transport/progress_engine.h"
#include "plugin/transport/request.h"
#include "plugin/ucp/context.h"
#include "plugin/ucp/devices.h"
#include "plugin/ucp/worker.h"
#include "torch_ucx/transport/options.h"

namespace torch_ucx::transport {

// Statuses by which UCX says that the other side is gone.
[[nodiscard]] bool means_peer_failed(ucs_status_t status) noexcept;

class Engine final : public std::enable_shared_from_this<Engine>, private ProgressEngine::Client {
  struct Key {};

 public:
  // A new engine of its own. Throws Error where UCX cannot be set up, or is older than 1.13.
  [[nodiscard]] static std::shared_ptr<Engine> create(const EngineOptions& options);
  // The process's current engine, made when there is none (or it is tainted, or of a parent
  // process).
  [[nodiscard]] static std::shared_ptr<Engine> acquire(const EngineOptions& options);

  Engine(Key, const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  // Throws ArgumentError for a rank or size out of range, Error when no mailbox is free.
  [[nodiscard]] std::shared_ptr<Group> create_group(const GroupOptions& options);
  // acquire() and create_group() in one step: the engine cannot end in between.
  [[nodiscard]] static std::shared_ptr<Group> open_group(const EngineOptions& engine_options,
                                                         const GroupOptions& group_options);

  [[nodiscard]] const EngineOptions& options() const noexcept { return options_; }
  [[nodiscard]] bool forked() const noexcept { return fork_guard_.forked(); }
  [[nodiscard]] bool tainted() const noexcept { return tainted_.load(); }

  // Figures for tests and support; a consistent snapshot.
  struct Snapshot {
    std::size_t live_groups = 0;
    std::size_t closing_mailboxes = 0;
    std::size_t in_flight = 0;    // requests UCX has, failed ones included
    std::size_t quarantined = 0;  // those of them that the user was told have failed
    std::size_t peers = 0;
  };
  [[nodiscard]] Snapshot snapshot();

  // Ends the engine: idempotent, bounded in time. Called when the last group closes.
  void shutdown() noexcept;

 private:
  friend class Group;

  // What a UCX callback leaves for after_progress (no UCX call is made inside a callback).
  struct Event {
    enum class Kind : std::uint8_t { control, endpoint_failed };
    Kind kind;
    std::vector<std::byte> data;   // control
    Peer* peer = nullptr;          // endpoint_failed
    ucs_status_t status = UCS_OK;  // endpoint_failed
  };

  // ---- ProgressEngine::Client
  void post(Request& request) noexcept override;
  void after_progress() noexcept override;
  void housekeeping(Clock::time_point now) noexcept override;
  void look_again(std::uint64_t generation) noexcept override;
  [[nodiscard]] bool needs_housekeeping() const noexcept override;
  void on_watch_event() noexcept override;
  void on_helper_tick() noexcept override;

  // ---- data path (engine_data.cpp); under the lock
  void post_send(Request& request, GroupPeer& peer) noexcept;
  void post_receive(Request& request) noexcept;
  // Posts it to UCX; false: it is finished already.
  bool start_receive(Request& request) noexcept;
  void post_to_ready(GroupPeer& peer) noexcept;
  void begin_in_flight(Request& request, void* ucx_request) noexcept;
  static void on_sent(void* ucx_request, ucs_status_t status, void* user_data);
  static void on_received(void* ucx_request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* user_data);
  // UCX has let go of the request, or never had it. Drops the engine's reference.
  void finish(Request& request, const Outcome& outcome) noexcept;
  // Makes the request done for the user.
  void settle(Request& request, const Outcome& outcome) noexcept;
  // Fails a request that is queued or in flight; what UCX does not give back stays in quarantine.
  void fail(Request& request, Failure failure) noexcept;
  // The last chance of a receive: a message of another class that waits, else it fails.
  void take_or_fail(Request& request, Failure failure) noexcept;
  void fail_queued(GroupPeer& peer, Failure failure) noexcept;
  void let_go(Request& request) noexcept;
  // The last reference of a request: true where the engine takes it over, because the request is a
  // persistent one that is under way.
  [[nodiscard]] bool take_over(Request& request) noexcept;
  void reap() noexcept;

  // ---- matching beyond UCX's exact one (engine_matching.cpp); under the lock
  struct Match {
    Tag tag;
    Tag mask;
  };
  // The first class but own (kClassControl: but none) of a message that waits under the match.
  [[nodiscard]] std::optional<MessageClass> other_class(const Group& group, Match match,
                                                        MessageClass own) noexcept;
  void reconsider(Request& request) noexcept;
  // Receives a message that was taken out of UCX's queue into the request.
  void receive_taken(Request& request, ucp_tag_message_h message,
                     const ucp_tag_recv_info_t& info) noexcept;
  void complete_taken(Request& request, ucs_status_t status) noexcept;
  // The message has come; the callback thread puts it in its place, then the request is finished.
  void begin_delivery(Request& request, const Outcome& outcome) noexcept;
  void finish_delivery(Request& request, bool delivered) noexcept;
  [[nodiscard]] std::optional<ProbeResult> probe(Group& group, Match match, void** taken) noexcept;
  // Receives it into nothing: UCX drops the bytes, and a rendezvous sender completes.
  void discard(void* message) noexcept;
  [[nodiscard]] Match wildcard_match(const Group& group, int src, std::uint64_t tag) const noexcept;
  void want_all(Group& group) noexcept;
  // The failure of an any-source receive when no other rank is left to send; none while there is
  // one.
  [[nodiscard]] Failure no_source_left(Group& group) const noexcept;
  void fail_sourceless(Group& group) noexcept;

  // ---- first contact and farewell (engine_contact.cpp); under the lock
  void want_peer(Group& group, int rank) noexcept;
  void peer_found(Group& group, int rank, const AddressBlob& blob);
  void refuse_peer(Group& group, int rank, const std::string& reason) noexcept;
  [[nodiscard]] Peer& connect(const AddressBlob& blob);
  void check_versions(const AddressBlob& blob) const;
  void greet(Group& group, int rank, GroupPeer& peer);
  // Asks the store again about ranks that do not answer: they may have closed the group since.
  void review_greetings(Clock::time_point now) noexcept;
  void mark_left(Group& group, int rank, GroupPeer& peer) noexcept;
  void attach(Group& group, int rank, GroupPeer& peer) noexcept;
  void send_control(Peer& peer, const ControlMessage& message) noexcept;
  void on_control(std::span<const std::byte> data);
  void on_hello(const ControlMessage& message);
  void on_welcome(const ControlMessage& message);
  void on_refuse(const ControlMessage& message);
  void on_close(const ControlMessage& message);
  void on_close_ack(const ControlMessage& message);
  [[nodiscard]] Group* find_group(const ControlMessage& message) const noexcept;
  static ucs_status_t on_active_message(void* argument, const void* header, size_t header_length,
                                        void* data, size_t length,
                                        const ucp_am_recv_param_t* param);
  static void on_control_sent(void* ucx_request, ucs_status_t status, void* user_data);
  void close_group(Group& group, std::chrono::milliseconds linger);
  [[nodiscard]] std::string lost_sends(Group& group);
  void drain_mailbox(std::uint16_t number) noexcept;
  void retire_mailboxes() noexcept;

  // ---- failure (engine_failure.cpp); under the lock
  void fail_peer(Peer& peer, const std::string& reason) noexcept;
  void expire(Clock::time_point now) noexcept;
  static void on_endpoint_error(void* argument, ucp_ep_h endpoint, ucs_status_t status);

  [[nodiscard]] static std::shared_ptr<Engine> current_or_new(const EngineOptions& options);
  [[nodiscard]] std::shared_ptr<Group> make_group(const GroupOptions& options);
  // Something needs housekeeping by time from now on: the helper must not sleep without limit.
  void set_pending() noexcept {
    if (!pending_.load() && !pending_.exchange(true)) progress_->kick();
  }
  void group_closed() noexcept;
  void close_endpoints() noexcept;
  // UCX below 1.22 aborts when it is to close or destroy an endpoint over verbs whose connection
  // was never made (wireup messages pending in ucp_request_send_state_ff).
  [[nodiscard]] bool close_aborts(const Peer& peer) const noexcept;
  [[nodiscard]] bool has_in_flight(const Peer& peer) const noexcept;

  const EngineOptions options_;
  const ForkGuard fork_guard_;
  const EngineId id_;
  const HostIdentity host_;
  const bool has_verbs_ = ucp::host_has_verbs();

  // Order matters: destruction ends the progress engine, then the worker, then the context.
  std::unique_ptr<ucp::Context> context_;
  std::unique_ptr<ucp::Worker> worker_;
  std::vector<std::byte> worker_address_;
  std::unique_ptr<PeerWatch> watch_;
  std::unique_ptr<ProgressEngine> progress_;
  std::unique_ptr<CallbackThread> callbacks_;   // continuations of futures
  std::unique_ptr<CallbackThread> deliveries_;  // deliveries, destructors
  RequestStack graveyard_;  // requests without references, to be deleted outside the lock

  // Guarded by the lock.
  MailboxTable mailboxes_;
  std::vector<Group*> groups_;  // open ones
  std::map<EngineId, std::unique_ptr<Peer>> peers_;
  RequestList in_flight_;
  std::size_t quarantined_ = 0;
  std::vector<Event> events_;
  struct Greeting {
    Group* group;
    int rank;
    Clock::time_point asked_at;  // when it was sent, or the store was last asked again
  };
  std::vector<Greeting> greetings_;  // not answered yet, and some that are
  std::set<void*> taken_;  // messages taken by Group::take and neither received nor discarded yet
  struct OutgoingControl {
    std::vector<std::byte> bytes;
    Engine* engine = nullptr;
    std::list<OutgoingControl>::iterator self{};
  };
  std::list<OutgoingControl> outgoing_control_;
  // The request whose UCX call is being made: a callback that runs inside the call leaves its
  // outcome here, and the poster acts on it when the call has returned.
  Request* calling_ = nullptr;
  bool called_back_ = false;
  Outcome call_outcome_;
  Failure cancel_reason_ = Failure::none;
  // The receive that is being withdrawn to take another message instead, and whether it was.
  Request* withdrawing_ = nullptr;
  bool withdrawn_ = false;
  std::uint64_t looked_at_ = 0;  // generation of progress at the last look_again
  bool unlooked_ = false;        // receives were posted since
  bool shut_down_ = false;

  std::atomic<bool> tainted_{false};
  std::atomic<bool> pending_{false};  // something needs housekeeping by time
  std::size_t open_groups_ = 0;       // guarded by the registry's lock
};

}  // namespace torch_ucx::transport
