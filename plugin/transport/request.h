// One send or receive, from posting to completion. Also the record that keeps its buffer alive:
// whoever posts derives from Request and puts the owner of the buffer (a tensor, a vector) in it.
//
// Life-cycle: idle -> queued (waits for first contact) -> posted (UCX has it) -> finished; a
// receive may be delivering before it is finished.
//
// User's view: pending -> done, once; a persistent one is done until it is started, and may be
// started again when it is done. A request may be done before it is finished: it failed (time
// out, dead peer) while UCX still owns its buffer. The engine keeps such a request, and so the
// buffer, until UCX lets go ("quarantine").
//
// Typed matching: a receive that stays unmatched while a message of another class waits on the
// same tag takes that one; the derived class says how (accept), and may convert it (deliver).
//
// References: the poster's handle and, from when it is queued or in flight until it is finished,
// the engine. The last reference runs the destructor; the engine never drops the last one under its
// lock or on its helper thread (a tensor's destructor may take Python's GIL). A persistent request
// is not counted up and down by each start: when its last handle goes while the engine has it, the
// engine takes it over.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "plugin/transport/clock.h"
#include "plugin/transport/pooled_memory.h"
#include "torch_ucx/transport/outcome.h"

namespace torch_ucx::transport {

class Group;

// As the source of a receive: any rank. As a tag: any tag.
inline constexpr int kAnySource = -1;
inline constexpr std::uint64_t kAnyTag = ~std::uint64_t{0};

class Request : public PooledMemory {
 public:
  enum class Kind : std::uint8_t { send, receive };

  // What a receive does with a message of another class than its own.
  enum class Acceptance : std::uint8_t {
    as_it_is,  // the bytes go into the buffer
    convert,   // the bytes go into a buffer of their own, then deliver() is called
    refuse,    // the receive fails; the message is dropped
  };

  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  virtual ~Request() = default;

  // One atomic load. Once true, outcome() is final, but for buffer_in_use.
  [[nodiscard]] bool done() const noexcept { return done_.load(std::memory_order_acquire); }
  [[nodiscard]] const Outcome& outcome() const noexcept { return outcome_; }

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] int peer() const noexcept { return peer_; }  // kAnySource: any
  [[nodiscard]] bool any_tag() const noexcept { return any_tag_; }
  [[nodiscard]] std::uint32_t user_tag() const noexcept { return user_tag_; }
  [[nodiscard]] MessageClass message_class() const noexcept { return class_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] Clock::time_point deadline() const noexcept { return deadline_; }
  [[nodiscard]] const std::shared_ptr<Group>& group() const noexcept { return group_; }

  // Text of a failed request: operation, this rank, peer, tag, bytes, elapsed time, cause.
  [[nodiscard]] std::string describe() const;

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (!drop_reference()) return;
    if (persistent_) {
      dispose();
    } else {
      delete this;
    }
  }

 protected:
  // A message of another class, of that many bytes, waits where this receive looks. Called under
  // the engine's lock: arithmetic only.
  [[nodiscard]] virtual Acceptance accept(MessageClass, std::uint64_t bytes) const noexcept {
    return bytes == bytes_ ? Acceptance::as_it_is : Acceptance::refuse;
  }
  // Puts a message that has come where the user wants it: one of another class that is to be
  // converted, or any one where delivers() is set. Called on the callback thread, outside all
  // locks, before the request is done. False: it failed.
  [[nodiscard]] virtual bool deliver(MessageClass, std::span<const std::byte> message) noexcept {
    (void)message;
    return false;
  }
  // The buffer is only a stop on the way (of a receive into a strided view): call deliver().
  void set_delivers() noexcept { delivers_ = true; }
  // Name of a class, for messages.
  [[nodiscard]] virtual std::string class_name(MessageClass message_class) const {
    return "class " + std::to_string(message_class);
  }

  // Runs on the callback thread, outside all locks, after completion of a request for which
  // Group::notify() was called while it was pending.
  virtual void on_done() noexcept {}

 private:
  friend class Engine;
  friend class Group;
  friend class ProgressEngine;
  friend class CallbackThread;
  friend class RequestList;
  friend class RequestStack;

  // delivering: the message has come; the callback thread puts it in its place
  enum class Stage : std::uint8_t { idle, queued, posted, delivering, finished };

  // True when it is the last reference, which the caller keeps: the object is its own.
  [[nodiscard]] bool drop_reference() noexcept {
    auto count = references_.load(std::memory_order_acquire);
    while (count > 1) {
      if (references_.compare_exchange_weak(count, count - 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire)) {
        return false;
      }
    }
    return true;
  }

  // The last handle of a persistent request has gone.
  void dispose() noexcept;

  // The engine's reference, taken by the thread that posts, before another one can see the request.
  // One that was never posted before has its poster's reference only.
  void hold() noexcept {
    if (std::exchange(held_, true) || persistent_) return;
    if (references_.load(std::memory_order_relaxed) == 1) {
      references_.store(2, std::memory_order_relaxed);
    } else {
      retain();
    }
  }

  std::atomic<std::uint32_t> references_{1};
  std::atomic<bool> done_{false};     // written under the engine's lock
  std::atomic<bool> telling_{false};  // on_done() is about to be called: not to be started again

  // Set before posting, constant afterwards.
  Kind kind_ = Kind::send;
  MessageClass class_ = 0;
  bool any_tag_ = false;
  bool delivers_ = false;
  bool persistent_ = false;
  std::int32_t peer_ = -1;
  std::uint32_t user_tag_ = 0;
  Tag tag_ = 0;             // of a send without its mailbox, which first contact tells
  Tag mask_ = 0;            // of a receive
  void* buffer_ = nullptr;  // sends only read it
  std::uint64_t bytes_ = 0;
  std::shared_ptr<Group> group_;
  Clock::time_point posted_at_{};
  Clock::time_point deadline_{};

  // Guarded by the engine's lock, once it has been handed over.
  Stage stage_ = Stage::idle;
  bool held_ = false;                // the engine has it, with a reference unless it is persistent
  bool orphaned_ = false;            // persistent: no handle is left, the engine has the reference
  bool notify_ = false;              // on_done() is to be called
  void* ucx_request_ = nullptr;      // not null while UCX can be asked to cancel it
  bool matched_ = false;             // a message is on its way into it: no other will be looked for
  bool refused_ = false;             // that message is of a class it does not take
  bool taken_ = false;               // that message was taken out of UCX's queue by probing; then:
  Tag message_tag_ = 0;              //   its tag
  std::uint64_t message_bytes_ = 0;  //   its size
  std::unique_ptr<std::byte[]> staging_;  //   not null: where it goes, to be converted
  Request* previous_ = nullptr;           // links of the list the request is in
  Request* next_ = nullptr;

  // Before it is posted again; under the engine's lock.
  void renew() noexcept {
    stage_ = Stage::idle;
    matched_ = refused_ = taken_ = false;
    staging_.reset();
    outcome_ = {};
  }

  // Written under the engine's lock before done_ is set.
  Outcome outcome_;
  Clock::time_point done_at_{};

  Request* stack_next_ = nullptr;  // link of a RequestStack
};

