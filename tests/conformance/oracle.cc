// SPDX-License-Identifier: Apache-2.0
// Scalar arithmetic, written from the definition of the formats.
#include "oracle.h"

#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <span>
#include <tuple>
#include <utility>

namespace megadp::test {
namespace {

uint64_t scramble(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

template <class T>
T get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
template <class T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

float bf16_value(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

// The nearer of the two neighbours; of equally near ones the even one.
uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const auto below = static_cast<uint16_t>(bits >> 16);  // towards zero
  const auto above = static_cast<uint16_t>(below + 1);
  const double to_below = std::fabs(static_cast<double>(value) - bf16_value(below));
  const double to_above = std::fabs(static_cast<double>(bf16_value(above)) - value);
  if (to_below != to_above) return to_below < to_above ? below : above;
  return (below & 1) == 0 ? below : above;
}

float f16_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

uint16_t to_f16(float value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < std::ldexp(1, -14)) return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(std::ldexp(magnitude, 24))));
  const int exponent = std::ilogb(magnitude);
  const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent))) - 1024;  // 1024: carries into the exponent
  return static_cast<uint16_t>(sign | (((exponent + 15) << 10) + mantissa));
}

// Whole numbers with 24 bits times a power of two between 2^-32 and 2^-16: up to about 2^8.
double any_real(uint64_t random) {
  const auto whole = static_cast<double>(random & 0xffffff);
  const double magnitude = std::ldexp(whole, -32 + static_cast<int>((random >> 24) & 15));
  return (random >> 63) != 0 ? -magnitude : magnitude;
}

// A balanced binary tree over the values; the left side has the largest power of two below their number.
template <class Sum>
Sum fold(Op op, std::span<const Sum> values) {
  if (values.size() == 1) return values[0];
  size_t left = 1;
  while (2 * left < values.size()) left *= 2;
  const Sum a = fold(op, values.first(left)), b = fold(op, values.subspan(left));
  if (op == Op::max) return b > a ? b : a;
  if (op == Op::min) return b < a ? b : a;
  return a + b;
}

// One element of every rank, without memory of the heap: that is what most of a sum's time went into.
template <class Value>
class Column {
 public:
  template <class Load>
  Column(const std::vector<const std::byte*>& from, Load load) : size_(from.size()) {
    for (size_t i = 0; i < size_; ++i) values_.at(i) = load(from[i]);
  }
  std::span<const Value> all() const { return std::span<const Value>(values_).first(size_); }

 private:
  std::array<Value, 64> values_;
  size_t size_;
};

template <class Sum, class Load>
Sum reduce_reals(Op op, double divisor, const std::vector<const std::byte*>& from, Load load) {
  const Sum result = fold(op, Column<Sum>(from, load).all());
  if (op == Op::max || op == Op::min) return result;
  const auto rounded = static_cast<Sum>(op == Op::avg ? divisor * static_cast<double>(from.size()) : divisor);
  // Of floats the quotient in double, rounded again, is the nearest float: double has more than twice the bits.
  return static_cast<Sum>(static_cast<double>(result) / static_cast<double>(rounded));
}

int64_t reduce_i64(Op op, const std::vector<const std::byte*>& from) {
  const auto count = static_cast<int64_t>(from.size());
  if (op == Op::max || op == Op::min) {
    return fold(op, Column<int64_t>(from, get<int64_t>).all());
  }
  uint64_t sum = 0;  // wraps around
  for (const std::byte* at : from) sum += get<uint64_t>(at);
  const auto total = static_cast<int64_t>(sum);
  return op == Op::avg ? total / count : total;
}

uint8_t reduce_u8(Op op, const std::vector<const std::byte*>& from) {
  const uint64_t all = fold(op, Column<uint64_t>(from, get<uint8_t>).all());
  const uint64_t result = op == Op::avg ? all / from.size() : all;
  return static_cast<uint8_t>(result > 255 ? 255 : result);
}

Bytes compute_input(DType type, size_t count, uint64_t seed, int rank) {
  const size_t width = size_of(type);
  Bytes bytes(count * width);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t random = scramble(seed ^ scramble(static_cast<uint64_t>(rank) << 40 ^ i));
    std::byte* const at = bytes.data() + i * width;
    switch (type) {
      case DType::f32:
        put(at, static_cast<float>(any_real(random)));
        break;
      case DType::bf16:
        put(at, to_bf16(static_cast<float>(any_real(random))));
        break;
      case DType::f16:
        put(at, to_f16(static_cast<float>(any_real(random))));
        break;
      case DType::f64:
        put(at, any_real(random) / 3);
        break;
      case DType::i64:
        put(at, random);
        break;
      case DType::u8:
        put(at, static_cast<uint8_t>(random));
        break;
    }
  }
  return bytes;
}

}  // namespace

// Ranks that are threads ask for the same ones at about the same time.
Bytes make_input(DType type, size_t count, uint64_t seed, int rank) {
  using Key = std::tuple<DType, size_t, uint64_t, int>;
  static std::mutex mutex;
  static std::deque<std::pair<Key, Bytes>> latest;
  const Key key{type, count, seed, rank};
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [made, bytes] : latest) {
    if (made == key) return bytes;
  }
  if (latest.size() == 32) latest.pop_front();
  return latest.emplace_back(key, compute_input(type, count, seed, rank)).second;
}

void reduce_element(DType type, Op op, double divisor, const std::vector<const std::byte*>& from, std::byte* to) {
  switch (type) {
    case DType::f32:
      return put(to, reduce_reals<float>(op, divisor, from, get<float>));
    case DType::bf16:
      return put(to, to_bf16(reduce_reals<float>(op, divisor, from, [](const std::byte* at) { return bf16_value(get<uint16_t>(at)); })));
    case DType::f16:
      return put(to, to_f16(reduce_reals<float>(op, divisor, from, [](const std::byte* at) { return f16_value(get<uint16_t>(at)); })));
    case DType::f64:
      return put(to, reduce_reals<double>(op, divisor, from, get<double>));
    case DType::i64:
      return put(to, reduce_i64(op, from));
    case DType::u8:
      return put(to, reduce_u8(op, from));
  }
}

Bytes reduce_arrays(DType type, Op op, double divisor, const std::vector<Bytes>& from) {
  const size_t width = size_of(type);
  Bytes result(from[0].size());
  std::vector<const std::byte*> elements(from.size());
  for (size_t at = 0; at < result.size(); at += width) {
    for (size_t rank = 0; rank < from.size(); ++rank) elements[rank] = from[rank].data() + at;
    reduce_element(type, op, divisor, elements, result.data() + at);
  }
  return result;
}

}  // namespace megadp::test
