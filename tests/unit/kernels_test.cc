// SPDX-License-Identifier: Apache-2.0
// The kernels of the host backend on every SIMD target that this machine runs: bit for bit what single elements of base/math.h give, for
// every length around the vectors and every offset of the arrays, nothing written beside them; for every update rule; and the sums and
// AdamW against float64.
#include "host/kernels.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "base/finding.h"
#include "base/rules.h"
#include "check.h"

using namespace megadp;
using namespace megadp::test;
using host::Kernels;

namespace {

constexpr size_t kLongest = 67;
constexpr DType kStorage[] = {DType::f32, DType::bf16, DType::f16};

struct Element {  // one element of any storage type
  uint32_t bits;
};

Element element_at(const void* data, DType type, size_t i) {
  Element out{0};
  std::memcpy(&out.bits, static_cast<const std::byte*>(data) + i * size_of(type), size_of(type));
  return out;
}
float value_of(Element e, DType type) {
  if (type == DType::bf16) return to_f32(Bf16{static_cast<uint16_t>(e.bits)});
  if (type == DType::f16) return to_f32(F16{static_cast<uint16_t>(e.bits)});
  return as_float(e.bits);
}
Element rounded(float x, DType type) {
  if (type == DType::f32) return {as_bits(x)};
  Bf16 bf16;
  F16 f16;
  from_f32(&bf16, x);
  from_f32(&f16, x);
  return {type == DType::bf16 ? bf16.bits : f16.bits};
}
// Arithmetic on NaN may give any NaN; everything else must be the same bits.
bool same(Element a, Element b, DType type) {
  return a.bits == b.bits || (std::isnan(value_of(a, type)) && std::isnan(value_of(b, type)));
}

std::mt19937_64 random_bits(20240517);

// Bits of every kind: ordinary numbers of many sizes, and also subnormals, zeros, infinities and NaN.
float any_float() {
  const uint64_t r = random_bits();
  const auto bits = static_cast<uint32_t>(r >> 32);
  switch (r % 8) {
    case 0:
      return as_float(bits);
    case 1: {
      const float special[] = {0.0F,     -0.0F, 1.0F,   HUGE_VALF, -HUGE_VALF, 65504.0F,
                               65520.0F, 6e-8F, -3e-8F, 3.39e38F,  1e-40F,     as_float(0x7f800001)};
      return special[(r >> 8) % 12];
    }
    default:
      return std::ldexp(static_cast<float>(static_cast<int32_t>(bits)), static_cast<int>((r >> 3) % 40) - 50);
  }
}
float ordinary_float() {
  return std::normal_distribution<float>()(random_bits);
}

// An array inside a larger one, `offset` elements after an aligned place, whose surroundings can be looked at afterwards.
class Array {
 public:
  Array(DType type, size_t n, size_t offset) : type_(type), n_(n), offset_(offset), bytes_((n + offset + 80) * size_of(type)) {
    for (std::byte& b : bytes_) b = std::byte{0xa5};
  }
  Array& fill(float (*make)()) {
    for (size_t i = 0; i < n_; i++) set(i, rounded(make(), type_));
    return *this;
  }
  DType type() const { return type_; }
  size_t size() const { return n_; }
  void* data() { return bytes_.data() + offset_ * size_of(type_); }
  const void* data() const { return bytes_.data() + offset_ * size_of(type_); }
  float* floats() { return static_cast<float*>(data()); }
  void set(size_t i, Element e) { std::memcpy(static_cast<std::byte*>(data()) + i * size_of(type_), &e.bits, size_of(type_)); }
  Element at(size_t i) const { return element_at(data(), type_, i); }
  float value(size_t i) const { return value_of(at(i), type_); }
  bool surroundings_untouched() const {
    const size_t begin = offset_ * size_of(type_), end = begin + n_ * size_of(type_);
    for (size_t i = 0; i < bytes_.size(); i++) {
      if ((i < begin || i >= end) && bytes_[i] != std::byte{0xa5}) return false;
    }
    return true;
  }

