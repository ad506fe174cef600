// SPDX-License-Identifier: Apache-2.0
#include "bench_loops.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/math.h"

// The same loop for several instruction sets, chosen as the program is loaded. Sanitizers start too late for that.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MEGADP_FOR_EVERY_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define MEGADP_FOR_EVERY_CPU
#endif

namespace megadp::tool {
namespace {

// ── the common case, two ranks and f32, in one loop; ivdep: `to` may be `a` or `b`, element by element ──

MEGADP_FOR_EVERY_CPU void mean_of_two(float* to, const float* a, const float* b, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) to[i] = (a[i] + b[i]) * 0.5f;
}

MEGADP_FOR_EVERY_CPU void mean_of_two_to_both(float* a, float* b, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) a[i] = b[i] = (a[i] + b[i]) * 0.5f;
}

// ── any other: sums of a block, which stays in the nearest cache ──

constexpr size_t kBlock = 2048;

template <class T>
void add(float* __restrict sum, const T* __restrict from, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += to_f32(from[i]);
}
template <class T>
void store(T* __restrict to, const float* __restrict sum, size_t n, float divisor) {
  for (size_t i = 0; i < n; ++i) from_f32(&to[i], sum[i] / divisor);
}

// Templates cannot have several versions, so one function for each type.
MEGADP_FOR_EVERY_CPU void add_f32(float* sum, const void* from, size_t n) {
  add(sum, static_cast<const float*>(from), n);
}
MEGADP_FOR_EVERY_CPU void add_bf16(float* sum, const void* from, size_t n) {
  add(sum, static_cast<const Bf16*>(from), n);
}
MEGADP_FOR_EVERY_CPU void add_f16(float* sum, const void* from, size_t n) {
  add(sum, static_cast<const F16*>(from), n);
}
MEGADP_FOR_EVERY_CPU void store_f32(void* to, const float* sum, size_t n, float divisor) {
  store(static_cast<float*>(to), sum, n, divisor);
}
MEGADP_FOR_EVERY_CPU void store_bf16(void* to, const float* sum, size_t n, float divisor) {
  store(static_cast<Bf16*>(to), sum, n, divisor);
}
MEGADP_FOR_EVERY_CPU void store_f16(void* to, const float* sum, size_t n, float divisor) {
  store(static_cast<F16*>(to), sum, n, divisor);
}

struct Loops {
  void (*add)(float*, const void*, size_t);
  void (*store)(void*, const float*, size_t, float);
};

Loops loops_of(DType type) {
  if (type == DType::bf16) return {add_bf16, store_bf16};
  if (type == DType::f16) return {add_f16, store_f16};
  return {add_f32, store_f32};
}

std::byte* at(const BareRange& range, size_t rank, size_t element) {
  return static_cast<std::byte*>(range.windows[rank]) + element * size_of(range.type);
}

float* floats_at(const BareRange& range, size_t rank, size_t element) {
  return reinterpret_cast<float*>(at(range, rank, element));
}

// The mean of my piece, a block at a time, to the windows of ranks [first, end).
void mean_of_piece(const BareRange& range, size_t first, size_t end) {
  const Loops loops = loops_of(range.type);
  const size_t piece = range.count / range.windows.size(), begin = piece * static_cast<size_t>(range.rank);
  const auto divisor = static_cast<float>(range.windows.size());
  alignas(64) float sum[kBlock];
  for (size_t element = begin; element < begin + piece; element += kBlock) {
    const size_t n = std::min(kBlock, begin + piece - element);
    std::fill_n(sum, n, 0.0f);
    for (size_t rank = 0; rank < range.windows.size(); ++rank) loops.add(sum, at(range, rank, element), n);
    for (size_t rank = first; rank < end; ++rank) loops.store(at(range, rank, element), sum, n, divisor);
  }
}

}  // namespace

void bare_reduce_scatter(const BareRange& range) {
  const size_t mine = static_cast<size_t>(range.rank), piece = range.count / range.windows.size();
  if (range.windows.size() == 2 && range.type == DType::f32)
    mean_of_two(floats_at(range, mine, piece * mine), floats_at(range, 0, piece * mine), floats_at(range, 1, piece * mine), piece);
  else
    mean_of_piece(range, mine, mine + 1);
}

void bare_all_reduce(const BareRange& range) {
  const size_t mine = static_cast<size_t>(range.rank), piece = range.count / range.windows.size();
  if (range.windows.size() == 2 && range.type == DType::f32)
    mean_of_two_to_both(floats_at(range, 0, piece * mine), floats_at(range, 1, piece * mine), piece);
  else
    mean_of_piece(range, 0, range.windows.size());
}

void bare_all_gather(const BareRange& range) {
  const size_t mine = static_cast<size_t>(range.rank), ranks = range.windows.size(), piece = range.count / ranks;
  for (size_t step = 1; step < ranks; ++step)
    std::memcpy(at(range, (mine + step) % ranks, piece * mine), at(range, mine, piece * mine), piece * size_of(range.type));
}

}  // namespace megadp::tool
