// SPDX-License-Identifier: Apache-2.0
// What a vocabulary that is cut over tensor-parallel ranks takes: rows of an embedding, and the cross-entropy of logits. Each rank has
// `columns` classes (rows of its part of the table), one rank's after another's. Plain data, for the host and for a device's kernels.
//
// Of a token's logits x, with m their maximum and S = sum of exp(x - m) over all classes:
//
//   loss = sum over v of q_v (m + log S - x_v) + z (m + log S)^2       q: 1 - smoothing of the target, smoothing / (classes - 1) elsewhere
//   dx_v = dloss (p_v (1 + 2 z (m + log S)) - q_v)                     p_v = exp(x_v - m - log S)
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/math.h"

namespace megadp {

// Rows ids[t] of a table, of which this rank has [first, first + rows).
struct Lookup {
  const int64_t* ids = nullptr;
  uint64_t tokens = 0, features = 0;
  int64_t first = 0, rows = 0, all_rows = 0;
  void* table = nullptr;
  int64_t table_stride = 0;  // between rows, in elements; likewise below
  DType table_type = DType::f32;
  void* output = nullptr;
  int64_t output_stride = 0;
  DType output_type = DType::f32;
  bool add = false;  // the gradient is added to what is in the table
};

// What a rank tells the others of each token.
struct TokenScore {
  float max, sum_exp;  // of its logits; of exp(x - max)
  float target;        // the target's x - max, on the rank that has it
  float sum;           // of x - max
};
// Of this rank's tokens, and of its settings after them.
constexpr uint64_t score_bytes(uint64_t tokens) {
  return (tokens + 1) * sizeof(TokenScore);
}
// What the backward needs of a token.
struct TokenSum {
  float max, log_sum;
};

struct CrossEntropy {
  const void* logits = nullptr;
  int64_t logits_stride = 0;
  DType type = DType::f32;  // of logits and their gradient
  const int64_t* targets = nullptr;
  uint64_t tokens = 0;
  int32_t rank = 0, ranks = 1;
  int64_t columns = 0;  // of each rank
  int64_t classes = 0;  // in all; columns beyond do not count
  bool ignores = false;
  int64_t ignored = 0;  // target
  double smoothing = 0, z = 0;
  TokenScore settings{};                 // of what must be the same on all ranks, four whole numbers; losses are NaN otherwise
  TokenScore* scores = nullptr;          // this rank's, and its settings after them
  const TokenScore* gathered = nullptr;  // of all ranks, one after another
  float* losses = nullptr;
  TokenSum* sums = nullptr;  // null: not wanted
  const float* grad_losses = nullptr;
  void* grad_logits = nullptr;  // may be the logits
  int64_t grad_stride = 0;

