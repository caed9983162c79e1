// The steps in C++ with torch: the backend called directly, and through c10d::ProcessGroup, whose
// send and recv pass torch's dispatcher.
#include <ATen/ops/zeros.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "benchmarks/step.h"
#include "torch_ucx/c10d/process_group_ucx.h"

namespace torch_ucx::benchmarks {
namespace {

using Tensors = std::vector<at::Tensor>;

Tensors zeros(std::size_t bytes) {
  return {at::zeros({static_cast<std::int64_t>(bytes)}, at::kByte)};
}

// Group: whatever has c10d's send and recv.
template <typename Group>
Step step(const char* name, int rank, const c10::intrusive_ptr<Group>& group, const Tensors& out,
          const Tensors& in) {
  const int other = 1 - rank;
  const auto part = [](const Tensors& tensors, std::size_t bytes) -> Tensors {
    return {tensors[0].narrow(0, 0, static_cast<std::int64_t>(bytes))};
  };
  return {name,
          [=](std::size_t bytes, int count) {
            auto sent = part(out, bytes);
            auto received = part(in, bytes);
            ping_pongs(
                rank, count, [&] { group->send(sent, other, 0)->wait(); },
                [&] { group->recv(received, other, 0)->wait(); });
          },
          [=](std::size_t bytes, int count) {
            auto message = part(rank == 0 ? out : in, bytes);
            auto answer = part(rank == 1 ? out : in, kAnswer);
            std::vector<c10::intrusive_ptr<c10d::Work>> works(kWindow);
            for (int i = 0; i < count; ++i) {
              for (auto& work : works) {
                work = rank == 0 ? group->send(message, other, 0) : group->recv(message, other, 0);
              }
              for (auto& work : works) work->wait();
              const auto last =
                  rank == 1 ? group->send(answer, other, 0) : group->recv(answer, other, 0);
              last->wait();
            }
          }};
}

}  // namespace

std::vector<Step> make_steps(int rank, support::DirectoryStore& store) {
  const auto file = c10::make_intrusive<c10d::FileStore>((store.directory() / "c10d").string(), 2);
  const auto options = c10::make_intrusive<ProcessGroupUCX::Options>(std::chrono::minutes(5));
  const auto backend = c10::make_intrusive<ProcessGroupUCX>(file, rank, 2, options, "ladder");
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(file, rank, 2);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  const auto out = zeros(kMostBytes);
  const auto in = zeros(kMostBytes);
  return {step("Backend", rank, backend, out, in),
          step("c10d::ProcessGroup", rank, group, out, in)};
}

}  // namespace torch_ucx::benchmarks
