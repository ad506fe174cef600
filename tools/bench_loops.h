// SPDX-License-Identifier: Apache-2.0
// What collectives cost when written down as plain loops over everyone's memory: the limit that the library is measured against. No
// library code, no vector intrinsics; the compiler vectorizes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace megadp::tool {

struct BareRange {
  std::vector<void*> windows;  // everyone's memory, by rank
  int rank;                    // mine
  size_t count;                // elements of each window, a multiple of the number of ranks
  DType type;                  // f32, bf16 or f16
};

// Between a barrier before and one after: rank r's piece of its own window becomes the mean of everyone's.
void bare_reduce_scatter(const BareRange& range);
// The mean of my piece is written to everyone.
void bare_all_reduce(const BareRange& range);
// My piece is written to everyone.
void bare_all_gather(const BareRange& range);

}  // namespace megadp::tool
