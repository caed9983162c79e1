#include "plugin/rendezvous/membership.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
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

// A rank that has closed its group: what it has left in the store.
struct LeftBehind {
  std::string store_id;
  std::string address_key;
  std::string place_key;
  std::string place;  // the value of place_key, unless another group has taken it over
};

// What this process remembers of the stores it has used.
struct Memory {
  std::mutex mutex;
  // (store id, place key) -> the latest instance this process was in at that place.
  std::map<std::string, std::uint64_t> instances;
  std::deque<LeftBehind> left_behind;  // oldest first
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

Bytes to_bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

Bytes random_id() {
  return to_bytes(std::to_string(transport::random_bits()) + "-" +
                  std::to_string(transport::random_bits()));
}

// Tells this process from others in a place; from its forked children, too.
std::string process_token() {
  static const std::uint64_t random = transport::random_bits();
  return std::to_string(random) + "." + std::to_string(::getpid());
}

constexpr const char* kOpen = " open ";
constexpr const char* kClosed = " closed ";

std::string place_value(std::uint64_t instance, const char* state) {
  return std::to_string(instance) + state + process_token();
}

// The instance that follows what is in a place.
std::uint64_t after(const std::string& place) {
  const auto instance = std::strtoull(place.c_str(), nullptr, 10);
  const auto open = place.find(kOpen);
  // Not closed by another process: that one has died, and this one takes its place in the group.
  const bool replaces =
      open != std::string::npos &&
      place.compare(open + std::strlen(kOpen), std::string::npos, process_token()) != 0;
  return replaces ? instance : instance + 1;
}

std::string value_of(KeyValueStore& store, const std::string& key) {
  const auto values = store.try_get({key});
  return values.front() ? to_text(*values.front()) : "";
}

// Removes what this process's oldest closed groups have left, but for the youngest kGroupsKept.
void remove_old_keys(KeyValueStore& store, const std::string& store_id) {
  std::vector<LeftBehind> old;
  {
    auto& remembered = memory();
    const std::lock_guard lock(remembered.mutex);
    auto& left = remembered.left_behind;
    while (left.size() > Membership::kGroupsKept) {
      if (left.front().store_id == store_id) old.push_back(std::move(left.front()));
      left.pop_front();  // one of another store: that store has had its day
    }
  }
  for (const auto& group : old) {
    store.remove(group.address_key);
    if (value_of(store, group.place_key) == group.place) store.remove(group.place_key);
  }
}

}  // namespace

std::shared_ptr<Membership> Membership::join(const std::shared_ptr<transport::Group>& group,
                                             const std::shared_ptr<KeyValueStore>& store,
                                             const std::string& prefix) {
  const std::string store_id = to_text(store->set_once(kStoreIdKey, random_id()));
  const std::string family =
      prefix + "torch_ucx/" + attempt() + "/" + std::to_string(group->size()) + "/";
  const std::string place_key = family + "at/" + std::to_string(group->rank());
  std::uint64_t instance = after(value_of(*store, place_key));
  {
    auto& remembered = memory();
    const std::lock_guard lock(remembered.mutex);
    auto& latest = remembered.instances[store_id + "|" + place_key];
    instance = latest = std::max(instance, latest + 1);
  }
  auto membership = std::make_shared<Membership>(group, store, store_id, family, instance);
  remove_old_keys(*store, store_id);
  store->set(place_key, to_bytes(place_value(instance, kOpen)));
  store->set(membership->own_key_, group->address().encode());
  group->set_resolver(membership);
  if (group->size() <= kPrefetchSize && group->size() > 1) {
    membership->connector_.prefetch(membership, group->size(), group->rank());
  }
  return membership;
}

Membership::Membership(const std::shared_ptr<transport::Group>& group,
                       std::shared_ptr<KeyValueStore> store, std::string store_id,
                       const std::string& family, std::uint64_t instance)
    : group_(group),
      store_(std::move(store)),
      store_id_(std::move(store_id)),
      instance_(instance),
      directory_(family + std::to_string(instance) + "/"),
      own_key_(key(group->rank())),
      place_key_(family + "at/" + std::to_string(group->rank())),
      connector_(Connector::shared()) {}

Membership::~Membership() = default;

void Membership::want(int rank, std::uint64_t stale_nonce) noexcept {
  connector_.want(shared_from_this(), rank, stale_nonce);
}

void Membership::leave() noexcept {
  if (const auto group = group_.lock()) closed_address_ = group->closed_address().encode();
  connector_.leave(shared_from_this());
}

void Membership::say_closed(KeyValueStore& store) const {
  const std::string place = place_value(instance_, kClosed);
  {
    auto& remembered = memory();
    const std::lock_guard lock(remembered.mutex);
    remembered.left_behind.push_back({store_id_, own_key_, place_key_, place});
  }
  if (!closed_address_.empty()) store.set(own_key_, closed_address_);
  store.set(place_key_, to_bytes(place));
}

}  // namespace torch_ucx::rendezvous
