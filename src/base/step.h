// SPDX-License-Identifier: Apache-2.0
// What a step computes once, in double, before its elements: the norm, the clip factor, whether it is taken, the step counts. For the host
// and for device code.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/math.h"

namespace megadp {

// A loss scale that the device keeps: how it follows what a step finds.
struct LossScaler {
  enum class Kind : uint32_t {
    none,
    constant,
    dynamic
  };
  Kind kind;
  uint32_t growth_interval;  // so many steps without overflow, and it grows
  uint32_t hysteresis;       // so many overflows, with no growth between, and it backs off with each from then on
  uint32_t reserved;
  double growth_factor, backoff_factor;
  double least;  // it does not back off below
};
// And what it has come to.
struct LossScale {
  float scale;
  uint32_t clean_steps;  // since the last overflow or growth
  uint32_t overflows;    // since the last growth, at most `hysteresis`
  uint32_t reserved;
};

// Numbers that a step computes on the device, so that no step has to wait for the host. Lives in a Memory of the backend; the core reads it
// only after waiting for the stream, by Backend::read(). What begin_step() goes by comes first: optimizers that step together are given the
// same.
struct StepScalars {
  double square_sum;  // of this rank's share of the gradient, then of all ranks'. f64, all-reduced together with the next
  double nonfinite;   // how many non-finite elements were seen
  uint64_t zeros;     // with Norm::inf: of this rank's share
  float largest;      // magnitude of an element, of all ranks, with Norm::inf
  uint32_t reserved;
  LossScale loss_scale;  // with a LossScaler: of the next step

  double grad_norm;   // of the divided gradient
  uint64_t step;      // steps taken
  float used_scale;   // by the last step; 1 without a LossScaler
  float clip_factor;  // 1: not clipped
  float grad_factor;  // what every gradient element is multiplied by: clip_factor / divisor
  uint32_t skip;      // 1: this step changes nothing
  float grad_limit;   // what no element's magnitude may exceed after that; infinity: nothing
  uint32_t reserved_too;
};
constexpr size_t kStepInputBytes = offsetof(StepScalars, grad_norm);

// What clipping compares with max_norm, and the report shows; the values of mdp_norm.
enum class Norm : uint32_t {
  l2 = 0,
  inf = 1
};

struct StepSettings {
  double max_norm;   // 0: no clipping
  double divisor;    // of gradients: loss scale of the caller's, tokens, and what else the caller says
  double max_value;  // of an element's magnitude; 0: no such clipping
  Norm norm;
  LossScaler scaler{};
};

// Neither a loss scale nor its inverse may vanish among floats.
constexpr double kMostLossScale = 1e37;

// As Megatron-LM's DynamicGradScaler: an overflow sets the clean steps back, and backs off once there were `hysteresis` of them; growth
// forgives them. With hysteresis 1 it is torch.amp.GradScaler.
MEGADP_HOST_DEVICE inline void follow_overflow(LossScale& s, const LossScaler& scaler, bool overflow) {
  if (overflow) {
    s.clean_steps = 0;
    if (s.overflows < scaler.hysteresis) s.overflows += 1;
    if (s.overflows < scaler.hysteresis) return;
    const double smaller = s.scale * scaler.backoff_factor;
    s.scale = static_cast<float>(smaller < scaler.least ? scaler.least : smaller);
    return;
  }
  s.clean_steps += 1;
  if (s.clean_steps < scaler.growth_interval) return;
  s.clean_steps = s.overflows = 0;
  const double larger = s.scale * scaler.growth_factor;
  if (larger <= kMostLossScale) s.scale = static_cast<float>(larger);
}

// From square_sum and nonfinite, or the largest magnitude, the rest: grad_norm = sqrt(square_sum) / divisor; clip_factor = min(1, max_norm
// / (grad_norm + 1e-6)), 1 when max_norm is 0 or the norm is NaN; skip = nonfinite > 0; unless skipped: step + 1. With a scaler its scale
// divides too, and then becomes the next step's; if no float holds what divides in all, that is an overflow.
MEGADP_HOST_DEVICE inline void begin_step(StepScalars& s, const StepSettings& settings) {
  const bool scales = settings.scaler.kind != LossScaler::Kind::none;
  s.used_scale = scales ? s.loss_scale.scale : 1;
  const double divisor = settings.divisor * s.used_scale;
  // The largest of magnitudes takes no notice of NaN.
  const float largest = s.nonfinite > 0 && s.largest < HUGE_VALF ? NAN : s.largest;
  s.grad_norm = (settings.norm == Norm::inf ? largest : std::sqrt(s.square_sum)) / divisor;
  double clip = 1;
  if (settings.max_norm > 0) {
    const double factor = settings.max_norm / (s.grad_norm + 1e-6);
    if (factor < 1) clip = factor;
  }
  s.clip_factor = static_cast<float>(clip);
  s.grad_factor = static_cast<float>(clip / divisor);
  s.grad_limit = settings.max_value > 0 ? static_cast<float>(settings.max_value) : HUGE_VALF;
  const bool divides = !scales || (divisor <= kMostLossScale && divisor >= 1 / kMostLossScale);
  s.skip = s.nonfinite > 0 || !divides ? 1 : 0;
  if (s.skip == 0) s.step += 1;
  if (settings.scaler.kind == LossScaler::Kind::dynamic) follow_overflow(s.loss_scale, settings.scaler, s.skip != 0);
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
