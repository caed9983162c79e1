// An open group of this process: its transport and its membership in the store, which end together.
//
// Thread rule: any thread may call; the first close() tears down, later ones return at once (a
// continuation may close the group that another thread is closing and that waits for it).
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "plugin/rendezvous/membership.h"
#include "plugin/transport/group.h"
#include "torch_ucx/rendezvous/key_value_store.h"

namespace torch_ucx {

class LiveGroup {
  struct Key {};

 public:
  [[nodiscard]] static std::shared_ptr<LiveGroup> open(
      const transport::GroupOptions& options,
      const std::shared_ptr<rendezvous::KeyValueStore>& store, const std::string& prefix);

  LiveGroup(Key, std::shared_ptr<transport::Group> group);
  LiveGroup(const LiveGroup&) = delete;
  LiveGroup& operator=(const LiveGroup&) = delete;
  ~LiveGroup();

  [[nodiscard]] transport::Group& group() const noexcept { return *group_; }
  [[nodiscard]] const std::shared_ptr<transport::Group>& shared_group() const noexcept {
    return group_;
  }

  // linger: how long to wait for sends not yet taken; nothing for the engine's option. Releases the
  // GIL if the caller holds it.
  void close(std::optional<std::chrono::milliseconds> linger = std::nullopt) noexcept;

  // Closes all of the process. Their lingering counts as one.
  static void close_all() noexcept;

 private:
  const std::shared_ptr<transport::Group> group_;
  std::shared_ptr<rendezvous::Membership> membership_;  // constant once the group is open
  std::atomic<bool> closed_{false};
};

}  // namespace torch_ucx
