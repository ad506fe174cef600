// SPDX-License-Identifier: Apache-2.0
// Sum, maximum and minimum of many arrays, the inside of every reduction; compiled once per SIMD target.
//
// Up to Op::ways arrays are read side by side and the result is written at once. More are taken so many at a time, a block at a time, with
// the block's running fp32 results in the first-level cache. For a sum:
//
//   from[0..3] -> running -> + from[4..7] -> running -> ... -> divide, round -> to
#include "host/simd.h"
#include "host/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/kernels_reduce.cc"
#include "hwy/foreach_target.h"

#include "host/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace megadp::host {
namespace HWY_NAMESPACE {

struct Sum {
  static constexpr int ways = 4;
  template <class F>
  static HWY_INLINE F fold(F a, F b) {
    return a + b;
  }
  template <class F>
  static HWY_INLINE F finish(F value, F divisor) {
    return value / divisor;
  }
};
struct Max {
  static constexpr int ways = 1;  // rarely used: less code
  template <class F>
  static HWY_INLINE F fold(F a, F b) {
    return larger(a, b);
  }
  template <class F>
  static HWY_INLINE F finish(F value, F) {
    return value;
  }
};
struct Min {
  static constexpr int ways = 1;
  template <class F>
  static HWY_INLINE F fold(F a, F b) {
    return smaller(a, b);
  }
  template <class F>
  static HWY_INLINE F finish(F value, F) {
    return value;
  }
};

// One block: folds `ways` arrays, after what is in `running` unless `first`; into `to` if `last`, otherwise back into `running`.
template <class T, class Op, int ways, bool first, bool last>
void pass(T* to, float* running, const void* const* from, size_t n, float divisor) {
  const T* in[ways];
  for (int k = 0; k < ways; k++) in[k] = static_cast<const T*>(from[k]);
  const F32 divisors(divisor);
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    F32 value = first ? load(in[0] + i) : load(running + i);
#pragma GCC unroll 4
    for (int k = first ? 1 : 0; k < ways; k++) value = Op::fold(value, load(in[k] + i));
    if constexpr (last) {
      store(Op::finish(value, divisors), to + i);
    } else {
      store(value, running + i);
    }
  }
  for (; i < n; i++) {
    float value = first ? to_f32(in[0][i]) : running[i];
    for (int k = first ? 1 : 0; k < ways; k++) value = Op::fold(value, to_f32(in[k][i]));
    if constexpr (last) {
      from_f32(to + i, Op::finish(value, divisor));
    } else {
      running[i] = value;
    }
  }
}

template <class T, class Op, bool first, int ways = Op::ways>
HWY_INLINE void last_pass(T* to, float* running, const void* const* from, int left, size_t n, float divisor) {
  if constexpr (ways > 1) {
    if (left < ways) return last_pass<T, Op, first, ways - 1>(to, running, from, left, n, divisor);
  }
  pass<T, Op, ways, first, true>(to, running, from, n, divisor);
}

template <class T, class Op>
void reduce(void* to_bytes, const void* const* from, int nfrom, size_t n, float divisor) {
  constexpr int ways = Op::ways;
  T* const to = static_cast<T*>(to_bytes);
  if (nfrom <= ways) return last_pass<T, Op, true>(to, nullptr, from, nfrom, n, divisor);
  constexpr size_t block = 2048;
  alignas(64) float running[block];
  for (size_t begin = 0; begin < n; begin += block) {
    const size_t count = n - begin < block ? n - begin : block;
    const void* in[ways];
    const auto take = [&](int k) {
      for (int j = 0; j < ways && k + j < nfrom; j++) in[j] = static_cast<const T*>(from[k + j]) + begin;
    };
    take(0);
    pass<T, Op, ways, true, false>(nullptr, running, in, count, divisor);
    int k = ways;
    for (; nfrom - k > ways; k += ways) {
      take(k);
      pass<T, Op, ways, false, false>(nullptr, running, in, count, divisor);
    }
    take(k);
    last_pass<T, Op, false>(to + begin, running, in, nfrom - k, count, divisor);
  }
}

extern const ReduceTable kReduceTable;
const ReduceTable kReduceTable = {
    {reduce<float, Sum>, reduce<Bf16, Sum>, reduce<F16, Sum>},
    {reduce<float, Max>, reduce<Bf16, Max>, reduce<F16, Max>},
    {reduce<float, Min>, reduce<Bf16, Min>, reduce<F16, Min>},
};

}  // namespace HWY_NAMESPACE
}  // namespace megadp::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megadp::host {
const ReduceTable* reduce_table(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::baseline:
      return &HWY_STATIC_DISPATCH(kReduceTable);
    case SimdTarget::sse4:
      return HWY_CHOOSE_SSE4(kReduceTable);
    case SimdTarget::avx2:
      return HWY_CHOOSE_AVX2(kReduceTable);
    case SimdTarget::avx3:
      return HWY_CHOOSE_AVX3(kReduceTable);
    case SimdTarget::neon:
      return HWY_CHOOSE_NEON(kReduceTable);
  }
  return nullptr;
}
}  // namespace megadp::host
#endif
