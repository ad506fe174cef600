// SPDX-License-Identifier: Apache-2.0
// What a step is told: learning rates, divisors, values of parameter groups. All ranks of a pipeline stage must be told the same, as they
// update parts or copies of the same parameters, which would come apart without a word. So each tells the others, in the agreement of a
// sync: what its step is told if that is what syncs, so that nothing has changed yet; otherwise what the last one was told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace megadp {

// A value's logarithm, so that sums of several show a difference in the smallest; below 1e-9 nearly the value itself, since a schedule that
// ends at 0 is there as exact as a cosine.
double logarithm_of(double value);

struct StepValues {
  double lr = 0;        // of all parameter groups, a weighted sum of logarithms
  double others = 0;    // of their other values, likewise
  double divisor = 1;   // itself
  double shown_lr = 0;  // of the first group
  bool operator==(const StepValues&) const = default;
};

struct ToldValues {  // a part of the agreement
  StepValues step;
  double before;  // of all that came before that, fading
  uint64_t is_of_coming;
  bool operator==(const ToldValues&) const = default;
};

class StepHistory {
 public:
  // coming: of the step whose own sync this is.
  ToldValues told(const std::optional<StepValues>& coming) const;
  // The step is taken.
  void add(const StepValues& values);
  // What else ranks do alike between syncs; 0: nothing.
  void add(double change) { before_ += change; }

 private:
  StepValues last_;
  double before_ = 0;
};

// A change that is a hash.
constexpr double fraction_of(uint64_t hash) {
  return static_cast<double>(hash >> 11) * 0x1p-53;
}

// Whether what is different of these has been used.
bool have_come_apart(const ToldValues& told, const ToldValues& other);
// What is different, as a sentence that lacks its beginning; empty: nothing.
std::string difference(int rank, const ToldValues& told, int other_rank, const ToldValues& other);

}  // namespace megadp
