// SPDX-License-Identifier: Apache-2.0
// What all ranks must have before any goes on: agreed on after each step of setting up something shared.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "control/world.h"

namespace megadp {

// What is agreed on. Ranks that come to an agreement with different numbers or bytes get Code::desync.
struct Subject {
  const char* kind;     // a literal such as "allocate_window", as in World::exchange
  uint64_t number = 0;  // where one group has several: of the window
  uint64_t bytes = 0;   // how much of it
};

// All ranks of `members` learn whether all of them succeeded: the first failure in their order (with the name of its rank in front) is
// returned on each. Where the World fails meanwhile, `mine` if that is a failure, otherwise the World's. Collective, blocking. `line`: see
// World::exchange.
Status agree(World& world, const std::vector<int>& members, const Subject& on, const Status& mine, uint64_t line = 0);

}  // namespace megadp
