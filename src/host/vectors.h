// SPDX-License-Identifier: Apache-2.0
// Lanes of float and of 32 bits for the target that Highway is compiling for, as the arithmetic types of base/elements.h; loads and stores
// of the storage types. Included again for every target, hence the unusual guard. The only file, beside the kernels_*.cc, that names
// Highway.
#include "hwy/highway.h"

#if defined(MEGADP_HOST_VECTORS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGADP_HOST_VECTORS_H
#undef MEGADP_HOST_VECTORS_H
#else
#define MEGADP_HOST_VECTORS_H
#endif

#include "base/math.h"

HWY_BEFORE_NAMESPACE();
namespace megadp::host {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Beside the lanes below, so that base/elements.h works on single elements here too.
using megadp::as_bits;
using megadp::as_float;
using megadp::select_at_least;
using megadp::select_less;
using megadp::square_root;

using FloatTag = hn::ScalableTag<float>;
using BitsTag = hn::ScalableTag<uint32_t>;
using SignedTag = hn::ScalableTag<int32_t>;
using HalfTag = hn::Rebind<uint16_t, BitsTag>;  // as many lanes of 16 bits

HWY_INLINE size_t lanes() {
  return hn::Lanes(FloatTag());
}

struct U32 {
  hn::Vec<BitsTag> v;
  HWY_INLINE explicit U32(uint32_t x) : v(hn::Set(BitsTag(), x)) {}
  HWY_INLINE explicit U32(hn::Vec<BitsTag> x) : v(x) {}
};
HWY_INLINE U32 operator+(U32 a, U32 b) {
  return U32(hn::Add(a.v, b.v));
}
HWY_INLINE U32 operator-(U32 a, U32 b) {
  return U32(hn::Sub(a.v, b.v));
}
HWY_INLINE U32 operator&(U32 a, U32 b) {
  return U32(hn::And(a.v, b.v));
}
HWY_INLINE U32 operator|(U32 a, U32 b) {
  return U32(hn::Or(a.v, b.v));
}
HWY_INLINE U32 operator^(U32 a, U32 b) {
  return U32(hn::Xor(a.v, b.v));
}
HWY_INLINE U32 operator<<(U32 a, int count) {
  return U32(hn::ShiftLeftSame(a.v, count));
}
HWY_INLINE U32 operator>>(U32 a, int count) {
  return U32(hn::ShiftRightSame(a.v, count));
}
HWY_INLINE U32 select_less(U32 a, U32 b, U32 x, U32 y) {
  const auto less = hn::Lt(hn::BitCast(SignedTag(), a.v), hn::BitCast(SignedTag(), b.v));
  return U32(hn::IfThenElse(hn::RebindMask(BitsTag(), less), x.v, y.v));
}

struct F32 {
  hn::Vec<FloatTag> v;
  HWY_INLINE explicit F32(float x) : v(hn::Set(FloatTag(), x)) {}
  HWY_INLINE explicit F32(hn::Vec<FloatTag> x) : v(x) {}
};
HWY_INLINE F32 operator+(F32 a, F32 b) {
  return F32(hn::Add(a.v, b.v));
}
HWY_INLINE F32 operator-(F32 a, F32 b) {
  return F32(hn::Sub(a.v, b.v));
}
HWY_INLINE F32 operator*(F32 a, F32 b) {
  return F32(hn::Mul(a.v, b.v));
}
HWY_INLINE F32 operator/(F32 a, F32 b) {
  return F32(hn::Div(a.v, b.v));
}
HWY_INLINE F32 select_at_least(F32 a, F32 b, F32 x, F32 y) {
  return F32(hn::IfThenElse(hn::Ge(a.v, b.v), x.v, y.v));
}
HWY_INLINE F32 square_root(F32 a) {
  return F32(hn::Sqrt(a.v));
}
HWY_INLINE U32 as_bits(F32 a) {
  return U32(hn::BitCast(BitsTag(), a.v));
}
HWY_INLINE F32 as_float(U32 a) {
  return F32(hn::BitCast(FloatTag(), a.v));
}

#define MEGADP_ELEMENT HWY_INLINE
#include "base/elements.h"
#undef MEGADP_ELEMENT

// lanes() elements from or to memory of any alignment.
HWY_INLINE F32 load(const float* from) {
  return F32(hn::LoadU(FloatTag(), from));
}
HWY_INLINE U32 load_halves(const uint16_t* from) {
  return U32(hn::PromoteTo(BitsTag(), hn::LoadU(HalfTag(), from)));
}
HWY_INLINE F32 load(const Bf16* from) {
  return as_float(bits_from_bf16(load_halves(&from->bits)));
}
HWY_INLINE void store(F32 value, float* to) {
  hn::StoreU(value.v, FloatTag(), to);
}
HWY_INLINE hn::Vec<HalfTag> halves(U32 value) {
  return hn::TruncateTo(HalfTag(), value.v);
}
HWY_INLINE hn::Vec<HalfTag> rounded(F32 value, const Bf16*) {
  return halves(bf16_from_bits(as_bits(value)));
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// The instructions of F16C: the same bits as base/elements.h, NaN included, and a quarter of the time.
using F16Tag = hn::Rebind<hwy::float16_t, FloatTag>;
HWY_INLINE F32 load(const F16* from) {
  return F32(hn::PromoteTo(FloatTag(), hn::BitCast(F16Tag(), hn::LoadU(HalfTag(), &from->bits))));
}
HWY_INLINE hn::Vec<HalfTag> rounded(F32 value, const F16*) {
  return hn::BitCast(HalfTag(), hn::DemoteTo(F16Tag(), value.v));
}
#else
HWY_INLINE F32 load(const F16* from) {
  return as_float(bits_from_f16(load_halves(&from->bits)));
}
HWY_INLINE hn::Vec<HalfTag> rounded(F32 value, const F16*) {
  return halves(f16_from_bits(as_bits(value)));
}
#endif

template <class T>
HWY_INLINE void store(F32 value, T* to) {
  hn::StoreU(rounded(value, to), HalfTag(), &to->bits);
}
// Past the caches, to a multiple of as many bytes as are written; hwy::FlushStream orders them before later stores. Highway writes no less
// than 16 bytes that way: where lanes() halves are shorter, as any store.
template <class T>
HWY_INLINE void store_past_caches(F32 value, T* to) {
#if HWY_MAX_BYTES >= 32
  hn::Stream(rounded(value, to), HalfTag(), &to->bits);
#else
  store(value, to);
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace megadp::host
HWY_AFTER_NAMESPACE();

#endif
