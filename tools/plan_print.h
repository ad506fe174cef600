// SPDX-License-Identifier: Apache-2.0
// A plan for a person.
#pragma once

#include "core/plan.h"

namespace megadp::tool {

void print_plan(const Plan& plan);

}  // namespace megadp::tool
