#include "plugin/c10d/tensor_request.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <string>

#include "plugin/c10d/errors.h"
#include "plugin/transport/group.h"
#include "plugin/transport/host_hooks.h"
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

// Whether two indices may mean the same memory. Exact for views made by slicing, transposing and
// selecting (a larger stride steps over all that the smaller ones reach); other stride patterns,
// which only as_strided makes, count as overlapping.
bool may_overlap_itself(const at::Tensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> dimensions;  // stride, size
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 0) return false;
    if (tensor.size(i) > 1) dimensions.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(dimensions.begin(), dimensions.end());
  std::int64_t reach = 0;  // offset of the last element of the dimensions so far
  for (const auto& [stride, size] : dimensions) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

// Numbers, one a memory unit of their own: what values can be converted from and to.
bool is_convertible(c10::ScalarType type) {
  return c10::isIntegralType(type, /*includeBool=*/true) || c10::isFloatingType(type) ||
         c10::isComplexType(type);
}

// Says so once for each sender, tag and pair of dtypes.
void warn_of_conversion(const transport::Request& request, c10::ScalarType from,
                        c10::ScalarType to) {
  constexpr std::size_t kMostRemembered = 1000;
  static std::mutex mutex;
  static std::set<std::string> said;
  const auto& outcome = request.outcome();
  const std::string what =
      "ucx recv on rank " + std::to_string(request.group()->rank()) + " of group \"" +
      request.group()->name() + "\" from rank " + std::to_string(outcome.source_rank) + ", tag " +
      std::to_string(outcome.user_tag) + ": the message is " + c10::toString(from) +
      ", the receive buffer is " + c10::toString(to) + ": the values are converted";
  const std::lock_guard lock(mutex);
  if (said.size() >= kMostRemembered || !said.insert(what).second) return;
  log(LogLevel::warn, what);
}

}  // namespace

TensorRequest::Acceptance TensorRequest::accept(transport::MessageClass message_class,
                                                std::uint64_t bytes) const noexcept {
  if (bytes == this->bytes()) return Acceptance::as_it_is;
  const auto theirs = static_cast<c10::ScalarType>(message_class);
  if (!is_convertible(theirs) || !is_convertible(tensor_.scalar_type())) return Acceptance::refuse;
  const auto count = static_cast<std::uint64_t>(tensor_.numel());
  return bytes == count * c10::elementSize(theirs) ? Acceptance::convert : Acceptance::refuse;
}

bool TensorRequest::deliver(transport::MessageClass message_class,
                            std::span<const std::byte> message) noexcept {
  try {
    // This thread's own dispatch state: no autograd, no modes of the thread that posted.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto theirs = static_cast<c10::ScalarType>(message_class);
    if (theirs == tensor_.scalar_type() || message.data() == buffer_.const_data_ptr()) {
      tensor_.copy_(buffer_);
      return true;
    }
    // The blob is only read.
    const at::Tensor source = at::from_blob(const_cast<std::byte*>(message.data()), tensor_.sizes(),
                                            at::TensorOptions().dtype(theirs));
    tensor_.copy_(source);
    warn_of_conversion(*this, theirs, tensor_.scalar_type());
    return true;
  } catch (const std::exception& error) {
    log(LogLevel::error,
        std::string("a received message could not be put in its place: ") + error.what());
    return false;
  }
}

std::string TensorRequest::class_name(transport::MessageClass message_class) const {
  return c10::toString(static_cast<c10::ScalarType>(message_class));
}

std::exception_ptr TensorRequest::failure() const {
  return outcome().ok() ? nullptr : torch_exception(outcome().failure, describe());
}

c10::intrusive_ptr<c10::ivalue::Future> TensorRequest::future() {
  // notify() gives the GIL away: not inside of the once, where another thread may wait with the
  // GIL.
  const transport::BlockingSection blocking;
  std::call_once(future_once_, [this] {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::ofTensors());
    // Done already: nobody has the future yet, so no user code runs here.
    if (!with_torch_errors([&] { return group()->notify(*this); })) on_done();
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

transport::Ref<TensorRequest> send_request(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& tensor = dense_cpu_tensor(tensors, "send");
  if (is_lazy(tensor)) {
    return transport::Ref<TensorRequest>::make(
        tensor.clone(at::MemoryFormat::Contiguous).resolve_conj().resolve_neg());
  }
  return transport::Ref<TensorRequest>::make(tensor.is_contiguous() ? tensor : tensor.contiguous());
}

void TensorRequest::fill_buffer() const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor buffer = buffer_;
  buffer.copy_(tensor_);
}

transport::Ref<TensorRequest> persistent_send_request(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& tensor = dense_cpu_tensor(tensors, "send_init");
  if (tensor.is_contiguous() && !is_lazy(tensor)) {
    return transport::Ref<TensorRequest>::make(tensor);
  }
  return transport::Ref<TensorRequest>::make(
      tensor, at::empty(tensor.sizes(), tensor.options().requires_grad(false)),
      TensorRequest::Kind::send);
}

transport::Ref<TensorRequest> receive_request(const std::vector<at::Tensor>& tensors,
                                              const char* operation) {
  const at::Tensor& tensor = dense_cpu_tensor(tensors, operation);
  TORCH_CHECK_VALUE(!is_lazy(tensor), "ucx ", operation,
                    ": the tensor is a conjugate, negative or zero view, into which nothing can be "
                    "written; receive into a plain tensor");
  if (tensor.is_contiguous()) return transport::Ref<TensorRequest>::make(tensor);
  TORCH_CHECK_VALUE(!may_overlap_itself(tensor), "ucx ", operation,
                    ": elements of the tensor share memory (sizes ", tensor.sizes(), ", strides ",
                    tensor.strides(),
                    "): what would be written there is undefined; receive into a "
                    "tensor of its own and copy");
  return transport::Ref<TensorRequest>::make(
      tensor, at::empty(tensor.sizes(), tensor.options().requires_grad(false)),
      TensorRequest::Kind::receive);
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
