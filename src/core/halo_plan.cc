// SPDX-License-Identifier: Apache-2.0
#include "core/halo_plan.h"

#include <algorithm>

#include "base/text.h"

namespace megadp {
namespace {

// Elements [at, at + size) of one dimension of a padded part.
struct Segment {
  int64_t at, size;
  int64_t owner;  // place along the dimension, or one of the marks of a box
  int64_t from, step;
  bool is_own;
  bool is_beyond;  // where star-shaped stencils of a part's elements reach in one dimension at a time only
};

// A halo may be so many times as wide as the whole array: wider ones are mistakes, whose plan would take for ever.
constexpr int64_t kMostTurns = 1000;
constexpr int64_t kNowhere = -1;
// Where element i of the whole, which may lie beyond its ends, really is.
int64_t inside(int64_t i, int64_t whole, Edge edge) {
  if (i >= 0 && i < whole) return i;
  if (edge == Edge::periodic) return (i % whole + whole) % whole;
  if (edge == Edge::reflect) return i < 0 ? -i : 2 * (whole - 1) - i;
  return kNowhere;
}

int64_t owner_of(const HaloCut& cut, int64_t i) {
  return std::upper_bound(cut.begins.begin(), cut.begins.end(), i) - cut.begins.begin() - 1;
}

bool continues(const Segment& before, const Segment& next) {
  if (before.owner != next.owner) return false;
  if (next.owner < 0) return true;
  const int64_t step = next.from - before.from - before.step * (before.size - 1);
  return before.size == 1 ? step == 1 || step == -1 : step == before.step;
}

std::vector<Segment> segments_of(const HaloShape& shape, const HaloCut& cut, size_t dim, int64_t place) {
  std::vector<Segment> all;
  const int64_t begin = cut.begins[static_cast<size_t>(place)], size = cut.size(place), low = shape.low[dim];
  const auto add_halo = [&](int64_t at, int64_t count, bool is_beyond) {
    bool joins = false;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t i = inside(begin + at + k - low, cut.whole(), shape.edges[dim]);
      Segment next{at + k, 1, shape.edges[dim] == Edge::keep ? kBoxKept : kBoxZero, 0, 1, false, is_beyond};
      if (i != kNowhere) {
        next.owner = owner_of(cut, i);
        next.from = low + i - cut.begins[static_cast<size_t>(next.owner)];
      }
      if (joins && continues(all.back(), next)) {
        Segment& last = all.back();
        if (last.size++ == 1 && last.owner >= 0) last.step = next.from - last.from;
      } else {
        all.push_back(next);
      }
      joins = true;
    }
  };
  add_halo(0, low, true);
  if (size > 0) all.push_back({low, size, place, low, 1, true, false});
  // The next part's first face is in the halo, and is computed here as well.
  const int64_t high = cut.highs[static_cast<size_t>(place)], shared = shape.faces ? high - shape.high[dim] : 0;
  add_halo(low + size, shared, false);
  add_halo(low + size + shared, high - shared, true);
  return all;
}

HaloBox box_of(const HaloShape& shape, const std::vector<const Segment*>& segments) {
  HaloBox box{};
  std::vector<int64_t> coords;
  int mark = 0;
  for (const Segment* segment : segments) {
    box.at.push_back(segment->at);
    box.from.push_back(segment->from);
    box.steps.push_back(segment->step);
    box.shape.push_back(segment->size);
    coords.push_back(segment->owner);
    if (segment->owner == kBoxKept || (segment->owner == kBoxZero && mark == 0)) mark = static_cast<int>(segment->owner);
  }
  box.owner = mark != 0 ? mark : shape.rank_of(coords);
  return box;
}

}  // namespace

const char* name_of(Edge edge) noexcept {
  switch (edge) {
    case Edge::keep:
      return "keep";
    case Edge::zero:
      return "zero";
    case Edge::periodic:
      return "periodic";
    case Edge::reflect:
      return "reflect";
  }
  return "?";
}

std::vector<int64_t> HaloShape::coords_of(int rank) const {
  std::vector<int64_t> coords(ndim());
  int64_t left = rank;
  for (size_t d = ndim(); d-- > 0;) {
    coords[d] = left % grid[d];
    left /= grid[d];
  }
  return coords;
}

