// The thread that looks up addresses: one for all groups of the process, so that first contact
// never blocks a caller. It asks the stores again and again, ever more seldom, for what is still
// missing.
//
// Thread rule: any thread may call; want() only takes note. Results go to Group::peer_found and
// Group::peer_not_found from the connector's thread, with no lock of the connector held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "plugin/transport/address_blob.h"
#include "plugin/transport/fork_guard.h"
#include "plugin/transport/request.h"
#include "torch_ucx/rendezvous/key_value_store.h"

namespace torch_ucx::rendezvous {

class Membership;

class Connector {
 public:
  using Clock = transport::Clock;

  // First and longest pause between two looks for the same address.
  static constexpr std::chrono::milliseconds kFirstPause{1};
  static constexpr std::chrono::milliseconds kLongestPause{100};
  // How long an address that turned out to be of a dead process may be replaced by a fresh one (a
  // restarted rank) before the rank counts as dead.
  static constexpr std::chrono::milliseconds kReplacementGrace{2000};

  static constexpr std::chrono::milliseconds kLeaveLimit{2000};

  // The process's connector, made when first needed. It lives, asleep when there is nothing to look
  // for, until the process ends: no order of destruction has to be found for its thread.
  [[nodiscard]] static Connector& shared();

  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Looks for the address of a rank of the member's group. stale_nonce: not 0: any but this one.
  void want(const std::shared_ptr<Membership>& member, int rank,
            std::uint64_t stale_nonce) noexcept;
  // Fetches the addresses of all ranks as they appear, to answer want() without the store.
  void prefetch(const std::shared_ptr<Membership>& member, int size, int own_rank) noexcept;
  // Ends all lookups of a member, and tells the store that it has left. Waits for that, at most
  // kLeaveLimit: the process may be about to end, or to make the next group.
  void leave(const std::shared_ptr<Membership>& member) noexcept;

 private:
  Connector();
  ~Connector() = delete;

  struct Lookup {
    int rank = 0;
    bool wanted = false;  // somebody waits; else only prefetched
    std::uint64_t stale_nonce = 0;
    Clock::time_point stale_since{};
    std::optional<transport::AddressBlob> blob;
    std::string damaged;  // why the value in the store could not be read
  };
  struct Member {
    std::shared_ptr<Membership> membership;
    std::shared_ptr<KeyValueStore> store;  // clone, made by the thread
    std::map<int, Lookup> lookups;
    std::string store_error;  // not empty: the store is gone
    bool leaving = false;
    std::chrono::milliseconds pause{kFirstPause};
    Clock::time_point next_look{};
  };

  [[noreturn]] void run() noexcept;
  // One pass over a member; returns with the lock held again.
  void look(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Member>& member) noexcept;
  void deliver(std::unique_lock<std::mutex>& lock, const std::shared_ptr<Member>& member) noexcept;
  // The last of a member; the same.
  void say_closed(std::unique_lock<std::mutex>& lock,
                  const std::shared_ptr<Member>& member) noexcept;
  std::shared_ptr<Member> member_of(const std::shared_ptr<Membership>& membership);

  const transport::ForkGuard fork_guard_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable left_;  // a member has gone
  std::map<const Membership*, std::shared_ptr<Member>> members_;
  bool changed_ = false;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace torch_ucx::rendezvous
