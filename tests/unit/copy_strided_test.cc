// SPDX-License-Identifier: Apache-2.0
// Strided copies against a loop over all indexes, for random shapes, strides of any sign, types and offsets; and the shapes that have code
// of their own by hand.
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "backend/backend.h"
#include "check.h"
#include "host/kernels.h"

using namespace megadp;
using namespace megadp::test;

namespace {

using Bytes = std::vector<std::byte>;

// An array in memory that is just large enough for its strides, and where in it element (0, 0, ...) lies.
struct Storage {
  Bytes bytes;
  std::vector<int64_t> strides;
  int64_t origin = 0;
  DType type = DType::f32;

  StridedArray array(const std::vector<int64_t>& shape) {
    return {bytes.data() + origin * static_cast<int64_t>(size_of(type)), type, shape, strides};
  }
};

Storage make_place(const std::vector<int64_t>& shape, std::vector<int64_t> strides, DType type, uint32_t seed) {
  Storage out;
  int64_t low = 0, high = 0;
  for (size_t d = 0; d < shape.size(); d++) {
    const int64_t reach = std::max<int64_t>(shape[d] - 1, 0) * strides[d];
    (reach < 0 ? low : high) += reach;
  }
  out.origin = -low;
  out.strides = std::move(strides);
  out.type = type;
  out.bytes.resize(static_cast<size_t>(high - low + 1) * size_of(type));
  for (size_t i = 0; i < out.bytes.size() / size_of(type); i++) {  // ordinary values: NaN has its test elsewhere
    seed = seed * 1664525 + 1013904223;
    const auto x = static_cast<float>(static_cast<int32_t>(seed)) * 0x1p-22F;
    std::byte* const at = out.bytes.data() + i * size_of(type);
    const double wide = x / 3.0;
    const auto integer = static_cast<int64_t>(seed);
    Bf16 bf16;
    F16 f16;
    from_f32(&bf16, x);
    from_f32(&f16, x);
    const void* const source = type == DType::f32    ? static_cast<const void*>(&x)
                               : type == DType::bf16 ? static_cast<const void*>(&bf16)
                               : type == DType::f16  ? static_cast<const void*>(&f16)
                               : type == DType::f64  ? static_cast<const void*>(&wide)
                                                     : static_cast<const void*>(&integer);
    std::memcpy(at, source, size_of(type));
  }
  return out;
}

// One element, without the kernels.
double read_float(const std::byte* at, DType type) {
  float f;
  Bf16 bf16;
  F16 f16;
  double wide;
  switch (type) {
    case DType::bf16:
      std::memcpy(&bf16, at, sizeof bf16);
      return to_f32(bf16);
    case DType::f16:
      std::memcpy(&f16, at, sizeof f16);
      return to_f32(f16);
    case DType::f64:
      std::memcpy(&wide, at, sizeof wide);
      return wide;
    default:
      std::memcpy(&f, at, sizeof f);
      return f;
  }
}
template <class T>
void write_rounded(std::byte* at, double value) {
  T out;
  from_f64(&out, value);
  std::memcpy(at, &out, sizeof out);
}
void write_float(std::byte* at, DType type, double value) {
  if (type == DType::f32) return write_rounded<float>(at, value);
  if (type == DType::bf16) return write_rounded<Bf16>(at, value);
  if (type == DType::f16) return write_rounded<F16>(at, value);
  std::memcpy(at, &value, sizeof value);
}

void copy_element(std::byte* to, DType to_type, const std::byte* from, DType from_type, bool add) {
  if (to_type == DType::i64) {
    int64_t a, b;
    std::memcpy(&a, to, 8);
    std::memcpy(&b, from, 8);
    const int64_t result = add ? a + b : b;
    std::memcpy(to, &result, 8);
  } else if (to_type == DType::u8) {
    *to = add ? std::byte{static_cast<uint8_t>(std::min(255, static_cast<int>(*to) + static_cast<int>(*from)))} : *from;
  } else {
    double value = read_float(from, from_type);
    if (add) {
      const double old = read_float(to, to_type);
      const bool wide = to_type == DType::f64 || from_type == DType::f64;
      value = wide ? old + value : static_cast<float>(old) + static_cast<float>(value);
    }
    write_float(to, to_type, value);
  }
}

void copy_slowly(const StridedArray& to, const StridedArray& from, bool add) {
  const int64_t count = std::accumulate(to.shape.begin(), to.shape.end(), int64_t{1}, std::multiplies<>());
  for (int64_t n = 0; n < count; n++) {
    int64_t rest = n, to_at = 0, from_at = 0;
    for (size_t d = to.shape.size(); d-- > 0;) {
      const int64_t index = rest % to.shape[d];
      rest /= to.shape[d];
      to_at += index * to.strides[d];
      from_at += index * from.strides[d];
    }
    copy_element(static_cast<std::byte*>(to.data) + to_at * static_cast<int64_t>(size_of(to.type)), to.type,
                 static_cast<const std::byte*>(from.data) + from_at * static_cast<int64_t>(size_of(from.type)), from.type, add);
  }
}

// True when the copy leaves all of the target's memory, gaps included, as the slow one does, and the source alone.
bool right(const std::vector<int64_t>& shape, const std::vector<int64_t>& to_strides, DType to_type,
           const std::vector<int64_t>& from_strides, DType from_type, bool add, const host::Kernels& kernels = host::best_kernels()) {
  Storage to = make_place(shape, to_strides, to_type, 1), expected = to;
  Storage from = make_place(shape, from_strides, from_type, 2);
  const Bytes source = from.bytes;
  copy_slowly(expected.array(shape), from.array(shape), add);
  const Status status = host::copy_strided(to.array(shape), from.array(shape), add, kernels);
  return check(status.ok(), status.text()) && to.bytes == expected.bytes && from.bytes == source;
}

// Strides under which no element is reached twice: dimensions laid out in any order, with gaps, some backwards.
std::vector<int64_t> any_layout(const std::vector<int64_t>& shape, bool plain) {
  std::vector<size_t> order(shape.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[*rc::gen::inRange<size_t>(0, i)]);
  std::vector<int64_t> strides(shape.size());
  int64_t next = plain ? 1 : *rc::gen::element(1, 1, 1, 2, 3);
  for (const size_t d : order) {
    strides[d] = next;
    next *= std::max<int64_t>(shape[d], 1);
    if (!plain) next += *rc::gen::element(0, 0, 0, 1, 5);
    if (!plain && *rc::gen::inRange(0, 4) == 0) strides[d] = -strides[d];
  }
  return strides;
}

void any_copy() {
  const auto ndim = *rc::gen::inRange<size_t>(0, 6);
  std::vector<int64_t> shape(ndim);
  int64_t count = 1;
  for (int64_t& size : shape) {
    size = *rc::gen::oneOf(rc::gen::inRange<int64_t>(0, 5), rc::gen::element<int64_t>(1, 7, 63, 64, 65, 129));
    if (count * size > 20000) size = 2;
    count *= std::max<int64_t>(size, 1);
  }
  const bool plain = *rc::gen::arbitrary<bool>();
  std::vector<int64_t> from_strides = any_layout(shape, plain);
  if (!plain && ndim > 0 && *rc::gen::inRange(0, 4) == 0) from_strides[*rc::gen::inRange<size_t>(0, ndim)] = 0;
  const auto types = *rc::gen::oneOf(
      rc::gen::pair(rc::gen::element(DType::f32, DType::bf16, DType::f16, DType::f64),
                    rc::gen::element(DType::f32, DType::bf16, DType::f16, DType::f64)),
      rc::gen::element(std::pair(DType::i64, DType::i64), std::pair(DType::u8, DType::u8), std::pair(DType::f32, DType::f32)));
  RC_ASSERT(right(shape, any_layout(shape, plain), types.first, from_strides, types.second, *rc::gen::arbitrary<bool>()));
}

void by_hand() {
  for (const host::Kernels& kernels : host::all_kernels()) {
    for (const bool add : {false, true}) {
      // Column-major into row-major and back, around the edge of a tile, with a cast, in a batch.
      check(right({64, 96}, {96, 1}, DType::f32, {1, 64}, DType::f32, add, kernels), "transposed");
      check(right({33, 31}, {31, 1}, DType::bf16, {1, 33}, DType::f64, add, kernels), "transposed with a cast");
      check(right({3, 40, 70}, {2800, 70, 1}, DType::f32, {1, 3, 120}, DType::f16, add, kernels), "three dimensions, reversed");
      check(right({5, 1000}, {1000, 1}, DType::f16, {-1000, -1}, DType::f32, add, kernels), "backwards");
      check(right({1500}, {-2}, DType::f32, {3}, DType::bf16, add, kernels), "neither side dense");
      check(right({7, 600}, {600, 1}, DType::f32, {1, 0}, DType::f32, add, kernels), "a column repeated");
      check(right({7, 600}, {600, 1}, DType::f32, {0, 1}, DType::f32, add, kernels), "a row repeated");
      check(right({}, {}, DType::f32, {}, DType::bf16, add, kernels), "no dimension: one element");
      check(right(std::vector<int64_t>(16, 1), std::vector<int64_t>(16, 9), DType::f32, std::vector<int64_t>(16, -4), DType::f32, add,
                  kernels),
            "sixteen dimensions of one");
      check(right({3, 0, 2}, {2, 2, 1}, DType::f32, {2, 2, 1}, DType::f32, add, kernels), "nothing");
    }
  }
}

void refusals() {
  float x[4] = {1, 2, 3, 4}, y[4] = {};
  const StridedArray from{x, DType::f32, {2, 2}, {2, 1}};
  fails(host::copy_strided({y, DType::f32, {2, 2}, {0, 1}}, from, false), Code::invalid, {"stride of dimension 0 is 0"});
  fails(host::copy_strided({y, DType::f32, {4}, {1}}, from, false), Code::invalid, {"shapes"});
  fails(host::copy_strided({y, DType::i64, {2, 2}, {2, 1}}, from, false), Code::unsupported, {"f32", "i64"});
  fails(host::copy_strided({y, DType::f32, {2, 2}, {1}}, from, false), Code::invalid, {"strides"});
  fails(host::copy_strided({y, DType::f32, {-2}, {1}}, {x, DType::f32, {-2}, {1}}, false), Code::invalid, {"-2", "negative"});
  const std::vector<int64_t> many(17, 1);
  fails(host::copy_strided({y, DType::f32, many, many}, {x, DType::f32, many, many}, false), Code::invalid, {"17 dimensions"});
  check_equal(y[0] + y[1] + y[2] + y[3], 0.0F, "what a refused copy has written");
}

}  // namespace

int main() {
  set_property_runs(2000);
  check(rc::check("any strided copy equals the loop over all indexes", any_copy), "a copy differs");
  by_hand();
  refusals();
  return finish();
}
