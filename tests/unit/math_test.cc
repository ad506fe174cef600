// SPDX-License-Identifier: Apache-2.0
// base/math.h on single elements: every value and every rounding boundary of bf16 and f16 against tables made by ldexp, and the numbers of
// a step against formulas written out here.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "base/math.h"
#include "base/rules.h"
#include "check.h"

using namespace megadp;
using namespace megadp::test;

namespace {

// A half-width format by its definition: value = (-1)^sign * 2^(exponent - bias) * (1 + mantissa / 2^mantissa_bits).
struct Format {
  const char* name;
  int exponent_bits, mantissa_bits;
  uint16_t exponent_mask() const { return static_cast<uint16_t>(((1 << exponent_bits) - 1) << mantissa_bits); }
  bool is_nan(uint16_t bits) const { return (bits & 0x7fff) > exponent_mask(); }
  double value(uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> mantissa_bits;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                             : exponent == (1 << exponent_bits) - 1
                                 ? HUGE_VAL
                                 : std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
  }
  // Where the rounding goes over to infinity: half a unit of the last place beyond the largest value.
  double overflow() const {
    const auto largest = static_cast<uint16_t>(exponent_mask() - 1);
    return value(largest) + (value(largest) - value(static_cast<uint16_t>(largest - 1))) / 2;
  }
};
constexpr Format kBf16{"bf16", 8, 7}, kF16{"f16", 5, 10};

template <class T>
uint16_t rounded(float x) {
  T out;
  from_f32(&out, x);
  return out.bits;
}
template <class T>
uint16_t rounded_f64(double x) {
  T out;
  from_f64(&out, x);
  return out.bits;
}

bool same_value(double a, double b) {
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class T>
void every_value_there_and_back(const Format& format) {
  for (uint32_t bits = 0; bits < 65536; bits++) {
    const auto half = static_cast<uint16_t>(bits);
    const float wide = to_f32(T{half});
    if (format.is_nan(half)) {
      if (!std::isnan(wide) || std::signbit(wide) != (half >= 0x8000)) check(false, text(format.name, " NaN ", bits, " is not a NaN"));
      // bf16 keeps every bit; f16 becomes quiet, as in hardware.
      const uint32_t payload = static_cast<uint32_t>(half & ((1 << format.mantissa_bits) - 1)) << (23 - format.mantissa_bits);
      const uint32_t wide_bits = (half & 0x8000U) << 16 | 0x7f800000U | payload | (std::is_same_v<T, F16> ? 0x00400000U : 0);
      if (as_bits(wide) != wide_bits) check(false, text(format.name, " NaN ", bits, " widens to ", as_bits(wide)));
      const uint16_t quiet = half | static_cast<uint16_t>(1 << (format.mantissa_bits - 1));
      if (rounded<T>(wide) != quiet) check(false, text(format.name, " NaN ", bits, " comes back as ", rounded<T>(wide)));
      continue;
    }
    if (!same_value(wide, format.value(half))) check(false, text(format.name, " ", bits, " is ", wide, ", not ", format.value(half)));
    if (rounded<T>(wide) != half) check(false, text(format.name, " ", bits, " comes back as ", rounded<T>(wide)));
    if (rounded_f64<T>(wide) != half) check(false, text(format.name, " ", bits, " comes back from f64 as ", rounded_f64<T>(wide)));
  }
  check(true, "");
}

// Halfway between neighbours, and the floats (and doubles) just beside it: a rounding that is right there and monotonic is right.
template <class T>
void every_boundary(const Format& format) {
  for (uint16_t low = 0; low < format.exponent_mask(); low++) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double middle = high == format.exponent_mask() ? format.overflow() : (format.value(low) + format.value(high)) / 2;
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const int sign : {0, 0x8000}) {
      const double signed_middle = sign ? -middle : middle;
      const float at = static_cast<float>(signed_middle);
      if (at != signed_middle) {
        check(false, text(format.name, ": the test's own middle ", middle, " is not a float"));
        continue;
      }
      const float inside = std::nextafter(at, 0.0F), outside = std::nextafter(at, sign ? -HUGE_VALF : HUGE_VALF);
      const bool good = rounded<T>(at) == (even | sign) && rounded<T>(inside) == (low | sign) && rounded<T>(outside) == (high | sign);
      if (!good) check(false, text(format.name, " around ", at, ": ", rounded<T>(at), " ", rounded<T>(inside), " ", rounded<T>(outside)));
      const double inside64 = std::nextafter(signed_middle, 0.0), outside64 = std::nextafter(signed_middle, sign ? -HUGE_VAL : HUGE_VAL);
      const bool good64 = rounded_f64<T>(signed_middle) == (even | sign) && rounded_f64<T>(inside64) == (low | sign) &&
                          rounded_f64<T>(outside64) == (high | sign);
      if (!good64) check(false, text(format.name, " from f64, around ", at));
    }
  }
  check(true, "");
}