 private:
  DType type_;
  size_t n_, offset_;
  std::vector<std::byte> bytes_;
};

bool arrays_equal(const Array& got, const Array& expected, bool exact, const std::string& what) {
  for (size_t i = 0; i < got.size(); i++) {
    const Element a = got.at(i), b = expected.at(i);
    if (exact ? a.bits != b.bits : !same(a, b, got.type())) {
      return check(false, text(what, ": element ", i, " of ", got.size(), " has the bits ", a.bits, ", not ", b.bits));
    }
  }
  return check(got.surroundings_untouched(), what + ": written outside of the array");
}

std::string name(const Kernels& kernels, const char* what, DType a, DType b, size_t n) {
  return text(kernels.name, " ", what, " ", name_of(a), " ", name_of(b), " n ", n);
}

void casts(const Kernels& kernels) {
  for (const DType to_type : kStorage) {
    for (const DType from_type : kStorage) {
      for (size_t n = 0; n <= kLongest; n++) {
        const Array from = Array(from_type, n, n % 3).fill(any_float);
        Array to = Array(to_type, n, n % 5).fill(any_float), expected = to, sum = to, expected_sum = to;
        for (size_t i = 0; i < n; i++) {
          expected.set(i, to_type == from_type ? from.at(i) : rounded(from.value(i), to_type));
          expected_sum.set(i, rounded(to.value(i) + from.value(i), to_type));
        }
        check(host::cast(to.data(), to_type, from.data(), from_type, n, kernels).ok(), "cast");
        arrays_equal(to, expected, true, name(kernels, "cast", to_type, from_type, n));
        check(host::add_cast(sum.data(), to_type, from.data(), from_type, n, kernels).ok(), "add_cast");
        arrays_equal(sum, expected_sum, false, name(kernels, "add_cast", to_type, from_type, n));
      }
    }
  }
}

// What is rounded and what that loses make up the value again, exactly; what is not finite loses nothing.
void rounding_with_feedback(const Kernels& kernels) {
  for (size_t n = 0; n <= kLongest; n++) {
    const Array from = Array(DType::f32, n, n % 3).fill(any_float);
    Array to(DType::bf16, n, n % 5), residual = Array(DType::f32, n, n % 4).fill(any_float), expected = to, left = residual;
    for (size_t i = 0; i < n; i++) {
      const float value = from.value(i) + residual.value(i);
      expected.set(i, rounded(value, DType::bf16));
      const float kept = expected.value(i), lost = std::isfinite(value) && std::isfinite(kept) ? value - kept : 0.0F;
      check(!std::isfinite(kept) || double{kept} + double{lost} == double{value}, text("what rounding ", value, " loses"));
      left.set(i, rounded(lost, DType::f32));
    }
    check(host::round_with_feedback(to.data(), static_cast<const float*>(from.data()), residual.floats(), n, kernels).ok(), "rounding");
    arrays_equal(to, expected, false, name(kernels, "rounding", DType::bf16, DType::f32, n));
    arrays_equal(residual, left, true, name(kernels, "what is lost", DType::bf16, DType::f32, n));
  }
}

// Half of the parameters are what their masters round to, the others anything: those that are not have nothing to keep.
void masters(const Kernels& kernels) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (size_t n = 0; n <= kLongest; n++) {
      Array params = Array(type, n, n % 3).fill(any_float), masters = Array(DType::f32, n, n % 5).fill(any_float);
      for (size_t i = 0; i < n; i += 1 + random_bits() % 3) params.set(i, rounded(masters.value(i), type));
      Array expected = masters;
      for (size_t i = 0; i < n; i++) {
        if (rounded(masters.value(i), type).bits != params.at(i).bits) expected.set(i, {as_bits(params.value(i))});
      }
      check(host::refresh_masters(masters.floats(), params.data(), type, n, kernels).ok(), "refresh_masters");
      arrays_equal(masters, expected, true, name(kernels, "masters of", type, DType::f32, n));
    }
  }
  check(host::refresh_masters(nullptr, nullptr, DType::f32, 0, kernels).code() == Code::unsupported, "parameters that are masters");
}

// All 2^16 halves up, and floats beside every rounding boundary down, NaN included, on the vectors themselves.
void every_half(const Kernels& kernels) {
  for (const DType type : {DType::bf16, DType::f16}) {
    Array halves(type, 65536, 1), wide(DType::f32, 65536, 1), expected = wide;
    for (uint32_t i = 0; i < 65536; i++) {
      halves.set(i, {i});
      expected.set(i, {as_bits(value_of({i}, type))});
    }
    check(host::cast(wide.data(), DType::f32, halves.data(), type, 65536, kernels).ok(), "cast");
    arrays_equal(wide, expected, true, name(kernels, "every", DType::f32, type, 65536));
    for (const int32_t beside : {-1, 0, 1}) {
      // bf16 loses 16 bits and f16 13 of them, or more where it is subnormal: all boundaries are among these.
      const int kept = type == DType::bf16 ? 17 : 20;
      const size_t n = size_t{1} << kept;
      Array floats(DType::f32, n, 0), down(type, n, 3), expected_down = down;
      for (size_t i = 0; i < n; i++) {
        floats.set(i, {static_cast<uint32_t>(i << (32 - kept)) + static_cast<uint32_t>(beside)});
        expected_down.set(i, rounded(floats.value(i), type));
      }
      check(host::cast(down.data(), type, floats.data(), DType::f32, n, kernels).ok(), "cast");
      arrays_equal(down, expected_down, true, name(kernels, "boundaries of", type, DType::f32, n));
    }
  }
}

