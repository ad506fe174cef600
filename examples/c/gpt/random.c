/* SPDX-License-Identifier: Apache-2.0
 * Counter-based random numbers: three rounds of the SplitMix64 finaliser over seed, stream and index. */
#include "random.h"

#include <math.h>

static uint64_t mix(uint64_t x) {
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  return mix(mix(mix(seed) ^ stream) ^ index);
}

double random_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  return (double)(random_bits(seed, stream, index) >> 11) * 0x1p-53;
}

double random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
  /* Box-Muller; 1 - u keeps the logarithm finite. */
  const double radius = sqrt(-2.0 * log(1.0 - random_uniform(seed, stream, 2 * index)));
  return radius * cos(6.283185307179586 * random_uniform(seed, stream, 2 * index + 1));
}

uint64_t random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t end) {
  /* The bias of the remainder is below end / 2^64: nothing a text can show. */
  return random_bits(seed, stream, index) % end;
}