// Floats all over the range, by a search in the table of values.
template <class T>
void many_floats(const Format& format) {
  std::vector<double> values;
  for (uint16_t half = 0; half < format.exponent_mask(); half++) values.push_back(format.value(half));
  uint64_t tried = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 509, tried++) {
    const float x = as_float(static_cast<uint32_t>(bits));
    const uint16_t got = rounded<T>(x);
    if (std::isnan(x)) {
      if (!format.is_nan(got)) check(false, text(format.name, ": NaN ", bits, " becomes ", got));
      continue;
    }
    const double magnitude = std::fabs(static_cast<double>(x));
    uint16_t expected = format.exponent_mask();
    if (magnitude < format.overflow()) {
      const auto above = std::lower_bound(values.begin(), values.end(), magnitude);
      auto index = static_cast<uint16_t>(above - values.begin());
      if (above == values.end()) index--;
      if (index > 0 && values[index] > magnitude) {
        const double down = magnitude - values[index - 1], up = values[index] - magnitude;
        if (down < up || (down == up && index % 2 == 1)) index--;
      }
      expected = index;
    }
    if (std::signbit(x)) expected = static_cast<uint16_t>(expected | 0x8000);
    if (got != expected) check(false, text(format.name, ": ", x, " becomes ", got, ", not ", expected));
  }
  check(tried > 8'000'000, text(format.name, ": only ", tried, " floats were tried"));
}

template <class T>
void not_a_number(const Format& format) {
  // A payload in the lost bits only must not become infinity.
  check_equal(format.is_nan(rounded<T>(as_float(0x7f800001))), true, "NaN with a small payload stays NaN");
  check_equal(rounded<T>(as_float(0xff800001)) >= 0x8000, true, "the sign of NaN is kept");
  check_equal(format.is_nan(rounded_f64<T>(std::nan(""))), true, "NaN from f64");
  check_equal(rounded<T>(HUGE_VALF), format.exponent_mask(), "infinity");
  check_equal(rounded_f64<T>(-1e300), format.exponent_mask() | 0x8000, "f64 beyond the range of f32");
}

void pick_one() {
  const float nan = std::nanf("");
  check_equal(larger(1.0F, 2.0F), 2.0F);
  check_equal(smaller(1.0F, 2.0F), 1.0F);
  for (const float x : {1.0F, -HUGE_VALF, HUGE_VALF}) {
    check_equal(std::isnan(larger(nan, x)) && std::isnan(larger(x, nan)), true, "larger with NaN is NaN");
    check_equal(std::isnan(smaller(nan, x)) && std::isnan(smaller(x, nan)), true, "smaller with NaN is NaN");
  }
  check_equal(std::signbit(larger(-0.0F, 0.0F)) && !std::signbit(larger(0.0F, -0.0F)), true, "of equals the first");
}