// What reduce() promises, element by element.
Element reduced(const std::vector<Array>& from, size_t i, DType type, Op op, float divisor) {
  if (op == Op::avg) divisor *= static_cast<float>(from.size());
  const std::function<float(size_t, size_t)> tree = [&](size_t begin, size_t n) -> float {
    if (n == 1) return from[begin].value(i);
    size_t left = 1;
    while (2 * left < n) left *= 2;
    const float a = tree(begin, left), b = tree(begin + left, n - left);
    return op == Op::max ? larger(a, b) : op == Op::min ? smaller(a, b) : a + b;
  };
  float value = tree(0, from.size());
  // A quotient of floats, taken in double, keeps more than twice their bits: rounded again it is the nearest float.
  if (op == Op::sum || op == Op::avg) value = static_cast<float>(double{value} / double{divisor});
  return rounded(value, type);
}

void reduce_once(const Kernels& kernels, DType type, Op op, int nfrom, size_t n, int to_is, float (*make)()) {
  const float divisor = op == Op::sum && n % 2 == 1 ? 3 : 1;
  std::vector<Array> from;
  for (int k = 0; k < nfrom; k++) from.push_back(Array(type, n, static_cast<size_t>(k) % 7).fill(make));
  Array expected(type, n, 0), apart(type, n, 2);
  for (size_t i = 0; i < n; i++) expected.set(i, reduced(from, i, type, op, divisor));
  Array& to = to_is < 0 ? apart : from[static_cast<size_t>(to_is)];
  std::vector<const void*> pointers;
  for (const Array& array : from) pointers.push_back(array.data());
  check(host::reduce(to.data(), pointers.data(), nfrom, n, type, op, divisor, kernels).ok(), "reduce");
  arrays_equal(to, expected, false,
               text(name(kernels, "reduce", type, type, n), " op ", static_cast<int>(op), " of ", nfrom, " into ", to_is));
  if (op != Op::sum || to_is >= 0) return;
  Array wide(DType::f32, n, 1), expected_wide(DType::f32, n, 0);
  for (size_t i = 0; i < n; i++) expected_wide.set(i, reduced(from, i, DType::f32, op, divisor));
  check(host::sum_in_f32(static_cast<float*>(wide.data()), pointers.data(), nfrom, n, type, divisor, kernels).ok(), "sum_in_f32");
  arrays_equal(wide, expected_wide, false, text(name(kernels, "sum_in_f32", type, DType::f32, n), " of ", nfrom));
}

void reductions(const Kernels& kernels) {
  for (const DType type : kStorage) {
    for (const Op op : {Op::sum, Op::avg, Op::max, Op::min}) {
      for (int nfrom = 1; nfrom <= 64; nfrom++) {
        reduce_once(kernels, type, op, nfrom, static_cast<size_t>(nfrom) + 3, nfrom % 3 == 0 ? nfrom - 1 : -1, ordinary_float);
      }
      for (size_t n = 0; n <= kLongest; n++) {
        for (const int nfrom : {2, 3, 5}) reduce_once(kernels, type, op, nfrom, n, static_cast<int>(n) % (nfrom + 1) - 1, any_float);
      }
      // More than a block, and not a whole number of them.
      for (const int nfrom : {4, 5, 8, 9, 13, 31}) reduce_once(kernels, type, op, nfrom, 2 * 2048 + 17, nfrom / 2, ordinary_float);
    }
  }
}

template <size_t n>
float reduce_values(const Kernels& kernels, DType type, const float (&values)[n], Op op, double divisor) {
  std::vector<Array> from;
  std::vector<const void*> pointers;
  for (const float value : values) from.emplace_back(type, 1, 0).set(0, rounded(value, type));
  for (const Array& array : from) pointers.push_back(array.data());
  Array to(type, 1, 0);
  check(host::reduce(to.data(), pointers.data(), static_cast<int>(n), 1, type, op, divisor, kernels).ok(), "reduce");
  return to.value(0);
}

