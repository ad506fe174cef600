// SPDX-License-Identifier: Apache-2.0
// Plans and groups as JSON. What is written once a rank is turned into text at once, so that thousands of ranks need little memory.
#include "core/plan_json.h"

#include <nlohmann/json.hpp>

namespace megadp {
namespace {

using Json = nlohmann::ordered_json;

// "[first,second,...]" of what text_of answers for 0 to count - 1.
template <class TextOf>
std::string list(int count, const TextOf& text_of) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) {
    if (i != 0) out += ',';
    out += text_of(i);
  }
  return out + "]";
}

// `tail` is the text of further members, each with a comma in front.
std::string object_with(const Json& head, const std::string& tail) {
  std::string out = head.dump();
  out.pop_back();
  return out + tail + "}";
}

std::string arena_json(const ArenaPlan& arena) {
  Json params = Json::array(), buckets = Json::array();
  for (const Slot& slot : arena.layout.slots) {
    params.push_back({{"index", slot.param}, {"begin", slot.begin}, {"end", slot.end}, {"bucket", slot.bucket}});
  }
  for (const BucketRange& bucket : arena.layout.buckets) {
    buckets.push_back({{"begin", bucket.begin}, {"end", bucket.end}, {"unpadded", bucket.unpadded}});
  }
  const Json head = {{"param_dtype", name_of(arena.param_type)},
                     {"grad_dtype", name_of(arena.grad_type)},
                     {"numel", arena.layout.numel},
                     {"params", std::move(params)},
                     {"buckets", std::move(buckets)}};
  std::string tail =
      ",\"owned\":" + list(arena.shards, [&](int shard) {
        Json owned = Json::array();
        for (const OwnedRange& range : owned_ranges(arena.layout, arena.shards, shard)) {
          owned.push_back({{"param", range.param}, {"begin", range.begin}, {"end", range.end}, {"param_begin", range.param_begin}});
        }
        return owned.dump();
      });
  if (arena.expert) tail += ",\"expert\":true";
  return object_with(head, tail);
}

std::string bytes_json(const MemoryPlan& bytes) {
  return Json({{"param", bytes.param},
               {"grad", bytes.grad},
               {"grad_shard", bytes.grad_shard},
               {"master", bytes.master},
               {"state", bytes.state},
               {"scratch", bytes.scratch}})
      .dump();
}

}  // namespace

std::string plan_json(const Plan& plan) {
  const std::string buffers =
      list(static_cast<int>(plan.arenas.size()), [&](int i) { return arena_json(plan.arenas[static_cast<size_t>(i)]); });
  const std::string each = bytes_json(plan.memory());
  const std::string bytes = list(plan.grid.size(Grid::shard_axes(false)), [&](int) { return each; });
  return object_with(Json({{"dp", plan.grid.size(kDp)}}), ",\"buffers\":" + buffers + ",\"bytes\":" + bytes);
}

std::string grid_groups_json(const Grid& grid, Axes axes) {
  return Json(grid.groups(axes)).dump();
}

}  // namespace megadp
