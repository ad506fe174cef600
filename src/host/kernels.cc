// SPDX-License-Identifier: Apache-2.0
// Finds the kernel for the types at hand; and the plain loops for the types that only collectives know.
#include "host/kernels.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/finding.h"
#include "base/rules.h"
#include "base/sum_order.h"
#include "host/copy_past.h"
#include "host/update_blocks.h"

namespace megadp::host {
namespace {

// Calls fn with a value of the storage type, of 16 bits or of any.
template <class Fn>
void with_half_type(DType type, Fn fn) {
  if (type == DType::bf16) fn(Bf16());
  if (type == DType::f16) fn(F16());
}
template <class Fn>
void with_storage_type(DType type, Fn fn) {
  if (type == DType::f32) fn(float());
  with_half_type(type, fn);
}

// ── f64 ──

void cast_to_f64(double* to, const void* from, DType from_type, size_t n, bool add) {
  with_storage_type(from_type, [&](auto element) {
    const auto* in = static_cast<const decltype(element)*>(from);
    for (size_t i = 0; i < n; i++) to[i] = add ? to[i] + double{to_f32(in[i])} : double{to_f32(in[i])};
  });
}

void cast_from_f64(void* to, DType to_type, const double* from, size_t n, bool add) {
  with_storage_type(to_type, [&](auto element) {
    auto* out = static_cast<decltype(element)*>(to);
    for (size_t i = 0; i < n; i++) from_f64(out + i, add ? double{to_f32(out[i])} + from[i] : from[i]);
  });
}

// One of cast() and add_cast(), of two types of floating-point numbers that are not both f64.
class Converter {
 public:
  Converter(DType to, DType from, bool adds, const Kernels& kernels) : to_(to), from_(from), adds_(adds) {
    if (!is_trainable(to) || !is_trainable(from)) return;
    kernel_ = (adds ? kernels.casts->add_cast : kernels.casts->cast)[storage_index(to)][storage_index(from)];
  }
  bool is_possible() const {
    return kernel_ != nullptr || (to_ == DType::f64 && is_trainable(from_)) || (from_ == DType::f64 && is_trainable(to_));
  }
  void operator()(void* to, const void* from, size_t n, const Executor& on) const {
    on.split(n, size_of(to_) + size_of(from_), [&](size_t begin, size_t count) {
      void* const out = forward(to, begin, to_);
      const void* const in = forward(from, begin, from_);
      if (kernel_ != nullptr) return kernel_(out, in, count);
      if (to_ == DType::f64) return cast_to_f64(static_cast<double*>(out), in, from_, count, adds_);
      cast_from_f64(out, to_, static_cast<const double*>(in), count, adds_);
    });
  }