void reductions_by_hand(const Kernels& kernels) {
  const float bf16_steps[] = {256, 1, 1}, ones[] = {1, 1, 1}, cancelling[] = {1e8F, 1, -1e8F}, other_order[] = {1e8F, -1e8F, 1};
  check_equal(reduce_values(kernels, DType::bf16, bf16_steps, Op::sum, 1), 258.0F, "256 + 1 + 1 in bf16");
  for (const DType type : kStorage) {
    check_equal(reduce_values(kernels, type, ones, Op::sum, 3), 1.0F, "three ones, divided by 3");
    check_equal(reduce_values(kernels, type, ones, Op::avg, 1), 1.0F, "the average of three ones");
  }
  check_equal(reduce_values(kernels, DType::f32, cancelling, Op::sum, 1), 0.0F, "1e8 + 1 - 1e8 in this order");
  check_equal(reduce_values(kernels, DType::f32, other_order, Op::sum, 1), 1.0F, "1e8 - 1e8 + 1 in this order");
  const float four[] = {1, 1e8F, -1e8F, 1}, five[] = {1, 1e8F, -1e8F, 1, 1};
  check_equal(reduce_values(kernels, DType::f32, four, Op::sum, 1), 0.0F, "(1 + 1e8) + (-1e8 + 1)");
  check_equal(reduce_values(kernels, DType::f32, five, Op::sum, 1), 1.0F, "((1 + 1e8) + (-1e8 + 1)) + 1");
  const float large[] = {60000, 60000, -60000};
  check_equal(reduce_values(kernels, DType::f16, large, Op::sum, 1), 60000.0F, "f16 sums do not overflow on the way");
}

// The reciprocal of 41, 47, 55, 61, 82, ... is rounded so that 41 times it is not 1.
void average_of_ones(const Kernels& kernels) {
  constexpr size_t n = 19;
  for (const DType type : kStorage) {
    Array ones(type, n, 0), to(type, n, 1);
    for (size_t i = 0; i < n; i++) ones.set(i, rounded(1, type));
    for (int nfrom = 1; nfrom <= 256; nfrom++) {
      const std::vector<const void*> from(static_cast<size_t>(nfrom), ones.data());
      check(host::reduce(to.data(), from.data(), nfrom, n, type, Op::avg, 1, kernels).ok(), "reduce");
      arrays_equal(to, ones, true, text(name(kernels, "avg of ones", type, type, n), " of ", nfrom));
      check(host::reduce(to.data(), from.data(), nfrom, n, type, Op::sum, nfrom, kernels).ok(), "reduce");
      arrays_equal(to, ones, true, text(name(kernels, "sum of ones, divided,", type, type, n), " of ", nfrom));
    }
  }
}

void average_of_f64_ones() {
  const double one = 1;
  for (int nfrom = 1; nfrom <= 256; nfrom++) {
    const std::vector<const void*> from(static_cast<size_t>(nfrom), &one);
    double average = 0;
    check(host::reduce(&average, from.data(), nfrom, 1, DType::f64, Op::avg).ok(), "f64");
    check_equal(average, 1.0, text("the average of ", nfrom, " ones in f64"));
  }
}

