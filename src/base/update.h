// SPDX-License-Identifier: Apache-2.0
// What an update rule is described by, and what one launch of it is told. The rules themselves are listed in base/rules.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"
#include "base/random.h"
#include "base/step.h"

namespace megadp {

// The hyperparameters of all rules. Those of one launch: the optimizer's, with the group's in their place.
struct Hyper {
  double lr, beta1, beta2, eps, weight_decay, momentum;
};
using HyperValue = double Hyper::*;

// ── the description of a rule ──

struct StateArray {  // one element for each element of a parameter; zero before the first step
  const char* name;
  DType type;  // f32, bf16 or f16; the rule computes in float
};

enum class Range {
  factor,   // 0 or more, finite as a float
  divisor,  // neither it nor its inverse may vanish among floats
  decay     // at least 0, below 1: of a running mean
};
struct HyperParameter {
  const char* name;
  HyperValue value;
  double preset;  // if the caller gives none
  Range range;
};

template <class T>
struct Entries {
  const T* first;
  size_t count;
  constexpr const T* begin() const { return first; }
  constexpr const T* end() const { return first + count; }
  constexpr size_t size() const { return count; }
  constexpr const T& operator[](size_t i) const { return first[i]; }
};
struct UpdateRule {
  const char* name;
  Entries<StateArray> state;
  Entries<HyperParameter> hyper;
};

constexpr size_t kMostStates = 4;  // of the caller's rule; others have one less, for each can be rounded with random bits
static_assert(kRandomArrays == kMostStates);
constexpr const char* kAverageState = "average";  // beside the rule's, where an optimizer averages

// A rule is a type: `name`, `state` and `hyper` (std::array) describe it, constants() and element() compute. Its number is its place here.
template <class... R>
struct RuleList {
  static_assert(((R::state.size() < kRandomArrays) && ...));
  template <class Rule>
  static constexpr uint32_t number_of() {
    uint32_t number = 0;
    (void)((std::is_same_v<Rule, R> || (++number, false)) || ...);
    return number;
  }
  static constexpr UpdateRule table[] = {{R::name, {R::state.data(), R::state.size()}, {R::hyper.data(), R::hyper.size()}}...};
};

// ── one launch ──

// Neighbouring elements that one rule updates with one set of hyperparameters. Plain data: it goes to the plugin and into kernels as it is.
struct Update {
  Hyper hyper;
  const StepScalars* scalars;  // nothing is done where skip is set
  const uint64_t* steps;       // one count: how many steps the elements have taken part in, this one included
  const void* grad;
  float* master;             // updated; null: a bf16 parameter is its own master, rounded stochastically
  void* state[kMostStates];  // updated; in the rule's order
  void* param;               // the rounded master is written here; `master` itself if the parameter is f32 and its own master
  uint64_t count;
  DType grad_type, param_type;
  uint32_t rule;                        // its number
  DType state_type = DType::f32;        // bf16: of the arrays that the rule has as f32
  bool rounds_state_with_bits = false;  // bf16 state is rounded stochastically, not to nearest
  RandomSource random{};
};

}  // namespace megadp
