// SPDX-License-Identifier: Apache-2.0
// ProcessGrid: a grid on a communicator.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/comm.h"
#include "core/grid.h"

namespace megadp {

// Its groups are made when first needed.
class ProcessGrid {
 public:
  // Collective over the world: all ranks must give the same configuration. `call` is a literal, the call of the user's that this is.
  static Result<std::shared_ptr<ProcessGrid>> create(std::shared_ptr<Comm> world, const GridConfig& config, const char* call);
  const Grid& grid() const noexcept { return grid_; }
  const std::shared_ptr<Comm>& world() const noexcept { return world_; }
  int rank() const noexcept { return world_->rank(); }
  // Collective over the group's members (so: call it on all ranks). The world's own communicator when the group is the whole world.
  Result<std::shared_ptr<Comm>> comm(Axes axes);
  OneCall& one_call() noexcept { return one_call_; }

 private:
  ProcessGrid(std::shared_ptr<Comm> world, Grid grid) : world_(std::move(world)), grid_(std::move(grid)) {}
  std::shared_ptr<Comm> world_;
  Grid grid_;
  std::vector<std::pair<Axes, std::shared_ptr<Comm>>> made_;
  OneCall one_call_;
};

}  // namespace megadp
