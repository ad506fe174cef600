// SPDX-License-Identifier: Apache-2.0
// What would be allocated, before anything is.
#pragma once

#include "optimizer.h"

namespace megadp {

/// What would be allocated, and where everything would lie, without ranks. Local.
class Plan {
 public:
  /// The whole layout in a world of this size, and the bytes of each rank with AdamW in F32, as JSON.
  static std::string layout(const GridOptions& grid, int world, const BufferOptions& options, const Params& params, Failure& failure) {
    return of(grid, world, options, params, nullptr, failure);
  }
  /// The same with another optimizer, which has all groups: no first_param_group.
  static std::string layout_with(const GridOptions& grid, int world, const BufferOptions& options, const Params& params,
                                 const OptimizerOptions& optimizer, Failure& failure) {
    return guarded(failure, [&] {
      OptimizerOptions::Described described;
      mdp_optimizer_config config;
      if (!optimizer.describe(params.size(), &described, &config, failure)) return std::string();
      return of(grid, world, options, params, &config, failure);
    });
  }
  /// The groups that the axes span, as JSON: [[0,2],[1,3]].
  static std::string groups(const GridOptions& grid, int world, int axes, Failure& failure) {
    const mdp_grid_config cut = grid.config();
    return Library::text(failure, [&](char* json, size_t capacity, size_t* needed) {
      return mdp_grid_groups_json(&cut, world, static_cast<uint32_t>(axes), json, capacity, needed);
    });
  }

 private:
  static std::string of(const GridOptions& grid, int world, const BufferOptions& options, const Params& params,
                        const mdp_optimizer_config* optimizer, Failure& failure) {
    const mdp_grid_config cut = grid.config();
    mdp_buffer_config config;
    if (!options.describe(&config, failure) || !params.have_names(failure)) return std::string();
    return guarded(failure, [&] {
      const std::vector<mdp_param> list = params.describe();
      return Library::text(failure, [&](char* json, size_t capacity, size_t* needed) {
        return mdp_plan_json(&cut, world, &config, list.data(), list.size(), optimizer, json, capacity, needed);
      });
    });
  }
};

}  // namespace megadp
