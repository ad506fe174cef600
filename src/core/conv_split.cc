// SPDX-License-Identifier: Apache-2.0
#include "core/conv_split.h"

#include <algorithm>
#include <numeric>

namespace megadp {
namespace {

// Of integers that may be negative; b > 0.
int64_t floor_quotient(int64_t a, int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}
int64_t ceiling_quotient(int64_t a, int64_t b) {
  return -floor_quotient(-a, b);
}

struct Interval {
  int64_t begin, end;
};

// What the parts have in common.
struct OfParts {
  const ConvConfig& config;
  int64_t outputs;

  int64_t reach() const { return config.dilation * (config.kernel - 1); }  // from a window's first element to its last
  int64_t window(int64_t output) const { return output * config.stride - config.padding_low; }
  Interval outputs_of(Interval part, bool last) const {
    const int64_t begin = std::min(outputs, ceiling_quotient(part.begin, config.stride));
    return {begin, last ? outputs : std::clamp(ceiling_quotient(part.end, config.stride), begin, outputs)};
  }
};

}  // namespace

Result<ConvPart> split_conv(const ConvConfig& config, const std::vector<int64_t>& parts, size_t part) {
  const int64_t whole = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  OfParts split{config, 0};
  const int64_t padded = whole + config.padding_low + config.padding_high;
  if (padded <= split.reach()) {
    return invalid("the window of config reaches over ", split.reach() + 1, " elements, and the input has ", padded,
                   " with its padding; it must have as many at least");
  }
  split.outputs = (padded - split.reach() - 1) / config.stride + 1;
  ConvPart out{};
  out.whole_output = split.outputs;
  int64_t begin = 0, own_begin = 0;
  for (size_t p = 0; p < parts.size(); begin += parts[p++]) {
    const Interval there{begin, begin + parts[p]}, made = split.outputs_of(there, p + 1 == parts.size());
    if (made.begin < made.end) {
      out.low = std::max(out.low, there.begin - split.window(made.begin));
      out.high = std::max(out.high, split.window(made.end - 1) + split.reach() + 1 - there.end);
    }
    if (p != part) continue;
    own_begin = begin;
    out.output_begin = made.begin;
    out.output_size = made.end - made.begin;
    const int64_t first = std::max(made.begin, ceiling_quotient(there.begin + config.padding_low, config.stride));
    const int64_t end = std::min(made.end, floor_quotient(there.end - 1 - split.reach() + config.padding_low, config.stride) + 1);
    out.inside_size = std::max<int64_t>(0, end - first);
    out.inside_begin = out.inside_size == 0 ? 0 : first - made.begin;
  }
  out.first = out.output_size == 0 ? 0 : split.window(out.output_begin) - own_begin + out.low;
  return out;
}

}  // namespace megadp
