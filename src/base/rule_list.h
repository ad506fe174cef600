// SPDX-License-Identifier: Apache-2.0
// The update rules, in the order of their numbers, which are the values of mdp_rule. No header of its own: it has no guard and is included
// inside a namespace, by base/rules.h for float and by host/kernels_step.cc once for every SIMD target.
//
// A rule is one struct in a file like base/lion.h: what describes it (name, state arrays, hyperparameters) and what it computes (constants
// once a launch, then element by element). All else follows from this list: kernels, the plan's bytes, checks, names of state.

#include "base/adam.h"
#include "base/average_rule.h"
#include "base/caller_rule.h"
#include "base/lion.h"
#include "base/sgd.h"

using Rules = RuleList<AdamW, Adam, Sgd, SgdMomentum, SgdNesterov, Lion, CallerRule, GradientRule, AverageRule>;
