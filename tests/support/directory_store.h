// A store for ranks that are processes on one host: a file a key. Atomic by rename(2) and link(2).
#pragma once

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "torch_ucx/rendezvous/key_value_store.h"

namespace torch_ucx::support {

class DirectoryStore final : public rendezvous::KeyValueStore {
 public:
  explicit DirectoryStore(std::filesystem::path directory) : directory_(std::move(directory)) {}

  void set(const std::string& key, const rendezvous::Bytes& value) override {
    std::filesystem::rename(write_temporary(value), path(key));
  }
  std::vector<std::optional<rendezvous::Bytes>> try_get(
      const std::vector<std::string>& keys) override {
    std::vector<std::optional<rendezvous::Bytes>> values;
    for (const auto& key : keys) values.push_back(read(path(key)));
    return values;
  }
  rendezvous::Bytes set_once(const std::string& key, const rendezvous::Bytes& value) override {
    const auto temporary = write_temporary(value);
    [[maybe_unused]] const int ignored = ::link(temporary.c_str(), path(key).c_str());
    std::filesystem::remove(temporary);
    return *read(path(key));
  }
  void remove(const std::string& key) override { std::filesystem::remove(path(key)); }
  std::shared_ptr<KeyValueStore> clone() override {
    return std::make_shared<DirectoryStore>(directory_);
  }
  // For other files that the ranks share.
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

 private:
  [[nodiscard]] std::filesystem::path path(std::string key) const {
    for (char& c : key) {
      if (c == '/') c = '%';
    }
    return directory_ / key;
  }
  [[nodiscard]] std::filesystem::path write_temporary(const rendezvous::Bytes& value) const {
    static std::atomic<int> counter{0};
    auto file = directory_ /
                (".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(counter.fetch_add(1)));
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(value.data()),
               static_cast<std::streamsize>(value.size()));
    return file;
  }
  static std::optional<rendezvous::Bytes> read(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) return std::nullopt;
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    return rendezvous::Bytes(data, data + text.size());
  }

  std::filesystem::path directory_;
};

}  // namespace torch_ucx::support
