// SPDX-License-Identifier: Apache-2.0
// The world cut into tensor, context, expert, data and pipeline parallel groups.
#pragma once

#include "comm.h"

namespace megadp {

/// Sizes; 0: 1, and for expert_tp: tp. dp is what is left. instances: runs of neighbours into which the dp x cp ranks are cut, each with
/// all of the optimizer's state. order: axes from the fastest to the slowest varying rank, empty: "tp-cp-ep-dp-pp".
struct GridOptions {
  int tp = 0;
  int cp = 0;
  int ep = 0;
  int pp = 0;
  int expert_tp = 0;
  int instances = 0;
  std::string order;

#ifndef SWIG
  mdp_grid_config config() const {
    mdp_grid_config config{};
    config.struct_size = sizeof config;
    config.tp = tp;
    config.cp = cp;
    config.ep = ep;
    config.pp = pp;
    config.expert_tp = expert_tp;
    config.instances = instances;
    config.order = order.empty() ? nullptr : order.c_str();
    return config;
  }
#endif
};

/// `axes` are a sum of values of Axis.
class Grid {
 public:
  /// Collective over the world, with equal options.
  static Grid* create(const Comm& world, const GridOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Grid* {
      const auto comm = world.handle().use_collectively(failure);
      const mdp_grid_config config = options.config();
      mdp_grid* grid = nullptr;
      return comm && failure.take(mdp_grid_create(comm.get(), &config, &grid)) ? new Grid(grid, world.handle().operations()) : nullptr;
    });
  }

  /// This rank's place in the group that the axes span together, and the group's size.
  int index(int axes, Failure& failure) const { return coordinates(axes, failure).first; }
  int size(int axes, Failure& failure) const { return coordinates(axes, failure).second; }

  /// The communicator of that group. Collective over the world the first time.
  Comm* comm(int axes, Failure& failure) const {
    return guarded(failure, [&]() -> Comm* {
      const auto grid = grid_.use_collectively(failure);
      mdp_comm* group = nullptr;
      return grid && failure.take(mdp_grid_comm(grid.get(), static_cast<uint32_t>(axes), &group)) ? new Comm(group, grid_.operations())
                                                                                                  : nullptr;
    });
  }

  /// The seed of this rank's random numbers (dropout, initial values). Seeds of 64 bits: from 2^63 on both are negative. Local.
  long long seed(long long seed, Random random, Failure& failure) const {
    uint64_t found = 0;
    if (const auto grid = grid_.use(failure)) {
      failure.take(mdp_grid_seed(grid.get(), static_cast<uint64_t>(seed), static_cast<mdp_random>(random), &found));
    }
    return static_cast<long long>(found);
  }

  void close() { grid_.close(); }
  bool closed() const { return grid_.closed(); }

#ifndef SWIG
  Grid(mdp_grid* grid, const std::shared_ptr<Operations>& operations) : grid_("Grid", grid, mdp_grid_destroy, operations) {}
  const Handle<mdp_grid>& handle() const {
    return grid_;
  }
#endif

 private:
  std::pair<int, int> coordinates(int axes, Failure& failure) const {
    std::pair<int32_t, int32_t> found(-1, -1);
    if (const auto grid = grid_.use(failure)) {
      failure.take(mdp_grid_coords(grid.get(), static_cast<uint32_t>(axes), &found.first, &found.second));
    }
    return found;
  }

  Handle<mdp_grid> grid_;
};

}  // namespace megadp
