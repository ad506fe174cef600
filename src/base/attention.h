// SPDX-License-Identifier: Apache-2.0
// How the attention of a query over two sets of keys comes of that over each: by the logarithm of the sum of exp of its scores (lse).
//
//   lse = log(exp(a) + exp(b))      out = exp(a - lse) out_a + exp(b - lse) out_b
#pragma once

#include <cmath>
#include <cstdint>

#include "base/math.h"

namespace megadp {

// `part` is merged into `out`. Both have `batches` times `rows` rows of `features`; those of a batch lie one after another. Strides are
// from batch to batch, in elements.
struct AttentionMerge {
  float* out = nullptr;
  float* lse = nullptr;
  const float* part = nullptr;
  const float* part_lse = nullptr;
  int64_t batches = 0, rows = 0, features = 0;
  int64_t out_stride = 0, lse_stride = 0, part_stride = 0, part_lse_stride = 0;
};

struct MergeWeights {
  float lse = 0, old = 0, part = 0;
};
// Where a side has no keys (-infinity) the other stays as it is, bit for bit, whatever stands in that side's row.
MEGADP_HOST_DEVICE inline MergeWeights merge_weights(float old, float part) {
  constexpr uint32_t none = 0xff800000U;
  if (as_bits(part) == none) return {old, 1, 0};
  if (as_bits(old) == none) return {part, 0, 1};
  const double most = old > part ? old : part;
  const double a = std::exp(old - most), b = std::exp(part - most), sum = a + b;
  return {static_cast<float>(most + std::log(sum)), static_cast<float>(a / sum), static_cast<float>(b / sum)};
}
MEGADP_HOST_DEVICE inline float merged(const MergeWeights& by, float old, float part) {
  if (by.part == 0) return old;
  return by.old == 0 ? part : by.old * old + by.part * part;
}

}  // namespace megadp
