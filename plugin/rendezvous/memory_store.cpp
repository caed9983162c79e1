#include "plugin/rendezvous/memory_store.h"

#include "torch_ucx/ucp/error.h"

namespace torch_ucx::rendezvous {

KeyValueStore::~KeyValueStore() = default;

std::unique_lock<std::mutex> MemoryStore::lock() const {
  std::unique_lock guard(data_->mutex);
  if (data_->broken) throw Error("the store is gone");
  return guard;
}

void MemoryStore::set(const std::string& key, const Bytes& value) {
  const auto guard = lock();
  data_->values[key] = value;
}

std::vector<std::optional<Bytes>> MemoryStore::try_get(const std::vector<std::string>& keys) {
  const auto guard = lock();
  std::vector<std::optional<Bytes>> values;
  for (const auto& key : keys) {
    const auto found = data_->values.find(key);
    values.push_back(found == data_->values.end() ? std::nullopt : std::optional(found->second));
  }
  return values;
}

Bytes MemoryStore::set_once(const std::string& key, const Bytes& value) {
  const auto guard = lock();
  return data_->values.try_emplace(key, value).first->second;
}

void MemoryStore::remove(const std::string& key) {
  const auto guard = lock();
  data_->values.erase(key);
}

std::shared_ptr<KeyValueStore> MemoryStore::clone() {
  return std::shared_ptr<MemoryStore>(new MemoryStore(data_));
}

std::vector<std::string> MemoryStore::keys() const {
  const auto guard = lock();
  std::vector<std::string> keys;
  for (const auto& [key, value] : data_->values) keys.push_back(key);
  return keys;
}

void MemoryStore::break_down() {
  const std::lock_guard guard(data_->mutex);
  data_->broken = true;
}

}  // namespace torch_ucx::rendezvous
