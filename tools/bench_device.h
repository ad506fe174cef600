// SPDX-License-Identifier: Apache-2.0
// One rank of `megadp bench collectives --backend cuda`: rounds of the collective on device windows and of a copy on the device.
#pragma once

#include "base/status.h"
#include "bench_rank.h"

namespace megadp::tool {

// As bench_rank(); there are no bare loops, so that bare_median stays 0, and memcpy_median is the copy's on the device.
Result<BenchOutcome> bench_device_rank(const BenchTask& task);

}  // namespace megadp::tool
