// SPDX-License-Identifier: Apache-2.0
// One rank of `megadp bench collectives`: rounds of the library's collective, of the same work as bare loops, and of a memcpy, one after
// another on the same memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/group.h"
#include "base/dtype.h"
#include "base/status.h"

namespace megadp::tool {

constexpr uint64_t kJoinTimeout = 60'000'000'000;
constexpr int kWarmUps = 3;

struct BenchTask {
  Collective collective = Collective::reduce_scatter;  // or all_reduce, or all_gather
  uint64_t bytes = 0;                                  // of each rank's buffer, asked for
  DType type = DType::f32;
  int rounds = 20;
};

struct BenchFigures {  // milliseconds; each round counts as its slowest rank
  uint64_t bytes = 0;  // of each rank's buffer: whole elements, the same number for every rank
  double ours_min = 0, ours_median = 0;
  double bare_median = 0;  // 0: there are no bare loops
  double memcpy_median = 0;
};

// This rank, on the host, in a group of all ranks of the launch that the environment tells of.
struct HostRank {
  std::shared_ptr<World> world;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<Group> group;
  std::unique_ptr<Stream> stream;
};
// Collective over them.
Result<HostRank> join_on_host();

// Collective over the ranks of the launch that the environment tells of. The figures are complete on rank 0 only.
struct BenchOutcome {
  int rank = 0;
  BenchFigures figures;
};
Result<BenchOutcome> bench_rank(const BenchTask& task);

}  // namespace megadp::tool
