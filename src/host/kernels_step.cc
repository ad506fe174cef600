// SPDX-License-Identifier: Apache-2.0
// What an optimizer step does to elements: the sum of squares, a factor, the update rules; compiled once per SIMD target.
#include <type_traits>
#include <utility>

#include "base/rules.h"
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

#define MEGADP_ELEMENT HWY_INLINE
#include "base/rule_list.h"
#undef MEGADP_ELEMENT

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
  template <class F>
  static HWY_INLINE void at(size_t i, const Work& work, StateType<Rule, k>*... state) {
    F values[] = {get<F>(work.master + i), get<F>(state + i)...};
    const F gradient = HWY_NAMESPACE::clipped(get<F>(work.grad + i), F(work.factor), F(work.limit));
    Rule::element(work.constants, gradient, values[0], values[k + 1]...);
    put(values[0], work.master + i);
    (put(values[k + 1], state + i), ...);
    if constexpr (!std::is_same_v<Param, float>) put(values[0], work.param + i);
  }
  static HWY_INLINE void run(const Work& work, size_t n, StateType<Rule, k>*... state) {
    size_t i = 0;
    for (; i + lanes() <= n; i += lanes()) at<F32>(i, work, state...);
    for (; i < n; i++) at<float>(i, work, state...);
  }
  static void update(const Update& u) {
    const Work work{
        Rule::constants(u.hyper, *u.steps), u.scalars->grad_factor, u.scalars->grad_limit, static_cast<const Grad*>(u.grad), u.master,
        static_cast<Param*>(u.param)};
    run(work, u.count, static_cast<StateType<Rule, k>*>(u.state[k])...);
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
