// SPDX-License-Identifier: Apache-2.0
// Cutting: from elements of one tensor-parallel part of an array to elements of the whole, and back. Both are flattened row-major, so that
// a range of the one is a series of runs of the other. Pure arithmetic.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "files/manifest_json.h"

namespace megadp {

struct Run {  // `count` elements from `from` on are those of the other side from `to` on
  size_t part;
  uint64_t from, to, count;
};

class Cutting {
 public:
  explicit Cutting(const StoredArray& array);  // which has its whole shape

  // Of elements begin to end of a part, in their order. `to` is in the whole.
  Status to_whole(size_t part, uint64_t begin, uint64_t end, const std::function<Status(const Run&)>& each) const;
  // Of elements begin to end of the whole, in their order. `to` is in the part of the run.
  Status to_parts(uint64_t begin, uint64_t end, const std::function<Status(const Run&)>& each) const;

 private:
  struct Segment {  // along the dimension that is cut
    size_t part;
    uint64_t in_part, in_whole, length;
  };

  uint64_t whole_size_ = 0, inner_ = 1;  // along that dimension; elements behind each of its indices
  std::vector<uint64_t> part_sizes_;
  std::vector<Segment> segments_;             // none empty; by in_whole
  std::vector<std::vector<size_t>> of_part_;  // their numbers, by in_part
};

}  // namespace megadp
