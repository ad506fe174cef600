// SPDX-License-Identifier: Apache-2.0
#include "core/cutting.h"

#include <algorithm>

#include "base/shape.h"

namespace megadp {

Cutting::Cutting(const StoredArray& array) {
  const Cut& cut = array.cut;
  if (!cut.is_cut()) {
    const uint64_t elements = elements_of(array.shape);
    whole_size_ = elements;
    part_sizes_ = {elements};
    of_part_.resize(1);
    if (elements > 0) {
      segments_.push_back({0, 0, 0, elements});
      of_part_[0].push_back(0);
    }
    return;
  }
  const auto dim = static_cast<size_t>(cut.dim);
  whole_size_ = static_cast<uint64_t>(array.shape[dim]);
  for (size_t d = dim + 1; d < array.shape.size(); ++d) inner_ *= static_cast<uint64_t>(array.shape[d]);
  for (const int64_t size : cut.sizes) part_sizes_.push_back(static_cast<uint64_t>(size));
  of_part_.resize(cut.sizes.size());
  if (whole_size_ == 0) return;  // also where a file claims any stride
  uint64_t in_whole = 0;
  const auto stride = static_cast<uint64_t>(cut.stride);
  for (uint64_t turn = 0; turn < stride; ++turn) {
    for (size_t part = 0; part < part_sizes_.size(); ++part) {
      const uint64_t length = part_sizes_[part] / stride;
      if (length == 0) continue;
      of_part_[part].push_back(segments_.size());
      segments_.push_back({part, turn * length, in_whole, length});
      in_whole += length;
    }
  }
}

// A flattened index is ((outer * size) + index along the dimension) * inner + behind it; each step of the loops takes the rest of a
// segment, which is contiguous on both sides.
Status Cutting::to_whole(size_t part, uint64_t begin, uint64_t end, const std::function<Status(const Run&)>& each) const {
  const uint64_t size = part_sizes_[part];
  const std::vector<size_t>& numbers = of_part_[part];
  while (begin < end) {
    const uint64_t outer = begin / inner_ / size, along = begin / inner_ % size, behind = begin % inner_;
    const auto after =
        std::partition_point(numbers.begin(), numbers.end(), [&](size_t number) { return segments_[number].in_part <= along; });
    const Segment& segment = segments_[*(after - 1)];
    const uint64_t in_segment = along - segment.in_part;
    const uint64_t count = std::min(end - begin, (segment.length - in_segment) * inner_ - behind);
    const uint64_t to = (outer * whole_size_ + segment.in_whole + in_segment) * inner_ + behind;
    if (Status status = each({part, begin, to, count}); !status) return status;
    begin += count;
  }
  return {};
}

Status Cutting::to_parts(uint64_t begin, uint64_t end, const std::function<Status(const Run&)>& each) const {
  while (begin < end) {
    const uint64_t outer = begin / inner_ / whole_size_, along = begin / inner_ % whole_size_, behind = begin % inner_;
    const auto after = std::partition_point(segments_.begin(), segments_.end(), [&](const Segment& one) { return one.in_whole <= along; });
    const Segment& segment = *(after - 1);
    const uint64_t in_segment = along - segment.in_whole;
    const uint64_t count = std::min(end - begin, (segment.length - in_segment) * inner_ - behind);
    const uint64_t to = (outer * part_sizes_[segment.part] + segment.in_part + in_segment) * inner_ + behind;
    if (Status status = each({segment.part, begin, to, count}); !status) return status;
    begin += count;
  }
  return {};
}

}  // namespace megadp
