// SPDX-License-Identifier: Apache-2.0
// What the kernels are compiled for, and the table of functions each such target has. kernels.cc chooses and calls; the kernels_*.cc fill
// the tables, each compiled once per target by Highway. Highway is used as headers only: its own chooser would bring libhwy in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/math.h"
#include "base/update.h"
#include "base/vocabulary.h"

namespace megadp::host {

// In ascending order of preference.
enum class SimdTarget {
  baseline,  // what the compiler may assume of any machine: Highway's scalar code, SSE2 or NEON
  sse4,
  avx2,
  avx3,  // AVX-512 F, BW, CD, DQ, VL
  neon,
};

// Storage types in the order of the tables' indexes: f32, bf16, f16.
inline constexpr int kStorageTypes = 3;
constexpr int storage_index(DType type) noexcept {
  return static_cast<int>(type) - static_cast<int>(DType::f32);
}
static_assert(storage_index(DType::bf16) == 1 && storage_index(DType::f16) == 2);

using CastFn = void (*)(void* to, const void* from, size_t n);
// to[i] = bf16(from[i] + residual[i]); residual[i] = what that lost.
using RoundFn = void (*)(Bf16* to, const float* from, float* residual, size_t n);
// The words of `n` elements from `counter` on (base/random.h), whose upper halves are the same.
using RandomFn = void (*)(uint32_t* first, uint32_t* second, uint64_t key, uint64_t counter, size_t n);
// to[i] = bf16(from[i]), rounded by 16 bits of random[i], from `shift` on.
using RoundWithFn = void (*)(Bf16* to, const float* from, const uint32_t* random, int shift, size_t n);
// to[i] = (from[0][i] + from[1][i] + ...) / divisor for elements begin to begin + n, in the order of base/sum_order.h; the two that pick an
// element do not divide.
using ReduceFn = void (*)(void* to, const void* const* from, int nfrom, size_t begin, size_t n, float divisor);
// Adds the square of element i to lanes[i % kSquareLanes].
using SquareSumFn = void (*)(const void* data, size_t n, double* lanes);
using ScaleFn = void (*)(void* data, size_t n, float factor);
// The first element that is not finite; n if all are.
using FindFn = size_t (*)(const void* data, size_t n);
// past: a parameter that is not its own master is written past the caches.
using UpdateFn = void (*)(const Update& update, bool past);
// All of the score but the target's.
using ScoreFn = void (*)(const void* logits, size_t n, TokenScore* score);
using GradientFn = void (*)(void* to, const void* logits, size_t n, const TokenGradient& gradient);

struct CastTable {
  CastFn cast[kStorageTypes][kStorageTypes];      // [to][from]
  CastFn add_cast[kStorageTypes][kStorageTypes];  // [to][from]
  RoundFn round_with_feedback;
  RandomFn random_words;
  RoundWithFn round_with;
};
struct ReduceTable {
  ReduceFn sum[kStorageTypes], max[kStorageTypes], min[kStorageTypes];
  ReduceFn sum_in_f32[kStorageTypes];  // not rounded to the type
};
struct UpdateTable {
  UpdateFn of[kStorageTypes][kStorageTypes];  // [grad][param]
};
struct StepTable {
  SquareSumFn square_sum[kStorageTypes];
  ScaleFn scale[kStorageTypes];
  FindFn first_nonfinite[kStorageTypes];
  const UpdateTable* updates;  // by the rule's number
  size_t rules;
};
struct VocabularyTable {
  ScoreFn score[kStorageTypes];
  GradientFn gradient[kStorageTypes];
};

// NULL if this build has no code for the target.
const CastTable* cast_table(SimdTarget target) noexcept;
const ReduceTable* reduce_table(SimdTarget target) noexcept;
const StepTable* step_table(SimdTarget target) noexcept;
const VocabularyTable* vocabulary_table(SimdTarget target) noexcept;

struct Kernels {
  SimdTarget target;
  const char* name;
  const CastTable* casts;
  const ReduceTable* reduces;
  const StepTable* steps;
  const VocabularyTable* vocabulary;
};

// All that this build has code for and this machine can run, best first; never empty.
std::span<const Kernels> all_kernels() noexcept;
inline const Kernels& best_kernels() noexcept {
  return all_kernels().front();
}

}  // namespace megadp::host
