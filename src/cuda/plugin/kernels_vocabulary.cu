// SPDX-License-Identifier: Apache-2.0
// Rows of an embedding and the cross-entropy of logits. A block of threads has a token, or a row of the table; sums are added in one order,
// whatever blocks come first.
#include "base/vocabulary.h"
#include "cuda/plugin/launch.cuh"

namespace megadp::cuda {
namespace {

constexpr uint64_t kHeldFeatures = 8;  // of a row, by a thread at a time

// ── embedding ──

template <class Table, class Output>
__global__ void __launch_bounds__(kThreads) copy_rows(Lookup work) {
  for (uint64_t token = blockIdx.x; token < work.tokens; token += gridDim.x) {
    const int64_t id = work.ids[token], row = id - work.first;
    const bool outside = id < 0 || id >= work.all_rows, here = row >= 0 && row < work.rows;
    Output* const to = static_cast<Output*>(work.output) + static_cast<int64_t>(token) * work.output_stride;
    const Table* const from = static_cast<const Table*>(work.table) + (here ? row * work.table_stride : 0);
    for (uint64_t i = threadIdx.x; i < work.features; i += blockDim.x) {
      from_f32(to + i, outside ? as_float(0x7fc00000U) : here ? to_f32(from[i]) : 0.0F);
    }
  }
}

// Goes through the ids once for kThreads * kHeldFeatures features; most of them, 256 at a time, by one look of each thread.
template <class Table, class Output>
__global__ void __launch_bounds__(kThreads) add_rows(Lookup work) {
  constexpr uint64_t together = kThreads * kHeldFeatures;
  for (int64_t row = blockIdx.x; row < work.rows; row += gridDim.x) {
    Table* const to = static_cast<Table*>(work.table) + row * work.table_stride;
    for (uint64_t begin = 0; begin < work.features; begin += together) {
      float sum[kHeldFeatures];
      for (uint64_t k = 0; k < kHeldFeatures; k++) {
        const uint64_t i = begin + k * kThreads + threadIdx.x;
        sum[k] = work.add && i < work.features ? to_f32(to[i]) : 0.0F;
      }
      for (uint64_t tokens = 0; tokens < work.tokens; tokens += kThreads) {
        const uint64_t mine = tokens + threadIdx.x;
        if (__syncthreads_or(mine < work.tokens && work.ids[mine] - work.first == row) == 0) continue;
        const uint64_t end = tokens + kThreads < work.tokens ? tokens + kThreads : work.tokens;
        for (uint64_t token = tokens; token < end; token++) {
          if (work.ids[token] - work.first != row) continue;
          const Output* const from = static_cast<const Output*>(work.output) + static_cast<int64_t>(token) * work.output_stride;
          for (uint64_t k = 0; k < kHeldFeatures; k++) {
            const uint64_t i = begin + k * kThreads + threadIdx.x;
            if (i < work.features) sum[k] = add(sum[k], to_f32(from[i]));
          }
        }
      }
      for (uint64_t k = 0; k < kHeldFeatures; k++) {
        const uint64_t i = begin + k * kThreads + threadIdx.x;
        if (i < work.features) from_f32(to + i, sum[k]);
      }
    }
  }
}

template <class Table, class Output>
int32_t launch_lookup(void* stream, const Lookup& work, bool gradient) {
  if (gradient) return launch(add_rows<Table, Output>, static_cast<uint64_t>(work.rows), dim3(kThreads), stream, work);
  return launch(copy_rows<Table, Output>, work.tokens, dim3(kThreads), stream, work);
}
template <class Table>
int32_t launch_lookup(void* stream, const Lookup& work, bool gradient) {
  if (work.output_type == DType::f32) return launch_lookup<Table, float>(stream, work, gradient);
  if (work.output_type == DType::bf16) return launch_lookup<Table, Bf16>(stream, work, gradient);
  return launch_lookup<Table, F16>(stream, work, gradient);
}

// ── cross-entropy ──

// Over the threads of a block; all get it. `shared` has kThreads places.
template <class Value, class Operation>
__device__ Value over_block(Value mine, Value* shared, const Operation& operation) {
  __syncthreads();
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned distance = kThreads / 2; distance > 0; distance /= 2) {
    if (threadIdx.x < distance) shared[threadIdx.x] = operation(shared[threadIdx.x], shared[threadIdx.x + distance]);
    __syncthreads();
  }
  return shared[0];
}

template <class T>
__global__ void __launch_bounds__(kThreads) score_tokens(CrossEntropy work) {
  __shared__ double shared[kThreads];
  if (blockIdx.x == 0 && threadIdx.x == 0) work.scores[work.tokens] = work.settings;
  const auto plus = [](double a, double b) { return add(a, b); };
  const int64_t counted = work.counted(work.rank);
  const float none = as_float(0xff800000U);  // -inf
  for (uint64_t token = blockIdx.x; token < work.tokens; token += gridDim.x) {
    const T* const row = static_cast<const T*>(work.logits) + static_cast<int64_t>(token) * work.logits_stride;
    float most = none;
    for (int64_t i = threadIdx.x; i < counted; i += kThreads) most = larger(most, to_f32(row[i]));
    const float max = over_block(most, reinterpret_cast<float*>(shared), [](float a, float b) { return larger(a, b); });
    LogitSums sums;
    for (int64_t i = threadIdx.x; i < counted; i += kThreads) sums.add(to_f32(row[i]), max);
    const double all_exps = over_block(static_cast<double>(sums.exps), shared, plus);
    const double all = over_block(static_cast<double>(sums.sum), shared, plus);
    if (threadIdx.x != 0) continue;
    work.scores[token] = {max, static_cast<float>(all_exps), target_score(work, row, work.targets[token], max), static_cast<float>(all)};
  }
}

__global__ void __launch_bounds__(kThreads) finish_losses(CrossEntropy work) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t token = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; token < work.tokens; token += stride) finish_loss(work, token);
}

