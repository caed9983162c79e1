// A send or receive whose buffer is a tensor: keeps the tensor alive until the transport lets go of
// it, and completes a future when somebody asked for one.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plugin/transport/request.h"

namespace torch_ucx {

class TensorRequest final : public transport::Request {
 public:
  // A send from, or a receive into, a contiguous tensor.
  explicit TensorRequest(at::Tensor tensor) : tensor_(tensor), buffer_(std::move(tensor)) {}
  // The same of a strided view, by way of a contiguous buffer of its shape and dtype.
  TensorRequest(at::Tensor view, at::Tensor buffer, Kind kind)
      : tensor_(std::move(view)), buffer_(std::move(buffer)) {
    if (kind == Kind::receive) set_delivers();
  }

  // The user's tensor.
  [[nodiscard]] const at::Tensor& tensor() const noexcept { return tensor_; }
  // The memory that the transport reads or writes.
  [[nodiscard]] const at::Tensor& buffer() const noexcept { return buffer_; }

  // Gathers the elements of a view that is sent again and again.
  void fill_buffer() const;

  // Torch's exception of a failed request; null for one that went well. Only once done() is true.
  [[nodiscard]] std::exception_ptr failure() const;

  // Completed on the callback thread with the list of the one tensor, or with failure(). Posted
  // requests only. Always the same one.
  [[nodiscard]] c10::intrusive_ptr<c10::ivalue::Future> future();

 private:
  void on_done() noexcept override;
  // Same size: the bytes as they are. Same number of elements: the values, converted. Else refused.
  [[nodiscard]] Acceptance accept(transport::MessageClass message_class,
                                  std::uint64_t bytes) const noexcept override;
  [[nodiscard]] bool deliver(transport::MessageClass message_class,
                             std::span<const std::byte> message) noexcept override;
  [[nodiscard]] std::string class_name(transport::MessageClass message_class) const override;

  const at::Tensor tensor_;
  const at::Tensor buffer_;
  std::once_flag future_once_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The request for the one tensor of a list, which must be dense and in CPU memory: what cannot be
// sent or received into is refused with c10::ValueError. Views are sent by logical index, from a
// contiguous copy, and received by logical index, unless elements of the view share memory.
[[nodiscard]] transport::Ref<TensorRequest> send_request(const std::vector<at::Tensor>& tensors);
[[nodiscard]] transport::Ref<TensorRequest> receive_request(const std::vector<at::Tensor>& tensors,
                                                            const char* operation);

// The same for a persistent send, whose view is gathered into a buffer at each start.
[[nodiscard]] transport::Ref<TensorRequest> persistent_send_request(
    const std::vector<at::Tensor>& tensors);

// How many bytes its message has: those of its elements, also where several share a byte.
[[nodiscard]] std::uint64_t message_bytes_of(const at::Tensor& tensor);

// The class of its messages: its dtype.
[[nodiscard]] transport::MessageClass message_class_of(const at::Tensor& tensor);

}  // namespace torch_ucx
