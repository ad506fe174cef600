// SPDX-License-Identifier: Apache-2.0
// The library's update rules and one more: found in place of src/base/rule_list.h by the tests of an added rule.

#include "base/adam.h"
#include "base/average_rule.h"
#include "base/caller_rule.h"
#include "base/toy_rule.h"

using Rules = RuleList<AdamW, Toy, CallerRule, GradientRule, AverageRule>;
