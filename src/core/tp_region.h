// SPDX-License-Identifier: Apache-2.0
// The operators between what is replicated and what is cut over tensor-parallel ranks, forward and backward: Megatron-LM's f and g, and
// their kin along any dimension. What comes back of something replicated is either the same on all ranks or, if each rank's part of the
// model has used it, a part on each: taking the one for the other gives wrong numbers without a word, so the caller says which.
#pragma once

#include <string>

#include "core/tp_collectives.h"

namespace megadp {

enum class Region : uint32_t {  // the values of mdp_tp_region
  copy = 1,
  reduce = 2,
  scatter = 3,
  gather = 4,
  reduce_scatter = 5,
  exchange = 6
};
constexpr bool gives_replicated(Region region) noexcept {
  return region == Region::copy || region == Region::reduce || region == Region::gather;
}
constexpr bool takes_replicated(Region region) noexcept {
  return region == Region::copy || region == Region::scatter;
}

struct RegionConfig {
  Region region = Region::copy;
  bool grad_is_partial = false;  // of what gives_replicated()
  size_t dim = 0, to_dim = 0;
  Counts parts, to_parts;  // empty: equal ones
  bool checks = false;
};

enum class Direction {
  forward,
  backward
};

// `from` to `to`: forward the input to the output; backward the gradient of the output to that of the input.
Status run_region(Comm& comm, RegionConfig config, Direction direction, const StridedArray& from, const StridedArray& to, void* caller);

}  // namespace megadp
