// SPDX-License-Identifier: Apache-2.0
// A matrix product in blocks that are copied to f32, for what a library does not multiply as it is: bf16, or leading dimensions that it
// cannot be told. Scratch memory is three blocks, and every element of c is summed in f32 over the whole inner dimension before it is
// rounded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/matrix.h"
#include "base/status.h"
#include "host/scratch.h"

namespace megadp::host {

// Work(begin, count) for `count` elements at most `block` at a time; ends with the first that fails.
template <class Work>
Status for_blocks(int64_t count, int64_t block, const Work& work) {
  for (int64_t begin = 0; begin < count; begin += block) {
    if (Status done = work(begin, std::min(block, count - begin)); !done.ok()) return done;
  }
  return {};
}

// c = a b or c += a b, all f32, no side longer than a block.
using ProductOfBlock = std::function<Status(const Matrix& c, const Matrix& a, const Matrix& b, bool add)>;

// edge: how long the sides of a block are; in_place: c is f32, and product() may be given parts of it.
Status multiply_in_blocks(const Matrix& c, const Matrix& a, const Matrix& b, bool add, int64_t edge, bool in_place, ScratchPool* pool,
                          const ProductOfBlock& product);

}  // namespace megadp::host