int HaloShape::rank_of(const std::vector<int64_t>& coords) const {
  int64_t rank = 0;
  for (size_t d = 0; d < ndim(); ++d) rank = rank * grid[d] + coords[d];
  return static_cast<int>(rank);
}

Result<std::vector<HaloCut>> cut_of(const HaloShape& shape, const std::vector<int64_t>& staggered,
                                    const std::vector<std::vector<int64_t>>& parts, const std::vector<int>& members) {
  std::vector<HaloCut> cuts(shape.ndim());
  for (size_t d = 0; d < shape.ndim(); ++d) {
    const auto places = static_cast<size_t>(shape.grid[d]);
    std::vector<int> first(places, -1);  // rank that is there
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      const auto place = static_cast<size_t>(shape.coords_of(static_cast<int>(rank))[d]);
      if (first[place] < 0) first[place] = static_cast<int>(rank);
      const auto other = static_cast<size_t>(first[place]);
      if (parts[rank][d] == parts[other][d]) continue;
      return Status(Code::invalid,
                    text("config.shape[", d, "] is ", parts[other][d], " on rank ", members[other], " and ", parts[rank][d], " on rank ",
                         members[rank], ", which are at the same place along dimension ", d, "; they must be equal"),
                    Blame{.rank = members[rank]});
    }
    cuts[d].begins.push_back(0);
    for (const int rank : first) cuts[d].begins.push_back(cuts[d].begins.back() + parts[static_cast<size_t>(rank)][d]);
    cuts[d].highs.assign(places, shape.high[d] + staggered[d]);
    if (shape.edges[d] != Edge::periodic) {
      cuts[d].begins.back() += staggered[d];
      cuts[d].highs.back() = shape.high[d];
    }
    const int64_t whole = cuts[d].whole(), widest = std::max(shape.low[d], cuts[d].highs.back());
    if (widest == 0) continue;
    if (shape.edges[d] == Edge::periodic && whole == 0) {
      return invalid("the whole array has no elements along dimension ", d, ", whose edges are periodic; it must have at least 1");
    }
    const int64_t turn = std::max<int64_t>(whole, 1);
    if ((widest - 1) / kMostTurns >= turn) {
      return invalid("the halo along dimension ", d, " is ", widest, " wide; of a whole array of ", whole, " it may be ", kMostTurns * turn,
                     " at most");
    }
    if (shape.edges[d] == Edge::reflect && widest >= whole) {
      return invalid("the halo along dimension ", d, " is ", widest, " wide; with reflecting edges of a whole array of ", whole,
                     " it may be ", std::max<int64_t>(0, whole - 1), " at most");
    }
  }
  return cuts;
}

std::vector<HaloBox> halo_boxes(const HaloShape& shape, const std::vector<HaloCut>& cuts, int rank) {
  const std::vector<int64_t> coords = shape.coords_of(rank);
  std::vector<std::vector<Segment>> dims;
  for (size_t d = 0; d < shape.ndim(); ++d) dims.push_back(segments_of(shape, cuts[d], d, coords[d]));
  std::vector<HaloBox> boxes;
  if (std::any_of(dims.begin(), dims.end(), [](const auto& segments) { return segments.empty(); })) return boxes;
  std::vector<size_t> at(shape.ndim());
  for (;;) {
    std::vector<const Segment*> chosen;
    for (size_t d = 0; d < dims.size(); ++d) chosen.push_back(&dims[d][at[d]]);
    const bool is_own = std::all_of(chosen.begin(), chosen.end(), [](const Segment* s) { return s->is_own; });
    const auto beyond = std::count_if(chosen.begin(), chosen.end(), [](const Segment* s) { return s->is_beyond; });
    if (!is_own && (beyond <= 1 || !shape.faces)) boxes.push_back(box_of(shape, chosen));
    size_t d = dims.size();
    while (d-- > 0 && ++at[d] == dims[d].size()) at[d] = 0;
    if (d == SIZE_MAX) return boxes;
  }
}

}  // namespace megadp
