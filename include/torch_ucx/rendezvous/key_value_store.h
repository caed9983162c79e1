// The store through which ranks find each other, as this project uses it. torch's stores are
// adapted in c10d/store_adapter.h; MemoryStore serves tests and programs without torch.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch_ucx/export.h"

namespace torch_ucx::rendezvous {

using Bytes = std::vector<std::byte>;

// Every method may block for a round trip, never for a key that is missing, and throws Error when
// the store cannot be reached. One thread at a time; clone() for another thread.
class TORCH_UCX_API KeyValueStore {
 public:
  virtual ~KeyValueStore();

  virtual void set(const std::string& key, const Bytes& value) = 0;

  // The values that exist, by the order of keys.
  [[nodiscard]] virtual std::vector<std::optional<Bytes>> try_get(
      const std::vector<std::string>& keys) = 0;

  // Sets the key to value if it does not exist; the value it has then. Atomic among all ranks.
  virtual Bytes set_once(const std::string& key, const Bytes& value) = 0;

  virtual void remove(const std::string& key) = 0;

  // The same store by a connection of its own.
  [[nodiscard]] virtual std::shared_ptr<KeyValueStore> clone() = 0;
};

}  // namespace torch_ucx::rendezvous
