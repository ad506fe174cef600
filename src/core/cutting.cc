// SPDX-License-Identifier: Apache-2.0
#include "core/cutting.h"

#include <algorithm>

#include "base/shape.h"

namespace megadp {

Cutting::Cutting(const StoredArray& array) {
  const Cut& cut = array.cut;
  if (!cut.is_cut()) {
    whole_size_ = turn_ = elements_of(array.shape);
    parts_ = {{whole_size_, whole_size_, 0}};
    return;
  }
  const auto dim = static_cast<size_t>(cut.dim);
  whole_size_ = static_cast<uint64_t>(array.shape[dim]);
  for (size_t d = dim + 1; d < array.shape.size(); ++d) inner_ *= static_cast<uint64_t>(array.shape[d]);
  for (const int64_t size : cut.sizes) {
    const uint64_t run = static_cast<uint64_t>(size) / static_cast<uint64_t>(cut.stride);
    parts_.push_back({static_cast<uint64_t>(size), run, turn_});
    turn_ += run;
  }
}

// A flattened index is ((outer * size) + index along the dimension) * inner + behind it; each step of the loops takes the rest of a run,
// which is contiguous on both sides.
Status Cutting::to_whole(size_t part, uint64_t begin, uint64_t end, const std::function<Status(const Run&)>& each) const {
  const Part& of = parts_[part];
  while (begin < end) {
    const uint64_t outer = begin / inner_ / of.size, along = begin / inner_ % of.size, behind = begin % inner_;
    const uint64_t turn = along / of.run, in_run = along % of.run;
    const uint64_t count = std::min(end - begin, (of.run - in_run) * inner_ - behind);
    const uint64_t to = (outer * whole_size_ + turn * turn_ + of.in_turn + in_run) * inner_ + behind;
    if (Status status = each({part, begin, to, count}); !status) return status;
    begin += count;
  }
  return {};
}

Status Cutting::to_parts(uint64_t begin, uint64_t end, const std::function<Status(const Run&)>& each) const {
  while (begin < end) {
    const uint64_t outer = begin / inner_ / whole_size_, along = begin / inner_ % whole_size_, behind = begin % inner_;
    const uint64_t turn = along / turn_, in_turn = along % turn_;
    const auto after = std::partition_point(parts_.begin(), parts_.end(), [&](const Part& one) { return one.in_turn <= in_turn; });
    const auto of = after - 1;  // of parts that begin at the same place the last, as those before it are empty
    const uint64_t in_run = in_turn - of->in_turn;
    const uint64_t count = std::min(end - begin, (of->run - in_run) * inner_ - behind);
    const uint64_t to = (outer * of->size + turn * of->run + in_run) * inner_ + behind;
    if (Status status = each({static_cast<size_t>(of - parts_.begin()), begin, to, count}); !status) return status;
    begin += count;
  }
  return {};
}

}  // namespace megadp
