// SPDX-License-Identifier: Apache-2.0
// What `megadp bench step` measures: the kernels of one optimizer step through the backend interface, on one rank, beside a copy.
#pragma once

#include <cstdint>
#include <string>

#include "api/backends.h"
#include "base/dtype.h"
#include "base/status.h"

namespace megadp::tool {

struct StepTask {
  BackendKind backend = BackendKind::host;
  uint64_t numel = 0;
  DType param_type = DType::f32, grad_type = DType::f32;
  int rounds = 20;
  uint32_t rule = 0;
  int threads = 0;  // of the host; 0: as many as a rank has if nobody says how many
};

struct StepTiming {
  uint64_t bytes = 0;  // that must be read and written, each element once
  double min_ms = 0, median_ms = 0;
  double bytes_per_s() const { return median_ms > 0 ? static_cast<double>(bytes) / (median_ms * 1e-3) : 0; }
};

struct StepFigures {
  StepTiming update, square_sum, copy;
  // Bytes a second as a ratio to the copy's of the same round, the median of all rounds: other programs on the machine slow down both.
  double update_to_copy = 0, square_sum_to_copy = 0;
  uint64_t host_syncs = 0;  // how often the host waited for the device while the steps were submitted
};

// The kernels' results are compared with the host's before anything is timed: Code::internal if they differ.
Result<StepFigures> bench_step(const StepTask& task);

}  // namespace megadp::tool
