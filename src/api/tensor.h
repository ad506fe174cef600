// SPDX-License-Identifier: Apache-2.0
// mdp_tensor on its way in (checked, with its strides filled in) and out.
#pragma once

#include <string>
#include <vector>

#include "api/argument.h"
#include "backend/backend.h"
#include "base/dtype.h"
#include "base/status.h"
#include "core/arenas.h"
#include "megadp.h"

namespace megadp {

// An enum value that names a storage type; `argument` being its name in error sentences.
Result<DType> take_dtype(mdp_dtype value, const Argument& argument);

// `ndim` sizes. Refuses a negative size and a product beyond 2^58.
struct Shape {
  std::vector<int64_t> sizes;
  uint64_t numel = 1;
};
Result<Shape> take_shape(const int64_t* sizes, int32_t ndim, const Argument& argument);

struct Tensor : StridedArray {
  Place place;
  uint64_t numel = 0;
};

struct DenseArray {
  void* data = nullptr;
  uint64_t numel = 0;
  DType type = DType::f32;
  size_t bytes() const noexcept { return numel * size_of(type); }
};

enum class Access {
  read,
  write  // two elements must not be the same memory
};
// In the host's memory or in the backend's, which is at `place`.
Result<Tensor> take_tensor(const mdp_tensor* given, const Argument& argument, Access access, const Place& place);
// For collectives: in the backend's memory, row-major and without gaps. Allocates nothing.
Result<DenseArray> take_dense(const mdp_tensor* given, const Argument& argument, const Place& place);

void give_place(const Place& place, mdp_tensor* out);
void give_view(const Place& place, const Arenas::View& view, mdp_tensor* out);
void give_slice(const Place& place, const Slice& slice, mdp_tensor* out);

}  // namespace megadp
