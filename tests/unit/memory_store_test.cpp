#include "plugin/rendezvous/memory_store.h"

#include <gtest/gtest.h>

#include "torch_ucx/ucp/error.h"

namespace torch_ucx::rendezvous {
namespace {

Bytes bytes(const char* text) {
  const auto* data = reinterpret_cast<const std::byte*>(text);
  return {data, data + std::char_traits<char>::length(text)};
}

TEST(MemoryStore, ClonesShareWhatIsSet) {
  MemoryStore store;
  const auto clone = store.clone();
  store.set("a", bytes("1"));
  clone->set("b", bytes("2"));
  const auto values = store.try_get({"b", "missing", "a"});
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(values[0], bytes("2"));
  EXPECT_EQ(values[1], std::nullopt);
  EXPECT_EQ(values[2], bytes("1"));
  clone->remove("a");
  EXPECT_EQ(store.keys(), std::vector<std::string>{"b"});
}

TEST(MemoryStore, SetOnceKeepsTheFirst) {
  MemoryStore store;
  EXPECT_EQ(store.set_once("k", bytes("first")), bytes("first"));
  EXPECT_EQ(store.clone()->set_once("k", bytes("second")), bytes("first"));
}

TEST(MemoryStore, BrokenStoreThrows) {
  MemoryStore store;
  store.break_down();
  EXPECT_THROW((void)store.try_get({"a"}), Error);
  EXPECT_THROW(store.set("a", {}), Error);
}

}  // namespace
}  // namespace torch_ucx::rendezvous