void other_types() {
  const double a[] = {1, 1e300, std::nan("")}, b[] = {1.0 / 3, 1e300, 1}, c[] = {2, -1e300, 5};
  const void* const doubles[] = {a, b, c};
  double out[3];
  check(host::reduce(out, doubles, 3, 3, DType::f64, Op::avg).ok(), "f64");
  check_equal(out[0], (1 + 1.0 / 3 + 2) / 3, "f64 average");
  check_equal(out[1], 1e300 / 3, "f64 average of large numbers");
  check(host::reduce(out, doubles, 3, 3, DType::f64, Op::max).ok(), "f64");
  check_equal(out[0], 2.0);
  check_equal(std::isnan(out[2]), true, "f64 maximum with NaN");
  const int64_t x[] = {7, INT64_MAX, -7}, y[] = {1, 1, 0};
  const void* const integers[] = {x, y};
  int64_t sums[3];
  check(host::reduce(sums, integers, 2, 3, DType::i64, Op::sum).ok(), "i64");
  check_equal(sums[1], INT64_MIN, "i64 wraps around");
  check(host::reduce(sums, integers, 2, 3, DType::i64, Op::avg).ok(), "i64");
  check_equal(sums[2], -3, "i64 average goes towards zero");
  const uint8_t p[] = {200, 3, 0}, q[] = {100, 2, 0};
  const void* const bytes[] = {p, q};
  uint8_t few[3];
  check(host::reduce(few, bytes, 2, 3, DType::u8, Op::sum).ok(), "u8");
  check_equal(int{few[0]}, 255, "u8 saturates");
  check_equal(int{few[1]}, 5, "u8 sum");
  check(host::reduce(few, bytes, 2, 3, DType::u8, Op::avg).ok(), "u8");
  check_equal(int{few[0]}, 150, "u8 average is of the whole sum");
  const float zero[] = {-0.0F};
  check(host::cast(out, DType::f64, zero, DType::f32, 1).ok() && std::signbit(out[0]), "-0 keeps its sign as f64");
  float narrow = 1;
  check(host::add_cast(&narrow, DType::f32, b, DType::f64, 1).ok(), "f64 onto f32");
  check_equal(narrow, static_cast<float>(1 + 1.0 / 3), "f64 added onto f32");
}

void refusals() {
  float f = 0;
  int64_t i = 0;
  const void* const from[] = {&i};
  fails(host::reduce(&i, from, 1, 1, DType::i64, Op::sum, 0.5), Code::unsupported, {"divisor is 0.5", "integers"});
  fails(host::reduce(&i, from, 1, 1, DType::f32, Op::max, 2), Code::unsupported, {"divisor is 2", "maximum"});
  fails(host::reduce(&i, from, 0, 1, DType::f32, Op::sum), Code::invalid, {"nfrom is 0"});
  fails(host::cast(&f, DType::f32, &i, DType::i64, 1), Code::unsupported, {"i64", "f32"});
  fails(host::add_cast(&i, DType::u8, &f, DType::f32, 1), Code::unsupported, {"u8", "f32"});
  double sum = 0, nonfinite = 0;
  fails(host::square_sum(&i, DType::f64, 1, &sum, &nonfinite), Code::unsupported, {"f64"});
  uint64_t found = 0;
  fails(host::find_nonfinite(&i, DType::f64, 1, 0, &found), Code::unsupported, {"not finite", "f64"});
  fails(host::scale(&i, DType::i64, 1, 2), Code::unsupported, {"scaling", "i64"});
  Update update{};
  update.param_type = DType::f32;
  update.grad_type = DType::i64;
  fails(host::update(update), Code::unsupported, {"gradient", "i64"});
  update.grad_type = DType::f32;
  update.param_type = DType::u8;
  fails(host::update(update), Code::unsupported, {"parameter", "u8"});
  update.rule = kRules;
  fails(host::update(update), Code::unsupported, {text("update rule is ", kRules)});
}

double square_sum_of(const Array& data, const Kernels& kernels, double* nonfinite) {
  double sum = 0;
  check(host::square_sum(data.data(), data.type(), data.size(), &sum, nonfinite, kernels).ok(), "square_sum");
  return sum;
}

void extremes() {
  for (const DType type : kStorage) {
    for (const size_t n : {0, 1, 7, 64, 1001}) {
      Array data = Array(type, n, n % 4).fill(ordinary_float);
      for (size_t i = 0; i < n; i += 5) data.set(i, rounded(i % 2 == 0 ? 0.0F : -0.0F, type));
      if (n > 7) data.set(1, rounded(std::nanf(""), type));
      uint64_t zeros = 3, expected_zeros = 3;
      float largest = 0.25F, expected = 0.25F;
      for (size_t i = 0; i < n; i++) {
        const float x = std::fabs(static_cast<float>(data.value(i)));
        expected_zeros += x == 0 ? 1 : 0;
        expected = std::fmax(expected, x);  // which takes a NaN for nothing
      }
      check(host::extremes(data.data(), type, n, &zeros, &largest).ok(), "extremes");
      check_equal(zeros, expected_zeros, text("zeros of ", n, " ", name_of(type)));
      check_equal(largest, expected, text("largest of ", n, " ", name_of(type)));
      if (n < 64) continue;
      data.set(n - 1, rounded(-HUGE_VALF, type));
      check(host::extremes(data.data(), type, n, &zeros, &largest).ok(), "extremes");
      check_equal(largest, HUGE_VALF, "an infinity is the largest");
    }
  }
  uint64_t zeros = 0;
  float largest = 0;
  fails(host::extremes(&zeros, DType::f64, 1, &zeros, &largest), Code::unsupported, {"f64"});
}

