// SPDX-License-Identifier: Apache-2.0
#include "core/step_values.h"

#include <cmath>

#include "base/text.h"

namespace megadp {
namespace {

// Hosts with other mathematical libraries come to schedules that differ in the last bits, which does no harm. Of logarithms; many factors
// of a step, in f32, add up in what came before.
constexpr double kSame = 1e-5, kSameBefore = 1e-4;

bool differ(double a, double b, double most) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return false;
  return !(std::abs(a - b) <= most);
}

double sum_of(const StepValues& values) {
  return values.lr + values.others + logarithm_of(values.divisor);
}

}  // namespace

double logarithm_of(double value) {
  return std::asinh(value / 1e-9);
}

ToldValues StepHistory::told(const std::optional<StepValues>& coming) const {
  if (!coming) return {last_, before_, 0};
  return {*coming, before_ / 2 + sum_of(last_), 1};
}

void StepHistory::add(const StepValues& values) {
  before_ = before_ / 2 + sum_of(last_);
  last_ = values;
}

bool have_come_apart(const ToldValues& told, const ToldValues& other) {
  return told.is_of_coming == 0 || differ(told.before, other.before, kSameBefore);
}

std::string difference(int rank, const ToldValues& told, int other_rank, const ToldValues& other) {
  if (told.is_of_coming != other.is_of_coming) return {};  // one synced first: they tell of different steps
  const char* const when = told.is_of_coming != 0 ? "" : " in the last step";
  const auto say = [&](const char* what, double here, double there) {
    return text("rank ", rank, " was told ", what, " ", here, ", and rank ", other_rank, " ", there, when);
  };
  const auto both = [&](const char* what) { return text("ranks ", rank, " and ", other_rank, " were told different ", what, when); };
  if (differ(logarithm_of(told.step.divisor), logarithm_of(other.step.divisor), kSame)) {
    return say("to divide gradients (loss_scale, grad_divisor) by", told.step.divisor, other.step.divisor);
  }
  if (differ(told.step.lr, other.step.lr, kSame)) {
    const double here = told.step.shown_lr, there = other.step.shown_lr;
    const bool is_first = differ(logarithm_of(here), logarithm_of(there), kSame);
    return is_first ? say("the learning rate", here, there) : both("learning rates of parameter groups");
  }
  if (differ(told.step.others, other.step.others, kSame)) {
    return both("values of parameter groups (mdp_optimizer_set_param_group)");
  }
  if (differ(told.before, other.before, kSameBefore)) {
    return text("ranks ", rank, " and ", other_rank,
                " were told different values in earlier steps, or by mdp_grad_scale or mdp_optimizer_set_steps");
  }
  return {};
}

}  // namespace megadp
