// SPDX-License-Identifier: Apache-2.0
#include "api/tensor.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "api/intake.h"
#include "base/checked.h"
#include "base/shape.h"
#include "core/param.h"

namespace megadp {

namespace {

constexpr int32_t kMaxDims = 16;
constexpr uint64_t kMostInShape = uint64_t{1} << 58;

Result<Place> take_place(const mdp_tensor& tensor, const Argument& argument, const Place& backend) {
  constexpr auto cpu = static_cast<int32_t>(DeviceType::cpu), cuda = static_cast<int32_t>(DeviceType::cuda);
  if (tensor.device_type != 0 && tensor.device_type != cpu && tensor.device_type != cuda) {
    return invalid(argument, ".device_type is ", tensor.device_type, "; it must be 1 (CPU; 0 is taken as 1) or 2 (CUDA)");
  }
  if (tensor.device_type != cuda) {
    if (tensor.device_id != 0) return invalid(argument, ".device_id is ", tensor.device_id, "; on the host it is 0");
    return Place{};
  }
  if (backend.type != DeviceType::cuda) {
    return unsupported(argument,
                       ".device_type is 2 (CUDA); this communicator takes memory of the host only (1 or 0). One that is made with "
                       "MDP_BACKEND_CUDA takes that of its device");
  }
  if (tensor.device_id != backend.index) {
    return invalid(argument, ".device_id is ", tensor.device_id, "; this communicator uses device ", backend.index);
  }
  return backend;
}

uint64_t magnitude(int64_t stride) {
  return stride < 0 ? uint64_t{0} - static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride);
}

// Sufficient for every element to have memory of its own: along each axis a step leaves behind all that the shorter steps reach.
bool elements_are_apart(const Tensor& tensor) {
  std::vector<std::pair<uint64_t, uint64_t>> axes;  // (step, size)
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    if (tensor.shape[d] > 1) axes.emplace_back(magnitude(tensor.strides[d]), static_cast<uint64_t>(tensor.shape[d]));
  }
  std::sort(axes.begin(), axes.end());
  uint64_t reach = 0;
  for (const auto& [step, size] : axes) {
    if (step <= reach) return false;
    reach += step * (size - 1);
  }
  return true;
}

// Of a shape that has been checked.
Status check_strides(const int64_t* given, std::span<const int64_t> shape, uint64_t numel, const Argument& argument) {
  if (Status status = check_pointer(given, {argument, ".strides"}, alignof(int64_t)); !status) return status;
  uint64_t reach = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (numel == 0 || shape[d] == 1) continue;  // never stepped along
    uint64_t span;
    if (!checked_mul(magnitude(given[d]), static_cast<uint64_t>(shape[d]) - 1, &span) || !checked_add(reach, span, &reach) ||
        reach >= kMostInShape) {
      return invalid(argument, ".strides[", d, "] is ", given[d], "; with ", shape[d], " elements it reaches beyond memory");
    }
  }
  return {};
}

Status take_strides(const int64_t* given, const Argument& argument, Access access, Tensor* tensor) {
  const size_t ndim = tensor->shape.size();
  tensor->strides = dense_strides(tensor->shape);
  if (given == nullptr || ndim == 0) return {};
  if (Status status = check_strides(given, tensor->shape, tensor->numel, argument); !status) return status;
  for (size_t d = 0; d < ndim; ++d) {
    if (tensor->numel > 0 && tensor->shape[d] > 1) tensor->strides[d] = given[d];
  }
  if (access == Access::write && tensor->numel > 0 && !elements_are_apart(*tensor)) {
    return invalid(argument, ".strides let elements of a tensor that is written to share memory");
  }
  return {};
}

// Whether the strides, of a shape that has been checked, are those of a row-major array without gaps.
bool are_dense(std::span<const int64_t> shape, const int64_t* strides) {
  int64_t dense = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (shape[d] > 1 && strides[d] != dense) return false;
    dense *= std::max<int64_t>(shape[d], 1);
  }
  return true;
}

Result<uint64_t> check_sizes(const int64_t* sizes, int32_t ndim, const Argument& argument) {
  if (ndim < 0 || ndim > kMaxDims) return invalid(argument, ".ndim is ", ndim, "; it must be 0 to ", kMaxDims);
  if (ndim == 0) return uint64_t{1};
  if (Status status = check_pointer(sizes, {argument, ".shape"}, alignof(int64_t)); !status) return status;
  for (int32_t d = 0; d < ndim; ++d) {
    if (sizes[d] < 0) return invalid(argument, ".shape[", d, "] is ", sizes[d], "; sizes are 0 or more");
  }
  const std::span<const int64_t> shape(sizes, static_cast<size_t>(ndim));
  uint64_t numel = 0;
  size_t unused;
  if (count_elements(shape, kMostInShape - 1, &numel, &unused)) return numel;
  return invalid(argument, ".shape is ", shape_text(shape), ": more elements than memory can hold");
}

