// SPDX-License-Identifier: Apache-2.0
// The softmax of one token's logits; compiled once per SIMD target. Sums are those of 16 lanes over 4096 elements at a time in f32, then in
// f64, so that every target gives the same bits.
#include <algorithm>
#include <cstdint>

#include "host/simd.h"
#include "host/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/kernels_vocabulary.cc"
#include "hwy/foreach_target.h"

#include "host/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace megadp::host {
namespace HWY_NAMESPACE {

template <class T>
float largest_of(const T* row, size_t n) {
  float most = to_f32(row[0]);
  size_t i = 0;
  if (n >= lanes()) {
    F32 all = load(row);
    for (i = lanes(); i + lanes() <= n; i += lanes()) all = larger(all, load(row + i));
    float each[hn::MaxLanes(FloatTag())];
    store(all, each);
    for (size_t lane = 0; lane < lanes(); lane++) most = larger(most, each[lane]);
  }
  for (; i < n; i++) most = larger(most, to_f32(row[i]));
  return most;
}

// What a block has beside whole vectors goes to its first lanes.
template <class T>
void score_row(const void* logits, size_t n, TokenScore* score) {
  const T* const row = static_cast<const T*>(logits);
  constexpr size_t parts = kSquareLanes / hn::MaxLanes(FloatTag()) > 0 ? kSquareLanes / hn::MaxLanes(FloatTag()) : 1;
  constexpr size_t width = kSquareLanes / parts;
  score->max = largest_of(row, n);
  double sum_exp = 0, sum = 0;
  for (size_t begin = 0; begin < n; begin += kSquareBlock) {
    const size_t count = std::min(kSquareBlock, n - begin), whole = count / kSquareLanes * kSquareLanes;
    float exps[kSquareLanes] = {}, sums[kSquareLanes] = {};
    for (size_t p = 0; p < parts; p++) {
      F32 exp_sum(0.0F), plain(0.0F);
      for (size_t i = p * width; i < whole; i += kSquareLanes) {
        const F32 below = load(row + begin + i) - F32(score->max);
        exp_sum = exp_sum + exponential(below);
        plain = plain + below;
      }
      store(exp_sum, exps + p * width);
      store(plain, sums + p * width);
    }
    for (size_t i = whole; i < count; i++) {
      const float below = to_f32(row[begin + i]) - score->max;
      exps[i - whole] += exponential(below);
      sums[i - whole] += below;
    }
    for (size_t lane = 0; lane < kSquareLanes; lane++) {
      sum_exp += exps[lane];
      sum += sums[lane];
    }
  }
  score->sum_exp = static_cast<float>(sum_exp);
  score->sum = static_cast<float>(sum);
}

// `to` may be the logits.
template <class T>
void gradient_row(void* to, const void* logits, size_t n, const TokenGradient& gradient) {
  const T* const row = static_cast<const T*>(logits);
  T* const out = static_cast<T*>(to);
  const F32 max(gradient.max), log_sum(gradient.log_sum), factor(gradient.factor), others(gradient.others);
  const auto own = [&](size_t i) HWY_ATTR { from_f32(out + i, gradient_at(gradient, to_f32(row[i]), static_cast<int64_t>(i))); };
  const size_t target = gradient.target < 0 ? n : static_cast<size_t>(gradient.target);
  size_t i = 0;
  while (i < n) {
    if (i + lanes() > n || (target >= i && target < i + lanes())) {
      own(i);
      i++;
      continue;
    }
    const size_t end = target > i ? std::min(n, target) : n;  // of vectors without the target
    for (; i + lanes() <= end; i += lanes()) store(softmax_gradient(load(row + i), max, log_sum, factor, others), out + i);
  }
}

extern const VocabularyTable kVocabularyTable;
const VocabularyTable kVocabularyTable = {{score_row<float>, score_row<Bf16>, score_row<F16>},
                                          {gradient_row<float>, gradient_row<Bf16>, gradient_row<F16>}};

}  // namespace HWY_NAMESPACE
}  // namespace megadp::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megadp::host {
const VocabularyTable* vocabulary_table(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::baseline:
      return &HWY_STATIC_DISPATCH(kVocabularyTable);
    case SimdTarget::sse4:
      return HWY_CHOOSE_SSE4(kVocabularyTable);
    case SimdTarget::avx2:
      return HWY_CHOOSE_AVX2(kVocabularyTable);
    case SimdTarget::avx3:
      return HWY_CHOOSE_AVX3(kVocabularyTable);
    case SimdTarget::neon:
      return HWY_CHOOSE_NEON(kVocabularyTable);
  }
  return nullptr;
}
}  // namespace megadp::host
#endif