// Every place of an odd element in vectors, blocks and what is left over; the largest number beside it; the lowest of several is told.
void nonfinite_elements(const Kernels& kernels) {
  constexpr uint32_t microbatch = 5;
  const uint64_t first = first_finding(microbatch);
  for (const DType type : kStorage) {
    const float most = type == DType::f32 ? 3.4028234e38F : type == DType::bf16 ? 3.3895314e38F : 65504.0F;
    for (const size_t n : {0, 1, 3, 16, 63, 64, 65, 1000, 1023, 1024, 1025, 2048, 2100, 5000}) {
      Array data = Array(type, n, n % 4).fill(ordinary_float);
      for (size_t i = 0; i < n; i += 2) data.set(i, rounded(i % 4 == 0 ? most : -most, type));
      uint64_t found = 0;
      check(host::find_nonfinite(data.data(), type, n, first, &found, kernels).ok(), "find_nonfinite");
      check_equal(found, uint64_t{0}, name(kernels, "find_nonfinite, all finite", type, type, n));
      for (size_t at = n; at-- > 0;) {
        if (at > 70 && at < n - 70 && at % 61 != 0) continue;
        const size_t turn = at % 3;
        data.set(at, rounded(turn == 0 ? std::nanf("") : turn == 1 ? HUGE_VALF : -HUGE_VALF, type));
        found = 0;
        check(host::find_nonfinite(data.data(), type, n, first, &found, kernels).ok(), "find_nonfinite");
        const NonfiniteElement told = read_finding(found);
        check(told.microbatch == microbatch && told.element == at && told.value == static_cast<Nonfinite>(turn),
              text(name(kernels, "find_nonfinite", type, type, n), ": element ", told.element, ", not ", at, ", ", name_of(told.value)));
      }
    }
  }
}

// The earlier microbatch stands, then the lower element; one that is too late to be counted is told as the last.
void order_of_findings() {
  const float nan = std::nanf(""), inf = HUGE_VALF;
  uint64_t found = 0;
  check(host::find_nonfinite(&nan, DType::f32, 1, first_finding(3), &found).ok(), "find_nonfinite");
  check(host::find_nonfinite(&inf, DType::f32, 1, first_finding(4), &found).ok(), "find_nonfinite");
  check(read_finding(found).microbatch == 3 && read_finding(found).value == Nonfinite::nan, "a later microbatch's is told");
  check(finding_at(first_finding(3), 8, nan) > finding_at(first_finding(3), 9, nan), "a later element comes first");
  check(finding_at(first_finding(3), kMostFindingElements - 1, inf) > finding_at(first_finding(4), 0, inf),
        "a later microbatch comes first");
  const NonfiniteElement last = read_finding(finding_at(first_finding(UINT32_MAX), kMostFindingElements - 1, -inf));
  check(last.microbatch == kLastFindingMicrobatch && last.element == kMostFindingElements - 1 && last.value == Nonfinite::minus_inf,
        "the last finding there can be");
  check(finding_at(first_finding(UINT32_MAX), kMostFindingElements - 1, -inf) != 0, "a finding that says that there is none");
}

void square_sums(const Kernels& kernels) {
  for (const DType type : kStorage) {
    for (size_t n :
         {0, 1, 5, 15, 16, 17, 31, 33, 64, 67, 1000, 1024, 1039, 4095, 4096, 4097, 5000, 8192, 12305, 1 << 20, (2 << 20) + 4097}) {
      Array data = Array(type, n, n % 4).fill(ordinary_float);
      double expected = 0, run = 0, nonfinite = 0;
      long double exact = 0;
      for (size_t begin = 0; begin < n; begin += 4096) {
        if (begin % (256 * 4096) == 0) expected += std::exchange(run, 0);
        double lanes[16] = {}, block = 0;
        for (size_t i = begin; i < n && i < begin + 4096; i++) {
          const double x = data.value(i);
          lanes[i % 16] += x * x;
          exact += static_cast<long double>(x) * x;
        }
        for (const double lane : lanes) block += lane;
        run += block;
      }
      expected += run;
      const double got = square_sum_of(data, kernels, &nonfinite);
      check_equal(got, expected, name(kernels, "square_sum", type, type, n));
      check(std::fabs(static_cast<double>(got - exact)) <= 1e-13 * static_cast<double>(exact), "square_sum is far off");
      check_equal(nonfinite, 0.0, "non-finite elements");
      if (n < 3) continue;
      data.set(n - 1, rounded(HUGE_VALF, type));
      data.set(n / 2, rounded(std::nanf(""), type));
      check_equal(std::isnan(square_sum_of(data, kernels, &nonfinite)), true, "a NaN shows in the sum");
      check_equal(nonfinite, 2.0, "non-finite elements");
    }
  }
  Array large(DType::f32, 40, 0);
  for (size_t i = 0; i < 40; i++) large.set(i, {as_bits(3e38F)});
  double nonfinite = 0;
  check_equal(std::isfinite(square_sum_of(large, kernels, &nonfinite)) && nonfinite == 0, true, "large numbers do not overflow");
}

