// The steps without torch: UCX's own calls, the transport with a new request for each message, and
// its persistent operations.
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "benchmarks/raw_ucp.h"
#include "benchmarks/step.h"
#include "plugin/rendezvous/membership.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/group.h"

namespace torch_ucx::benchmarks {
namespace {

using rendezvous::Membership;
using transport::Engine;
using transport::EngineOptions;
using transport::Group;
using transport::GroupOptions;
using transport::Ref;
using transport::Request;

struct Buffers {
  std::vector<std::byte> out = std::vector<std::byte>(kMostBytes);
  std::vector<std::byte> in = std::vector<std::byte>(kMostBytes);
};

// Shared by the steps; the last of them ends it.
struct Self {
  Self(int own_rank, support::DirectoryStore& store)
      : rank(own_rank),
        raw(store, rank),
        group(Engine::create(EngineOptions::from_environment())
                  ->create_group(GroupOptions{rank, 2, "ladder", std::chrono::minutes(5)})),
        membership(Membership::join(group, store.clone(), "ladder/")) {}
  Self(const Self&) = delete;
  Self& operator=(const Self&) = delete;
  ~Self() {
    group->close(std::chrono::seconds(1));
    membership->leave();
  }

  Ref<Request> post(bool sends, std::size_t bytes) {
    auto request = Ref<Request>::make();
    if (sends) {
      group->send(request, memory.out.data(), bytes, 1 - rank, kClass, 0);
    } else {
      group->receive(request, memory.in.data(), bytes, 1 - rank, kClass, 0);
    }
    return request;
  }
  Ref<Request> prepare(bool sends, std::size_t bytes) {
    auto request = Ref<Request>::make();
    if (sends) {
      group->init_send(request, memory.out.data(), bytes, 1 - rank, kClass, 0);
    } else {
      group->init_receive(request, memory.in.data(), bytes, 1 - rank, kClass, 0);
    }
    return request;
  }

  static constexpr transport::MessageClass kClass = 1;
  const int rank;
  Buffers memory;
  RawUcp raw;
  std::shared_ptr<Group> group;
  std::shared_ptr<Membership> membership;
};

Step raw_step(const std::shared_ptr<Self>& self) {
  using Operation = RawUcp::Operation;
  const auto send = [self](std::size_t bytes) {
    Operation operation;
    self->raw.send(operation, self->memory.out.data(), bytes);
    self->raw.wait(operation);
  };
  const auto receive = [self](std::size_t bytes) {
    Operation operation;
    self->raw.receive(operation, self->memory.in.data(), bytes);
    self->raw.wait(operation);
  };
  return {"raw",
          [=](std::size_t bytes, int count) {
            ping_pongs(
                self->rank, count, [&] { send(bytes); }, [&] { receive(bytes); });
          },
          [=](std::size_t bytes, int count) {
            auto& raw = self->raw;
            std::array<Operation, kWindow> operations;
            for (int i = 0; i < count; ++i) {
              if (self->rank == 0) {
                for (auto& operation : operations) {
                  raw.send(operation, self->memory.out.data(), bytes);
                }
                for (auto& operation : operations) raw.wait(operation);
                receive(kAnswer);
              } else {
                for (auto& operation : operations) {
                  raw.receive(operation, self->memory.in.data(), bytes);
                }
                for (auto& operation : operations) raw.wait(operation);
                send(kAnswer);
              }
            }
          }};
}

Step transport_step(const std::shared_ptr<Self>& self) {
  const auto move = [self](bool sends, std::size_t bytes) {
    self->group->wait(*self->post(sends, bytes));
  };
  return {"transport",
          [=](std::size_t bytes, int count) {
            ping_pongs(
                self->rank, count, [&] { move(true, bytes); }, [&] { move(false, bytes); });
          },
          [=](std::size_t bytes, int count) {
            std::array<Ref<Request>, kWindow> requests;
            for (int i = 0; i < count; ++i) {
              for (auto& request : requests) request = self->post(self->rank == 0, bytes);
              for (auto& request : requests) self->group->wait(*request);
              move(self->rank == 1, kAnswer);
            }
          }};
}

Step persistent_step(const std::shared_ptr<Self>& self) {
  const auto move = [self](const Ref<Request>& request) {
    self->group->start(request);
    self->group->wait(*request);
  };
  return {"transport persistent",
          [=](std::size_t bytes, int count) {
            const auto sent = self->prepare(true, bytes);
            const auto received = self->prepare(false, bytes);
            ping_pongs(
                self->rank, count, [&] { move(sent); }, [&] { move(received); });
          },
          [=](std::size_t bytes, int count) {
            std::vector<Ref<Request>> requests;
            for (int i = 0; i < kWindow; ++i) {
              requests.push_back(self->prepare(self->rank == 0, bytes));
            }
            const auto answer = self->prepare(self->rank == 1, kAnswer);
            for (int i = 0; i < count; ++i) {
              self->group->start_all(requests);
              self->group->wait_all(requests);
              move(answer);
            }
          }};
}

}  // namespace

std::vector<Step> make_steps(int rank, support::DirectoryStore& store) {
  const auto self = std::make_shared<Self>(rank, store);
  return {raw_step(self), transport_step(self), persistent_step(self)};
}

}  // namespace torch_ucx::benchmarks
