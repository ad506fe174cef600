// SPDX-License-Identifier: Apache-2.0
// The simplest form of a walk over two arrays of equal shape and any strides: what copies with strides begin with, on every backend.
#pragma once

#include <algorithm>
#include <cstdint>

namespace megadp {

struct StridedDim {
  int64_t size, to, from;  // strides in elements
};

// What a walk has left after simplify_walk(): dims[0 .. count), and where both arrays now begin, in elements from where they did.
struct WalkStart {
  int count;
  int64_t to, from;
};

// Visits the same pairs of elements: sizes of 1 are dropped, `to` runs forwards, the smallest stride of `to` is last, neighbours that run
// on are merged. No size is 0.
inline WalkStart simplify_walk(StridedDim* dims, int count) {
  WalkStart walk{0, 0, 0};
  for (int d = 0; d < count; d++) {
    StridedDim dim = dims[d];
    if (dim.size == 1) continue;
    if (dim.to < 0) {
      walk.to += (dim.size - 1) * dim.to;
      walk.from += (dim.size - 1) * dim.from;
      dim.to = -dim.to;
      dim.from = -dim.from;
    }
    dims[walk.count++] = dim;
  }
  // By insertion: few dimensions, and equal ones keep their order without memory being asked for.
  for (int d = 1; d < walk.count; d++) {
    for (int k = d; k > 0 && dims[k - 1].to < dims[k].to; k--) std::swap(dims[k - 1], dims[k]);
  }
  int kept = 0;
  for (int d = 1; d < walk.count; d++) {
    StridedDim& last = dims[kept];
    const StridedDim& next = dims[d];
    if (last.to == next.to * next.size && last.from == next.from * next.size) {
      last = {last.size * next.size, next.to, next.from};
    } else {
      dims[++kept] = next;
    }
  }
  if (walk.count > 0) walk.count = kept + 1;
  return walk;
}

// The dimension, other than the last, along which `from` runs on where `to` runs on along the last: a transposed matrix. -1: none, or
// rows do as well.
inline int transposed_dim(const StridedDim* dims, int count) {
  if (count < 2) return -1;
  const StridedDim& row = dims[count - 1];
  if (row.to != 1 || row.from == 1 || row.from == 0) return -1;
  for (int d = 0; d < count - 1; d++) {
    if (dims[d].from == 1) return d;
  }
  return -1;
}

}  // namespace megadp
