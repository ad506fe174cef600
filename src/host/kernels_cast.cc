// SPDX-License-Identifier: Apache-2.0
// Conversion between the storage types, copied or added; compiled once per SIMD target.
#include "host/simd.h"
#include "host/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "host/kernels_cast.cc"
#include "hwy/foreach_target.h"

#include "host/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace megadp::host {
namespace HWY_NAMESPACE {

template <class To, class From>
void cast(void* to_bytes, const void* from_bytes, size_t n) {
  To* const to = static_cast<To*>(to_bytes);
  const From* const from = static_cast<const From*>(from_bytes);
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) store(load(from + i), to + i);
  for (; i < n; i++) from_f32(to + i, to_f32(from[i]));
}

template <class To, class From>
void add_cast(void* to_bytes, const void* from_bytes, size_t n) {
  To* const to = static_cast<To*>(to_bytes);
  const From* const from = static_cast<const From*>(from_bytes);
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) store(load(to + i) + load(from + i), to + i);
  for (; i < n; i++) from_f32(to + i, to_f32(to[i]) + to_f32(from[i]));
}

void round_with_feedback(Bf16* to, const float* from, float* residual, size_t n) {
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const F32 value = load(from + i) + load(residual + i);
    store(value, to + i);
    store(lost_by_rounding(value, load(to + i)), residual + i);
  }
  for (; i < n; i++) megadp::round_with_feedback(to + i, from[i], residual + i);
}

extern const CastTable kCastTable;
const CastTable kCastTable = {
    {{nullptr, cast<float, Bf16>, cast<float, F16>},  // the same type: memmove
     {cast<Bf16, float>, nullptr, cast<Bf16, F16>},
     {cast<F16, float>, cast<F16, Bf16>, nullptr}},
    {{add_cast<float, float>, add_cast<float, Bf16>, add_cast<float, F16>},
     {add_cast<Bf16, float>, add_cast<Bf16, Bf16>, add_cast<Bf16, F16>},
     {add_cast<F16, float>, add_cast<F16, Bf16>, add_cast<F16, F16>}},
    round_with_feedback,
};

}  // namespace HWY_NAMESPACE
}  // namespace megadp::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace megadp::host {
const CastTable* cast_table(SimdTarget target) noexcept {
  switch (target) {
    case SimdTarget::baseline:
      return &HWY_STATIC_DISPATCH(kCastTable);
    case SimdTarget::sse4:
      return HWY_CHOOSE_SSE4(kCastTable);
    case SimdTarget::avx2:
      return HWY_CHOOSE_AVX2(kCastTable);
    case SimdTarget::avx3:
      return HWY_CHOOSE_AVX3(kCastTable);
    case SimdTarget::neon:
      return HWY_CHOOSE_NEON(kCastTable);
  }
  return nullptr;
}
}  // namespace megadp::host
#endif
