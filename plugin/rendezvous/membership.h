// A rank's membership in a group, as the store knows it: publishes this rank's address, finds the
// others' on behalf of the transport.
//
// Keys: "<prefix>torch_ucx/<attempt>/<size>/<instance>/<rank>" -> address blob.
//   attempt   TORCHELASTIC_RESTART_COUNT, else 0: torchrun keeps its store across restarts, and an
//             address of an earlier attempt must never be taken for one of this.
//   size      of the group: the same processes may make a smaller one, and a larger one again.
//   instance  the how manieth group of this size under this prefix it is, from 1. Ranks make a
//             group together, so each counts for itself, at its place in the store
//             (".../<size>/at/<rank>": the latest instance, whether it is open, and whose it is),
//             whichever processes the ranks are. A process that finds its place held open by one
//             that is dead (or on another host) has come to replace it, and takes part in the same
//             instance.
// The store itself is told apart from others by a random id that the first comer puts into it
// ("torch_ucx/store").
// When a rank has closed the group, an address that says so takes the place of its own: a rank that
// is late learns that the other has left. It removes its keys some groups later (kGroupsKept), so
// that the set of keys does not grow.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "plugin/rendezvous/connector.h"
#include "plugin/transport/group.h"
#include "torch_ucx/rendezvous/key_value_store.h"

namespace torch_ucx::rendezvous {

class Membership final : public transport::PeerResolver,
                         public std::enable_shared_from_this<Membership> {
 public:
  // Addresses of groups up to this size are fetched in the background as soon as they appear,
  // because the store usually dies with rank 0; of larger groups when first needed.
  static constexpr int kPrefetchSize = 64;
  // Closed groups of which a process leaves its keys in the store, at most.
  static constexpr std::size_t kGroupsKept = 16;

  // Publishes group's address and becomes its resolver. store is used in the calling thread, and
  // cloned in the connector's. Throws Error when the store cannot be reached.
  static std::shared_ptr<Membership> join(const std::shared_ptr<transport::Group>& group,
                                          const std::shared_ptr<KeyValueStore>& store,
                                          const std::string& prefix);

  Membership(const std::shared_ptr<transport::Group>& group, std::shared_ptr<KeyValueStore> store,
             std::string store_id, const std::string& family, std::uint64_t instance);
  ~Membership() override;

  void want(int rank, std::uint64_t stale_nonce) noexcept override;

  // The group is closed: lookups end, and the store is told, in the connector's thread.
  void leave() noexcept;

 private:
  friend class Connector;
  // By the connector's thread, once the group is closed; throws as the store does.
  void say_closed(KeyValueStore& store) const;
  [[nodiscard]] std::string key(int rank) const { return directory_ + std::to_string(rank); }

  const std::weak_ptr<transport::Group> group_;
  const std::shared_ptr<KeyValueStore>
      store_;  // cloned by the connector's thread when first needed
  const std::string store_id_;
  const std::uint64_t instance_;
  const std::string directory_;
  const std::string own_key_;
  const std::string place_key_;
  Bytes closed_address_;  // set by leave()
  Connector& connector_;
};

}  // namespace torch_ucx::rendezvous
