// A store in the memory of one process, shared by its clones. Any thread may use it.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "torch_ucx/rendezvous/key_value_store.h"

namespace torch_ucx::rendezvous {

class MemoryStore final : public KeyValueStore {
 public:
  MemoryStore() : data_(std::make_shared<Data>()) {}

  void set(const std::string& key, const Bytes& value) override;
  [[nodiscard]] std::vector<std::optional<Bytes>> try_get(
      const std::vector<std::string>& keys) override;
  Bytes set_once(const std::string& key, const Bytes& value) override;
  void remove(const std::string& key) override;
  [[nodiscard]] std::shared_ptr<KeyValueStore> clone() override;

  // For tests: the keys there are; and every later call of any clone throws Error.
  [[nodiscard]] std::vector<std::string> keys() const;
  void break_down();

 private:
  struct Data {
    std::mutex mutex;
    std::map<std::string, Bytes> values;
    bool broken = false;
  };
  explicit MemoryStore(std::shared_ptr<Data> data) : data_(std::move(data)) {}
  [[nodiscard]] std::unique_lock<std::mutex> lock() const;

  std::shared_ptr<Data> data_;
};

}  // namespace torch_ucx::rendezvous
