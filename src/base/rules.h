// SPDX-License-Identifier: Apache-2.0
// The table of update rules, and the way from a rule's number to the rule. For the host and for device code.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/update.h"

namespace megadp {

#define MEGADP_ELEMENT MEGADP_HOST_DEVICE inline
#include "base/rule_list.h"
#undef MEGADP_ELEMENT

constexpr size_t kRules = sizeof(Rules::table) / sizeof(UpdateRule);
constexpr uint32_t kCallerRule = Rules::number_of<CallerRule>(), kGradientRule = Rules::number_of<GradientRule>(),
                   kAverageRule = Rules::number_of<AverageRule>();
constexpr const UpdateRule& rule(uint32_t number) {
  return Rules::table[number];
}

// Of one element of a parameter. bf16: what the rule has as f32 is kept as that.
constexpr size_t state_bytes(const UpdateRule& rule, bool bf16 = false) {
  size_t bytes = 0;
  for (const StateArray& each : rule.state) bytes += size_of(bf16 && each.type == DType::f32 ? DType::bf16 : each.type);
  return bytes;
}

// The storage type of a rule's state array.
template <DType type>
struct StorageOf;
template <>
struct StorageOf<DType::f32> {
  using Type = float;
};
template <>
struct StorageOf<DType::bf16> {
  using Type = Bf16;
};
template <>
struct StorageOf<DType::f16> {
  using Type = F16;
};
template <class Rule, size_t number>
using StateType = typename StorageOf<Rule::state[number].type>::Type;

// Calls fn(Rule()) with the rule of this number, which there must be.
template <class Fn, class... R>
void with_rule(uint32_t number, const Fn& fn, RuleList<R...>) {
  uint32_t at = 0;
  (void)((at++ == number && (fn(R()), true)) || ...);
}
template <class Fn>
void with_rule(uint32_t number, const Fn& fn) {
  with_rule(number, fn, Rules());
}

}  // namespace megadp