  MEGADP_HOST_DEVICE int64_t first() const { return rank * columns; }
  // How many columns of a rank count.
  MEGADP_HOST_DEVICE int64_t counted(int32_t of) const {
    const int64_t left = classes - of * columns;
    return left < 0 ? 0 : left < columns ? left : columns;
  }
  MEGADP_HOST_DEVICE bool is_ignored(int64_t target) const { return ignores && target == ignored; }
  MEGADP_HOST_DEVICE bool is_class(int64_t target) const { return target >= 0 && target < classes; }
};

// Three parts of the work: with the collective between the first two, and the third in backward.
enum class CrossEntropyPass : uint32_t {
  scores,
  losses,
  gradient
};

// The first rank whose settings are not this one's; -1: none.
MEGADP_HOST_DEVICE inline int32_t find_other_settings(const CrossEntropy& work) {
  const TokenScore& mine = work.settings;
  for (int32_t rank = 0; rank < work.ranks; ++rank) {
    const TokenScore& other = work.gathered[static_cast<uint64_t>(rank) * (work.tokens + 1) + work.tokens];
    const bool same = other.max == mine.max && other.sum_exp == mine.sum_exp && other.target == mine.target && other.sum == mine.sum;
    if (!same) return rank;
  }
  return -1;
}

// Some of a token's logits, one after another; nothing of a maximum of -inf, which all of them then are.
struct LogitSums {
  float exps = 0, sum = 0;
  MEGADP_HOST_DEVICE void add(float x, float max) {
    if (as_bits(max) == 0xff800000U) return;
    const float below = x - max;
    exps = exps + exponential(below);
    sum = sum + below;
  }
};

// TokenScore::target, once the maximum is known.
template <class T>
MEGADP_HOST_DEVICE inline float target_score(const CrossEntropy& work, const T* row, int64_t target, float max) {
  const int64_t here = target - work.first();
  if (work.is_ignored(target) || !work.is_class(target) || here < 0 || here >= work.columns) return 0;
  const float x = to_f32(row[here]);
  return x == max ? 0 : x - max;  // also of -inf, where all are
}

// From the scores of all ranks, in their order: the same on each.
MEGADP_HOST_DEVICE inline void finish_loss(const CrossEntropy& work, uint64_t token) {
  const int64_t target = work.targets[token];
  const auto of = [&](int32_t rank) -> const TokenScore& { return work.gathered[static_cast<uint64_t>(rank) * (work.tokens + 1) + token]; };
  float max = of(0).max;
  for (int32_t r = 1; r < work.ranks; ++r) max = larger(max, of(r).max);
  double sum_exp = 0, sum = 0;
  for (int32_t r = 0; r < work.ranks; ++r) {
    const double below = static_cast<double>(of(r).max) - max;
    if (!(of(r).sum_exp == 0)) sum_exp += of(r).sum_exp * std::exp(below);  // a rank of nothing but -inf adds nothing
    if (work.smoothing != 0 && work.counted(r) > 0) sum += of(r).sum + below * static_cast<double>(work.counted(r));
  }
  const double log_sum = std::log(sum_exp), whole = max + log_sum;
  if (work.sums != nullptr) work.sums[token] = {max, static_cast<float>(log_sum)};
  if (work.is_ignored(target)) {
    work.losses[token] = 0;
    return;
  }
  if (!work.is_class(target) || find_other_settings(work) >= 0) {
    work.losses[token] = as_float(0x7fc00000U);  // NaN
    return;
  }
  const TokenScore& owner = of(static_cast<int32_t>(target / work.columns));
  const double to_target = log_sum - (owner.target + (static_cast<double>(owner.max) - max));
  double loss = to_target;
  if (work.smoothing != 0) {
    // With what the target gets beside the others', so that no infinity is taken from another.
    const double classes = static_cast<double>(work.classes), others = work.smoothing / (classes - 1);
    loss = (1 - work.smoothing - others) * to_target + others * (classes * log_sum - sum);
  }
  if (work.z != 0) loss += work.z * whole * whole;
  work.losses[token] = static_cast<float>(loss);
}

// The gradient of a token's logits is factor p_v, less `others`, and less `at_target` in its place.
struct TokenGradient {
  float max = 0, log_sum = 0, factor = 0, others = 0, at_target = 0;
  int64_t target = -1;  // a column of this rank; -1: none
};
MEGADP_HOST_DEVICE inline TokenGradient gradient_of(const CrossEntropy& work, uint64_t token) {
  TokenGradient out;
  const int64_t target = work.targets[token];
  if (work.is_ignored(target)) return out;
  out.max = work.sums[token].max;
  out.log_sum = work.sums[token].log_sum;
  const double whole = static_cast<double>(out.max) + out.log_sum;
  const double given = work.is_class(target) ? work.grad_losses[token] : as_float(0x7fc00000U);
  out.factor = static_cast<float>(given * (1 + 2 * work.z * whole));
  if (work.smoothing != 0) out.others = static_cast<float>(given * work.smoothing / static_cast<double>(work.classes - 1));
  out.at_target = static_cast<float>(given * (1 - work.smoothing));
  const int64_t here = target - work.first();
  if (here >= 0 && here < work.columns) out.target = here;
  return out;
}

// Of one column's logit.
MEGADP_HOST_DEVICE inline float gradient_at(const TokenGradient& of, float x, int64_t column) {
  return softmax_gradient(x, of.max, of.log_sum, of.factor, column == of.target ? of.at_target : of.others);
}

}  // namespace megadp
