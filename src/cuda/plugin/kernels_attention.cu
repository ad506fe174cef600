// SPDX-License-Identifier: Apache-2.0
// Merging partial attention. A block of threads has a row.
#include "base/attention.h"
#include "cuda/plugin/launch.cuh"

namespace megadp::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) merge_rows(AttentionMerge work) {
  const int64_t all = work.batches * work.rows;
  for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
    const int64_t batch = at / work.rows, row = at % work.rows;
    float* const lse = work.lse + batch * work.lse_stride + row;
    const MergeWeights weights = merge_weights(*lse, work.part_lse[batch * work.part_lse_stride + row]);
    __syncthreads();  // all have read it
    if (threadIdx.x == 0) *lse = weights.lse;
    float* const out = work.out + batch * work.out_stride + row * work.features;
    const float* const part = work.part + batch * work.part_stride + row * work.features;
    for (int64_t i = threadIdx.x; i < work.features; i += blockDim.x) out[i] = merged(weights, out[i], part[i]);
  }
}

}  // namespace

int32_t merge_attention(Device* device, void* stream, const AttentionMerge* work) {
  if (work->batches < 0 || work->rows < 0 || work->features < 0) return kBadArgument;
  if (work->batches == 0 || work->rows == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  const unsigned threads = work->features <= 32 ? 32 : work->features <= 64 ? 64 : 128;
  return launch(merge_rows, static_cast<uint64_t>(work->batches) * static_cast<uint64_t>(work->rows), dim3(threads), stream, *work);
}

}  // namespace megadp::cuda
