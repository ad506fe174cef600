// SPDX-License-Identifier: Apache-2.0
// The element-wise mathematics, written once for one element and for a vector of them.
//
// Not a header of its own: it has no guard and is included inside a namespace, by base/math.h for float and by host/vectors.h once for
// every SIMD target (where functions must be compiled for that target to be inlined). The namespace provides, for an arithmetic type F
// (float or lanes of float) and a bit type U (uint32_t or lanes of it):
//   F: F(float), + - * /, square_root(F), as_bits(F) -> U, select_at_least(a, b, x, y) -> a >= b ? x : y
//   U: U(uint32_t), + - & | ^ << >>, as_float(U) -> F, select_less(a, b, x, y) -> a < b ? x : y with a, b < 2^31
//   MEGADP_ELEMENT: what a function is marked with
// Only operations that IEEE 754 rounds correctly are used, and no fused multiply-add: every target gives the same bits.

// ── bfloat16: the upper half of a float; round to nearest, ties to even ──
// NaN keeps its sign and the upper bits of its payload and becomes quiet, so that it cannot round to infinity. Subnormals are kept.
template <class U>
MEGADP_ELEMENT U bf16_from_bits(U bits) {
  const U upper = bits >> 16;
  const U rounded = (bits + U(0x7fff) + (upper & U(1))) >> 16;
  return select_less(U(0x7f800000), bits & U(0x7fffffff), upper | U(0x40), rounded);
}

// Rounded stochastically: up, in magnitude, with the probability of what is cut off, in units of the last place. `random`: 16 bits. So the
// error's mean is 0, and what a bf16 can hold stays as it is. A finite number stays finite: above the largest bf16 it becomes that.
template <class U>
MEGADP_ELEMENT U bf16_from_bits_with(U bits, U random) {
  const U up = bits + random;
  const U rounded = select_less(up & U(0x7fffffff), U(0x7f800000), up, bits) >> 16;
  return select_less(U(0x7f800000), bits & U(0x7fffffff), (bits >> 16) | U(0x40), rounded);
}

// Exact; every bit is kept, a signalling NaN stays one.
template <class U>
MEGADP_ELEMENT U bits_from_bf16(U half) {
  return half << 16;
}

// ── IEEE binary16; the same rounding, and the same treatment of NaN as x86's and ARM's own instructions ──
template <class U>
MEGADP_ELEMENT U f16_from_bits(U bits) {
  const U magnitude = bits & U(0x7fffffff);
  // The exponent is rebiased by 15 - 127; a carry out of the mantissa raises it, up to infinity.
  const U normal = (magnitude - U(0x38000000) + U(0xfff) + ((magnitude >> 13) & U(1))) >> 13;
  // The unit of the last place of 0.5f is the smallest subnormal, 2^-24: the addition rounds.
  const U subnormal = as_bits(as_float(magnitude) + as_float(U(0x3f000000))) - U(0x3f000000);
  const U nan = U(0x7e00) | ((magnitude >> 13) & U(0x3ff));
  U half = select_less(magnitude, U(0x38800000), subnormal, normal);  // below 2^-14
  half = select_less(U(0x477fffff), magnitude, U(0x7c00), half);      // 65536 and more
  half = select_less(U(0x7f800000), magnitude, nan, half);
  return half | ((bits >> 16) & U(0x8000));
}

// Exact, but for a signalling NaN, which becomes quiet.
template <class U>
MEGADP_ELEMENT U bits_from_f16(U half) {
  const U magnitude = (half & U(0x7fff)) << 13;
  const U normal = magnitude + U(0x38000000);
  const U special = magnitude + U(0x70000000);
  // Made as 2^-14 plus the mantissa, from which 2^-14 is taken again: exact.
  const U subnormal = as_bits(as_float(magnitude + U(0x38800000)) - as_float(U(0x38800000)));
  U bits = select_less(magnitude, U(0x00800000), subnormal, normal);
  bits = select_less(U(0x0f7fffff), magnitude, special, bits);
  bits = select_less(U(0x0f800000), magnitude, special | U(0x00400000), bits);
  return bits | ((half & U(0x8000)) << 16);
}

