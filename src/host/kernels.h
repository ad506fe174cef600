// SPDX-License-Identifier: Apache-2.0
// The element-wise work of the host backend: on memory aligned to its elements, finished on return. The same bits on every SIMD target, on
// any number of threads, in vectors and in what is left over at the end: each element goes through base/elements.h, and sums have a fixed
// order. Only the payload of a NaN that arithmetic produced may differ.
//
// Arrays either are the same (where said) or do not overlap.
#pragma once

#include <cstddef>
#include <string>

#include "base/dtype.h"
#include "base/math.h"
#include "base/status.h"
#include "base/update.h"
#include "host/executor.h"

namespace megadp {
struct StridedArray;
}

namespace megadp::host {

// to = from, which may be `to`; past the caches if these would not hold it, or the array of `whole` bytes that it is a part of.
void copy_bytes(void* to, const void* from, size_t bytes, const Executor& on = {}, size_t whole = 0);
// Past them whatever its size; see host/copy_past.h.
void copy_past_caches(std::byte* to, const std::byte* from, size_t bytes, const Executor& on);
void zero_bytes(void* data, size_t bytes, const Executor& on = {});

// "AVX2"; and all that this machine runs, for `megadp info`: "AVX2, SSE4, baseline".
const char* simd_target() noexcept;
std::string simd_targets();

// to[i] = from[i], rounded to nearest even. Among f32, bf16, f16 and f64 every pair; i64 and u8 only to themselves, otherwise
// Code::unsupported. The same type is copied bit by bit, and `to` may then be `from`.
Status cast(void* to, DType to_type, const void* from, DType from_type, size_t n, const Executor& on = {});

// to[i] = to[i] + from[i], added in fp32 (f64 if either is f64) and rounded once. i64 and u8 as in reduce().
Status add_cast(void* to, DType to_type, const void* from, DType from_type, size_t n, const Executor& on = {});

// to[i] = bf16(from[i] + residual[i]), and residual[i] = what that lost; 0 where the sum is not finite.
Status round_with_feedback(void* to, const float* from, float* residual, size_t n, const Executor& on = {});

// masters[i] = params[i], unless it rounds to that already: bf16, f16.
Status refresh_masters(float* masters, const void* params, DType type, size_t n, const Executor& on = {});

// to[i] = (from[0][i] + from[1][i] + ...) / divisor, added in the order of base/sum_order.h and rounded once at the end. `to` may be one of
// `from`.
//   f32, bf16, f16   added in fp32, divided in fp32: an average that fits into the type is exact wherever the sum is
//   f64              added and divided in f64
//   i64              wraps around; u8: 255 at most. `divisor` must be 1
// Op::avg is the sum with the divisor nfrom * divisor (computed in double, rounded once to fp32; f64: not rounded). i64 and u8 are
// divided towards zero.
// Op::max and Op::min: NaN if an element is NaN; of equals (-0 and +0) the first; `divisor` must be 1.
Status reduce(void* to, const void* const* from, int nfrom, size_t n, DType type, Op op, double divisor = 1, const Executor& on = {});

// Its elements begin to begin + n, which cannot fail: for arguments that reduce() would take.
void reduce_part(void* to, const void* const* from, int nfrom, size_t begin, size_t n, DType type, Op op, double divisor,
                 const Kernels& kernels = best_kernels()) noexcept;

// The same sum, divided, but not rounded to the type: f32, bf16, f16.
Status sum_in_f32(float* to, const void* const* from, int nfrom, size_t n, DType type, float divisor, const Executor& on = {});

// *sum += the sum of squares of the elements, *nonfinite += how many of them are infinite or NaN. f32, bf16, f16. A non-finite element
// makes the sum non-finite too, so that a norm never hides it. Squares are exact. Blocks of 4096 elements, counted from the first one of
// the call, are summed apart from each other, so that many of them can be summed at a time: in a block, element i is added to lane i % 16
// and the lanes are added in their order; then the sums of every 256 blocks in their order, and at last the sums of these runs. All in f64.
Status square_sum(const void* data, DType type, size_t n, double* sum, double* nonfinite, const Executor& on = {});

// reduce() by Op::sum, and of the first `squared` elements of the result what square_sum() adds to *sum and *nonfinite: read while they are
// in the cache.
Status sum_and_square(void* to, const void* const* from, int nfrom, size_t n, DType type, double divisor, size_t squared, double* sum,
                      double* nonfinite, const Executor& on = {});

// Counts zeros (-0 too), and keeps the largest magnitude, of which NaN is none. f32, bf16, f16. Exact, in any order.
Status extremes(const void* data, DType type, size_t n, uint64_t* zeros, float* largest, const Executor& on = {});

// Raises *found to the number of the first element that is not finite (base/finding.h), where first_finding() is `first`. f32, bf16, f16.
Status find_nonfinite(const void* data, DType type, size_t n, uint64_t first, uint64_t* found, const Executor& on = {});

// data[i] = data[i] * factor in fp32, rounded to the type. f32, bf16, f16.
Status scale(void* data, DType type, size_t n, float factor, const Executor& on = {});

// One launch of an update rule.
Status update(const Update& update, const Executor& on = {});

// to = from, or to += from with `add`, by cast() and add_cast(). Shapes are equal, at most 16 dimensions; strides of any sign, zero in
// `from` repeats an element; no element of `to` may be reached twice.
Status copy_strided(const StridedArray& to, const StridedArray& from, bool add, const Executor& on = {});

}  // namespace megadp::host
