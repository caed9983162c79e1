#include "plugin/rendezvous/connector.h"

#include <algorithm>
#include <utility>

#include "plugin/rendezvous/membership.h"
#include "plugin/transport/thread_setup.h"
#include "plugin/ucp/log.h"

namespace torch_ucx::rendezvous {

using transport::AddressBlob;
using transport::Group;

Connector& Connector::shared() {
  static std::mutex mutex;
  static Connector* current = nullptr;  // never deleted
  const std::lock_guard lock(mutex);
  // The thread of a parent process does not exist in a forked child: start anew.
  if (current == nullptr || current->fork_guard_.forked()) current = new Connector;
  return *current;
}

Connector::Connector() {
  thread_ = transport::start_thread("ucx-connect", [this] { run(); });
}

std::shared_ptr<Connector::Member> Connector::member_of(
    const std::shared_ptr<Membership>& membership) {
  auto& member = members_[membership.get()];
  if (member == nullptr) {
    member = std::make_shared<Member>();
    member->membership = membership;
  }
  return member;
}

void Connector::want(const std::shared_ptr<Membership>& membership, int rank,
                     std::uint64_t stale_nonce) noexcept {
  const std::lock_guard lock(mutex_);
  const auto member = member_of(membership);
  if (member->leaving) return;
  Lookup& lookup = member->lookups[rank];
  lookup.rank = rank;
  lookup.wanted = true;
  if (stale_nonce != 0) {
    if (lookup.stale_nonce != stale_nonce) lookup.stale_since = Clock::now();
    lookup.stale_nonce = stale_nonce;
    if (lookup.blob && lookup.blob->nonce == stale_nonce) lookup.blob.reset();
  }
  member->pause = kFirstPause;
  member->next_look = Clock::now();
  changed_ = true;
  wake_.notify_one();
}

void Connector::prefetch(const std::shared_ptr<Membership>& membership, int size,
                         int own_rank) noexcept {
  const std::lock_guard lock(mutex_);
  const auto member = member_of(membership);
  for (int rank = 0; rank < size; ++rank) {
    if (rank != own_rank) member->lookups[rank].rank = rank;
  }
  changed_ = true;
  wake_.notify_one();
}

void Connector::leave(const std::shared_ptr<Membership>& membership) noexcept {
  std::unique_lock lock(mutex_);
  const auto member = member_of(membership);
  member->leaving = true;
  member->lookups.clear();
  member->next_look = Clock::now();
  changed_ = true;
  wake_.notify_one();
  left_.wait_for(lock, kLeaveLimit, [&] { return !members_.contains(membership.get()); });
}

void Connector::say_closed(std::unique_lock<std::mutex>& lock,
                           const std::shared_ptr<Member>& member) noexcept {
  const auto membership = member->membership;
  lock.unlock();
  try {
    if (member->store == nullptr) member->store = membership->store_->clone();
    membership->say_closed(*member->store);
  } catch (const std::exception& error) {  // the store is gone: nobody is left to be told
    log(LogLevel::debug, error.what());
  }
  member->store.reset();
  lock.lock();
  members_.erase(membership.get());
  left_.notify_all();
}

void Connector::run() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_ = false;
    std::vector<std::shared_ptr<Member>> due;
    const auto now = Clock::now();
    for (const auto& [key, member] : members_) {
      if (member->next_look <= now) due.push_back(member);
    }
    for (const auto& member : due) {
      if (member->leaving) {
        say_closed(lock, member);
      } else {
        look(lock, member);
        deliver(lock, member);
      }
    }
    due.clear();
    auto next = Clock::time_point::max();
    for (const auto& [key, member] : members_) next = std::min(next, member->next_look);
    const auto woken = [&] { return changed_; };
    if (next == Clock::time_point::max()) {
      wake_.wait(lock, woken);
    } else {
      wake_.wait_until(lock, next, woken);
    }
  }
}

void Connector::look(std::unique_lock<std::mutex>& lock,
                     const std::shared_ptr<Member>& member) noexcept {
  std::vector<int> ranks;
  std::vector<std::string> keys;
  for (const auto& [rank, lookup] : member->lookups) {
    if (lookup.blob) continue;
    ranks.push_back(rank);
    keys.push_back(member->membership->key(rank));
  }
  if (ranks.empty() || !member->store_error.empty()) return;
  lock.unlock();
  std::vector<std::optional<Bytes>> values;
  std::string error;
  try {
    if (member->store == nullptr) member->store = member->membership->store_->clone();
    values = member->store->try_get(keys);
  } catch (const std::exception& exception) {
    error = exception.what();
  }
  lock.lock();
  member->store_error = error;
  for (std::size_t i = 0; i < values.size(); ++i) {
    Lookup& lookup = member->lookups[ranks[i]];
    if (!values[i] || lookup.blob) continue;
    try {
      auto blob = AddressBlob::decode(*values[i]);
      if (blob.nonce != lookup.stale_nonce || blob.closed()) lookup.blob = std::move(blob);
      lookup.damaged.clear();
    } catch (const std::exception& exception) {
      lookup.damaged = exception.what();
    }
  }
}

void Connector::deliver(std::unique_lock<std::mutex>& lock,
                        const std::shared_ptr<Member>& member) noexcept {
  if (member->leaving) return;  // since the look: it is due again
  struct Answer {
    int rank;
    std::optional<AddressBlob> blob;
    std::string reason;
    Group::NotFound what;
  };
  std::vector<Answer> answers;
  bool missing = false;
  const auto now = Clock::now();
  for (auto& [rank, lookup] : member->lookups) {
    if (lookup.blob) {
      if (!std::exchange(lookup.wanted, false)) continue;
      if (lookup.blob->closed()) {
        answers.push_back({rank, std::nullopt, "it closed the group before this rank made contact",
                           Group::NotFound::left});
      } else {
        answers.push_back({rank, lookup.blob, "", {}});
      }
      continue;
    }
    missing = true;
    if (!lookup.wanted) continue;
    if (!member->store_error.empty()) {
      answers.push_back(
          {rank, std::nullopt,
           "its address is not known, and the store cannot be asked: " + member->store_error,
           Group::NotFound::no_store});
    } else if (!lookup.damaged.empty()) {
      answers.push_back({rank, std::nullopt, lookup.damaged, Group::NotFound::dead});
    } else if (lookup.stale_nonce != 0 && now - lookup.stale_since > kReplacementGrace) {
      answers.push_back(
          {rank, std::nullopt,
           "its process has died, or cannot be reached, and no other has taken its place",
           Group::NotFound::dead});
    } else {
      continue;
    }
    lookup.wanted = false;
    lookup.stale_nonce = 0;
  }
  if (!missing || !member->store_error.empty()) {
    member->next_look = Clock::time_point::max();
    member->store.reset();  // its connection is not needed any more
  } else {
    member->next_look = now + member->pause;
    member->pause = std::min(member->pause * 2, kLongestPause);
  }
  const auto group = member->membership->group_.lock();
  lock.unlock();
  for (const Answer& answer : answers) {
    if (group == nullptr) break;
    if (answer.blob) {
      group->peer_found(answer.rank, *answer.blob);
    } else {
      group->peer_not_found(answer.rank, answer.reason, answer.what);
    }
  }
  lock.lock();
}

}  // namespace torch_ucx::rendezvous
