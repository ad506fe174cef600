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
  struct Part {          // along the dimension that is cut
    uint64_t size, run;  // of the part, and of each of its equally long runs
    uint64_t in_turn;    // where its run begins in a turn of all parts
  };

  uint64_t whole_size_ = 0, inner_ = 1;  // along that dimension; elements behind each of its indices
  uint64_t turn_ = 0;                    // one run of each part
  std::vector<Part> parts_;
};

}  // namespace megadp