// Intrusive reference to a Request (or a class derived from it).
template <typename T>
class Ref {
 public:
  Ref() = default;
  // Takes over the reference that a new object is born with.
  static Ref adopt(std::unique_ptr<T> object) noexcept {
    Ref ref;
    ref.object_ = object.release();
    return ref;
  }
  template <typename... Args>
  static Ref make(Args&&... args) {
    return adopt(std::make_unique<T>(std::forward<Args>(args)...));
  }
  Ref(const Ref& other) noexcept : object_(other.object_) {
    if (object_ != nullptr) object_->retain();
  }
  template <typename U>
  requires std::is_base_of_v<T, U> Ref(const Ref<U>& other)
  noexcept : object_(other.get()) {  // NOLINT: implicit as for pointers
    if (object_ != nullptr) object_->retain();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) object_->release();
  }

  [[nodiscard]] T* get() const noexcept { return object_; }
  T* operator->() const noexcept { return object_; }
  T& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

// Doubly linked list through Request's own links; a request is in at most one. Guarded by the
// engine's lock.
class RequestList {
 public:
  void push_back(Request& request) noexcept {
    request.previous_ = tail_;
    request.next_ = nullptr;
    (tail_ == nullptr ? head_ : tail_->next_) = &request;
    tail_ = &request;
    ++size_;
  }
  void remove(Request& request) noexcept {
    (request.previous_ == nullptr ? head_ : request.previous_->next_) = request.next_;
    (request.next_ == nullptr ? tail_ : request.next_->previous_) = request.previous_;
    request.previous_ = request.next_ = nullptr;
    --size_;
  }
  [[nodiscard]] Request* front() const noexcept { return head_; }
  [[nodiscard]] static Request* next(const Request& request) noexcept { return request.next_; }
  [[nodiscard]] bool empty() const noexcept { return head_ == nullptr; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  Request* head_ = nullptr;
  Request* tail_ = nullptr;
  std::size_t size_ = 0;
};

// Lock-free stack: any thread pushes, whoever takes gets everything, oldest first.
class RequestStack {
 public:
  void push(Request& request) noexcept {
    Request* head = head_.load(std::memory_order_relaxed);
    do {
      request.stack_next_ = head;
    } while (!head_.compare_exchange_weak(head, &request, std::memory_order_seq_cst,
                                          std::memory_order_relaxed));
  }
  [[nodiscard]] bool empty() const noexcept {
    return head_.load(std::memory_order_seq_cst) == nullptr;
  }
  // The oldest request; next() walks to the newer ones. Read next() before letting go of a request.
  [[nodiscard]] Request* take_all() noexcept {
    Request* newest = head_.exchange(nullptr, std::memory_order_acq_rel);
    Request* oldest = nullptr;
    while (newest != nullptr) {
      Request* older = std::exchange(newest->stack_next_, oldest);
      oldest = newest;
      newest = older;
    }
    return oldest;
  }
  [[nodiscard]] static Request* next(const Request& request) noexcept {
    return request.stack_next_;
  }

 private:
  std::atomic<Request*> head_{nullptr};
};

}  // namespace torch_ucx::transport
