// Bytes of address blobs and control messages: little-endian integers, length-prefixed strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "torch_ucx/ucp/error.h"

namespace torch_ucx::transport {

class WireWriter {
 public:
  template <typename T>
  void number(T value) {
    static_assert(std::is_unsigned_v<T>);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(value >> (8 * i) & 0xff));
    }
  }
  void bytes(std::span<const std::byte> data) {
    number(static_cast<std::uint32_t>(data.size()));
    bytes_.insert(bytes_.end(), data.begin(), data.end());
  }
  void text(const std::string& data) { bytes(std::as_bytes(std::span(data.data(), data.size()))); }

  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

// Every read checks what is left: a message cut short, or made up, throws Error and reads nothing
// outside its bytes.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  [[nodiscard]] T number() {
    static_assert(std::is_unsigned_v<T>);
    const auto data = take(sizeof(T));
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(data[i])) << (8 * i));
    }
    return value;
  }
  [[nodiscard]] std::vector<std::byte> bytes() {
    const auto data = take(number<std::uint32_t>());
    return {data.begin(), data.end()};
  }
  [[nodiscard]] std::string text() {
    const auto data = take(number<std::uint32_t>());
    return {reinterpret_cast<const char*>(data.data()), data.size()};
  }
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

 private:
  std::span<const std::byte> take(std::size_t count) {
    if (count > rest_.size()) throw Error("message is cut short");
    const auto data = rest_.first(count);
    rest_ = rest_.subspan(count);
    return data;
  }

  std::span<const std::byte> rest_;
};

}  // namespace torch_ucx::transport
