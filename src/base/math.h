// SPDX-License-Identifier: Apache-2.0
// The one source of the element-wise mathematics, for the host and for device code: conversions between float and the half-width types,
// sums, and what one element of a reduction or a copy goes through. The standard library only. What vectors do as well stands in
// base/elements.h, which the SIMD kernels include too; what a step computes stands in base/step.h and in the update rules (base/rules.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/strict_math.h"

#if defined(__CUDACC__)
#define MEGADP_HOST_DEVICE __host__ __device__
#else
#define MEGADP_HOST_DEVICE
#endif

namespace megadp {

// ── one element: float as the arithmetic type of base/elements.h ──

MEGADP_HOST_DEVICE inline uint32_t as_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
MEGADP_HOST_DEVICE inline float as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
MEGADP_HOST_DEVICE inline uint32_t select_less(uint32_t a, uint32_t b, uint32_t x, uint32_t y) {
  return a < b ? x : y;
}
template <class T>
MEGADP_HOST_DEVICE inline T select_at_least(T a, T b, T x, T y) {
  return a >= b ? x : y;
}
MEGADP_HOST_DEVICE inline float square_root(float x) {
  return std::sqrt(x);
}

#define MEGADP_ELEMENT MEGADP_HOST_DEVICE inline
#include "base/elements.h"
#undef MEGADP_ELEMENT

// ── storage types ──

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

MEGADP_HOST_DEVICE inline float to_f32(float x) {
  return x;
}
MEGADP_HOST_DEVICE inline float to_f32(Bf16 x) {
  return as_float(bits_from_bf16(uint32_t{x.bits}));
}
MEGADP_HOST_DEVICE inline float to_f32(F16 x) {
  return as_float(bits_from_f16(uint32_t{x.bits}));
}

// *to = from, rounded to nearest even.
MEGADP_HOST_DEVICE inline void from_f32(float* to, float from) {
  *to = from;
}
MEGADP_HOST_DEVICE inline void from_f32(Bf16* to, float from) {
  to->bits = static_cast<uint16_t>(bf16_from_bits(as_bits(from)));
}
MEGADP_HOST_DEVICE inline void from_f32(F16* to, float from) {
  to->bits = static_cast<uint16_t>(f16_from_bits(as_bits(from)));
}

// *master = param, unless it rounds to that already: what it has beyond the type's digits then stays.
template <class T>
MEGADP_HOST_DEVICE inline void refresh_master(float* master, T param) {
  T rounded;
  from_f32(&rounded, *master);
  if (rounded.bits != param.bits) *master = to_f32(param);
}

// *to = from, rounded by 16 random bits.
MEGADP_HOST_DEVICE inline void round_with(Bf16* to, float from, uint32_t random) {
  to->bits = static_cast<uint16_t>(bf16_from_bits_with(as_bits(from), random));
}

// *to = from + *residual, rounded; *residual = what that lost.
MEGADP_HOST_DEVICE inline void round_with_feedback(Bf16* to, float from, float* residual) {
  const float value = from + *residual;
  from_f32(to, value);
  *residual = lost_by_rounding(value, to_f32(*to));
}

// `x` as a float whose last bit is 1 where digits were lost. Rounding that once more, to a type with fewer digits, gives what rounding `x`
// itself would have given; rounding to nearest twice would not.
MEGADP_HOST_DEVICE inline float round_to_odd(double x) {
  const float near = static_cast<float>(x);
  const double back = near;
  const uint32_t bits = as_bits(near);
  if (back == x || x != x || (bits & 1) != 0) return near;
  return as_float(std::fabs(back) > std::fabs(x) ? bits - 1 : bits + 1);
}

MEGADP_HOST_DEVICE inline void from_f64(float* to, double from) {
  *to = static_cast<float>(from);
}
MEGADP_HOST_DEVICE inline void from_f64(double* to, double from) {
  *to = from;
}
template <class T>
MEGADP_HOST_DEVICE inline void from_f64(T* to, double from) {
  from_f32(to, round_to_odd(from));
}

// ── sums: the type that elements are added in, and the steps of a reduction: widen, add (or larger, smaller), divide, narrow ──

MEGADP_HOST_DEVICE inline float widen(float x) {
  return x;
}
MEGADP_HOST_DEVICE inline float widen(Bf16 x) {
  return to_f32(x);
}
MEGADP_HOST_DEVICE inline float widen(F16 x) {
  return to_f32(x);
}
MEGADP_HOST_DEVICE inline double widen(double x) {
  return x;
}
MEGADP_HOST_DEVICE inline int64_t widen(int64_t x) {
  return x;
}
MEGADP_HOST_DEVICE inline uint64_t widen(uint8_t x) {
  return x;
}

MEGADP_HOST_DEVICE inline float add(float a, float b) {
  return a + b;
}
MEGADP_HOST_DEVICE inline double add(double a, double b) {
  return a + b;
}
MEGADP_HOST_DEVICE inline int64_t add(int64_t a, int64_t b) {  // wraps around
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
MEGADP_HOST_DEVICE inline uint64_t add(uint64_t a, uint64_t b) {
  return a + b;
}

// True division; of integers towards zero.
template <class T>
MEGADP_HOST_DEVICE inline T divide(T sum, T divisor) {
  return sum / divisor;
}

template <class T>
MEGADP_HOST_DEVICE inline void narrow(T* to, float value) {
  from_f32(to, value);
}
MEGADP_HOST_DEVICE inline void narrow(double* to, double value) {
  *to = value;
}
MEGADP_HOST_DEVICE inline void narrow(int64_t* to, int64_t value) {
  *to = value;
}
MEGADP_HOST_DEVICE inline void narrow(uint8_t* to, uint64_t value) {  // 255 at most
  *to = static_cast<uint8_t>(value < 255 ? value : 255);
}

// Squares of floats are exact in double.
MEGADP_HOST_DEVICE inline double add_square(double sum, double x) {
  return sum + x * x;
}
// How a sum of squares is cut, on every backend; host/kernels.h has the order.
constexpr int kSquareLanes = 16;
constexpr uint64_t kSquareBlock = 4096;  // elements
constexpr uint64_t kSquareRun = 256;     // blocks

MEGADP_HOST_DEVICE inline bool is_finite(float x) {
  return (as_bits(x) & 0x7f800000U) != 0x7f800000U;
}

// ── *to = from, *to += from, for a value that was widened: in float, or in double if either side is; rounded once ──

template <class T>
MEGADP_HOST_DEVICE inline void convert(T* to, float from) {
  from_f32(to, from);
}
MEGADP_HOST_DEVICE inline void convert(double* to, float from) {
  *to = from;
}
template <class T>
MEGADP_HOST_DEVICE inline void convert(T* to, double from) {
  from_f64(to, from);
}
template <class T>
MEGADP_HOST_DEVICE inline void add_to(T* to, float from) {
  from_f32(to, to_f32(*to) + from);
}
MEGADP_HOST_DEVICE inline void add_to(double* to, float from) {
  *to += from;
}
template <class T>
MEGADP_HOST_DEVICE inline void add_to(T* to, double from) {
  from_f64(to, double{widen(*to)} + from);
}
MEGADP_HOST_DEVICE inline void add_to(int64_t* to, int64_t from) {
  *to = add(*to, from);
}
MEGADP_HOST_DEVICE inline void add_to(uint8_t* to, uint64_t from) {
  narrow(to, add(widen(*to), from));
}

}  // namespace megadp