void begin_a_step() {
  StepScalars s{};
  s.square_sum = 25;
  begin_step(s, {0, 1, 0, Norm::l2});
  check_equal(s.grad_norm, 5.0);
  check_equal(s.clip_factor, 1.0F, "clip factor without clipping");
  check_equal(s.step, 1U);
  begin_step(s, {2.0, 1, 0, Norm::l2});
  check_equal(s.clip_factor, static_cast<float>(2.0 / (5.0 + 1e-6)), "clip factor");
  s.square_sum = 25.0 * 1024 * 1024;
  begin_step(s, {5.0, 1024, 0, Norm::l2});
  check_equal(s.grad_norm, 5.0, "norm after the loss scale");
  check_equal(s.grad_factor, static_cast<float>(5.0 / (5.0 + 1e-6) / 1024), "gradient factor");
  begin_step(s, {6.0, 1024, 0, Norm::l2});
  check_equal(s.grad_factor, 1.0F / 1024, "gradient factor, not clipped");
  check_equal(s.grad_limit, HUGE_VALF, "no limit");
  s.largest = 3 * 1024;
  begin_step(s, {1.5, 1024, 0.25, Norm::inf});
  check_equal(s.grad_norm, 3.0, "the largest after the loss scale");
  check_equal(s.clip_factor, static_cast<float>(1.5 / (3.0 + 1e-6)), "clipped by the largest");
  check_equal(s.grad_limit, 0.25F, "a limit");
  for (const float x : {0.0F, -0.0F, 0.5F, -0.5F, 2.0F, -2.0F, 1e30F}) {
    check_equal(clipped(x, 0.5F, 0.5F), std::fmax(-0.5F, std::fmin(0.5F, 0.5F * x)), "a clipped element");
    check_equal(clipped(x, 0.5F, HUGE_VALF), 0.5F * x, "an element that is not");
  }
}

void skip_a_step() {
  StepScalars s{};
  s.square_sum = std::nan("");
  s.nonfinite = 3;
  begin_step(s, {1.0, 1, 0, Norm::l2});
  check_equal(s.skip, 1U, "skip");
  check_equal(s.step, 0U, "step after a skipped one");
  uint64_t steps = 7;
  count_step(s, steps);
  check_equal(steps, 7U, "a class after a skipped step");
  check_equal(s.clip_factor, 1.0F, "clip factor of a NaN norm");
  check_equal(std::isnan(s.grad_norm), true, "the norm shows the NaN");
  s.square_sum = 1;
  s.nonfinite = 0;
  begin_step(s, {1.0, 1, 0, Norm::l2});
  check_equal(s.skip, 0U, "skip is taken back");
  count_step(s, steps);
  check_equal(steps, 8U, "a class after a step");
  check_equal(s.clip_factor, static_cast<float>(1 / (1 + 1e-6)), "norm 1, clip 1");
}

// Beside the mathematics library's, which may round otherwise on another machine: here every product is rounded, about two a bit.
void powers() {
  check_equal(power(0.9, 0), 1.0);
  check_equal(power(0.0, 0), 1.0);
  check_equal(power(0.0, 3), 0.0);
  check_equal(power(0.9, 1), 0.9);
  check_equal(power(0.9, 2), 0.9 * 0.9);
  check_equal(power(0.9, 5), 0.9 * ((0.9 * 0.9) * (0.9 * 0.9)));
  for (const double base : {0.5, 0.9, 0.95, 0.999, 0.99999}) {
    for (uint64_t exponent = 1; exponent < 3'000'000; exponent = exponent * 5 / 4 + 1) {
      const auto exact = static_cast<double>(std::pow(static_cast<long double>(base), static_cast<long double>(exponent)));
      // The error of a square doubles that of its root: in the end about one rounding for each factor.
      const double bound = exact * static_cast<double>(exponent) * 0x1p-52 + 1e-300;
      check(std::fabs(power(base, exponent) - exact) <= bound, text(base, "^", exponent, " is ", power(base, exponent), ", not ", exact));
    }
  }
  check_equal(power(0.999, UINT64_MAX), 0.0, "all 64 bits");
}