void scale_bits(const Kernels& kernels) {
  for (const DType type : kStorage) {
    for (size_t n = 0; n <= kLongest; n++) {
      Array array(Array(type, n, n % 5).fill(ordinary_float)), expected = array;
      const float factor = n % 2 == 0 ? -1.0F / 3 : 1.0F / 1024;
      for (size_t i = 0; i < n; i++) expected.set(i, rounded(array.value(i) * factor, type));
      check(host::scale(array.data(), type, n, factor, kernels).ok(), "scale");
      arrays_equal(array, expected, true, name(kernels, "scale", type, type, n));
    }
  }
}

struct Launch {  // of an update rule
  Hyper hyper{3e-3, 0.9, 0.95, 1e-8, 0.1, 0.8};
  StepScalars scalars{};
  uint64_t steps = 3;
  uint32_t rule;
  Array grad, master, param;
  std::vector<Array> state;

  Launch(uint32_t number, DType grad_type, DType param_type, size_t n)
      : rule(number),
        grad(Array(grad_type, n, n % 5).fill(ordinary_float)),
        master(Array(DType::f32, n, n % 3).fill(ordinary_float)),
        param(param_type, n, n % 4) {
    scalars.grad_factor = 0.25F;
    scalars.grad_limit = n % 2 == 0 ? HUGE_VALF : 0.1F;
    for (const StateArray& array : megadp::rule(rule).state) state.push_back(Array(array.type, n, 1 + state.size()).fill(ordinary_float));
    for (size_t i = 0; i < n && !state.empty(); i++)
      state.back().set(i, rounded(std::fabs(state.back().value(i)), state.back().type()));  // a second moment
  }
  Update update() {
    Update u{hyper, &scalars, &steps, grad.data(), master.floats(), {}, param.data(), grad.size(), grad.type(), param.type(), rule};
    for (size_t k = 0; k < state.size(); k++) u.state[k] = state[k].data();
    return u;
  }
};

template <class Rule, size_t... k>
void by_elements(Launch& launch, std::index_sequence<k...>) {
  const auto constants = Rule::constants(launch.hyper, launch.steps);
  for (size_t i = 0; i < launch.grad.size(); i++) {
    float values[] = {launch.master.value(i), launch.state[k].value(i)...};
    const float gradient = clipped(static_cast<float>(launch.grad.value(i)), launch.scalars.grad_factor, launch.scalars.grad_limit);
    Rule::element(constants, gradient, values[0], values[k + 1]...);
    launch.master.set(i, rounded(values[0], DType::f32));
    launch.param.set(i, rounded(values[0], launch.param.type()));
    (launch.state[k].set(i, rounded(values[k + 1], launch.state[k].type())), ...);
  }
}

void updates(const Kernels& kernels, uint32_t number, DType grad_type, DType param_type) {
  for (size_t n = 0; n <= kLongest; n++) {
    Launch launch(number, grad_type, param_type, n), expected = launch;
    with_rule(number, [&](auto rule) {
      using Rule = decltype(rule);
      by_elements<Rule>(expected, std::make_index_sequence<Rule::state.size()>());
    });
    check(host::update(launch.update(), kernels).ok(), "update");
    const std::string what = name(kernels, rule(number).name, grad_type, param_type, n);
    arrays_equal(launch.grad, expected.grad, true, what + " grad");
    arrays_equal(launch.master, expected.master, true, what + " master");
    arrays_equal(launch.param, expected.param, true, what + " param");
    for (size_t k = 0; k < launch.state.size(); k++) {
      arrays_equal(launch.state[k], expected.state[k], true, text(what, " ", rule(number).state[k].name));
    }
  }
}

