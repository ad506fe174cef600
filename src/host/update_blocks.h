// SPDX-License-Identifier: Apache-2.0
// Updates of bf16 state, and of bf16 parameters that have no master.
#pragma once

#include <cstddef>
#include <type_traits>

#include "base/update.h"
#include "host/simd.h"

namespace megadp::host {

template <class T>  // void, const void
T* forward(T* bytes, uint64_t elements, DType type) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(bytes) + elements * size_of(type);
}

// Elements begin to begin + count of it.
Update part_of(const Update& u, uint64_t begin, uint64_t count);

inline bool is_widened(const Update& u) {
  return u.master == nullptr || u.state_type != DType::f32;
}
// Of such an update: by blocks that stay in the cache, widened to f32, updated by the rule's own kernel, and rounded.
void update_in_blocks(const Update& u, const Kernels& kernels);

}  // namespace megadp::host
