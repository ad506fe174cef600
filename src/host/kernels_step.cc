// SPDX-License-Identifier: Apache-2.0
// What an optimizer step does to elements: the sum of squares, a factor, the update rules; compiled once per SIMD target.
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/rules.h"
#include "host/simd.h"
#include "host/simd_targets.h"
#include "hwy/cache_control.h"

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

// What is not finite has all bits of the exponent set: without its sign it is, as an integer, at least infinity. So a block is gone through
// by nothing but maxima of integers, and only one that has such an element is looked at closely.
template <class T, class Bits>
size_t first_nonfinite(const void* bytes, size_t n) {
  constexpr Bits infinity = std::is_same_v<T, float> ? 0x7f800000 : std::is_same_v<T, Bf16> ? 0x7f80 : 0x7c00;
  constexpr Bits magnitude = std::numeric_limits<Bits>::max();
  constexpr size_t parts = 4, block = 4096 / sizeof(T);
  const hn::ScalableTag<Bits> tag;
  const size_t width = hn::Lanes(tag);
  const T* const data = static_cast<const T*>(bytes);
  const auto at = [&](size_t i) HWY_ATTR {
    if constexpr (std::is_same_v<T, float>) {
      return hn::And(hn::BitCast(tag, hn::LoadU(FloatTag(), data + i)), hn::Set(tag, magnitude));
    } else {
      return hn::And(hn::LoadU(tag, reinterpret_cast<const Bits*>(&data[i].bits)), hn::Set(tag, magnitude));
    }
  };
  const auto all_finite = [&](hn::Vec<decltype(tag)> most)
                              HWY_ATTR { return hn::AllFalse(tag, hn::Gt(most, hn::Set(tag, static_cast<Bits>(infinity - 1)))); };
  size_t begin = 0;
  for (; begin + block <= n; begin += block) {
    hn::Vec<decltype(tag)> most[parts];
#pragma GCC unroll 4
    for (size_t p = 0; p < parts; p++) most[p] = at(begin + p * width);
    for (size_t i = begin + parts * width; i < begin + block; i += parts * width) {
#pragma GCC unroll 4
      for (size_t p = 0; p < parts; p++) most[p] = hn::Max(most[p], at(i + p * width));
    }
    if (!all_finite(hn::Max(hn::Max(most[0], most[1]), hn::Max(most[2], most[3])))) break;
  }
  for (; begin + width <= n && all_finite(at(begin)); begin += width) {
  }
  for (; begin < n; begin++) {
    Bits bits;
    std::memcpy(&bits, data + begin, sizeof bits);
    if ((bits & magnitude) >= infinity) break;
  }
  return begin;
}

#define MEGADP_ELEMENT HWY_INLINE
#include "base/rule_list.h"
#undef MEGADP_ELEMENT

constexpr size_t kLine = 64;  // of a cache

// One element or lanes() of them, by F.
template <class F, class T>
HWY_INLINE F get(const T* from) {
  if constexpr (std::is_same_v<F, float>) {
    return to_f32(*from);
  } else {
    return load(from);
  }
}
template <class F, class T>
HWY_INLINE void put(F value, T* to) {
  if constexpr (std::is_same_v<F, float>) {
    from_f32(to, value);
  } else {
    store(value, to);
  }
}

// An f32 parameter is its own master: `param` is then not written.
template <class Rule, class Grad, class Param, class States>
struct UpdateLoop;
template <class Rule, class Grad, class Param, size_t... k>
struct UpdateLoop<Rule, Grad, Param, std::index_sequence<k...>> {
  struct Work {
    typename Rule::Constants constants;
    float factor, limit;  // of gradients
    const Grad* grad;
    float* master;
    Param* param;
  };
  template <bool past, class F>
  static HWY_INLINE void at(size_t i, const Work& work, StateType<Rule, k>*... state) {
    F values[] = {get<F>(work.master + i), get<F>(state + i)...};
    const F gradient = HWY_NAMESPACE::clipped(get<F>(work.grad + i), F(work.factor), F(work.limit));
    Rule::element(work.constants, gradient, values[0], values[k + 1]...);
    put(values[0], work.master + i);
    (put(values[k + 1], state + i), ...);
    if constexpr (!std::is_same_v<Param, float>) {
      if constexpr (past && std::is_same_v<F, F32>) {
        store_past_caches(values[0], work.param + i);
      } else {
        put(values[0], work.param + i);
      }
    }
  }
  template <bool past>
  static HWY_INLINE void run(const Work& work, size_t n, StateType<Rule, k>*... state) {
    size_t i = 0;
    if constexpr (past) {
      for (; i < n && reinterpret_cast<uintptr_t>(work.param + i) % kLine != 0; i++) at<false, float>(i, work, state...);
    }
    for (; i + lanes() <= n; i += lanes()) at<past, F32>(i, work, state...);
    for (; i < n; i++) at<false, float>(i, work, state...);
    if constexpr (past) hwy::FlushStream();
  }
  static void update(const Update& u, bool past) {
    const Work work{
        Rule::constants(u.hyper, *u.steps), u.scalars->grad_factor, u.scalars->grad_limit, static_cast<const Grad*>(u.grad), u.master,
        static_cast<Param*>(u.param)};
    if constexpr (!std::is_same_v<Param, float>) {
      if (past) return run<true>(work, u.count, static_cast<StateType<Rule, k>*>(u.state[k])...);
    }
    run<false>(work, u.count, static_cast<StateType<Rule, k>*>(u.state[k])...);
  }
};

template <class Rule, class Grad, class Param>
constexpr UpdateFn kUpdate = UpdateLoop<Rule, Grad, Param, std::make_index_sequence<Rule::state.size()>>::update;
template <class Rule>
constexpr UpdateTable kUpdates = {{{kUpdate<Rule, float, float>, kUpdate<Rule, float, Bf16>, kUpdate<Rule, float, F16>},
                                   {kUpdate<Rule, Bf16, float>, kUpdate<Rule, Bf16, Bf16>, kUpdate<Rule, Bf16, F16>},
                                   {kUpdate<Rule, F16, float>, kUpdate<Rule, F16, Bf16>, kUpdate<Rule, F16, F16>}}};
template <class List>
struct Updates;
template <class... Rule>
struct Updates<RuleList<Rule...>> {
  static constexpr UpdateTable all[] = {kUpdates<Rule>...};
};

extern const StepTable kStepTable;
const StepTable kStepTable = {
    {square_sum<float>, square_sum<Bf16>, square_sum<F16>},
    {scale<float>, scale<Bf16>, scale<F16>},
    {first_nonfinite<float, int32_t>, first_nonfinite<Bf16, int16_t>, first_nonfinite<F16, int16_t>},
    Updates<Rules>::all,
    kRules,
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