// All but its shape and strides.
struct Outline {
  DType type;
  Place place;
  uint64_t numel;
};

Result<Outline> take_outline(const mdp_tensor& given, const Argument& argument, const Place& backend) {
  auto type = take_dtype(given.dtype, {argument, ".dtype"});
  if (!type) return type.status();
  if (Status status = check_reserved(given.reserved, {argument, ".reserved"}); !status) return status;
  auto place = take_place(given, argument, backend);
  if (!place) return place.status();
  auto numel = check_sizes(given.shape, given.ndim, argument);
  if (!numel) return numel.status();
  if (*numel > 0) {
    if (Status status = check_pointer(given.data, {argument, ".data"}, size_of(*type)); !status) return status;
  }
  return Outline{*type, *place, *numel};
}

}  // namespace

Result<DType> take_dtype(mdp_dtype value, const Argument& argument) {
  if (value >= MDP_DTYPE_F32 && value <= MDP_DTYPE_U8) return static_cast<DType>(value);
  return invalid(argument, " is ", value, "; it must be one of MDP_DTYPE_F32 (2) to MDP_DTYPE_U8 (7)");
}

Result<Shape> take_shape(const int64_t* sizes, int32_t ndim, const Argument& argument) {
  auto numel = check_sizes(sizes, ndim, argument);
  if (!numel) return numel.status();
  return Shape{ndim == 0 ? std::vector<int64_t>() : std::vector<int64_t>(sizes, sizes + ndim), *numel};
}

Result<Tensor> take_tensor(const mdp_tensor* given, const Argument& argument, Access access, const Place& place) {
  auto ours = take(given, argument);
  if (!ours) return ours.status();
  auto outline = take_outline(*ours, argument, place);
  if (!outline) return outline.status();
  Tensor tensor;
  tensor.type = outline->type;
  tensor.place = outline->place;
  tensor.numel = outline->numel;
  tensor.data = ours->data;
  if (ours->ndim > 0) tensor.shape.assign(ours->shape, ours->shape + ours->ndim);
  if (Status status = take_strides(ours->strides, argument, access, &tensor); !status) return status;
  return tensor;
}

Result<DenseArray> take_dense(const mdp_tensor* given, const Argument& argument, const Place& place) {
  auto ours = take(given, argument);
  if (!ours) return ours.status();
  auto outline = take_outline(*ours, argument, place);
  if (!outline) return outline.status();
  const std::span<const int64_t> shape(ours->shape, static_cast<size_t>(ours->ndim));
  if (ours->strides != nullptr && ours->ndim > 0) {
    if (Status status = check_strides(ours->strides, shape, outline->numel, argument); !status) return status;
  }
  if (outline->place.type != place.type) {
    return unsupported(argument, ".device_type is ", static_cast<int32_t>(outline->place.type),
                       "; this call takes memory of the device only: 2");
  }
  if (ours->strides != nullptr && outline->numel > 0 && !are_dense(shape, ours->strides)) {
    return invalid(argument, ".strides do not describe a dense row-major array of shape ", shape_text(shape),
                   "; collectives take no other (NULL strides mean just that)");
  }
  return DenseArray{ours->data, outline->numel, outline->type};
}

void give_place(const Place& place, mdp_tensor* out) {
  out->device_type = static_cast<int32_t>(place.type);
  out->device_id = place.index;
}

void give_view(const Place& place, const Arenas::View& view, mdp_tensor* out) {
  mdp_tensor tensor{};
  tensor.dtype = static_cast<mdp_dtype>(view.type);
  give_place(place, &tensor);
  tensor.ndim = static_cast<int32_t>(view.shape->size());
  tensor.data = view.data;
  tensor.shape = view.shape->data();
  tensor.strides = view.strides;
  give(tensor, out);
}

void give_slice(const Place& place, const Slice& slice, mdp_tensor* out) {
  mdp_tensor tensor{};
  tensor.dtype = static_cast<mdp_dtype>(slice.type);
  give_place(place, &tensor);
  tensor.ndim = 1;
  tensor.data = slice.data;
  tensor.shape = slice.shape->data();
  tensor.strides = tensor.shape + 1;
  give(tensor, out);
}

}  // namespace megadp
