/* SPDX-License-Identifier: Apache-2.0
 * The number type of the model: float for training, double when the same source is compiled for the finite-difference check. */
#ifndef GPT_REAL_H
#define GPT_REAL_H

#include <math.h>

#ifdef GPT_REAL_DOUBLE
typedef double real;
static inline real real_exp(real x) {
  return exp(x);
}
static inline real real_log(real x) {
  return log(x);
}
static inline real real_sqrt(real x) {
  return sqrt(x);
}
#else
typedef float real;
static inline real real_exp(real x) {
  return expf(x);
}
static inline real real_log(real x) {
  return logf(x);
}
static inline real real_sqrt(real x) {
  return sqrtf(x);
}
#endif

#endif
