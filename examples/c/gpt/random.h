/* SPDX-License-Identifier: Apache-2.0
 * Random numbers as a pure function of (seed, stream, index): the same on every rank, whatever their number. */
#ifndef GPT_RANDOM_H
#define GPT_RANDOM_H

#include <stdint.h>

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);
double random_uniform(uint64_t seed, uint64_t stream, uint64_t index);               /* [0, 1)                         */
double random_normal(uint64_t seed, uint64_t stream, uint64_t index);                /* mean 0, variance 1             */
uint64_t random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t end); /* 0 to end - 1; end at least 1   */

#endif
