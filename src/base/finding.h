// SPDX-License-Identifier: Apache-2.0
// A gradient's element that is not finite, as one number, which kernels of a device can keep the first of: the earliest microbatch, in it
// the lowest element. The number of an earlier one is larger, so that zeroed memory says that there is none.
#pragma once

#include "base/math.h"

namespace megadp {

enum class Nonfinite : uint32_t {
  nan = 0,
  plus_inf = 1,
  minus_inf = 2
};

struct NonfiniteElement {
  uint32_t microbatch;
  uint64_t element;
  Nonfinite value;
};

constexpr int kFindingValueBits = 2, kFindingElementBits = 42;
constexpr uint64_t kMostFindingElements = uint64_t{1} << kFindingElementBits;  // that a parameter may have where they are looked for
constexpr uint32_t kLastFindingMicrobatch =
    (uint32_t{1} << (64 - kFindingElementBits - kFindingValueBits)) - 1;  // later ones are told as it

// Of the first element of a microbatch; the numbers of the others follow from it.
constexpr uint64_t first_finding(uint32_t microbatch) {
  const uint64_t number = microbatch < kLastFindingMicrobatch ? microbatch : kLastFindingMicrobatch;
  return ~(number << (kFindingElementBits + kFindingValueBits));
}
// x is not finite.
MEGADP_HOST_DEVICE inline uint64_t finding_at(uint64_t first, uint64_t element, float x) {
  const uint32_t bits = as_bits(x);
  const Nonfinite value = (bits & 0x7fffffU) != 0 ? Nonfinite::nan : (bits >> 31) != 0 ? Nonfinite::minus_inf : Nonfinite::plus_inf;
  return first - (element << kFindingValueBits) - static_cast<uint64_t>(value);
}

inline NonfiniteElement read_finding(uint64_t found) {
  const uint64_t bits = ~found;
  return {static_cast<uint32_t>(bits >> (kFindingElementBits + kFindingValueBits)),
          (bits >> kFindingValueBits) & (kMostFindingElements - 1),
          static_cast<Nonfinite>(bits & ((uint64_t{1} << kFindingValueBits) - 1))};
}
inline const char* name_of(Nonfinite value) {
  return value == Nonfinite::nan ? "NaN" : value == Nonfinite::plus_inf ? "inf" : "-inf";
}

}  // namespace megadp
