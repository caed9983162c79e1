// c10d with the backend "ucx" in a C++ program, without Python. Each rank sends a tensor to its
// right neighbour; then rank 0 collects messages whose senders and sizes it does not know.
//
// Ranks find each other as torchrun and most launchers tell them: RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "torch_ucx/c10d/process_group_ucx.h"

namespace {

using namespace std::chrono_literals;

std::string setting(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) {
    throw std::runtime_error(std::string(name) +
                             " is not set: start this program with torchrun --no-python");
  }
  return value;
}

c10::intrusive_ptr<c10d::Store> connect_store(int rank, int size) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(std::stoi(setting("MASTER_PORT")));
  // torchrun's agent serves the store itself.
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  options.isServer = rank == 0 && (agent == nullptr || std::string(agent) != "True");
  options.numWorkers = size;
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>(setting("MASTER_ADDR"), options);
  return c10::make_intrusive<c10d::PrefixStore>("ring", store);
}

// What any c10d program does, whatever the backend.
void pass_around(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const int rank = group->getRank();
  const int size = group->getSize();
  std::vector<at::Tensor> out{torch::full({4}, rank, torch::kFloat32)};
  std::vector<at::Tensor> in{torch::empty({4})};
  const auto received = group->recv(in, (rank + size - 1) % size, /*tag=*/7);
  const auto sent = group->send(out, (rank + 1) % size, /*tag=*/7);
  received->wait();
  sent->wait();
  TORCH_CHECK(in[0].equal(torch::full({4}, (rank + size - 1) % size, torch::kFloat32)));
}

// What only this backend has: messages of unknown size from anybody.
void collect(torch_ucx::ProcessGroupUCX& backend) {
  const int rank = backend.getRank();
  if (rank != 0) {
    std::vector<at::Tensor> numbers{torch::arange(rank * 10)};
    backend.send(numbers, 0, /*tag=*/rank)->wait();
    return;
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(backend.getSize()), 0);
  for (int i = 1; i < backend.getSize(); ++i) {
    const auto message = backend.take(torch_ucx::ProcessGroupUCX::kAnySource,
                                      torch_ucx::ProcessGroupUCX::kAnyTag, 30s);
    TORCH_CHECK(message, "no message came within 30 s");
    const auto& info = message->info();
    const auto count = static_cast<std::int64_t>(info.bytes / c10::elementSize(info.dtype));
    std::vector<at::Tensor> numbers{torch::empty({count}, info.dtype)};
    backend.recvMessage(numbers, *message)->wait();
    TORCH_CHECK(info.tag == info.source && numbers[0].equal(torch::arange(count)));
    counts[static_cast<std::size_t>(info.source)] = count;
  }
  std::cout << "rank 0 received";
  for (std::size_t source = 1; source < counts.size(); ++source) {
    std::cout << " " << counts[source] << " numbers from rank " << source
              << (source + 1 < counts.size() ? "," : "\n");
  }
  std::cout.flush();
}

int run() {
  const int rank = std::stoi(setting("RANK"));
  const int size = std::stoi(setting("WORLD_SIZE"));
  const auto store = connect_store(rank, size);
  const auto options = c10::make_intrusive<torch_ucx::ProcessGroupUCX::Options>(60s);
  const auto backend =
      c10::make_intrusive<torch_ucx::ProcessGroupUCX>(store, rank, size, options, "ring");
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);

  pass_around(group);
  collect(*backend);
  backend->barrier()->wait();
  backend->shutdown();
  if (rank == 0) std::cout << "passed around by " << size << " ranks\n";
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  return 1;
}
