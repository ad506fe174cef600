// SPDX-License-Identifier: Apache-2.0
// Conversion between the storage types, copied or added, and random bits to round with; compiled once per SIMD target.
#include "base/random.h"
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

void random_words(uint32_t* first, uint32_t* second, uint64_t key, uint64_t counter, size_t n) {
  const auto key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32), low = static_cast<uint32_t>(counter);
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    U32 a(hn::Iota(BitsTag(), low + static_cast<uint32_t>(i))), b(static_cast<uint32_t>(counter >> 32));
    threefry(key0, key1, a, b);
    hn::StoreU(a.v, BitsTag(), first + i);
    hn::StoreU(b.v, BitsTag(), second + i);
  }
  for (; i < n; i++) {
    const RandomWords words = megadp::random_words(key, counter + i);
    first[i] = words.first;
    second[i] = words.second;
  }
}

void round_with(Bf16* to, const float* from, const uint32_t* random, int shift, size_t n) {
  size_t i = 0;
  for (; i + lanes() <= n; i += lanes()) {
    const U32 bits = (U32(hn::LoadU(BitsTag(), random + i)) >> shift) & U32(0xffff);
    hn::StoreU(halves(bf16_from_bits_with(as_bits(load(from + i)), bits)), HalfTag(), &to[i].bits);
  }
  for (; i < n; i++) megadp::round_with(to + i, from[i], (random[i] >> shift) & 0xffffU);
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
    random_words,
    round_with,
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
