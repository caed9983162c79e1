// The address blob: round trip, every truncation, every damaged byte, other versions.
#include "plugin/transport/address_blob.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "plugin/transport/error_mode.h"
#include "torch_ucx/transport/tag.h"
#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {
namespace {

AddressBlob sample() {
  AddressBlob blob;
  blob.ucx = {1, 22, 3};
  blob.plugin_version = "0.1.0";
  blob.error_mode = ErrorModeWish::peer;
  blob.engine = {0x0123456789abcdefULL, ~0ULL};
  blob.mailbox = kMaxMailbox;
  blob.nonce = 42;
  blob.host = {"node-7", "1b4e28ba-2fa1-11d2-883f-0016d3cca427", 4026531836, 4242, 123456};
  blob.tls = "rc,sm,self";
  for (int i = 0; i < 300; ++i) blob.worker_address.push_back(static_cast<std::byte>(i));
  return blob;
}

std::string refusal(const std::vector<std::byte>& bytes) {
  try {
    (void)AddressBlob::decode(bytes);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// The checksum of a changed body, so that only the change under test is wrong.
std::vector<std::byte> with_format(std::uint16_t format) {
  auto bytes = sample().encode();
  bytes[4] = static_cast<std::byte>(format & 0xff);
  bytes[5] = static_cast<std::byte>(format >> 8);
  return bytes;
}

TEST(AddressBlob, RoundTrip) {
  const auto blob = sample();
  EXPECT_EQ(AddressBlob::decode(blob.encode()), blob);
  const AddressBlob empty;
  EXPECT_EQ(AddressBlob::decode(empty.encode()), empty);
}

TEST(AddressBlob, EveryTruncationIsRefused) {
  const auto bytes = sample().encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(refusal({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}),
              "accepted")
        << size;
  }
}

TEST(AddressBlob, EveryDamagedByteIsRefused) {
  const auto bytes = sample().encode();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= std::byte{0x10};
    EXPECT_NE(refusal(damaged), "accepted") << i;
  }
}

TEST(AddressBlob, SurplusBytesAreRefused) {
  auto bytes = sample().encode();
  bytes.push_back(std::byte{0});
  EXPECT_NE(refusal(bytes), "accepted");
}

TEST(AddressBlob, OtherFormatsAndOtherThingsAreNamed) {
  EXPECT_NE(refusal(with_format(2)).find("its format is 2, this torch_ucx reads format 1"),
            std::string::npos)
      << refusal(with_format(2));
  const std::vector<std::byte> other(64, std::byte{'x'});
  EXPECT_NE(refusal(other).find("not an address of torch_ucx"), std::string::npos);
}

AddressBlob on_host(const char* boot_id, ucp::LibraryVersion ucx, ErrorModeWish wish,
                    const char* tls = "") {
  AddressBlob blob;
  blob.host.boot_id = boot_id;
  blob.ucx = ucx;
  blob.error_mode = wish;
  blob.tls = tls;
  return blob;
}

TEST(ErrorMode, IsSymmetricAndFollowsHostVersionAndWish) {
  using enum ErrorModeWish;
  const ucp::LibraryVersion old{1, 13, 1};
  const ucp::LibraryVersion fresh{1, 22, 0};
  const struct {
    AddressBlob a, b;
    bool peer;
  } cases[] = {
      {on_host("h", fresh, automatic), on_host("h", fresh, automatic), false},
      {on_host("h", old, automatic), on_host("h", old, automatic), true},
      {on_host("h", old, automatic), on_host("h", fresh, automatic), true},
      {on_host("h", fresh, automatic), on_host("g", fresh, automatic), true},
      {on_host("h", fresh, automatic), on_host("h", fresh, peer), true},
      {on_host("h", old, none), on_host("h", old, automatic), false},
      {on_host("h", fresh, automatic, "tcp,self"), on_host("h", fresh, automatic), true},
      {on_host("h", fresh, automatic, "posix,cma,self"), on_host("h", fresh, automatic, "sm"),
       false},
      {on_host("h", fresh, automatic, "^rc"), on_host("h", fresh, automatic, "all"), false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(peer_error_mode(c.a, c.b), c.peer) << (&c - cases);
    EXPECT_EQ(peer_error_mode(c.b, c.a), c.peer) << (&c - cases);
  }
  EXPECT_THROW((void)peer_error_mode(on_host("h", old, none), on_host("h", old, peer)),
               ArgumentError);
}

TEST(HostIdentity, DescribesThisProcess) {
  const auto self = HostIdentity::of_this_process();
  EXPECT_EQ(self.pid, static_cast<std::uint64_t>(getpid()));
  EXPECT_FALSE(self.boot_id.empty());
  EXPECT_GT(self.start_time, 0u);
  EXPECT_EQ(start_time_of(self.pid), self.start_time);
  EXPECT_TRUE(self.same_pid_space(self));
  auto other = self;
  other.pid_namespace += 1;
  EXPECT_TRUE(self.same_host(other));
  EXPECT_FALSE(self.same_pid_space(other));
}

}  // namespace
}  // namespace torch_ucx::transport
