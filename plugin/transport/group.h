// A group of ranks as this process sees it: posts messages to them, waits for them, closes.
//
// Ranks are group ranks, 0 .. size-1. Thread rule: any thread may call any method. Nothing here
// blocks but wait() and close().
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plugin/transport/address_blob.h"
#include "plugin/transport/request.h"

namespace torch_ucx::transport {

class Engine;
struct Peer;

// Finds the addresses of peers for a group (rendezvous/connector.h). Called under the engine's
// lock: must only take note. Answers through Group::peer_found and Group::peer_not_found, from any
// thread, not from inside want().
class PeerResolver {
 public:
  virtual ~PeerResolver() = default;
  // stale_nonce: not 0 when the address with this nonce was found to be dead: another is wanted.
  virtual void want(int rank, std::uint64_t stale_nonce) noexcept = 0;
};

struct GroupOptions {
  int rank = 0;
  int size = 1;                                                 // at most 65,536
  std::string name;                                             // for messages
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};  // of an operation; must be > 0
  // Typed matching: a receive of class 0 .. class_count-1 that stays unmatched takes a message of
  // another of these classes, if one waits on its tag (Request::accept). 0: classes never mix.
  int class_count = 0;
};

// A message that waits to be received.
struct ProbeResult {
  int source = -1;
  std::uint32_t user_tag = 0;
  MessageClass message_class = 0;
  std::uint64_t bytes = 0;
};

// A message taken out of matching by Group::take: only Group::receive(..., message) gets it now.
// One that is dropped instead is discarded, its sender completes.
class TakenMessage {
 public:
  TakenMessage() = default;
  TakenMessage(const TakenMessage&) = delete;
  TakenMessage& operator=(const TakenMessage&) = delete;
  TakenMessage(TakenMessage&& other) noexcept;
  TakenMessage& operator=(TakenMessage&& other) noexcept;
  ~TakenMessage();
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  [[nodiscard]] const ProbeResult& info() const noexcept { return info_; }

 private:
  friend class Group;
  void* handle_ = nullptr;  // ucp_tag_message_h
  ProbeResult info_;
  std::shared_ptr<Group> group_;
};

// Where this process stands with one rank of the group. Guarded by the engine's lock.
struct GroupPeer {
  enum class Stage : std::uint8_t {
    unknown,    // nobody asked for it yet
    resolving,  // the resolver looks for its address
    greeting,   // hello sent, no answer yet
    ready,      // attached: sends go straight to UCX
    left,       // it closed its side of the group
    failed,     // it died, or cannot be reached
  };
  Stage stage = Stage::unknown;
  Peer* peer = nullptr;         // from greeting on
  std::uint16_t mailbox = 0;    // its number for this group, from greeting on
  std::uint64_t nonce = 0;      // of its membership, from greeting on
  bool close_received = false;  // it has said close
  bool close_acked = false;     // it has acknowledged our close
  Clock::time_point since{};    // of the stage
  RequestList queued;           // sends that wait for ready, in order
  std::string reason;           // of left and failed
};

