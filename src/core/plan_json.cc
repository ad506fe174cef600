// SPDX-License-Identifier: Apache-2.0
// Plans and groups as JSON. A plan is written piece by piece: a million ranks need no more memory than one.
#include "core/plan_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace megadp {
namespace {

using Json = nlohmann::ordered_json;

// "[first,second,...]" of what write_one(i) writes for 0 to count - 1.
template <class WriteOne>
void write_list(size_t count, const TextSink& write, const WriteOne& write_one) {
  write("[");
  for (size_t i = 0; i < count; ++i) {
    if (i != 0) write(",");
    write_one(i);
  }
  write("]");
}

void write_owned(const ArenaPlan& arena, int shard, const TextSink& write) {
  const std::vector<OwnedRange> owned = owned_ranges(arena.layout, shard);
  write_list(owned.size(), write, [&](size_t i) {
    const OwnedRange& range = owned[i];
    write(Json({{"param", range.param}, {"begin", range.begin}, {"end", range.end}, {"param_begin", range.param_begin}}).dump());
  });
}

void write_arena(const ArenaPlan& arena, const TextSink& write) {
  const Layout& layout = arena.layout;
  write(text("{\"param_dtype\":\"", name_of(arena.param_type), "\",\"grad_dtype\":\"", name_of(arena.grad_type),
             "\",\"numel\":", layout.numel, ",\"params\":"));
  write_list(layout.slots.size(), write, [&](size_t i) {
    const Slot& slot = layout.slots[i];
    write(Json({{"index", slot.param}, {"begin", slot.begin}, {"end", slot.end}, {"bucket", slot.bucket}}).dump());
  });
  write(",\"buckets\":");
  write_list(layout.buckets.size(), write, [&](size_t i) {
    const BucketRange& bucket = layout.buckets[i];
    write(Json({{"begin", bucket.begin}, {"end", bucket.end}, {"unpadded", bucket.unpadded}}).dump());
  });
  write(",\"owned\":");
  write_list(static_cast<size_t>(arena.shards), write, [&](size_t shard) { write_owned(arena, static_cast<int>(shard), write); });
  write(arena.expert ? ",\"expert\":true" : "");
  write(arena.is_whole() ? ",\"whole\":true}" : "}");
}

std::string bytes_json(const MemoryPlan& bytes) {
  return Json({{"param", bytes.param},
               {"grad", bytes.grad},
               {"grad_shard", bytes.grad_shard},
               {"spill", bytes.spill},
               {"feedback", bytes.feedback},
               {"master", bytes.master},
               {"state", bytes.state},
               {"scratch", bytes.scratch},
               {"communicators", bytes.communicators},
               {"snapshot", bytes.snapshot},
               {"average", bytes.average}})
      .dump();
}

}  // namespace

void write_plan_json(const Plan& plan, const TextSink& write) {
  write(text("{\"dp\":", plan.grid.size(kDp), ",\"arenas\":"));
  write_list(plan.arenas.size(), write, [&](size_t i) { write_arena(plan.arenas[i], write); });
  const std::vector<int> replicas = plan.grid.group(Grid::replica_axes(false), 0);
  const bool alike = std::none_of(plan.arenas.begin(), plan.arenas.end(), [](const ArenaPlan& arena) { return arena.is_whole(); });
  const std::string each = bytes_json(plan.memory(0));
  write(",\"bytes\":");
  write_list(replicas.size(), write, [&](size_t i) { write(alike ? each : bytes_json(plan.memory(replicas[i]))); });
  write("}");
}

std::string plan_json(const Plan& plan) {
  std::string out;
  write_plan_json(plan, [&out](std::string_view piece) { out += piece; });
  return out;
}

std::string grid_groups_json(const Grid& grid, Axes axes) {
  return Json(grid.groups(axes)).dump();
}

}  // namespace megadp
