// SPDX-License-Identifier: Apache-2.0
// One rank of `megadp bench linear`: a column- and a row-parallel layer one after the other, forward and backward, in turns with nothing
// but their products.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"

namespace megadp::tool {

struct LinearTask {
  int64_t features = 0, hidden = 0, batch = 0;  // of the whole layers; batch: rows of the input
  DType type = DType::f32;
  bool sequence = false;
  int64_t chunk_rows = 0;  // see TpLinearConfig
  int rounds = 9;
};

struct LinearFigures {  // medians over the rounds, each of which counts as its slowest rank
  double layers_ms = 0, products_ms = 0;
  double share = 0;  // products to layers, of the same round
};

// Collective over the ranks of the launch that the environment tells of. The figures are the same on all of them. What is measured is right
// before anything is timed: Code::internal otherwise.
struct LinearOutcome {
  int rank = 0;
  LinearFigures figures;
  std::string gemm_library;
};
Result<LinearOutcome> bench_linear(const LinearTask& task);

}  // namespace megadp::tool
