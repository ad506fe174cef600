// SPDX-License-Identifier: Apache-2.0
// The structs that describe a grid, a buffer and its parameters, on their way from C to the core. Here it is checked that they are well
// formed; what they mean together is checked by the core, so that mdp_plan and mdp_buffer_register refuse the same things.
#pragma once

#include <vector>

#include "base/status.h"
#include "core/grid.h"
#include "core/param.h"
#include "core/plan.h"
#include "megadp.h"

namespace megadp {

Result<GridConfig> take_grid_config(const mdp_grid_config* given, const char* argument);        // NULL: all defaults
Result<BufferConfig> take_buffer_config(const mdp_buffer_config* given, const char* argument);  // NULL: all defaults
Result<std::vector<ParamSpec>> take_params(const mdp_param* params, size_t count);

}  // namespace megadp
