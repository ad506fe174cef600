// SPDX-License-Identifier: Apache-2.0
// Whole parameters: who owns which.
#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "base/hash.h"
#include "core/plan.h"

namespace megadp {
namespace {

// Of ranks that hold replicas of the same parameters: what each shard has so far, the least first, then the lowest number.
using Load = std::pair<double, uint32_t>;
using Loads = std::priority_queue<Load, std::vector<Load>, std::greater<>>;

}  // namespace

Sharding sharding_of(const BufferConfig& config, const ParamSpec& param) {
  return param.sharding == Sharding::unset ? config.sharding : param.sharding;
}

std::vector<uint32_t> assign_owners(const Plan& plan) {
  const auto is_whole = [](const ArenaPlan& arena) { return arena.is_whole(); };
  if (std::none_of(plan.arenas.begin(), plan.arenas.end(), is_whole)) return {};
  std::vector<uint32_t> owners(plan.params.size());
  const auto cost = [&plan](size_t param) {
    const ParamSpec& spec = plan.params[param];
    return spec.cost > 0 ? spec.cost : static_cast<double>(spec.numel);
  };
  const auto assign = [&](const std::vector<bool>& classes) {
    std::vector<size_t> params;
    std::vector<double> taken;
    for (const ArenaPlan& arena : plan.arenas) {
      if (!arena.is_whole() || std::find(classes.begin(), classes.end(), arena.expert) == classes.end()) continue;
      taken.resize(static_cast<size_t>(arena.shards));
      for (const size_t param : arena.params) {
        if (!plan.is_tied(param)) {
          params.push_back(param);
          continue;
        }
        // By its tie alone: what else a stage holds, the others do not know.
        const std::string& tie = plan.params[param].tie;
        owners[param] = static_cast<uint32_t>(hash_bytes(tie) % taken.size());
        taken[owners[param]] += cost(param);
      }
    }
    std::stable_sort(params.begin(), params.end(), [&](size_t a, size_t b) { return cost(a) > cost(b); });
    Loads loads;
    for (uint32_t shard = 0; shard < taken.size(); ++shard) loads.emplace(taken[shard], shard);
    for (const size_t param : params) {
      const auto [load, shard] = loads.top();
      loads.pop();
      owners[param] = shard;
      loads.emplace(load + cost(param), shard);
    }
  };
  // Experts count with the others where the same ranks own them.
  const bool same = plan.grid.groups(Grid::replica_axes(true)) == plan.grid.groups(Grid::replica_axes(false));
  if (same) {
    assign({false, true});
  } else {
    assign({false});
    assign({true});
  }
  return owners;
}

}  // namespace megadp
