// SPDX-License-Identifier: Apache-2.0
// Where the halo of an array that is cut over a grid of ranks comes from. Pure arithmetic: every rank knows it of every rank.
//
//   one dimension of a padded part        low │ own part │ high          whole: parts of the ranks along it, one after another
//   as segments                           [ of rank 0 ][ own ][ of rank 2 ][ of rank 3 ]
//
// The boxes of a halo are the products of segments, one of each dimension, but for the own part itself. A segment may run over several
// ranks (halos wider than their parts), around a periodic edge, or backwards (reflected).
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace megadp {

enum class Edge : uint32_t {  // the values of mdp_edge: what lies beyond an end of the whole array
  keep = 0,                   // nothing that is ours
  zero = 1,
  periodic = 2,
  reflect = 3  // mirrored at the outermost element, which is not repeated
};
const char* name_of(Edge edge) noexcept;

struct HaloShape {
  DType type = DType::f32;
  std::vector<int64_t> grid;  // ranks along each dimension; the last varies fastest
  std::vector<int64_t> low, high;
  std::vector<Edge> edges;
  bool faces = false;  // without what is beyond an end in more than one dimension
  size_t fields = 1;
  std::vector<std::vector<int64_t>> staggered;  // by field: elements more that the whole has; empty: none
  size_t arrays = 0;                            // of its own

  size_t ndim() const noexcept { return grid.size(); }
  std::vector<int64_t> coords_of(int rank) const;
  int rank_of(const std::vector<int64_t>& coords) const;
};

// How a dimension is cut: where each part begins, the size of the whole, and how wide the halo behind each part is. What a staggered field
// has more belongs to the last part, and the others have it in their halos, so that padded parts are equally larger; around a periodic edge
// it is the first part's.
struct HaloCut {
  std::vector<int64_t> begins;  // one more than there are parts
  std::vector<int64_t> highs;
  int64_t whole() const noexcept { return begins.back(); }
  int64_t size(int64_t part) const noexcept { return begins[static_cast<size_t>(part) + 1] - begins[static_cast<size_t>(part)]; }
};
// From the shape of every rank's part. Code::invalid: ranks at one place of a dimension have different sizes; reflected halos that are as
// wide as the whole; periodic ones of nothing.
Result<std::vector<HaloCut>> cut_of(const HaloShape& shape, const std::vector<int64_t>& staggered,
                                    const std::vector<std::vector<int64_t>>& parts, const std::vector<int>& members);

constexpr int kBoxKept = -1, kBoxZero = -2;
struct HaloBox {
  int owner;                   // rank that has it, or one of the above
  std::vector<int64_t> at;     // in the padded part of this rank
  std::vector<int64_t> from;   // in the padded part of the owner: what goes to `at`
  std::vector<int64_t> steps;  // 1, or -1: from there backwards
  std::vector<int64_t> shape;
};
// In row-major order of their places.
std::vector<HaloBox> halo_boxes(const HaloShape& shape, const std::vector<HaloCut>& cuts, int rank);

}  // namespace megadp
