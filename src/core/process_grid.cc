// SPDX-License-Identifier: Apache-2.0
#include "core/process_grid.h"

#include <algorithm>

namespace megadp {

Result<std::shared_ptr<ProcessGrid>> ProcessGrid::create(std::shared_ptr<Comm> world, const GridConfig& config, const char* call) {
  if (Status usable = world->context().usable(); !usable) return usable;
  // Compared before it is judged: where ranks disagree, all of them learn it, also those whose own configuration would have done.
  const std::string mine = text("tp ", config.tp, " cp ", config.cp, " ep ", config.ep, " pp ", config.pp, " expert_tp ", config.expert_tp,
                                " instances ", config.instances, " order ", config.order);
  auto compared = world->context().world->compare(world->group().members(), call, mine);
  if (!compared) return compared.status();
  if (*compared) {
    const Mismatch& found = **compared;
    return Status(Code::desync,
                  text("ranks ", found.first, " and ", found.other, " cut the world differently: '", found.first_bytes, "' and '",
                       found.other_bytes, "'"),
                  Blame{.rank = found.other});
  }
  auto grid = Grid::create(config, world->size());
  if (!grid) return grid.status();
  return std::shared_ptr<ProcessGrid>(new ProcessGrid(std::move(world), *std::move(grid)));
}

Result<std::shared_ptr<Comm>> ProcessGrid::comm(Axes axes) {
  if (Status status = grid_.check_axes(axes); !status) return status;
  for (const auto& [known, comm] : made_) {
    if (known == axes) return comm;
  }
  std::vector<int> members = grid_.group(axes, rank());
  for (int& member : members) member = world_->group().members()[static_cast<size_t>(member)];
  // Where other axes cut the world in the same way their communicator serves: experts that are not cut have that of dense parameters.
  const std::vector<std::vector<int>> groups = grid_.groups(axes);
  const auto same = std::find_if(made_.begin(), made_.end(), [&](const auto& one) { return grid_.groups(one.first) == groups; });
  std::shared_ptr<Comm> comm;
  if (members == world_->group().members()) {
    comm = world_;
  } else if (same != made_.end()) {
    comm = same->second;
  } else {
    auto made = world_->subset(members);
    if (!made) return made.status();
    comm = *made;
  }
  made_.emplace_back(axes, comm);
  return comm;
}

}  // namespace megadp
