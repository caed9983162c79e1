// torch's stores seen through the adapter: same keys, no blocking on what is missing, one
// connection.
#include "plugin/c10d/store_adapter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "plugin/c10d/errors.h"

namespace torch_ucx {
namespace {

using namespace std::chrono_literals;
using rendezvous::Bytes;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

Bytes bytes(const std::string& text) {
  Bytes result;
  for (const char c : text) result.push_back(static_cast<std::byte>(c));
  return result;
}

std::string text(const std::vector<std::uint8_t>& octets) { return {octets.begin(), octets.end()}; }

StorePtr prefixed(const std::string& prefix, StorePtr store) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

c10::intrusive_ptr<c10d::TCPStore> tcp_server() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  options.timeout = 20s;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

class ScratchFile {
 public:
  ScratchFile()
      : path_(std::filesystem::temp_directory_path() /
              ("store_adapter_test." + std::to_string(::getpid()))) {}
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  [[nodiscard]] std::string path() const { return path_.string(); }
  [[nodiscard]] bool exists() const { return std::filesystem::exists(path_); }

 private:
  std::filesystem::path path_;
};

// What every store must do.
void check_contract(const StorePtr& store) {
  const AdaptedStore adapted = adapt_store(store);
  auto& values = *adapted.store;
  values.set("a", bytes("1"));
  values.set("empty", bytes(""));
  const auto begin = std::chrono::steady_clock::now();
  const auto found = values.try_get({"a", "missing", "empty", "none"});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[0], bytes("1"));
  EXPECT_FALSE(found[1].has_value());
  EXPECT_EQ(found[2], bytes(""));
  EXPECT_FALSE(found[3].has_value());
  EXPECT_EQ(values.try_get({"a", "a"}), (std::vector<std::optional<Bytes>>(2, bytes("1"))));
  EXPECT_TRUE(values.try_get({}).empty());

  EXPECT_EQ(values.set_once("once", bytes("first")), bytes("first"));
  EXPECT_EQ(values.set_once("once", bytes("second")), bytes("first"));
  EXPECT_EQ(values.clone()->try_get({"once"})[0], bytes("first"));

  values.remove("a");
  values.remove("missing");
  EXPECT_FALSE(values.try_get({"a"})[0].has_value());
}

TEST(StoreAdapter, HashStore) { check_contract(c10::make_intrusive<c10d::HashStore>()); }

TEST(StoreAdapter, TcpStore) { check_contract(tcp_server()); }

TEST(StoreAdapter, FileStore) {
  const ScratchFile file;
  check_contract(c10::make_intrusive<c10d::FileStore>(file.path(), 1));
}

TEST(StoreAdapter, PrefixesAreThoseOfTorch) {
  const auto base = c10::make_intrusive<c10d::HashStore>();
  const auto store = prefixed("cpu/", prefixed("group", base));
  const AdaptedStore adapted = adapt_store(store);
  EXPECT_EQ(adapted.prefix, "group/cpu//");
  adapted.store->set(adapted.prefix + "key", bytes("value"));
  EXPECT_EQ(text(store->get("key")), "value");
  EXPECT_EQ(adapt_store(base).prefix, "");
}

TEST(StoreAdapter, GroupsShareOneTcpConnectionAsLongAsOneLives) {
  const auto base = tcp_server();
  auto first = adapt_store(prefixed("1", base));
  EXPECT_EQ(first.store, adapt_store(prefixed("2", base)).store);
  EXPECT_NE(first.store, adapt_store(tcp_server()).store);
  const std::weak_ptr<rendezvous::KeyValueStore> before = first.store;
  first.store.reset();
  EXPECT_TRUE(before.expired());
  EXPECT_NE(adapt_store(base).store, nullptr);
}

TEST(StoreAdapter, AWaitOnTheUsersTcpStoreDelaysNobody) {
  const auto base = tcp_server();
  const AdaptedStore adapted = adapt_store(base);
  std::thread waiting([&] { base->wait({"late"}, 20s); });
  std::this_thread::sleep_for(50ms);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(adapted.store->try_get({"x"})[0].has_value());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
  adapted.store->set("late", bytes("now"));
  waiting.join();
}

TEST(StoreAdapter, ATcpServerThatIsGoneIsAnError) {
  auto base = tcp_server();
  const AdaptedStore adapted = adapt_store(base);
  base.reset();  // the adapter does not keep the server alive
  EXPECT_THROW((void)adapted.store->try_get({"x"}), StoreError);
}

TEST(StoreAdapter, AServerThatTookTheOthersPlaceIsConnectedAnew) {
  auto base = tcp_server();
  const auto port = base->getPort();
  const AdaptedStore before = adapt_store(base);
  base.reset();
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  const auto next = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  const AdaptedStore after = adapt_store(next);
  EXPECT_NE(after.store, before.store);
  after.store->set("key", bytes("value"));
  EXPECT_EQ(text(next->get("key")), "value");
}

TEST(StoreAdapter, TheFileOfAFileStoreIsRemovedWithItsLastUser) {
  const ScratchFile file;
  auto first = c10::make_intrusive<c10d::FileStore>(file.path(), 2);
  auto second = c10::make_intrusive<c10d::FileStore>(file.path(), 2);
  {
    const AdaptedStore adapted = adapt_store(first);
    const auto other = adapted.store->clone();
    first.reset();
    EXPECT_TRUE(file.exists());
  }
  EXPECT_TRUE(file.exists());
  const AdaptedStore adapted = adapt_store(second);
  std::filesystem::remove(file.path());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THROW((void)adapted.store->try_get({"x"}), StoreError);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

TEST(StoreAdapter, NoStoreIsRefused) { EXPECT_THROW((void)adapt_store(nullptr), ArgumentError); }

}  // namespace
}  // namespace torch_ucx