template <class T>
__global__ void __launch_bounds__(kThreads) differentiate_tokens(CrossEntropy work) {
  const int64_t counted = work.counted(work.rank);
  for (uint64_t token = blockIdx.x; token < work.tokens; token += gridDim.x) {
    const T* const row = static_cast<const T*>(work.logits) + static_cast<int64_t>(token) * work.logits_stride;
    T* const to = static_cast<T*>(work.grad_logits) + static_cast<int64_t>(token) * work.grad_stride;
    const bool ignored = work.is_ignored(work.targets[token]);
    const TokenGradient gradient = gradient_of(work, token);
    for (int64_t i = threadIdx.x; i < work.columns; i += kThreads) {
      from_f32(to + i, ignored || i >= counted ? 0.0F : gradient_at(gradient, to_f32(row[i]), i));
    }
  }
}

template <class T>
int32_t launch_cross_entropy(void* stream, const CrossEntropy& work, CrossEntropyPass pass) {
  if (pass == CrossEntropyPass::scores) return launch(score_tokens<T>, work.tokens, dim3(kThreads), stream, work);
  return launch(differentiate_tokens<T>, work.tokens, dim3(kThreads), stream, work);
}

}  // namespace

int32_t look_up(Device* device, void* stream, const Lookup* work, bool gradient) {
  if (!is_trainable(work->table_type) || !is_trainable(work->output_type)) return kBadArgument;
  if (work->features == 0 || (gradient ? work->rows == 0 : work->tokens == 0)) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (work->table_type == DType::f32) return launch_lookup<float>(stream, *work, gradient);
  if (work->table_type == DType::bf16) return launch_lookup<Bf16>(stream, *work, gradient);
  return launch_lookup<F16>(stream, *work, gradient);
}

int32_t cross_entropy(Device* device, void* stream, const CrossEntropy* work, CrossEntropyPass pass) {
  if (!is_trainable(work->type)) return kBadArgument;
  if (work->tokens == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (pass == CrossEntropyPass::losses)
    return launch(finish_losses, (work->tokens + kThreads - 1) / kThreads, dim3(kThreads), stream, *work);
  if (work->type == DType::f32) return launch_cross_entropy<float>(stream, *work, pass);
  if (work->type == DType::bf16) return launch_cross_entropy<Bf16>(stream, *work, pass);
  return launch_cross_entropy<F16>(stream, *work, pass);
}

}  // namespace megadp::cuda
