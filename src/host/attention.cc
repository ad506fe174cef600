// SPDX-License-Identifier: Apache-2.0
#include "host/attention.h"

namespace megadp::host {

// A row is a few hundred bytes beside a block's attention, which reads it as often as there are keys: plain loops do.
void merge_attention(const AttentionMerge& work) {
  for (int64_t batch = 0; batch < work.batches; ++batch) {
    for (int64_t row = 0; row < work.rows; ++row) {
      float& lse = work.lse[batch * work.lse_stride + row];
      const MergeWeights weights = merge_weights(lse, work.part_lse[batch * work.part_lse_stride + row]);
      lse = weights.lse;
      float* const out = work.out + batch * work.out_stride + row * work.features;
      const float* const part = work.part + batch * work.part_stride + row * work.features;
      for (int64_t i = 0; i < work.features; ++i) out[i] = merged(weights, out[i], part[i]);
    }
  }
}

}  // namespace megadp::host
