// SPDX-License-Identifier: Apache-2.0
// The collective that `megadp bench collectives` times, what the buffers hold, and what a collective must have made of it. On the host's
// memory.
#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "base/status.h"
#include "bench_rank.h"

namespace megadp::tool {

// What is timed: on the whole window, a sum as the mean.
WindowOp call_of(const BenchTask& task, Window& window, size_t count, int ranks);
// Rank r's elements become r + 1.
void fill_values(void* data, DType type, size_t count, int rank);
// After one collective on that. Each value may be off by `tolerance` of it. `who` gave it.
Status check_values(const void* data, const BenchTask& task, size_t count, int rank, int ranks, double tolerance, const char* who);

}  // namespace megadp::tool
