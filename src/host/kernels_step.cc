// SPDX-License-Identifier: Apache-2.0
// What an optimizer step does to elements: the sum of squares, a factor, AdamW; compiled once per SIMD target.
#include <type_traits>

#include "host/simd.h"
#include "host/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/kernels_step.cc"
#include "hwy/foreach_target.h"

#include "host/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace megadp::host {
namespace HWY_NAMESPACE {

using DoubleTag = hn::ScalableTag<double>;
using FewFloatsTag = hn::Rebind<float, DoubleTag>;

void square_sum_f32(const float* data, size_t n, double* sums) {
  constexpr size_t width = hn::MaxLanes(DoubleTag());
  constexpr size_t parts = kSquareLanes / width;
  hn::Vec<DoubleTag> sum[parts];
#pragma GCC unroll 16
  for (size_t p = 0; p < parts; p++) sum[p] = hn::LoadU(DoubleTag(), sums + p * width);
  size_t i = 0;
  for (; i + kSquareLanes <= n; i += kSquareLanes) {
#pragma GCC unroll 16
    for (size_t p = 0; p < parts; p++) {
      const auto x = hn::PromoteTo(DoubleTag(), hn::LoadU(FewFloatsTag(), data + i + p * width));
      sum[p] = hn::Add(sum[p], hn::Mul(x, x));
    }
  }
#pragma GCC unroll 16
  for (size_t p = 0; p < parts; p++) hn::StoreU(sum[p], DoubleTag(), sums + p * width);
  for (size_t lane = 0; i < n; i++, lane++) {
    const double x = data[i];
    sums[lane] += x * x;
  }
}

template <class T>
void square_sum(const void* bytes, size_t n, double* sums) {
  const T* const data = static_cast<const T*>(bytes);
  if constexpr (std::is_same_v<T, float>) {
    square_sum_f32(data, n, sums);
  } else {
    constexpr size_t block = 1024;  // a multiple of kSquareLanes
    alignas(64) float wide[block];
    for (size_t begin = 0; begin < n; begin += block) {
      const size_t count = n - begin < block ? n - begin : block;
      size_t i = 0;
      for (; i + lanes() <= count; i += lanes()) store(load(data + begin + i), wide + i);
      for (; i < count; i++) wide[i] = to_f32(data[begin + i]);
      square_sum_f32(wide, count, sums);
    }
  }
}

template <class T>
void scale(void* bytes, size_t n, float factor) {
  T* const data = static_cast<T*>(bytes);
  const F32 all(factor);
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) store(HWY_NAMESPACE::scaled(load(data + i), all), data + i);
  for (; i < n; i++) from_f32(data + i, HWY_NAMESPACE::scaled(to_f32(data[i]), factor));
}

AdamWConstants<F32> on_all_lanes(const AdamWConstants<float>& c) {
  return {F32(c.grad_factor), F32(c.beta1),     F32(c.one_minus_beta1), F32(c.beta2), F32(c.one_minus_beta2),
          F32(c.decay),       F32(c.step_size), F32(c.bias2_root),      F32(c.eps)};
}

// An f32 parameter is its own master: `param` is then not written.
template <class Grad, class Param>
void adamw(const AdamWConstants<float>& constants, const void* grad_bytes, float* master, float* m, float* v, void* param_bytes, size_t n) {
  const Grad* const grad = static_cast<const Grad*>(grad_bytes);
  [[maybe_unused]] Param* const param = static_cast<Param*>(param_bytes);
  const AdamWConstants<float> one = constants;
  const AdamWConstants<F32> all = on_all_lanes(constants);
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    F32 p = load(master + i), first = load(m + i), second = load(v + i);
    HWY_NAMESPACE::adamw_element(all, load(grad + i), p, first, second);
    store(p, master + i);
    store(first, m + i);
    store(second, v + i);
    if constexpr (!std::is_same_v<Param, float>) store(p, param + i);
  }
  for (; i < n; i++) {
    HWY_NAMESPACE::adamw_element(one, to_f32(grad[i]), master[i], m[i], v[i]);
    if constexpr (!std::is_same_v<Param, float>) from_f32(param + i, master[i]);
  }
}

extern const StepTable kStepTable;
const StepTable kStepTable = {
    {square_sum<float>, square_sum<Bf16>, square_sum<F16>},
    {scale<float>, scale<Bf16>, scale<F16>},
    {{adamw<float, float>, adamw<float, Bf16>, adamw<float, F16>},
     {adamw<Bf16, float>, adamw<Bf16, Bf16>, adamw<Bf16, F16>},
     {adamw<F16, float>, adamw<F16, Bf16>, adamw<F16, F16>}},
};

}  // namespace HWY_NAMESPACE
}  // namespace megadp::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megadp::host {
const StepTable* step_table(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::baseline:
      return &HWY_STATIC_DISPATCH(kStepTable);
    case SimdTarget::sse4:
      return HWY_CHOOSE_SSE4(kStepTable);
    case SimdTarget::avx2:
      return HWY_CHOOSE_AVX2(kStepTable);
    case SimdTarget::avx3:
      return HWY_CHOOSE_AVX3(kStepTable);
    case SimdTarget::neon:
      return HWY_CHOOSE_NEON(kStepTable);
  }
  return nullptr;
}
}  // namespace megadp::host
#endif
