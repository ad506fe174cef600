// SPDX-License-Identifier: Apache-2.0
// Grid: the world cut into tp x cp x ep x dp x pp. Pure arithmetic. Rank = sum of index * stride, the leftmost axis of `order` varying
// fastest. Two grids share the ranks: dense (ep = 1, so dp = world / (tp cp pp)) and expert (cp = 1, tp = expert_tp, so
// dp = world / (expert_tp ep pp)).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace megadp {

struct GridConfig {
  int tp = 1, cp = 1, ep = 1, pp = 1;
  int expert_tp = 0;  // 0: tp
  int instances = 1;
  std::string order = "tp-cp-ep-dp-pp";
};

// The values of MDP_AXIS_*.
using Axes = uint32_t;
constexpr Axes kTp = 1, kCp = 2, kEp = 4, kDp = 8, kPp = 16, kExpertGrid = 256;

// More ranks than any machine has. Keeps what the pure functions answer, one entry a rank, within memory.
constexpr int kMaxWorld = 1 << 20;

class Grid {
 public:
  // Every error is the same on every rank: it depends on the arguments only. Sizes must be at least 1 (expert_tp: 0 is tp); config() has
  // expert_tp filled in.
  static Result<Grid> create(const GridConfig& config, int world);

  const GridConfig& config() const noexcept { return config_; }
  int world() const noexcept { return world_; }

  // Product of the sizes of the axes, and the rank's index within the group they span. Axes must have been checked by check_axes.
  int size(Axes axes) const;
  int index(Axes axes, int rank) const;
  // The ranks of the group that `rank` is in, in order-string order; groups(): all of them, in the order of the remaining axes.
  std::vector<int> group(Axes axes, int rank) const;
  std::vector<std::vector<int>> groups(Axes axes) const;
  // invalid, with a sentence, on no axis, an unknown bit, ep on the dense grid or cp on the expert grid.
  Status check_axes(Axes axes) const;

  // The ranks that hold replicas of a parameter: dp x cp of the dense grid, dp of the expert grid.
  static constexpr Axes replica_axes(bool expert) { return expert ? (kDp | kExpertGrid) : (kDp | kCp); }
  static constexpr Axes tp_axes(bool expert) { return expert ? (kTp | kExpertGrid) : kTp; }
  // Of a group that is cut into `instances` runs of neighbours the one that its member `index` is in; and the members that have the same
  // place in each of them.
  static std::vector<int> instance_of(const std::vector<int>& group, int index, int instances);
  static std::vector<int> across_instances(const std::vector<int>& group, int index, int instances);

 private:
  struct Axis {
    Axes bit;
    int size;
    int stride;
  };
  const std::vector<Axis>& axes_of(Axes axes) const noexcept { return (axes & kExpertGrid) != 0 ? expert_ : dense_; }
  Status check_pipelines(bool pp_is_last) const;
  static std::vector<int> span(const std::vector<Axis>& grid, Axes selected, int base);

  GridConfig config_;
  int world_ = 1;
  std::vector<Axis> dense_, expert_;  // in order-string order
};

}  // namespace megadp
