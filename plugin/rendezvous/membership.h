// A rank's membership in a group, as the store knows it: publishes this rank's address, finds the
// others' on behalf of the transport.
//
// Keys: "<prefix>torch_ucx/<attempt>/<instance>/<rank>" -> address blob.
//   attempt   TORCHELASTIC_RESTART_COUNT, else 0: torchrun keeps its store across restarts, and an
//             address of an earlier attempt must never be taken for one of this.
//   instance  how many groups this process has made under this prefix of this store, from 1: ranks
//             make a group together, so the n-th of one rank belongs to the n-th of another. The
//             store itself is told apart from others by a random id that the first comer puts into
//             it
//             ("torch_ucx/store").
// A rank removes its own key some groups after it closed the group (kKeysKept): a rank that is late
// still learns that the other has left, and the set of keys does not grow.
#pragma once

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
  // Keys of closed groups that a rank leaves in the store at most.
  static constexpr std::size_t kKeysKept = 16;

  // Publishes group's address and becomes its resolver. store is used in the calling thread, and
  // cloned in the connector's. Throws Error when the store cannot be reached.
  static std::shared_ptr<Membership> join(const std::shared_ptr<transport::Group>& group,
                                          const std::shared_ptr<KeyValueStore>& store,
                                          const std::string& prefix);

  Membership(const std::shared_ptr<transport::Group>& group, std::shared_ptr<KeyValueStore> store,
             std::string store_id, std::string directory);
  ~Membership() override;

  void want(int rank, std::uint64_t stale_nonce) noexcept override;

  // The group is closed: lookups end, the key will be removed in time.
  void leave() noexcept;

 private:
  friend class Connector;
  [[nodiscard]] std::string key(int rank) const { return directory_ + std::to_string(rank); }

  const std::weak_ptr<transport::Group> group_;
  const std::shared_ptr<KeyValueStore>
      store_;  // cloned by the connector's thread when first needed
  const std::string store_id_;
  const std::string directory_;
  const std::string own_key_;
  Connector& connector_;
};

}  // namespace torch_ucx::rendezvous
