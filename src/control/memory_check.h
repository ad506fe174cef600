// SPDX-License-Identifier: Apache-2.0
// Whether what ranks are about to take fits in what there is: before any of them takes it, since the kernel answers too much with SIGKILL.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "control/memory_limits.h"
#include "control/world.h"

namespace megadp {

// What one rank is about to take of its node's memory, and the limits it is under.
struct MemoryNeed {
  int rank = 0;  // in the world
  uint64_t bytes = 0;
  bool anyway = false;  // go ahead, whatever the limits are
  std::vector<MemoryLimit> limits;
};

// Code::memory where the ranks under one limit need more together than it has left: the limit of the lowest rank that has such a one. Ranks
// of one machine may be in different groups, so needs are summed by group; memory that ranks share counts for the rank that brings it. Ok
// if a rank says `anyway`.
Status judge_memory(const std::vector<MemoryNeed>& needs);

// The same of `members`, each of which gives what it needs. All of them get the same answer. Collective, blocking; `call` is a literal, the
// call of the user's that this is part of; `line` as in World::exchange.
Status check_memory(World& world, const std::vector<int>& members, const char* call, uint64_t bytes, bool anyway, uint64_t line = 0);

}  // namespace megadp
