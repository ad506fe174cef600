// SPDX-License-Identifier: Apache-2.0
// What options call the update rules, in the order of their numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "base/rules.h"

namespace megadp::tool {

constexpr const char* kRuleNames[] = {"adamw", "adam", "sgd", "sgd_momentum", "sgd_nesterov", "lion"};
static_assert(std::size(kRuleNames) == kCallerRule);

inline std::vector<std::string> rule_names() {
  return {std::begin(kRuleNames), std::end(kRuleNames)};
}
// Of a name that is one of these.
inline uint32_t rule_of(const std::string& name) {
  return static_cast<uint32_t>(std::find(std::begin(kRuleNames), std::end(kRuleNames), name) - std::begin(kRuleNames));
}

}  // namespace megadp::tool