class Group : public std::enable_shared_from_this<Group> {
 public:
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  [[nodiscard]] int rank() const noexcept { return options_.rank; }
  [[nodiscard]] int size() const noexcept { return options_.size; }
  [[nodiscard]] const std::string& name() const noexcept { return options_.name; }
  [[nodiscard]] Engine& engine() const noexcept { return *engine_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept {
    return std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed));
  }
  void set_timeout(std::chrono::milliseconds timeout) noexcept {
    timeout_ms_.store(timeout.count(), std::memory_order_relaxed);
  }

  // What other ranks need to reach this one; to be published by the caller.
  [[nodiscard]] AddressBlob address() const;
  // What takes its place once this rank has closed the group.
  [[nodiscard]] AddressBlob closed_address() const;

  // Must be set before the first operation with another rank.
  void set_resolver(std::shared_ptr<PeerResolver> resolver);
  void peer_found(int rank, const AddressBlob& blob);
  // What waits for this rank fails (dead: its process has ended; left: it has closed the group;
  // no_store: nobody can be asked, so only sends fail). But for left, a later operation asks the
  // resolver again.
  enum class NotFound : std::uint8_t { dead, left, no_store };
  void peer_not_found(int rank, const std::string& reason, NotFound what);

  // Posts a send of bytes at data to rank dst. The request keeps the buffer alive, untouched by the
  // caller until it is done. Throws ArgumentError, before anything is posted, for a rank, class or
  // tag that does not fit, and Error in a forked child. All else shows in the request's outcome.
  void send(const Ref<Request>& request, const void* data, std::uint64_t bytes, int dst,
            MessageClass message_class, std::uint64_t user_tag);

  // Posts a receive of exactly bytes from rank src (kAnySource: any), with this tag (kAnyTag: any).
  // Messages of its class come first, in order; see GroupOptions::class_count for the others.
  void receive(const Ref<Request>& request, void* data, std::uint64_t bytes, int src,
               MessageClass message_class, std::uint64_t user_tag);

  // A persistent operation (MPI_Send_init, MPI_Recv_init): arguments and errors as for send and
  // receive, but nothing is posted until start(). The request counts as done until then.
  void init_send(const Ref<Request>& request, const void* data, std::uint64_t bytes, int dst,
                 MessageClass message_class, std::uint64_t user_tag);
  void init_receive(const Ref<Request>& request, void* data, std::uint64_t bytes, int src,
                    MessageClass message_class, std::uint64_t user_tag);
  // Posts it, again if it was posted before; its deadline counts from now. One thread at a time for
  // a request. Throws Error when the last start is still under way, or UCX still has its buffer.
  void start(const Ref<Request>& request);
  // Throws what start() would.
  void check_startable(const Request& request) const;
  // The same for several of this group, in order, under one hold of the lock where it is free.
  void start_all(std::span<const Ref<Request>> requests);
  // One attempt at progress, for who polls done() instead of waiting. Never blocks on the lock.
  void poll() noexcept;
  // The same, but only where nobody else makes progress: with ProgressMode::caller.
  void poll_as_caller() noexcept;

  // A message of any class 0 .. class_count-1 that waits for such a receive; without blocking.
  [[nodiscard]] std::optional<ProbeResult> probe(int src, std::uint64_t user_tag);
  // The same, waiting for one to come. Nothing after timeout (zero: the group's); throws Error when
  // none can come any more. An exception of HostHooks::check_interrupt passes through.
  [[nodiscard]] std::optional<ProbeResult> wait_probe(int src, std::uint64_t user_tag,
                                                      std::chrono::milliseconds timeout = {});
  // Like probe and wait_probe, and takes the message out of matching (MPI_Mprobe).
  [[nodiscard]] TakenMessage take(int src, std::uint64_t user_tag);
  [[nodiscard]] TakenMessage wait_take(int src, std::uint64_t user_tag,
                                       std::chrono::milliseconds timeout = {});
  // Posts the receive of a taken message, as one of message_class.
  void receive(const Ref<Request>& request, void* data, std::uint64_t bytes,
               MessageClass message_class, TakenMessage message);

  // Until the request is done, at the latest at its own deadline or after timeout (zero: no other
  // limit than the request's own deadline); then it fails with timed_out: a receive is withdrawn.
  // The request is done on return. An exception of HostHooks::check_interrupt passes through.
  void wait(Request& request, std::chrono::milliseconds timeout = {});

  // The same for several of this group; timeout is for all of them. An interrupt withdraws every
  // receive among them.
  void wait_all(std::span<const Ref<Request>> requests, std::chrono::milliseconds timeout = {});

  // A wait for it was interrupted: a receive that stayed posted would swallow a later message.
  void withdraw_interrupted(Request& request) noexcept;

  // Request::on_done will run on the callback thread once the request is done; a persistent one is
  // not to be started again before. False: it is done already, and on_done will not be called.
  [[nodiscard]] bool notify(Request& request);

  // Closes this side: waits up to linger for sends to be taken, withdraws receives, says close to
  // every attached rank. Idempotent, bounded in time; what was not delivered is logged by name.
  void close(std::chrono::milliseconds linger);
  void close();

  [[nodiscard]] bool closed() const noexcept { return closed_.load(); }

  // What the latest failed operation failed for; none while all went well.
  [[nodiscard]] Failure last_failure() const noexcept { return last_failure_.load(); }

 private:
  friend class Engine;
  friend class Request;
  struct Key {};  // only Engine makes groups

 public:
  Group(Key, std::shared_ptr<Engine> engine, GroupOptions options);

 private:
  // The checks are inlined into the data path, what they throw is not.
  void check_not_forked() const {
    if (engine_forked()) refuse_fork();
  }
  void check_peer(int rank, const char* operation, const char* role) const {
    if (rank < 0 || rank >= options_.size) refuse_peer(rank, operation, role);
  }
  [[nodiscard]] bool engine_forked() const;
  [[noreturn]] void refuse_fork() const;
  [[noreturn]] void refuse_peer(int rank, const char* operation, const char* role) const;
  [[noreturn]] void refuse_message(MessageClass message_class, std::uint64_t user_tag) const;
  void set_deadline(Request& request, Clock::time_point now) noexcept;
  friend class TakenMessage;
  // Under the engine's lock. Throws Error when the group is closed.
  [[nodiscard]] std::optional<ProbeResult> look_for(int src, std::uint64_t user_tag, void** taken);
  // Under the engine's lock. Throws Error when that rank, or every other rank, sends nothing more.
  void check_sender(int src);
  void discard(void* message) noexcept;
  void check_matching(int src, std::uint64_t user_tag) const;
  void make_persistent(Request& request);
  void dispose(Request& request) noexcept;
  void check_idle(const Request& request) const {
    if (closed()) refuse_start(request, "the group was closed on this rank");
    if (!request.done()) {
      refuse_start(request, "it is still under way: wait for it before it is started again");
    }
    if (request.telling_.load(std::memory_order_acquire)) {
      refuse_start(request, "its continuation has not been called yet");
    }
  }
  [[noreturn]] void refuse_start(const Request& request, const char* why) const;
  void renew(Request& request, Clock::time_point now) noexcept;
  void prepare(Request& request, Request::Kind kind, void* data, std::uint64_t bytes, int peer,
               MessageClass message_class, std::uint64_t user_tag);
  [[nodiscard]] GroupPeer& peer(int rank) {
    auto& slot = peers_[static_cast<std::size_t>(rank)];
    if (slot == nullptr) slot = std::make_unique<GroupPeer>();
    return *slot;
  }
  [[nodiscard]] std::string peer_reason(int rank) const;

  const std::shared_ptr<Engine> engine_;
  const GroupOptions options_;
  std::atomic<std::int64_t> timeout_ms_;

  std::uint16_t mailbox_ = 0;  // constant once the group is open
  std::uint64_t nonce_ = 0;

  // Guarded by the engine's lock.
  std::shared_ptr<PeerResolver> resolver_;
  std::vector<std::unique_ptr<GroupPeer>> peers_;  // by rank, made when first needed
  bool closing_ = false;
  bool wants_all_ = false;  // contact with every rank has been asked for
  std::size_t queued_ = 0;  // requests in all queues
  std::size_t sends_ = 0;   // sends neither done nor failed

  std::atomic<bool> closed_{false};
  std::atomic<Failure> last_failure_{Failure::none};
};

}  // namespace torch_ucx::transport
