// SPDX-License-Identifier: Apache-2.0
// One rank of `megadp bench collectives --sweep`: a collective at every power of two, on windows or on memory of the rank's own; on one
// node or between several.
#pragma once

#include <cstdint>
#include <functional>

#include "bench_rank.h"

namespace megadp::tool {

struct SweepTask {
  BenchTask collective;  // `bytes`: the largest buffer
  bool user_memory = false;
};

struct SweepLine {
  uint64_t bytes = 0, count = 0;   // of each rank's whole buffer
  double us = 0;                   // of a call, the mean over many, on the slowest rank
  double algorithm = 0, link = 0;  // 1e9 bytes a second: of the buffer; and of what each rank must at least send and receive
  bool right = false;
};

// Collective over the ranks of the launch that the environment tells of. `tell` is called on rank 0, for each size.
Status sweep_rank(const SweepTask& task, const std::function<void(const SweepLine&)>& tell);

}  // namespace megadp::tool
