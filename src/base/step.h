// SPDX-License-Identifier: Apache-2.0
// What a step computes once, in double, before its elements: the norm, the clip factor, whether it is taken, the step counts. For the host
// and for device code.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/math.h"

namespace megadp {

// Numbers that a step computes on the device, so that no step has to wait for the host. Lives in a Memory of the backend; the core reads it
// only after waiting for the stream, by Backend::read().
struct StepScalars {
  double square_sum;  // of this rank's share of the gradient, then of all ranks'. f64, all-reduced together with the next
  double nonfinite;   // how many non-finite elements were seen
  double grad_norm;   // of the divided gradient
  uint64_t step;      // steps taken
  float clip_factor;  // 1: not clipped
  float grad_factor;  // what every gradient element is multiplied by: clip_factor / divisor
  uint32_t skip;      // 1: this step changes nothing
  float grad_limit;   // what no element's magnitude may exceed after that; infinity: nothing
  uint64_t zeros;     // with Norm::inf: of this rank's share
  float largest;      // magnitude of an element, of all ranks, with Norm::inf
  uint32_t reserved;
};

// What clipping compares with max_norm, and the report shows; the values of mdp_norm.
enum class Norm : uint32_t {
  l2 = 0,
  inf = 1
};

struct StepSettings {
  double max_norm;   // 0: no clipping
  double divisor;    // of gradients: loss scale, tokens, and what else the caller says
  double max_value;  // of an element's magnitude; 0: no such clipping
  Norm norm;
};

// From square_sum and nonfinite, or the largest magnitude, the rest: grad_norm = sqrt(square_sum) / divisor; clip_factor = min(1, max_norm
// / (grad_norm + 1e-6)), 1 when max_norm is 0 or the norm is NaN; skip = nonfinite > 0; unless skipped: step + 1.
MEGADP_HOST_DEVICE inline void begin_step(StepScalars& s, const StepSettings& settings) {
  s.grad_norm = (settings.norm == Norm::inf ? s.largest : std::sqrt(s.square_sum)) / settings.divisor;
  double clip = 1;
  if (settings.max_norm > 0) {
    const double factor = settings.max_norm / (s.grad_norm + 1e-6);
    if (factor < 1) clip = factor;
  }
  s.clip_factor = static_cast<float>(clip);
  s.grad_factor = static_cast<float>(clip / settings.divisor);
  s.grad_limit = settings.max_value > 0 ? static_cast<float>(settings.max_value) : HUGE_VALF;
  s.skip = s.nonfinite > 0 ? 1 : 0;
  if (s.skip == 0) s.step += 1;
}

// Of one class of parameters, after begin_step(): how many steps it has taken part in.
MEGADP_HOST_DEVICE inline void count_step(const StepScalars& s, uint64_t& steps) {
  if (s.skip == 0) steps += 1;
}

// base^exponent by squaring: products alone, which every machine rounds alike; and from the count alone, so that nothing else has to be
// kept or saved, and the base may change from step to step.
MEGADP_HOST_DEVICE inline double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result *= base;
    base *= base;
  }
  return result;
}

}  // namespace megadp