// So many elements that the parameter is written past the caches: the bits of as many in pieces, which are not.
void long_updates(const Kernels& kernels, DType param_type) {
  constexpr size_t n = (size_t{1} << 21) + 77, piece = 99991;
  Launch launch(0, DType::f32, param_type, n), expected = launch;
  check(host::update(launch.update(), kernels).ok(), "update");
  for (size_t begin = 0; begin < n; begin += piece) {
    Update part = expected.update();
    part.count = std::min(piece, n - begin);
    part.grad = static_cast<const float*>(part.grad) + begin;
    part.master += begin;
    part.param = static_cast<std::byte*>(part.param) + begin * size_of(param_type);
    for (size_t k = 0; k < launch.state.size(); k++) part.state[k] = static_cast<float*>(part.state[k]) + begin;
    check(host::update(part, kernels).ok(), "update");
  }
  const std::string what = name(kernels, "a long update", DType::f32, param_type, n);
  arrays_equal(launch.master, expected.master, true, what + " master");
  arrays_equal(launch.param, expected.param, true, what + " param");
  for (size_t k = 0; k < launch.state.size(); k++) arrays_equal(launch.state[k], expected.state[k], true, what + " state");
}

// 40 steps beside a float64 AdamW on the same gradients, written from the paper. A step rounds p three times (the decay's factor, the
// product, the difference), each by half a unit of 2^-23 at most; what the rounding of an update of size lr adds is far below that. The
// hyperparameters are large, so that a wrong order of operations shows.
void adamw_formula(const Kernels& kernels) {
  const Hyper hyper{1e-2, 0.9, 0.999, 1e-2, 0.5, 0};
  const double scale = 128;
  constexpr size_t n = 37;
  Launch step(0, DType::f32, DType::f32, n);
  step.hyper = hyper;
  step.scalars.grad_factor = static_cast<float>(1 / scale);
  step.scalars.grad_limit = HUGE_VALF;
  std::vector<double> p(n), m(n, 0.0), v(n, 0.0);
  for (size_t i = 0; i < n; i++) {
    p[i] = step.master.value(i);
    step.state[0].floats()[i] = step.state[1].floats()[i] = 0;
  }
  double worst = 0;
  for (int t = 1; t <= 40; t++) {
    step.grad.fill(ordinary_float);
    step.steps = static_cast<uint64_t>(t);
    Update update = step.update();
    update.param = update.master;
    check(host::update(update, kernels).ok(), "update");
    for (size_t i = 0; i < n; i++) {
      const double g = step.grad.value(i) / scale;
      p[i] -= hyper.lr * hyper.weight_decay * p[i];
      m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
      v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(hyper.beta1, t)), v_hat = v[i] / (1 - std::pow(hyper.beta2, t));
      p[i] -= hyper.lr * m_hat / (std::sqrt(v_hat) + hyper.eps);
      worst = std::max(worst, std::fabs(p[i] - step.master.value(i)) / std::max(1.0, std::fabs(p[i])));
    }
  }
  check(worst < 40 * 3 * 0x1p-24, text(kernels.name, " AdamW is off by ", worst));
  check(worst > 0, "AdamW in fp32 agrees with float64 to the last bit: the reference is not one");
}

}  // namespace

int main() {
  check_equal(std::string(host::simd_target()), std::string(host::all_kernels().front().name));
  check_equal(host::all_kernels().back().target == host::SimdTarget::baseline, true, "the baseline is always there");
  extremes();
  order_of_findings();
  for (const Kernels& kernels : host::all_kernels()) {
    casts(kernels);
    rounding_with_feedback(kernels);
    masters(kernels);
    every_half(kernels);
    reductions(kernels);
    reductions_by_hand(kernels);
    average_of_ones(kernels);
    square_sums(kernels);
    nonfinite_elements(kernels);
    scale_bits(kernels);
    for (uint32_t rule = 0; rule < kRules; rule++) {
      for (const DType grad_type : kStorage) {
        for (const DType param_type : kStorage) updates(kernels, rule, grad_type, param_type);
      }
    }
    for (const DType param_type : {DType::bf16, DType::f16}) long_updates(kernels, param_type);
    adamw_formula(kernels);
  }
  average_of_f64_ones();
  other_types();
  refusals();
  std::cerr << "SIMD targets: " << host::simd_targets() << "\n";
  return finish();
}