void constants() {
  const AdamW::Constants c = AdamW::constants({1e-3, 0.9, 0.999, 1e-8, 0.1, 0}, 1);
  check_equal(c.one_minus_beta1, 0.1F);
  check_equal(c.one_minus_beta2, 0.001F);
  check_equal(c.decay, static_cast<float>(1 - 1e-4));
  check_equal(c.step_size, static_cast<float>(1e-3 / (1 - 0.9)));
  check_equal(c.bias2_root, static_cast<float>(std::sqrt(1 - 0.999)));
  // The first step of AdamW moves by lr against the sign of the gradient, after the decay.
  float p = 1, m = 0, v = 0;
  AdamW::element(c, 0.5F, p, m, v);
  check(std::fabs(p - (1 - 1e-4 - 1e-3)) < 1e-6, text("p after the first step is ", p));
}

// ── against double ──

uint64_t next_bits() {
  static std::mt19937_64 generator(11);
  return generator();
}

// Of any size that a float has, subnormals and zero too; no infinity.
float some_float() {
  for (;;) {
    const uint64_t bits = next_bits();
    if (bits % 16 == 0) return bits & 16 ? 0.0F : -0.0F;
    const float x = as_float(static_cast<uint32_t>(bits >> 32));
    if (std::isfinite(x)) return x;
  }
}

// Widening is exact; of two floats, sum, product and quotient are what double gives, rounded once: double has more than twice the digits.
void single_operations() {
  for (int i = 0; i < 200'000; i++) {
    const float a = some_float(), b = some_float();
    const double wide_a = a, wide_b = b;
    const bool good = widen(a) == wide_a && same_value(add(a, b), static_cast<float>(wide_a + wide_b)) &&
                      (b == 0 || same_value(divide(a, b), static_cast<float>(wide_a / wide_b))) &&
                      (a < 0 || same_value(square_root(a), static_cast<float>(std::sqrt(wide_a)))) &&
                      larger(a, b) == std::fmax(wide_a, wide_b) && smaller(a, b) == std::fmin(wide_a, wide_b) && is_finite(a);
    if (!good) check(false, text("with ", a, " and ", b, ": ", add(a, b), " ", divide(a, b), " ", larger(a, b), " ", smaller(a, b)));
    const long double exact = static_cast<long double>(wide_a) * wide_a;  // 48 digits: exact in either
    if (add_square(0, a) != exact) check(false, text("the square of ", a, " is ", add_square(0, a)));
    if (add_square(1, a) != 1 + wide_a * wide_a) check(false, text("1 + the square of ", a));
    const auto bf16 = static_cast<uint16_t>(next_bits()), f16 = static_cast<uint16_t>(next_bits());
    if (!kBf16.is_nan(bf16) && widen(Bf16{bf16}) != kBf16.value(bf16)) check(false, text("bf16 ", bf16, " widens to ", widen(Bf16{bf16})));
    if (!kF16.is_nan(f16) && widen(F16{f16}) != kF16.value(f16)) check(false, text("f16 ", f16, " widens to ", widen(F16{f16})));
  }
  check(!is_finite(HUGE_VALF) && !is_finite(-HUGE_VALF) && !is_finite(std::nanf("")), "infinity or NaN is finite");
  check_equal(add(0.1, 0.2), 0.1 + 0.2);
  check_equal(divide(1.0, 3.0), 1.0 / 3.0);
}

void integers() {
  constexpr int64_t most = std::numeric_limits<int64_t>::max(), least = std::numeric_limits<int64_t>::min();
  check_equal(add(most, int64_t{1}), least, "i64 wraps around");
  check_equal(divide(int64_t{-7}, int64_t{2}), -3, "towards zero");
  uint8_t byte = 0;
  narrow(&byte, uint64_t{254});
  check_equal(byte, 254);
  narrow(&byte, uint64_t{256});
  check_equal(byte, 255, "u8 beyond its range");
  byte = 200;
  add_to(&byte, widen(uint8_t{100}));
  check_equal(byte, 255, "a sum of u8");
  int64_t number = least;
  add_to(&number, int64_t{-1});
  check_equal(number, most, "a sum of i64");
  narrow(&number, int64_t{-5});
  check_equal(number, -5);
}

