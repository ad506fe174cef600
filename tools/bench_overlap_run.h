// SPDX-License-Identifier: Apache-2.0
// One rank of `megadp bench overlap`: steps of a model of equal layers, whose computing is so much arithmetic, in turns with the computing
// alone and with the communication alone. By the public API, as a program would.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "megadp.h"

namespace megadp::tool {

struct OverlapTask {
  int64_t numel = 0;
  int layers = 0;
  double ratio = 0;  // of computing to communicating
  mdp_dtype type = MDP_DTYPE_F32;
  mdp_sharding sharding = MDP_SHARDING_ZERO_1;
  uint64_t bucket_elements = 0;  // 0: as the library chooses
  int rounds = 0;
};

struct OverlapFigures {  // medians over the rounds, each of which counts as its slowest rank
  double computing_ms = 0, communicating_ms = 0, step_ms = 0;
  double exposed = 0;  // (step - computing) / communicating, of the same round
};

// Collective over the ranks of the launch that the environment tells of. The figures are the same on all of them. That gradients are
// averaged is seen before anything is timed: Code::internal otherwise.
struct OverlapOutcome {
  int rank = 0, ranks = 0;
  uint64_t buckets = 0;
  OverlapFigures figures;
};
Result<OverlapOutcome> bench_overlap(const OverlapTask& task);

}  // namespace megadp::tool
