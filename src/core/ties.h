// SPDX-License-Identifier: Apache-2.0
// Ties: parameters of several pipeline stages that are one (an embedding that the first stage looks up and the last one multiplies with).
// Each stage keeps a copy, in a bucket of its own; their gradients are added up, so that all copies take the same steps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan.h"

namespace megadp {

struct Tie {
  std::string name;
  std::vector<int> stages;      // that hold it, in order
  std::optional<size_t> param;  // this rank's
};

// What this rank holds of ties, and how; nothing without pipeline stages.
std::string describe_ties(const Plan& plan);

// All ties of the world, in the order of their names. described: of each rank of the grid; world_ranks: their numbers in sentences. The
// same on every rank, but for Tie::param. Code::invalid if the copies are not alike, or if ranks of one stage hold different ones.
Result<std::vector<Tie>> match_ties(const Plan& plan, const std::vector<std::string>& described, const std::vector<int>& world_ranks);

}  // namespace megadp
