// SPDX-License-Identifier: Apache-2.0
// The random bits that elements are rounded with. They follow from what an element is, never from who has it: from the seed, the
// parameter's name, the element's place in the whole parameter, the step, and the array. So they are the same on any number of ranks, for
// any buckets and any tensor-parallel size, and nothing of them has to be kept but the seed. For the host and for device code.
#pragma once

#include <cstdint>

#include "base/math.h"

namespace megadp {

// Where elements of this rank's part of a parameter lie in the whole, which tensor-parallel ranks may cut: the part is runs of equal
// length, one in each period of the whole.
struct RandomSource {
  uint64_t key = 0;    // of the seed and the parameter
  uint64_t begin = 0;  // of the first element, in the part
  uint64_t run = UINT64_MAX, period = 0, offset = 0;

  MEGADP_HOST_DEVICE uint64_t element(uint64_t i) const {
    const uint64_t at = begin + i;
    return at < run ? offset + at : at / run * period + offset + at % run;
  }
  // How many from i on, i among them, are neighbours in the whole.
  MEGADP_HOST_DEVICE uint64_t neighbours(uint64_t i) const { return run - (begin + i) % run; }
};

// Of an element in one step: 16 bits for each of four arrays.
struct RandomWords {
  uint32_t first, second;
  MEGADP_HOST_DEVICE uint32_t of_array(uint32_t array) const { return ((array < 2 ? first : second) >> 16 * (array & 1)) & 0xffffU; }
};
// Of an update: 0 is the parameter, then the rule's state in its order.
constexpr uint32_t kRandomArrays = 4;

MEGADP_HOST_DEVICE inline RandomWords random_words(uint64_t key, uint64_t counter) {
  RandomWords words{static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32)};
  threefry(static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), words.first, words.second);
  return words;
}
// A source's key in one step: no two steps have the same.
MEGADP_HOST_DEVICE inline uint64_t key_of_step(uint64_t key, uint64_t step) {
  const RandomWords words = random_words(key, step);
  return words.first | uint64_t{words.second} << 32;
}

}  // namespace megadp
