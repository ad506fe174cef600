// SPDX-License-Identifier: Apache-2.0
// Views as DLPack tensors, which keep the buffer's memory alive for as long as their consumer wants.
#include <algorithm>
#include <memory>

#include "api/dlpack_abi.h"
#include "api/error.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"

using namespace megadp;

namespace {

struct DlpackOwner {
  DLManagedTensorVersioned managed{};
  std::shared_ptr<Context> context;  // before buffer, which may need it to the last
  std::shared_ptr<Buffer> buffer;
  std::vector<int64_t> shape, strides;
};

// Called by the consumer, from any thread.
void give_back(DLManagedTensorVersioned* managed) noexcept {
  auto* lent = static_cast<DlpackOwner*>(managed->manager_ctx);
  if (!lent->context->world->in_forked_child()) delete lent;
}

DLDataType dlpack_type(DType type) {
  const auto bits = static_cast<uint8_t>(8 * size_of(type));
  switch (type) {
    case DType::f32:
    case DType::f16:
    case DType::f64:
      return {2, bits, 1};
    case DType::bf16:
      return {4, bits, 1};
    case DType::i64:
      return {0, bits, 1};
    case DType::u8:
      return {1, bits, 1};
  }
  return {};
}

// The first and the last byte that a non-empty tensor touches, the latter excluded.
struct Extent {
  uintptr_t begin, end;
};
Extent extent_of(const Tensor& tensor) {
  const auto element = static_cast<int64_t>(size_of(tensor.type));
  int64_t lowest = 0, highest = 0;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const int64_t reach = (tensor.shape[d] - 1) * tensor.strides[d] * element;
    (reach < 0 ? lowest : highest) += reach;
  }
  const auto at = reinterpret_cast<uintptr_t>(tensor.data);
  return {at + static_cast<uintptr_t>(lowest), at + static_cast<uintptr_t>(highest + element)};
}

bool holds(const Result<Arenas::View>& view, uint64_t numel, const Extent& extent, DType type) {
  if (!view || view->type != type) return false;
  const auto begin = reinterpret_cast<uintptr_t>(view->data);
  // Strides that reach below address 0 wrap around: the beginning is then behind the end.
  return extent.begin < extent.end && begin <= extent.begin && extent.end <= begin + numel * size_of(type);
}

// Only what the buffer owns may be lent in its name: a parameter, a gradient, or a part of one.
Status check_owned(Buffer& buffer, const Tensor& tensor) {
  if (tensor.numel == 0) return {};
  const Extent extent = extent_of(tensor);
  const std::vector<ParamSpec>& params = buffer.plan().params;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].frozen) continue;
    if (holds(buffer.arenas().param_view(i), params[i].numel, extent, tensor.type)) return {};
    if (holds(buffer.arenas().grad_view(i), params[i].numel, extent, tensor.type)) {
      buffer.gradients().note_view();
      return {};
    }
  }
  return invalid("view is not a view of a parameter or gradient of this buffer, nor a part of one, as ", name_of(tensor.type),
                 "; it comes from mdp_buffer_param_view or mdp_buffer_grad_view");
}

}  // namespace

mdp_status mdp_buffer_to_dlpack(mdp_buffer* owner, const mdp_tensor* view, struct DLManagedTensorVersioned** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(owner, "owner", Need::process); !status) return status;
    auto tensor = take_tensor(view, "view", Access::read, place_of(*owner));
    if (!tensor) return tensor.status();
    if (Status status = check_owned(*owner->object, *tensor); !status) return status;

    auto lent = std::make_unique<DlpackOwner>();
    lent->context = owner->context;
    lent->buffer = owner->object;
    lent->shape = std::move(tensor->shape);
    lent->strides = std::move(tensor->strides);
    DLManagedTensorVersioned& managed = lent->managed;
    managed.version = {1, 0};
    managed.manager_ctx = lent.get();
    managed.deleter = &give_back;
    managed.dl_tensor.data = tensor->data;
    managed.dl_tensor.device = {static_cast<int32_t>(tensor->place.type), tensor->place.index};
    managed.dl_tensor.ndim = static_cast<int32_t>(lent->shape.size());
    managed.dl_tensor.dtype = dlpack_type(tensor->type);
    managed.dl_tensor.shape = lent->shape.data();
    managed.dl_tensor.strides = lent->strides.data();
    *out = &lent.release()->managed;
    return {};
  });
}
