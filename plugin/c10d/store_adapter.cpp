#include "plugin/c10d/store_adapter.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "plugin/c10d/errors.h"
#include "plugin/ucp/log.h"

namespace torch_ucx {

namespace {

using rendezvous::Bytes;
using Octets = std::vector<std::uint8_t>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Bounds one answer of the TCP store on our own connection; a lookup fails after it.
constexpr std::chrono::milliseconds kLongestAnswer{60'000};

Octets to_octets(const Bytes& bytes) {
  Octets octets(bytes.size());
  if (!bytes.empty()) std::memcpy(octets.data(), bytes.data(), bytes.size());
  return octets;
}

Bytes to_bytes(const Octets& octets) {
  Bytes bytes(octets.size());
  if (!octets.empty()) std::memcpy(bytes.data(), octets.data(), octets.size());
  return bytes;
}

// What a prefix store prefixes is protected there.
struct PrefixOf : c10d::PrefixStore {
  static const std::string& read(const c10d::PrefixStore& store) {
    return store.*(&PrefixOf::prefix_);
  }
};

template <typename Function>
auto asking(const char* what, const std::string& key, const Function& function) {
  const auto failed = [&](const char* why) {
    return StoreError(std::string("the store failed (") + what + " \"" + key + "\"): " + why);
  };
  try {
    return function();
  } catch (const c10::Error& error) {
    throw failed(error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw failed(error.what());
  }
}

class StoreAdapter final : public rendezvous::KeyValueStore {
 public:
  explicit StoreAdapter(StorePtr store) : store_(std::move(store)) {}

  void set(const std::string& key, const Bytes& value) override {
    asking("set", key, [&] {
      check_file();
      store_->set(key, to_octets(value));
    });
  }

  std::vector<std::optional<Bytes>> try_get(const std::vector<std::string>& keys) override {
    std::vector<std::optional<Bytes>> values(keys.size());
    if (keys.empty()) return values;
    asking("get", keys.front(), [&] {
      check_file();
      get_present(keys, values);
    });
    return values;
  }

  Bytes set_once(const std::string& key, const Bytes& value) override {
    // All stores take an empty expected value for "does not exist", and answer with what is there.
    return asking("compare_set", key,
                  [&] { return to_bytes(store_->compareSet(key, Octets{}, to_octets(value))); });
  }

  // Stores written in Python often cannot do it; a key left behind harms nobody.
  void remove(const std::string& key) override {
    try {
      asking("delete", key, [&] {
        check_file();
        store_->deleteKey(key);
      });
    } catch (const StoreError& error) {
      log(LogLevel::debug, error.what());
    }
  }

  // Every store used here is safe to use from several threads, and none blocks for long.
  std::shared_ptr<KeyValueStore> clone() override { return std::make_shared<StoreAdapter>(store_); }

 private:
  // A FileStore whose file is gone (all other ranks have ended) would wait minutes for it.
  void check_file() const {
    const auto* file = dynamic_cast<const c10d::FileStore*>(store_.get());
    if (file != nullptr && ::access(file->getPath().c_str(), F_OK) != 0) {
      throw StoreError("its file " + file->getPath() + " is gone");
    }
  }

  // A get of a missing key blocks, so look first; by halves, because most often all are there.
  void get_present(std::span<const std::string> keys, std::span<std::optional<Bytes>> values) {
    const std::vector<std::string> names(keys.begin(), keys.end());
    if (store_->check(names)) {
      if (keys.size() > 1 && store_->hasExtendedApi()) {
        const auto found = store_->multiGet(names);
        for (std::size_t i = 0; i < found.size(); ++i) values[i] = to_bytes(found[i]);
      } else {
        for (std::size_t i = 0; i < keys.size(); ++i) values[i] = to_bytes(store_->get(keys[i]));
      }
      return;
    }
    if (keys.size() == 1) return;
    const std::size_t half = keys.size() / 2;
    get_present(keys.first(half), values.first(half));
    get_present(keys.subspan(half), values.subspan(half));
  }

  const StorePtr store_;
};

StorePtr connect_again(const c10d::TCPStore& store) {
  c10d::TCPStoreOptions options;
  options.port = store.getPort();
  options.isServer = false;
  options.waitWorkers = false;
  const auto timeout = store.getTimeout();
  options.timeout = timeout.count() > 0 ? std::min(timeout, kLongestAnswer) : kLongestAnswer;
  return c10::make_intrusive<c10d::TCPStore>(store.getHost(), options);
}

bool answers(rendezvous::KeyValueStore& store) {
  try {
    (void)store.try_get({"torch_ucx/store"});
    return true;
  } catch (const StoreError&) {
    return false;
  }
}

// The adapter of a base store; of a TCP store one for all groups that live at a time.
std::shared_ptr<rendezvous::KeyValueStore> adapter_of(const StorePtr& base) {
  // By address, not by object: a weak reference to the object would keep its server running.
  struct Memory {
    std::mutex mutex;
    std::map<std::pair<std::string, std::uint16_t>, std::weak_ptr<rendezvous::KeyValueStore>> known;
  };
  static auto& memory = *new Memory;
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(base.get());
  if (tcp == nullptr) return std::make_shared<StoreAdapter>(base);

  const std::lock_guard lock(memory.mutex);
  std::erase_if(memory.known, [](const auto& item) { return item.second.expired(); });
  auto& known = memory.known[{tcp->getHost(), tcp->getPort()}];
  auto adapter = known.lock();
  // A new server may have taken the place of the one that was there.
  if (adapter != nullptr && answers(*adapter)) return adapter;
  adapter = std::make_shared<StoreAdapter>(
      asking("connect", tcp->getHost(), [&] { return connect_again(*tcp); }));
  known = adapter;
  return adapter;
}

}  // namespace

AdaptedStore adapt_store(const StorePtr& store) {
  if (store == nullptr) throw ArgumentError("the backend ucx needs a store, got None");
  AdaptedStore adapted;
  StorePtr base = store;
  while (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(base.get())) {
    // The inner store puts its prefix before what the outer one has made of the key.
    adapted.prefix = PrefixOf::read(*prefixed) + "/" + adapted.prefix;
    base = prefixed->getUnderlyingStore();
  }
  adapted.store = adapter_of(base);
  return adapted;
}

}  // namespace torch_ucx