// ── the larger and the smaller of two; NaN if one of them is NaN, `a` if they are equal (so also of -0 and +0) ──
template <class F>
MEGADP_ELEMENT F larger(F a, F b) {
  return select_at_least(a, a, select_at_least(a, b, a, b), a);
}
template <class F>
MEGADP_ELEMENT F smaller(F a, F b) {
  return select_at_least(a, a, select_at_least(b, a, a, b), a);
}

// ── 1, 0 or -1; NaN stays ──
template <class F>
MEGADP_ELEMENT F sign(F x) {
  const F zero = F(0);
  return select_at_least(x, zero, select_at_least(zero, x, zero, F(1)), select_at_least(zero, x, F(-1), x));
}

// ── what rounding took from a value, which is added to the next one; nothing where either is not finite ──
template <class F>
MEGADP_ELEMENT F lost_by_rounding(F value, F rounded) {
  using U = decltype(as_bits(value));
  const U lost = as_bits(value - rounded);
  return as_float(select_less(lost & U(0x7fffffff), U(0x7f800000), lost, U(0)));
}

// ── a gradient multiplied by a factor; and what an update rule is given of it: no larger than a limit, too ──
template <class F>
MEGADP_ELEMENT F scaled(F x, F factor) {
  return x * factor;
}
// No limit is NaN, so that half of what larger() and smaller() compare is known; NaN stays.
template <class F>
MEGADP_ELEMENT F clipped(F x, F factor, F limit) {
  const F value = scaled(x, factor), least = F(0) - limit;
  const F above = select_at_least(least, value, least, value);
  return select_at_least(above, limit, limit, above);
}

// ── e^x to about a unit of the last place, for x up to 88; 0 below -87.33. The polynomial is that of Cephes' expf ──
template <class F>
MEGADP_ELEMENT F exponential(F x) {
  const F least = F(-87.33F), shift = F(12582912.0F);  // 1.5 * 2^23: the sum's last bits are the integer
  const F sum = x * F(1.44269504F) + shift, n = sum - shift;
  const F r = x - n * F(0.693359375F) + n * F(2.12194440e-4F);  // log 2 in two parts, the first one exact in the product
  F p = r * F(1.9875691500e-4F) + F(1.3981999507e-3F);
  p = p * r + F(8.3334519073e-3F);
  p = p * r + F(4.1665795894e-2F);
  p = p * r + F(1.6666665459e-1F);
  p = p * r + F(5.0000001201e-1F);
  const F power = p * (r * r) + r + F(1.0F);
  const F raised = as_float(as_bits(power) + (as_bits(sum) << 23));
  return select_at_least(x, least, raised, select_at_least(least, x, F(0), x));  // NaN stays
}

// ── factor times a softmax's element, e^(x - max) / e^log_sum, less a number ──
template <class F>
MEGADP_ELEMENT F softmax_gradient(F x, F max, F log_sum, F factor, F minus) {
  return exponential((x - max) - log_sum) * factor - minus;
}

// ── random bits: Threefry-2x32 with 20 rounds (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3; 2011) ──
template <class U>
MEGADP_ELEMENT void threefry_round(U& a, U& b, int rotation) {
  a = a + b;
  b = ((b << rotation) | (b >> (32 - rotation))) ^ a;
}
// Four of them with the one half of the rotations or the other, and then a part of the key.
template <class U>
MEGADP_ELEMENT void threefry_rounds(U& a, U& b, bool odd, uint32_t to_a, uint32_t to_b) {
  threefry_round(a, b, odd ? 13 : 17);
  threefry_round(a, b, odd ? 15 : 29);
  threefry_round(a, b, odd ? 26 : 16);
  threefry_round(a, b, odd ? 6 : 24);
  a = a + U(to_a);
  b = b + U(to_b);
}
// The counter (a, b) becomes two words, as good as random. No two counters become the same under one key.
template <class U>
MEGADP_ELEMENT void threefry(uint32_t key0, uint32_t key1, U& a, U& b) {
  const uint32_t key2 = key0 ^ key1 ^ 0x1bd11bdaU;
  a = a + U(key0);
  b = b + U(key1);
  threefry_rounds(a, b, true, key1, key2 + 1);
  threefry_rounds(a, b, false, key2, key0 + 2);
  threefry_rounds(a, b, true, key0, key1 + 3);
  threefry_rounds(a, b, false, key1, key2 + 4);
  threefry_rounds(a, b, true, key2, key0 + 5);
}
