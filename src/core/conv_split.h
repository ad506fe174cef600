// SPDX-License-Identifier: Apache-2.0
// How an input that is cut along a dimension is convolved or pooled: which outputs a rank computes, the halo that all of them need, and
// what can be computed before it has come.
//
//   output o reads elements  o * stride - padding_low + dilation * (0 ... kernel - 1)  of the whole input
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace megadp {

struct ConvConfig {
  int64_t kernel = 1, stride = 1, dilation = 1, padding_low = 0, padding_high = 0;
};

struct ConvPart {
  int64_t low, high;                  // of the halo, the same for all parts
  int64_t output_begin, output_size;  // in the whole output
  int64_t first;                      // where the first output's window begins, in the padded part
  int64_t inside_begin, inside_size;  // of the part's outputs
  int64_t whole_output;
};

Result<ConvPart> split_conv(const ConvConfig& config, const std::vector<int64_t>& parts, size_t part);

}  // namespace megadp
