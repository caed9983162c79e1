// One rank of a small job, as the contract tests use it: posts messages whose buffers it owns.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "plugin/rendezvous/membership.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/group.h"

namespace torch_ucx::contract {

using namespace std::chrono_literals;
using transport::Engine;
using transport::EngineOptions;
using transport::Failure;
using transport::Group;
using transport::GroupOptions;
using transport::Ref;
using transport::Request;

// A request that owns its buffer.
struct BufferRequest final : Request {
  explicit BufferRequest(std::size_t bytes) : data(bytes) {}
  explicit BufferRequest(std::vector<std::byte> bytes) : data(std::move(bytes)) {}
  void on_done() noexcept override { told.store(true); }

  std::vector<std::byte> data;
  std::atomic<bool> told{false};
};

// bytes that depend on seed and offset
inline std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<std::byte>((i * 131 + seed * 7919 + (i >> 8)) & 0xff);
  }
  return data;
}

// One rank: a group on an engine of its own.
struct Rank {
  std::shared_ptr<Group> group;
  std::shared_ptr<rendezvous::Membership> membership;

  Rank() = default;
  Rank(const std::shared_ptr<Engine>& engine, rendezvous::KeyValueStore& store, int rank, int size,
       const std::string& name = "test", std::chrono::milliseconds timeout = 20s)
      : group(engine->create_group(GroupOptions{rank, size, name, timeout})),
        membership(rendezvous::Membership::join(group, store.clone(), name + "/")) {}
  Rank(Rank&&) = default;
  Rank& operator=(Rank&&) = default;
  ~Rank() { close(); }

  void close(std::chrono::milliseconds linger = 5s) {
    if (group == nullptr) return;
    group->close(linger);
    membership->leave();
    group.reset();
    membership.reset();
  }

  Ref<BufferRequest> send(std::vector<std::byte> data, int dst, std::uint64_t tag = 0,
                          transport::MessageClass message_class = 1) const {
    auto request = Ref<BufferRequest>::make(std::move(data));
    group->send(request, request->data.data(), request->data.size(), dst, message_class, tag);
    return request;
  }
  Ref<BufferRequest> receive(std::size_t bytes, int src, std::uint64_t tag = 0,
                             transport::MessageClass message_class = 1) const {
    auto request = Ref<BufferRequest>::make(bytes);
    group->receive(request, request->data.data(), bytes, src, message_class, tag);
    return request;
  }
  void wait(const Ref<BufferRequest>& request, std::chrono::milliseconds timeout = {}) const {
    group->wait(*request, timeout);
    ASSERT_TRUE(request->done());
  }
  // Waits, and demands success.
  void finish(const Ref<BufferRequest>& request) const {
    wait(request);
    ASSERT_TRUE(request->outcome().ok()) << request->describe();
  }
};

}  // namespace torch_ucx::contract
