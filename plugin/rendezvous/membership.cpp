#include "plugin/rendezvous/membership.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <span>
#include <sstream>
#include <utility>

#include "plugin/transport/address_blob.h"
#include "plugin/transport/host_identity.h"
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

constexpr const char* kOpen = "open";
constexpr const char* kClosed = "closed";

// What stands in a place: "<instance> <open|closed> <process>".
struct Place {
  std::uint64_t instance = 0;
  std::string state;
  // Who: "<boot id> <pid namespace> <pid> <start time>".
  transport::HostIdentity holder;

  [[nodiscard]] std::string text() const {
    return std::to_string(instance) + " " + state + " " + holder.boot_id + " " +
           std::to_string(holder.pid_namespace) + " " + std::to_string(holder.pid) + " " +
           std::to_string(holder.start_time);
  }
  static Place parse(const std::string& text) {
    Place place;
    std::istringstream in(text);
    in >> place.instance >> place.state >> place.holder.boot_id >> place.holder.pid_namespace >>
        place.holder.pid >> place.holder.start_time;
    return place;
  }
  static Place own(std::uint64_t instance, const char* state) {
    return {instance, state, transport::HostIdentity::of_this_process()};
  }
  [[nodiscard]] bool same_holder(const Place& other) const {
    return holder.same_pid_space(other.holder) && holder.pid == other.holder.pid &&
           holder.start_time == other.holder.start_time;
  }
};

// The instance that follows what is in a place. One that another process has left open, because it
// died, is taken over; a holder of another host, of which nothing is known, counts as dead.
std::uint64_t after(const std::string& text) {
  const Place place = Place::parse(text);
  const Place own = Place::own(0, kOpen);
  if (place.state != kOpen || place.same_holder(own)) return place.instance + 1;
  const bool lives = place.holder.same_pid_space(own.holder) &&
                     transport::start_time_of(place.holder.pid) == place.holder.start_time;
  return lives ? place.instance + 1 : place.instance;
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
  store->set(place_key, to_bytes(Place::own(instance, kOpen).text()));
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
  const std::string closed = Place::own(instance_, kClosed).text();
  {
    auto& remembered = memory();
    const std::lock_guard lock(remembered.mutex);
    remembered.left_behind.push_back({store_id_, own_key_, place_key_, closed});
  }
  // Another process may have taken this rank over meanwhile: in a later instance, or in this one.
  const Place now = Place::parse(value_of(store, place_key_));
  const bool own_place = now.instance == instance_ && now.same_holder(Place::own(0, kOpen));
  if (!closed_address_.empty() && (own_place || now.instance != instance_)) {
    store.set(own_key_, closed_address_);
  }
  if (own_place) store.set(place_key_, to_bytes(closed));
}

}  // namespace torch_ucx::rendezvous
