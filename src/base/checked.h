// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic that says when it overflows, and rounding.
#pragma once

#include <cstdint>
#include <numeric>

namespace megadp {

// false on overflow; *out is then unspecified.
[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) noexcept {
  return !__builtin_add_overflow(a, b, out);
}
[[nodiscard]] inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) noexcept {
  return !__builtin_mul_overflow(a, b, out);
}

// The next multiple of `unit` (> 0) from `value` on. The caller keeps value + unit below 2^64.
constexpr uint64_t round_up(uint64_t value, uint64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

}  // namespace megadp
