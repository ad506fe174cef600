// SPDX-License-Identifier: Apache-2.0
// What callers say of an optimizer, a step and a loss scaler, checked.
#pragma once

#include "api/argument.h"
#include "core/optimizer.h"
#include "megadp.h"

namespace megadp {

Result<OptimizerConfig> take_optimizer_config(const mdp_optimizer_config* given, size_t params);  // of the buffer
Result<ParamGroup> take_group(const mdp_param_group& given, const UpdateRule& rule, const Argument& argument);
Result<mdp_step_config> take_step_config(const mdp_step_config* given, const Place& place);

struct Scaler {
  LossScaler scaler;
  LossScale scale;
};
Result<Scaler> take_scaler(const mdp_scaler* given);  // nullptr: none
mdp_scaler scaler_struct(const Scaler& from);

}  // namespace megadp