// convert, add_to and narrow: in double, rounded once by what the tables above have checked.
template <class T>
void stores() {
  for (int i = 0; i < 50'000; i++) {
    const float a = some_float(), b = some_float();
    T start, expected, result;
    from_f32(&start, a);
    const double wide_start = widen(start);
    // The sum of two floats, then the type: two roundings, as on the host.
    from_f32(&expected, static_cast<float>(wide_start + double{b}));
    result = start;
    add_to(&result, b);
    bool good = std::memcmp(&result, &expected, sizeof result) == 0;
    const double x = double{b} * (1 + 1e-9);
    from_f64(&expected, wide_start + x);
    result = start;
    add_to(&result, x);
    good &= std::memcmp(&result, &expected, sizeof result) == 0;
    from_f64(&expected, x);
    convert(&result, x);
    good &= std::memcmp(&result, &expected, sizeof result) == 0;
    from_f32(&expected, b);
    convert(&result, b);
    good &= std::memcmp(&result, &expected, sizeof result) == 0;
    narrow(&result, b);
    good &= std::memcmp(&result, &expected, sizeof result) == 0;
    double wide = 0;
    convert(&wide, b);
    good &= wide == b;
    add_to(&wide, b);
    good &= wide == 2 * double{b};
    add_to(&wide, 0.1);
    good &= wide == 2 * double{b} + 0.1;
    convert(&wide, x);
    narrow(&wide, wide);
    good &= wide == x;
    if (!good) check(false, text("stores of ", a, " and ", b));
  }
  check(true, "");
}

// One element over many steps beside the same in double: float's rounding errors, and no more.
void adamw_beside_double() {
  const Hyper hyper{1e-2, 0.9, 0.99, 1e-8, 0.1, 0};
  StepScalars s{};
  float p = 0.75F, m = 0, v = 0;
  double wide_p = p, wide_m = 0, wide_v = 0;
  for (int step = 1; step <= 200; step++) {
    const float grad = std::ldexp(static_cast<float>(static_cast<int64_t>(next_bits() % 2001) - 1000), -8);
    s.square_sum = double{grad} * grad;
    begin_step(s, {2.0, 4, 0, Norm::l2});
    AdamW::element(AdamW::constants(hyper, static_cast<uint64_t>(step)), clipped(grad, s.grad_factor, s.grad_limit), p, m, v);
    const double norm = std::fabs(double{grad}) / 4, g = double{grad} / 4 * std::fmin(1.0, 2.0 / (norm + 1e-6));
    wide_m = hyper.beta1 * wide_m + (1 - hyper.beta1) * g;
    wide_v = hyper.beta2 * wide_v + (1 - hyper.beta2) * g * g;
    const double unbiased_m = wide_m / (1 - std::pow(hyper.beta1, step)), unbiased_v = wide_v / (1 - std::pow(hyper.beta2, step));
    wide_p -= hyper.lr * hyper.weight_decay * wide_p + hyper.lr * unbiased_m / (std::sqrt(unbiased_v) + hyper.eps);
    const bool good = std::fabs(p - wide_p) < 2e-5 && std::fabs(m - wide_m) < 1e-6 && std::fabs(v - wide_v) < 1e-6;
    if (!good) check(false, text("step ", step, ": ", p, " ", m, " ", v, ", in double ", wide_p, " ", wide_m, " ", wide_v));
  }
  check(true, "");
}

}  // namespace

int main() {
  every_value_there_and_back<Bf16>(kBf16);
  every_value_there_and_back<F16>(kF16);
  every_boundary<Bf16>(kBf16);
  every_boundary<F16>(kF16);
  many_floats<Bf16>(kBf16);
  many_floats<F16>(kF16);
  not_a_number<Bf16>(kBf16);
  not_a_number<F16>(kF16);
  pick_one();
  begin_a_step();
  skip_a_step();
  powers();
  constants();
  single_operations();
  integers();
  stores<float>();
  stores<Bf16>();
  stores<F16>();
  adamw_beside_double();
  return finish();
}
