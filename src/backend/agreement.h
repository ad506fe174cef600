// SPDX-License-Identifier: Apache-2.0
// What all ranks must have before any goes on: agreed on after each step of setting up something shared.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/world.h"
#include "base/status.h"

namespace megadp {

// All ranks of `members` learn whether all of them succeeded: the first failure in their order (with the name of its rank in front) is
// returned on each. `kind` and `number` say what is being agreed on (`kind` as in World::exchange), and `bytes` is how much: ranks that
// differ get Code::desync. Collective, blocking.
struct Agreement {
  const char* kind;  // a literal such as "allocate_window"
  uint64_t number;   // of the window within its group
  uint64_t bytes;
};
Status agree(World& world, const std::vector<int>& members, const Agreement& on, const Status& mine);

}  // namespace megadp
