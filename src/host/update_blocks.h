// SPDX-License-Identifier: Apache-2.0
// Updates of bf16 state, and of bf16 parameters that have no master.
#pragma once

#include "base/update.h"
#include "host/simd.h"

namespace megadp::host {

inline bool is_widened(const Update& u) {
  return u.master == nullptr || u.state_type != DType::f32;
}
// Of such an update: by blocks that stay in the cache, widened to f32, updated by the rule's own kernel, and rounded.
void update_in_blocks(const Update& u, const Kernels& kernels);

}  // namespace megadp::host