 private:
  const DType to_, from_;
  const bool adds_;
  CastFn kernel_ = nullptr;  // null: one of the two is f64
};

// ── integers ──

int64_t wrapping_add(int64_t a, int64_t b) noexcept {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
uint8_t clamp_to_u8(uint64_t value) noexcept {
  return static_cast<uint8_t>(std::min<uint64_t>(value, 255));
}

// The loops below give elements begin to begin + n.
template <class T>
void pick_largest_or_smallest(T* to, const void* const* from, int nfrom, size_t begin, size_t n, bool largest) {
  for (size_t i = begin; i < begin + n; i++) {
    T value = static_cast<const T*>(from[0])[i];
    for (int k = 1; k < nfrom; k++) {
      const T next = static_cast<const T*>(from[k])[i];
      value = largest ? larger(value, next) : smaller(value, next);
    }
    to[i] = value;
  }
}

void sum_f64(double* to, const void* const* from, int nfrom, size_t begin, size_t n, double divisor) {
  const auto add = [](double a, double b) { return a + b; };
  for (size_t i = begin; i < begin + n; i++) {
    TreeSum<double, decltype(add)> tree(add);
    tree.push(static_cast<const double*>(from[0])[i]);
    for (int k = 1; k < nfrom; k++) tree.push(static_cast<const double*>(from[k])[i]);
    to[i] = tree.sum() / divisor;
  }
}

void sum_i64(int64_t* to, const void* const* from, int nfrom, size_t begin, size_t n, bool average) {
  for (size_t i = begin; i < begin + n; i++) {
    int64_t value = 0;
    for (int k = 0; k < nfrom; k++) value = wrapping_add(value, static_cast<const int64_t*>(from[k])[i]);
    to[i] = average ? value / nfrom : value;
  }
}

void sum_u8(uint8_t* to, const void* const* from, int nfrom, size_t begin, size_t n, bool average) {
  for (size_t i = begin; i < begin + n; i++) {
    uint64_t value = 0;
    for (int k = 0; k < nfrom; k++) value += static_cast<const uint8_t*>(from[k])[i];
    to[i] = clamp_to_u8(average ? value / static_cast<uint64_t>(nfrom) : value);
  }
}

template <class T, class Sum>
void reduce_plainly(void* to, const void* const* from, int nfrom, size_t begin, size_t n, Op op, const Sum& sum) {
  if (op == Op::sum || op == Op::avg) return sum(static_cast<T*>(to));
  pick_largest_or_smallest(static_cast<T*>(to), from, nfrom, begin, n, op == Op::max);
}
// Of the types that only collectives know.
void reduce_plainly(void* to, const void* const* from, int nfrom, size_t begin, size_t n, DType type, Op op, double divisor) {
  const bool average = op == Op::avg;
  if (type == DType::f64) {
    reduce_plainly<double>(to, from, nfrom, begin, n, op, [&](double* out) { sum_f64(out, from, nfrom, begin, n, divisor); });
  } else if (type == DType::i64) {
    reduce_plainly<int64_t>(to, from, nfrom, begin, n, op, [&](int64_t* out) { sum_i64(out, from, nfrom, begin, n, average); });
  } else {
    reduce_plainly<uint8_t>(to, from, nfrom, begin, n, op, [&](uint8_t* out) { sum_u8(out, from, nfrom, begin, n, average); });
  }
}

Status no_conversion(const char* verb, DType to_type, DType from_type) {
  return unsupported("cannot ", verb, " ", name_of(from_type), " elements to ", name_of(to_type),
                     " elements: only f32, bf16, f16 and f64 convert into each other");
}

Status not_trainable(const char* what, DType type) {
  return unsupported(what, " is not offered for ", name_of(type), ": the type must be f32, bf16 or f16");
}

// Of what one element of an update reads and writes.
size_t bytes_moved(const Update& u) {
  return size_of(u.grad_type) + size_of(u.param_type) + 2 * (u.master != nullptr ? sizeof(float) : 0) + 2 * state_bytes(rule(u.rule));
}

template <class T>
void raise(std::atomic<T>* to, T value) {
  for (T seen = to->load(); value > seen && !to->compare_exchange_weak(seen, value);) {
  }
}

template <class T>
double count_nonfinite(const void* data, size_t n) {
  double count = 0;
  for (size_t i = 0; i < n; i++) count += std::isfinite(to_f32(static_cast<const T*>(data)[i])) ? 0 : 1;
  return count;
}

// One sum of squares of n elements. Several threads may add parts of it at a time.
class SquareSum {
 public:
  SquareSum(const void* data, DType type, size_t n, const Kernels& kernels)
      : data_(data),
        type_(type),
        n_(n),
        add_(kernels.steps->square_sum[storage_index(type)]),
        blocks_((n + kSquareBlock - 1) / kSquareBlock) {}

  // Elements [begin, begin + count), as far as they are among the n; `begin` is a multiple of kSquareBlock, and so is `count`, unless they
  // are the last.
  void add(size_t begin, size_t count) {
    const size_t end = std::min(begin + count, n_);
    for (size_t at = begin; at < end; at += kSquareBlock) {
      double lanes[kSquareLanes] = {}, block = 0;
      add_(forward(data_, at, type_), std::min<size_t>(kSquareBlock, end - at), lanes);
      for (const double lane : lanes) block += lane;
      blocks_[at / kSquareBlock] = block;
    }
  }
  void finish(double* sum, double* nonfinite) const {
    double total = 0, run = 0;
    for (size_t block = 0; block < blocks_.size(); block++) {
      if (block % kSquareRun == 0) total += std::exchange(run, 0);
      run += blocks_[block];
    }
    total += run;
    *sum += total;
    // The square of a finite float is far below the largest double: the total is not finite only if an element is not.
    if (!std::isfinite(total)) {
      with_storage_type(type_, [&](auto element) { *nonfinite += count_nonfinite<decltype(element)>(data_, n_); });
    }
  }

 private:
  const void* const data_;
  const DType type_;
  const size_t n_;
  const SquareSumFn add_;
  std::vector<double> blocks_;
};

}  // namespace

const char* simd_target() noexcept {
  return best_kernels().name;
}

std::string simd_targets() {
  std::string names;
  for (const Kernels& kernels : all_kernels()) {
    if (!names.empty()) names += ", ";
    names += kernels.name;
  }
  return names;
}

void copy_bytes(void* to, const void* from, size_t bytes, const Executor& on, size_t whole) {
  if (to == from || bytes == 0) return;
  auto* const out = static_cast<std::byte*>(to);
  const auto* const in = static_cast<const std::byte*>(from);
  if (std::max(bytes, whole) >= kBeyondCaches) return copy_past_caches(out, in, bytes, on);
  on.split(bytes, 2, [=](size_t begin, size_t n) { std::memcpy(out + begin, in + begin, n); });
}

void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes, const Executor& on) {
  on.split(bytes, 2, [=](size_t begin, size_t n) { copy_past_caches(to + begin, from + begin, n); });
}

void zero_bytes(void* data, size_t bytes, const Executor& on) {
  if (bytes == 0) return;
  on.split(bytes, 1, [=](size_t begin, size_t n) { std::memset(static_cast<std::byte*>(data) + begin, 0, n); });
}

Status cast(void* to, DType to_type, const void* from, DType from_type, size_t n, const Executor& on) {
  if (to_type == from_type) {
    copy_bytes(to, from, n * size_of(to_type), on);
    return {};
  }
  const Converter convert{to_type, from_type, false, on.kernels()};
  if (!convert.is_possible()) return no_conversion("convert", to_type, from_type);
  convert(to, from, n, on);
  return {};
}

Status add_cast(void* to, DType to_type, const void* from, DType from_type, size_t n, const Executor& on) {
  const Converter add{to_type, from_type, true, on.kernels()};
  if (add.is_possible()) {
    add(to, from, n, on);
    return {};
  }
  if (to_type != from_type) return no_conversion("add", to_type, from_type);
  const void* const both[] = {to, from};
  return reduce(to, both, 2, n, to_type, Op::sum, 1, on);
}

Status reduce(void* to, const void* const* from, int nfrom, size_t n, DType type, Op op, double divisor, const Executor& on) {
  if (nfrom < 1) return invalid("nfrom is ", nfrom, "; a reduction takes at least 1 array");
  const bool adds = op == Op::sum || op == Op::avg;
  const bool integers = type == DType::i64 || type == DType::u8;
  if (divisor != 1 && (integers || !adds)) {
    return unsupported("divisor is ", divisor, "; it must be 1 for ", integers ? "integers" : "a maximum or minimum");
  }
  on.split(n, (static_cast<size_t>(nfrom) + 1) * size_of(type),
           [&](size_t begin, size_t count) { reduce_part(to, from, nfrom, begin, count, type, op, divisor, on.kernels()); });
  return {};
}

void reduce_part(void* to, const void* const* from, int nfrom, size_t begin, size_t n, DType type, Op op, double divisor,
                 const Kernels& kernels) noexcept {
  if (op == Op::avg) divisor *= nfrom;
  if (is_trainable(type)) {
    const ReduceTable& table = *kernels.reduces;
    const ReduceFn* const by_type = op == Op::max ? table.max : op == Op::min ? table.min : table.sum;
    by_type[storage_index(type)](to, from, nfrom, begin, n, static_cast<float>(divisor));
  } else {
    reduce_plainly(to, from, nfrom, begin, n, type, op, divisor);
  }
}

Status round_with_feedback(void* to, const float* from, float* residual, size_t n, const Executor& on) {
  on.split(n, sizeof(Bf16) + 3 * sizeof(float), [&](size_t begin, size_t count) {
    on.kernels().casts->round_with_feedback(static_cast<Bf16*>(to) + begin, from + begin, residual + begin, count);
  });
  return {};
}

Status refresh_masters(float* masters, const void* params, DType type, size_t n, const Executor& on) {
  if (type != DType::bf16 && type != DType::f16) return unsupported("parameters of ", name_of(type), " have no masters");
  on.split(n, 2 * sizeof(float) + size_of(type), [&](size_t begin, size_t count) {
    with_half_type(type, [&](auto element) {
      const auto* const from = static_cast<const decltype(element)*>(params) + begin;
      for (size_t i = 0; i < count; i++) refresh_master(masters + begin + i, from[i]);
    });
  });
  return {};
}

Status sum_in_f32(float* to, const void* const* from, int nfrom, size_t n, DType type, float divisor, const Executor& on) {
  if (nfrom < 1) return invalid("nfrom is ", nfrom, "; a reduction takes at least 1 array");
  if (!is_trainable(type)) return not_trainable("a sum in f32", type);
  on.split(n, static_cast<size_t>(nfrom) * size_of(type) + sizeof(float), [&](size_t begin, size_t count) {
    on.kernels().reduces->sum_in_f32[storage_index(type)](to, from, nfrom, begin, count, divisor);
  });
  return {};
}

Status square_sum(const void* data, DType type, size_t n, double* sum, double* nonfinite, const Executor& on) {
  if (!is_trainable(type)) return not_trainable("a sum of squares", type);
  SquareSum squares(data, type, n, on.kernels());
  on.split(n, size_of(type), [&](size_t begin, size_t count) { squares.add(begin, count); });
  squares.finish(sum, nonfinite);
  return {};
}

Status sum_and_square(void* to, const void* const* from, int nfrom, size_t n, DType type, double divisor, size_t squared, double* sum,
                      double* nonfinite, const Executor& on) {
  if (nfrom < 1) return invalid("nfrom is ", nfrom, "; a reduction takes at least 1 array");
  if (!is_trainable(type)) return not_trainable("a sum of squares", type);
  SquareSum squares(to, type, squared, on.kernels());
  on.split(n, (static_cast<size_t>(nfrom) + 1) * size_of(type), [&](size_t begin, size_t count) {
    for (size_t at = begin; at < begin + count; at += kSquareBlock) {
      const size_t block = std::min<size_t>(kSquareBlock, begin + count - at);
      reduce_part(to, from, nfrom, at, block, type, Op::sum, divisor, on.kernels());
      squares.add(at, block);
    }
  });
  squares.finish(sum, nonfinite);
  return {};
}

Status extremes(const void* data, DType type, size_t n, uint64_t* zeros, float* largest, const Executor& on) {
  if (!is_trainable(type)) return not_trainable("a search for extremes", type);
  std::atomic<uint64_t> all_zeros{0};
  std::atomic<uint32_t> most{std::bit_cast<uint32_t>(*largest)};
  on.split(n, size_of(type), [&](size_t begin, size_t count) {
    with_storage_type(type, [&](auto element) {
      const auto* const elements = static_cast<const decltype(element)*>(data) + begin;
      uint64_t found = 0;
      uint32_t here = 0;
      for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = std::bit_cast<uint32_t>(to_f32(elements[i])) & 0x7fffffffU;  // ordered as the numbers are
        found += magnitude == 0 ? 1 : 0;
        here = std::max(here, magnitude <= 0x7f800000U ? magnitude : 0U);
      }
      all_zeros += found;
      raise(&most, here);
    });
  });
  *zeros += all_zeros;
  *largest = std::bit_cast<float>(most.load());
  return {};
}

