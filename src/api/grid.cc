// SPDX-License-Identifier: Apache-2.0
// Grids on a communicator.
#include "api/config.h"
#include "api/error.h"
#include "api/handle.h"
#include "api/intake.h"

using namespace megadp;

mdp_status mdp_grid_create(mdp_comm* world, const mdp_grid_config* config, mdp_grid** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(world, "world", Need::alone_in_context); !status) return status;
    auto ours = take_grid_config(config, "config");
    if (!ours) return ours.status();
    auto grid = ProcessGrid::create(world->object, *ours, "mdp_grid_create");
    if (!grid) return grid.status();
    *out = new mdp_grid(world->context, *grid);
    return {};
  });
}

mdp_status mdp_grid_coords(mdp_grid* grid, uint32_t axes, int32_t* index, int32_t* size) {
  return guard([&]() -> Status {
    if (Status status = check_out(index, "index"); !status) return status;
    if (Status status = check_out(size, "size"); !status) return status;
    if (Status status = check_handle(grid, "grid", Need::process); !status) return status;
    const Grid& shape = grid->object->grid();
    if (Status status = shape.check_axes(axes); !status) return status;
    *index = shape.index(axes, grid->object->rank());
    *size = shape.size(axes);
    return {};
  });
}

mdp_status mdp_grid_seed(mdp_grid* grid, uint64_t seed, mdp_random random, uint64_t* out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(grid, "grid", Need::process); !status) return status;
    const auto index = [&](uint32_t axes) { return static_cast<uint64_t>(grid->object->grid().index(axes, grid->object->rank())); };
    switch (random) {
      case MDP_RANDOM_REPLICATED:
        *out = seed;
        return {};
      case MDP_RANDOM_TENSOR:
        *out = seed + 2718 + index(MDP_AXIS_TP);
        return {};
      case MDP_RANDOM_EXPERT:
        *out = seed + 1024 + 100 * index(MDP_AXIS_EXPERT_GRID | MDP_AXIS_EP) + index(MDP_AXIS_EXPERT_GRID | MDP_AXIS_TP);
        return {};
      default:
        return invalid("random is ", random, "; it must be MDP_RANDOM_REPLICATED (1), MDP_RANDOM_TENSOR (2) or MDP_RANDOM_EXPERT (3)");
    }
  });
}

mdp_status mdp_grid_comm(mdp_grid* grid, uint32_t axes, mdp_comm** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(grid, "grid", Need::alone_in_context); !status) return status;
    auto comm = grid->object->comm(axes);
    if (!comm) return comm.status();
    *out = new mdp_comm(grid->context, *comm);
    return {};
  });
}

void mdp_grid_destroy(mdp_grid* grid) {
  destroy_handle(grid);
}
