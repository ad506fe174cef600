// SPDX-License-Identifier: Apache-2.0
// Finds the kernel for the types at hand; and the plain loops for the types that only collectives know.
#include "host/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/finding.h"
#include "base/sum_order.h"
#include "host/update_blocks.h"

namespace megadp::host {
namespace {

// Calls fn with a value of the storage type.
template <class Fn>
void with_storage_type(DType type, Fn fn) {
  if (type == DType::f32) fn(float());
  if (type == DType::bf16) fn(Bf16());
  if (type == DType::f16) fn(F16());
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

// ── integers ──

int64_t wrapping_add(int64_t a, int64_t b) noexcept {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
uint8_t clamp_to_u8(uint64_t value) noexcept {
  return static_cast<uint8_t>(std::min<uint64_t>(value, 255));
}

template <class T>
void pick_largest_or_smallest(T* to, const void* const* from, int nfrom, size_t n, bool largest) {
  for (size_t i = 0; i < n; i++) {
    T value = static_cast<const T*>(from[0])[i];
    for (int k = 1; k < nfrom; k++) {
      const T next = static_cast<const T*>(from[k])[i];
      value = largest ? larger(value, next) : smaller(value, next);
    }
    to[i] = value;
  }
}

void sum_f64(double* to, const void* const* from, int nfrom, size_t n, double divisor) {
  const auto add = [](double a, double b) { return a + b; };
  for (size_t i = 0; i < n; i++) {
    TreeSum<double, decltype(add)> tree(add);
    for (int k = 0; k < nfrom; k++) tree.push(static_cast<const double*>(from[k])[i]);
    to[i] = tree.sum() / divisor;
  }
}

void sum_i64(int64_t* to, const void* const* from, int nfrom, size_t n, bool average) {
  for (size_t i = 0; i < n; i++) {
    int64_t value = 0;
    for (int k = 0; k < nfrom; k++) value = wrapping_add(value, static_cast<const int64_t*>(from[k])[i]);
    to[i] = average ? value / nfrom : value;
  }
}

void sum_u8(uint8_t* to, const void* const* from, int nfrom, size_t n, bool average) {
  for (size_t i = 0; i < n; i++) {
    uint64_t value = 0;
    for (int k = 0; k < nfrom; k++) value += static_cast<const uint8_t*>(from[k])[i];
    to[i] = clamp_to_u8(average ? value / static_cast<uint64_t>(nfrom) : value);
  }
}

Status no_conversion(const char* verb, DType to_type, DType from_type) {
  return unsupported("cannot ", verb, " ", name_of(from_type), " elements to ", name_of(to_type),
                     " elements: only f32, bf16, f16 and f64 convert into each other");
}

Status not_trainable(const char* what, DType type) {
  return unsupported(what, " is not offered for ", name_of(type), ": the type must be f32, bf16 or f16");
}

template <class T>
double count_nonfinite(const void* data, size_t n) {
  double count = 0;
  for (size_t i = 0; i < n; i++) count += std::isfinite(to_f32(static_cast<const T*>(data)[i])) ? 0 : 1;
  return count;
}

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

Status cast(void* to, DType to_type, const void* from, DType from_type, size_t n, const Kernels& kernels) {
  if (to_type == from_type) {
    if (n > 0) std::memmove(to, from, n * size_of(to_type));
  } else if (is_trainable(to_type) && is_trainable(from_type)) {
    kernels.casts->cast[storage_index(to_type)][storage_index(from_type)](to, from, n);
  } else if (to_type == DType::f64 && is_trainable(from_type)) {
    cast_to_f64(static_cast<double*>(to), from, from_type, n, false);
  } else if (from_type == DType::f64 && is_trainable(to_type)) {
    cast_from_f64(to, to_type, static_cast<const double*>(from), n, false);
  } else {
    return no_conversion("convert", to_type, from_type);
  }
  return {};
}

Status add_cast(void* to, DType to_type, const void* from, DType from_type, size_t n, const Kernels& kernels) {
  if (is_trainable(to_type) && is_trainable(from_type)) {
    kernels.casts->add_cast[storage_index(to_type)][storage_index(from_type)](to, from, n);
  } else if (to_type == DType::f64 && is_trainable(from_type)) {
    cast_to_f64(static_cast<double*>(to), from, from_type, n, true);
  } else if (from_type == DType::f64 && is_trainable(to_type)) {
    cast_from_f64(to, to_type, static_cast<const double*>(from), n, true);
  } else if (to_type == from_type) {
    const void* const both[] = {to, from};
    return reduce(to, both, 2, n, to_type, Op::sum, 1, kernels);
  } else {
    return no_conversion("add", to_type, from_type);
  }
  return {};
}

Status reduce(void* to, const void* const* from, int nfrom, size_t n, DType type, Op op, double divisor, const Kernels& kernels) {
  if (nfrom < 1) return invalid("nfrom is ", nfrom, "; a reduction takes at least 1 array");
  const bool adds = op == Op::sum || op == Op::avg;
  const bool integers = type == DType::i64 || type == DType::u8;
  if (divisor != 1 && (integers || !adds)) {
    return unsupported("divisor is ", divisor, "; it must be 1 for ", integers ? "integers" : "a maximum or minimum");
  }
  const bool average = op == Op::avg, largest = op == Op::max;
  if (average) divisor *= nfrom;
  if (is_trainable(type)) {
    const ReduceTable& table = *kernels.reduces;
    const ReduceFn* by_type = adds ? table.sum : largest ? table.max : table.min;
    by_type[storage_index(type)](to, from, nfrom, n, static_cast<float>(divisor));
  } else if (type == DType::f64) {
    double* const out = static_cast<double*>(to);
    adds ? sum_f64(out, from, nfrom, n, divisor) : pick_largest_or_smallest(out, from, nfrom, n, largest);
  } else if (type == DType::i64) {
    int64_t* const out = static_cast<int64_t*>(to);
    adds ? sum_i64(out, from, nfrom, n, average) : pick_largest_or_smallest(out, from, nfrom, n, largest);
  } else {
    uint8_t* const out = static_cast<uint8_t*>(to);
    adds ? sum_u8(out, from, nfrom, n, average) : pick_largest_or_smallest(out, from, nfrom, n, largest);
  }
  return {};
}

Status round_with_feedback(void* to, const float* from, float* residual, size_t n, const Kernels& kernels) {
  kernels.casts->round_with_feedback(static_cast<Bf16*>(to), from, residual, n);
  return {};
}

Status sum_in_f32(float* to, const void* const* from, int nfrom, size_t n, DType type, float divisor, const Kernels& kernels) {
  if (nfrom < 1) return invalid("nfrom is ", nfrom, "; a reduction takes at least 1 array");
  if (!is_trainable(type)) return not_trainable("a sum in f32", type);
  kernels.reduces->sum_in_f32[storage_index(type)](to, from, nfrom, n, divisor);
  return {};
}

Status square_sum(const void* data, DType type, size_t n, double* sum, double* nonfinite, const Kernels& kernels) {
  if (!is_trainable(type)) return not_trainable("a sum of squares", type);
  const auto* const bytes = static_cast<const std::byte*>(data);
  double total = 0, run = 0;
  for (size_t begin = 0; begin < n; begin += kSquareBlock) {
    if (begin % (kSquareRun * kSquareBlock) == 0) total += std::exchange(run, 0);
    double lanes[kSquareLanes] = {}, block = 0;
    kernels.steps->square_sum[storage_index(type)](bytes + begin * size_of(type), std::min(kSquareBlock, n - begin), lanes);
    for (const double lane : lanes) block += lane;
    run += block;
  }
  total += run;
  *sum += total;
  // The square of a finite float is far below the largest double: the total is not finite only if an element is not.
  if (!std::isfinite(total)) {
    with_storage_type(type, [&](auto element) { *nonfinite += count_nonfinite<decltype(element)>(data, n); });
  }
  return {};
}

Status extremes(const void* data, DType type, size_t n, uint64_t* zeros, float* largest) {
  if (!is_trainable(type)) return not_trainable("a search for extremes", type);
  with_storage_type(type, [&](auto element) {
    const auto* const elements = static_cast<const decltype(element)*>(data);
    uint64_t found = 0;
    uint32_t most = std::bit_cast<uint32_t>(*largest);
    for (size_t i = 0; i < n; i++) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(to_f32(elements[i])) & 0x7fffffffU;  // ordered as the numbers are
      found += magnitude == 0 ? 1 : 0;
      most = std::max(most, magnitude <= 0x7f800000U ? magnitude : 0U);
    }
    *zeros += found;
    *largest = std::bit_cast<float>(most);
  });
  return {};
}

Status find_nonfinite(const void* data, DType type, size_t n, uint64_t first, uint64_t* found, const Kernels& kernels) {
  if (!is_trainable(type)) return not_trainable("a search for what is not finite", type);
  const size_t at = kernels.steps->first_nonfinite[storage_index(type)](data, n);
  if (at == n) return {};
  with_storage_type(type, [&](auto element) {
    const float value = to_f32(static_cast<const decltype(element)*>(data)[at]);
    *found = std::max(*found, finding_at(first, at, value));
  });
  return {};
}

Status scale(void* data, DType type, size_t n, float factor, const Kernels& kernels) {
  if (!is_trainable(type)) return not_trainable("scaling", type);
  kernels.steps->scale[storage_index(type)](data, n, factor);
  return {};
}

Status update(const Update& u, const Kernels& kernels) {
  if (u.rule >= kernels.steps->rules)
    return unsupported("update rule is ", u.rule, "; there are ", kernels.steps->rules, ", counted from 0");
  if (!is_trainable(u.grad_type)) return not_trainable("a gradient", u.grad_type);
  if (!is_trainable(u.param_type)) return not_trainable("a parameter", u.param_type);
  if (u.count == 0) return {};
  if (u.master == nullptr && u.param_type != DType::bf16) return unsupported("only bf16 parameters are rounded without a master");
  if (u.state_type != DType::f32 && u.state_type != DType::bf16)
    return unsupported("state is ", name_of(u.state_type), ", not f32 or bf16");
  if (u.scalars->skip != 0) return {};
  if (is_widened(u)) {
    update_in_blocks(u, kernels);
  } else {
    kernels.steps->updates[u.rule].of[storage_index(u.grad_type)][storage_index(u.param_type)](u);
  }
  if (u.param_type == DType::f32 && u.param != u.master && u.count > 0) std::memcpy(u.param, u.master, u.count * sizeof(float));
  return {};
}

}  // namespace megadp::host