Status find_nonfinite(const void* data, DType type, size_t n, uint64_t first, uint64_t* found, const Executor& on) {
  if (!is_trainable(type)) return not_trainable("a search for what is not finite", type);
  std::atomic<uint64_t> most{*found};
  on.split(n, size_of(type), [&](size_t begin, size_t count) {
    const void* const piece = forward(data, begin, type);
    const size_t at = on.kernels().steps->first_nonfinite[storage_index(type)](piece, count);
    if (at == count) return;
    with_storage_type(
        type, [&](auto element) { raise(&most, finding_at(first, begin + at, to_f32(static_cast<const decltype(element)*>(piece)[at]))); });
  });
  *found = most;
  return {};
}

Status scale(void* data, DType type, size_t n, float factor, const Executor& on) {
  if (!is_trainable(type)) return not_trainable("scaling", type);
  on.split(n, 2 * size_of(type),
           [&](size_t begin, size_t count) { on.kernels().steps->scale[storage_index(type)](forward(data, begin, type), count, factor); });
  return {};
}

Status update(const Update& u, const Executor& on) {
  const StepTable& steps = *on.kernels().steps;
  if (u.rule >= steps.rules) return unsupported("update rule is ", u.rule, "; there are ", steps.rules, ", counted from 0");
  if (!is_trainable(u.grad_type)) return not_trainable("a gradient", u.grad_type);
  if (!is_trainable(u.param_type)) return not_trainable("a parameter", u.param_type);
  if (u.count == 0) return {};
  if (u.master == nullptr && u.param_type != DType::bf16) return unsupported("only bf16 parameters are rounded without a master");
  if (u.state_type != DType::f32 && u.state_type != DType::bf16)
    return unsupported("state is ", name_of(u.state_type), ", not f32 or bf16");
  if (u.scalars->skip != 0) return {};
  // It is only written, and so long that no cache would hold it: each line would be fetched first for nothing.
  const bool past = u.count * size_of(u.param_type) >= kBeyondCaches;
  on.split(u.count, bytes_moved(u), [&](size_t begin, size_t count) {
    const Update part = part_of(u, begin, count);
    if (is_widened(part)) {
      update_in_blocks(part, on.kernels());
    } else {
      steps.updates[u.rule].of[storage_index(u.grad_type)][storage_index(u.param_type)](part, past);
    }
    if (u.param_type == DType::f32 && u.param != u.master) std::memcpy(part.param, part.master, count * sizeof(float));
  });
  return {};
}

}  // namespace megadp::host
