#include "plugin/rendezvous/membership.h"

#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "plugin/transport/address_blob.h"
#include "plugin/ucp/log.h"

namespace torch_ucx::rendezvous {

namespace {

constexpr const char* kStoreIdKey = "torch_ucx/store";

// What this process remembers of the stores it has used.
struct Memory {
  std::mutex mutex;
  // (store id, prefix, attempt, rank) -> groups made so far. The rank, because a process may be
  // several.
  std::map<std::string, std::uint64_t> instances;
  // Own keys of closed groups, oldest first: store id and key.
  std::deque<std::pair<std::string, std::string>> left_behind;
};

Memory& memory() {
  static auto& instance = *new Memory;
  return instance;
}

std::string attempt() {
  const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return count == nullptr || *count == '\0' ? "0" : count;
}

std::string to_text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes random_id() {
  std::string text;
  for (int i = 0; i < 2; ++i) text += std::to_string(transport::random_bits()) + "-";
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

// Removes this process's oldest keys in that store but the youngest kKeysKept.
void remove_old_keys(KeyValueStore& store, const std::string& store_id) {
  std::vector<std::string> old;
  {
    auto& remembered = memory();
    const std::lock_guard lock(remembered.mutex);
    auto& left = remembered.left_behind;
    while (left.size() > Membership::kKeysKept) {
      if (left.front().first == store_id) old.push_back(left.front().second);
      left.pop_front();  // one of another store: that store has had its day
    }
  }
  for (const auto& key : old) store.remove(key);
}

}  // namespace

std::shared_ptr<Membership> Membership::join(const std::shared_ptr<transport::Group>& group,
                                             const std::shared_ptr<KeyValueStore>& store,
                                             const std::string& prefix) {
  const std::string store_id = to_text(store->set_once(kStoreIdKey, random_id()));
  const std::string base = prefix + "torch_ucx/" + attempt() + "/";
  std::uint64_t instance = 0;
  {
    auto& remembered = memory();
    const std::lock_guard lock(remembered.mutex);
    instance = ++remembered.instances[store_id + "|" + base + "|" + std::to_string(group->rank())];
  }
  auto membership =
      std::make_shared<Membership>(group, store, store_id, base + std::to_string(instance) + "/");
  remove_old_keys(*store, store_id);
  store->set(membership->own_key_, group->address().encode());
  group->set_resolver(membership);
  if (group->size() <= kPrefetchSize && group->size() > 1) {
    membership->connector_.prefetch(membership, group->size(), group->rank());
  }
  return membership;
}

Membership::Membership(const std::shared_ptr<transport::Group>& group,
                       std::shared_ptr<KeyValueStore> store, std::string store_id,
                       std::string directory)
    : group_(group),
      store_(std::move(store)),
      store_id_(std::move(store_id)),
      directory_(std::move(directory)),
      own_key_(key(group->rank())),
      connector_(Connector::shared()) {}

Membership::~Membership() = default;

void Membership::want(int rank, std::uint64_t stale_nonce) noexcept {
  connector_.want(shared_from_this(), rank, stale_nonce);
}

void Membership::leave() noexcept {
  connector_.forget(*this);
  auto& remembered = memory();
  const std::lock_guard lock(remembered.mutex);
  remembered.left_behind.emplace_back(store_id_, own_key_);
}

}  // namespace torch_ucx::rendezvous
