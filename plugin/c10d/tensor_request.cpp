#include "plugin/c10d/tensor_request.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "plugin/c10d/errors.h"
#include "plugin/transport/group.h"
#include "plugin/ucp/log.h"
#include "torch_ucx/transport/tag.h"

namespace torch_ucx {

namespace {

// Every dtype of this torch has a class of its own (and "no dtype" one that is never sent).
static_assert(static_cast<int>(c10::ScalarType::NumOptions) <= transport::kLastDtype + 1,
              "this torch has more dtypes than the tag has classes for them");

const at::Tensor& dense_cpu_tensor(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "ucx ", operation, ": one tensor is allowed, got ",
                    tensors.size());
  const at::Tensor& tensor = tensors.front();
  TORCH_CHECK_VALUE(tensor.defined(), "ucx ", operation, ": the tensor is undefined");
  TORCH_CHECK_VALUE(!tensor.is_nested(), "ucx ", operation,
                    ": the tensor is nested; allowed are plain dense tensors");
  TORCH_CHECK_VALUE(tensor.layout() == c10::kStrided, "ucx ", operation, ": the tensor has layout ",
                    tensor.layout(), "; allowed are dense tensors");
  TORCH_CHECK_VALUE(!tensor.is_meta(), "ucx ", operation,
                    ": the tensor is on device meta and has no data");
  TORCH_CHECK_VALUE(tensor.is_cpu(), "ucx ", operation, ": the tensor is on device ",
                    tensor.device(), "; the backend ucx moves CPU tensors only so far");
  return tensor;
}

// Conjugate and negative views differ from their memory, zero tensors have none.
bool is_lazy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor();
}

}  // namespace

std::exception_ptr TensorRequest::failure() const {
  return outcome().ok() ? nullptr : torch_exception(outcome().failure, describe());
}

c10::intrusive_ptr<c10::ivalue::Future> TensorRequest::future() {
  std::call_once(future_once_, [this] {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    if (!group()->notify(*this)) on_done();  // nobody has the future yet: no user code runs here
  });
  return future_;
}

void TensorRequest::on_done() noexcept {
  try {
    if (auto error = failure()) {
      future_->setError(std::move(error));
    } else {
      future_->markCompleted(c10::IValue(c10::List<at::Tensor>({tensor_})));
    }
  } catch (const std::exception& error) {  // of a callback
    log(LogLevel::error, std::string("a future's callback failed: ") + error.what());
  }
}

at::Tensor tensor_to_send(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& tensor = dense_cpu_tensor(tensors, "send");
  if (is_lazy(tensor))
    return tensor.clone(at::MemoryFormat::Contiguous).resolve_conj().resolve_neg();
  return tensor.is_contiguous() ? tensor : tensor.contiguous();
}

at::Tensor tensor_to_receive(const std::vector<at::Tensor>& tensors, const char* operation) {
  const at::Tensor& tensor = dense_cpu_tensor(tensors, operation);
  TORCH_CHECK_VALUE(!is_lazy(tensor), "ucx ", operation,
                    ": the tensor is a conjugate, negative or zero view, into which nothing can be "
                    "written; receive into a plain tensor");
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "ucx ", operation,
                    ": the tensor is not contiguous (sizes ", tensor.sizes(), ", strides ",
                    tensor.strides(), "); receive into a contiguous one and copy");
  return tensor;
}

std::uint64_t message_bytes_of(const at::Tensor& tensor) {
  // Tensor::nbytes() takes an element of these for a byte, although their memory is smaller: each
  // row of the last dimension is packed.
  const std::int64_t packed = tensor.scalar_type() == c10::ScalarType::QUInt4x2   ? 2
                              : tensor.scalar_type() == c10::ScalarType::QUInt2x4 ? 4
                                                                                  : 1;
  if (packed == 1 || tensor.numel() == 0) return tensor.nbytes();
  TORCH_CHECK_VALUE(tensor.storage_offset() == 0,
                    "ucx: the tensor is a part of another one of dtype ", tensor.scalar_type(),
                    ", whose elements share bytes; allowed are whole tensors");
  const std::int64_t row = tensor.dim() == 0 ? 1 : tensor.sizes().back();
  const auto bytes =
      static_cast<std::uint64_t>(tensor.numel() / row * ((row + packed - 1) / packed));
  return std::min<std::uint64_t>(bytes, tensor.storage().nbytes());
}

transport::MessageClass message_class_of(const at::Tensor& tensor) {
  return static_cast<transport::MessageClass>(tensor.scalar_type());
}

}  // namespace torch_ucx
