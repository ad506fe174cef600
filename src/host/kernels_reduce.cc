// SPDX-License-Identifier: Apache-2.0
// Sum, maximum and minimum of many arrays, the inside of every reduction; compiled once per SIMD target. The order is that of
// base/sum_order.h.
//
// Up to Op::ways arrays are read side by side and the result is written at once. More are taken a block at a time: the left side of the
// tree becomes the block's running fp32 results, in the first-level cache; then comes the right side. For a sum:
//
//   from[0..3] -> running;  running + from[4..6] -> divide, round -> to
#include "base/sum_order.h"
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

// The tree over arrays begin to begin + count - 1, of which load(k) gives an element.
template <class Op, int begin, int count, class Load>
HWY_INLINE auto tree(const Load& load) {
  if constexpr (count == 1) {
    return load(begin);
  } else {
    constexpr int left = left_side(count);
    return Op::fold(tree<Op, begin, left>(load), tree<Op, begin + left, count - left>(load));
  }
}

// Elements begin to begin + n of `ways` arrays of T: their tree, with what is in `running` as its left neighbour if it is `right`; into
// `to` if `last`, otherwise into `running`.
template <class To, class T, class Op, int ways, bool right, bool last>
void pass(To* to, float* running, const void* const* from, size_t begin, size_t n, float divisor) {
  const T* in[ways];
  for (int k = 0; k < ways; k++) in[k] = static_cast<const T*>(from[k]) + begin;
  const F32 divisors(divisor);
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    F32 value = tree<Op, 0, ways>([&](int k) HWY_ATTR { return load(in[k] + i); });
    if constexpr (right) value = Op::fold(load(running + i), value);
    if constexpr (last) {
      store(Op::finish(value, divisors), to + i);
    } else {
      store(value, running + i);
    }
  }
  for (; i < n; i++) {
    float value = tree<Op, 0, ways>([&](int k) { return to_f32(in[k][i]); });
    if constexpr (right) value = Op::fold(running[i], value);
    if constexpr (last) {
      from_f32(to + i, Op::finish(value, divisor));
    } else {
      running[i] = value;
    }
  }
}

template <class To, class T, class Op, bool right, bool last, int ways = Op::ways>
HWY_INLINE void few(To* to, float* running, const void* const* from, int nfrom, size_t begin, size_t n, float divisor) {
  if constexpr (ways > 1) {
    if (nfrom < ways) return few<To, T, Op, right, last, ways - 1>(to, running, from, nfrom, begin, n, divisor);
  }
  pass<To, T, Op, ways, right, last>(to, running, from, begin, n, divisor);
}

constexpr size_t kBlock = 2048;

// running = the tree over a block of `nfrom` arrays.
template <class T, class Op>
void left_side_of(float* running, const void* const* from, int nfrom, size_t begin, size_t n);

// running, or `to` if `last`, = running + the tree over a block of `nfrom` arrays.
template <class To, class T, class Op, bool last>
void add_right_side(To* to, float* running, const void* const* from, int nfrom, size_t begin, size_t n, float divisor) {
  if (nfrom <= Op::ways) return few<To, T, Op, true, last>(to, running, from, nfrom, begin, n, divisor);
  alignas(64) float sums[kBlock];
  left_side_of<T, Op>(sums, from, nfrom, begin, n);
  const void* const one[] = {sums};
  pass<To, float, Op, 1, true, last>(to, running, one, 0, n, divisor);
}

template <class T, class Op>
void left_side_of(float* running, const void* const* from, int nfrom, size_t begin, size_t n) {
  if (nfrom <= Op::ways) return few<float, T, Op, false, false>(nullptr, running, from, nfrom, begin, n, 1);
  const int left = left_side(nfrom);
  left_side_of<T, Op>(running, from, left, begin, n);
  add_right_side<float, T, Op, false>(nullptr, running, from + left, nfrom - left, begin, n, 1);
}

template <class T, class Op, class To = T>
void reduce(void* to_bytes, const void* const* from, int nfrom, size_t begin, size_t n, float divisor) {
  To* const to = static_cast<To*>(to_bytes);
  if (nfrom <= Op::ways) return few<To, T, Op, false, true>(to + begin, nullptr, from, nfrom, begin, n, divisor);
  const int left = left_side(nfrom);
  alignas(64) float running[kBlock];
  for (const size_t end = begin + n; begin < end; begin += kBlock) {
    const size_t count = end - begin < kBlock ? end - begin : kBlock;
    left_side_of<T, Op>(running, from, left, begin, count);
    add_right_side<To, T, Op, true>(to + begin, running, from + left, nfrom - left, begin, count, divisor);
  }
}

extern const ReduceTable kReduceTable;
const ReduceTable kReduceTable = {
    {reduce<float, Sum>, reduce<Bf16, Sum>, reduce<F16, Sum>},
    {reduce<float, Max>, reduce<Bf16, Max>, reduce<F16, Max>},
    {reduce<float, Min>, reduce<Bf16, Min>, reduce<F16, Min>},
    {reduce<float, Sum>, reduce<Bf16, Sum, float>, reduce<F16, Sum, float>},
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
