/* SPDX-License-Identifier: Apache-2.0
 * The clock of the benchmarks in C, and an order for qsort, from which a median is read. */
#ifndef MEGADP_BENCHMARKS_TIMES_H
#define MEGADP_BENCHMARKS_TIMES_H

#include <time.h>

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

#endif
