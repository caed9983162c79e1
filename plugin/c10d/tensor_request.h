// A send or receive whose buffer is a tensor: keeps the tensor alive until the transport lets go of
// it, and completes a future when somebody asked for one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "plugin/transport/request.h"

namespace torch_ucx {

class TensorRequest final : public transport::Request {
 public:
  explicit TensorRequest(at::Tensor tensor) noexcept : tensor_(std::move(tensor)) {}

  [[nodiscard]] const at::Tensor& tensor() const noexcept { return tensor_; }

  // Torch's exception of a failed request; null for one that went well. Only once done() is true.
  [[nodiscard]] std::exception_ptr failure() const;

  // Completed on the callback thread with the list of the one tensor, or with failure(). Posted
  // requests only. Always the same one.
  [[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> future();

 private:
  void on_done() noexcept override;

  const at::Tensor tensor_;
  std::once_flag future_once_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The one tensor of a list, as it can be handed to the transport: dense, in CPU memory, contiguous.
// What cannot is refused with c10::ValueError. A send may go from a contiguous copy.
[[nodiscard]] at::Tensor tensor_to_send(const std::vector<at::Tensor>& tensors);
[[nodiscard]] at::Tensor tensor_to_receive(const std::vector<at::Tensor>& tensors,
                                           const char* operation);

// How many bytes its message has: those of its elements, also where several share a byte.
[[nodiscard]] std::uint64_t message_bytes_of(const at::Tensor& tensor);

// The class of its messages: its dtype.
[[nodiscard]] transport::MessageClass message_class_of(const at::Tensor& tensor);

}  // namespace torch_ucx
