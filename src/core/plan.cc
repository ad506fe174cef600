// SPDX-License-Identifier: Apache-2.0
// The plan: parameters sorted into arenas, arenas cut into buckets, and what all of it costs.
#include "core/plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "backend/group.h"
#include "base/checked.h"
#include "base/hash.h"
#include "base/rules.h"

namespace megadp {
namespace {

Status check_config(const Grid& grid, const BufferConfig& config) {
  if (grid.config().instances > 1) {
    return unsupported("instances is ", grid.config().instances, "; more than one optimizer instance is not supported yet, use 1");
  }
  if (config.bucket_elements != 0 && config.bucket_count != 0) {
    return invalid("bucket_elements is ", config.bucket_elements, " and bucket_count is ", config.bucket_count, "; give one of them");
  }
  if (config.reference_buckets && (config.bucket_elements != 0 || config.bucket_count != 0)) {
    const char* other = config.bucket_elements != 0 ? "bucket_elements" : "bucket_count";
    return invalid("flags has MDP_BUFFER_REFERENCE_BUCKETS and ", other, " is ", std::max(config.bucket_elements, config.bucket_count),
                   "; give one of them");
  }
  return {};
}

// By digests in order: a table of hundreds of thousands of names is slow to walk through in any other.
Result<std::vector<Plan::Name>> sort_names(const std::vector<ParamSpec>& params) {
  using Name = Plan::Name;
  std::vector<Name> all;
  all.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) all.push_back({hash_bytes(params[i].name.data(), params[i].name.size()), i});
  std::sort(all.begin(), all.end(), [&](const Name& a, const Name& b) {
    if (a.digest != b.digest) return a.digest < b.digest;
    const int order = params[a.param].name.compare(params[b.param].name);
    return order != 0 ? order < 0 : a.param < b.param;
  });
  const auto same = [&](const Name& a, const Name& b) { return a.digest == b.digest && params[a.param].name == params[b.param].name; };
  size_t first = 0, again = params.size();
  for (auto at = all.begin(); (at = std::adjacent_find(at, all.end(), same)) != all.end(); ++at) {
    const size_t later = (at + 1)->param;
    if (later < again) std::tie(first, again) = std::pair(at->param, later);
  }
  if (again == params.size()) return all;
  return invalid(param_label(again, params[again].name), " has the same name as parameter ", first, "; names must be unique")
      .with_blame({.param = static_cast<int64_t>(again)});
}

Status check_params(Plan* plan) {
  std::vector<ParamSpec>& params = plan->params;
  if (params.size() > UINT32_MAX) return invalid("there are ", params.size(), " parameters; at most ", UINT32_MAX, " are allowed");
  const GridConfig& sizes = plan->grid.config();
  bool trainable = false;
  for (size_t i = 0; i < params.size(); ++i) {
    ParamSpec& param = params[i];
    const bool needs_placement = sizes.tp > 1 || sizes.ep > 1 || (param.expert && sizes.expert_tp > 1);
    if (Status bad = check_param(i, needs_placement, &param); !bad) return bad;
    trainable |= !param.frozen;
  }
  if (params.empty()) return invalid("there are no parameters; give at least one");
  auto names = sort_names(params);
  if (!names) return names.status();
  plan->names = *std::move(names);
  if (!trainable) return invalid("all ", params.size(), " parameters are frozen; at least one must be trainable");
  return {};
}

// The arenas and the parameters in them, in order of first registration; no layout yet.
std::vector<ArenaPlan> sort_into_arenas(const Plan& plan) {
  std::vector<ArenaPlan> arenas;
  for (size_t i = 0; i < plan.params.size(); ++i) {
    const ParamSpec& param = plan.params[i];
    if (param.frozen) continue;
    const DType grad_type = plan.config.grad_same_as_param ? param.dtype : DType::f32;
    auto arena = std::find_if(arenas.begin(), arenas.end(), [&](const ArenaPlan& a) {
      return a.param_type == param.dtype && a.grad_type == grad_type && a.expert == param.expert;
    });
    if (arena == arenas.end()) {
      ArenaPlan fresh;
      fresh.param_type = param.dtype;
      fresh.grad_type = grad_type;
      fresh.expert = param.expert;
      fresh.group_size = plan.grid.size(Grid::shard_axes(param.expert));
      fresh.shards = plan.config.sharding == Sharding::zero_0 ? 1 : fresh.group_size;
      arena = arenas.insert(arena, std::move(fresh));
    }
    arena->params.push_back(i);
  }
  return arenas;
}

LayoutRules layout_rules(const Plan& plan, const ArenaPlan& arena) {
  LayoutRules rules;
  rules.sharded = plan.config.sharding != Sharding::zero_0;
  rules.high_bandwidth_padding = plan.config.high_bandwidth_padding;
  rules.bucket_elements = arena.bucket_elements;
  rules.shards = arena.shards;
  return rules;
}

// No sum of sizes may come near the end of the integers, not even with the most padding there could be: each parameter aligned, and in a
// bucket of its own.
Status check_total(const Plan& plan) {
  uint64_t total = 0;
  for (const ArenaPlan& arena : plan.arenas) {
    const uint64_t padding = 64 + std::lcm(static_cast<uint64_t>(arena.shards), uint64_t{65536});
    for (const size_t i : arena.params) {
      const ParamSpec& param = plan.params[i];
      if (!checked_add(total, param.numel, &total) || !checked_add(total, padding, &total) || total > kMaxElements) {
        return invalid(param_label(i, param.name), " has ", param.numel, " elements, which makes more than ", kMaxElements,
                       " in all with padding: that much cannot be laid out")
            .with_blame({.param = static_cast<int64_t>(i)});
      }
    }
  }
  return {};
}

uint64_t elements_of(const Plan& plan, const ArenaPlan& arena) {
  uint64_t sum = 0;
  for (const size_t i : arena.params) sum += plan.params[i].numel;
  return sum;
}

uint64_t resolve_bucket_elements(const Plan& plan, const ArenaPlan& arena) {
  const BufferConfig& config = plan.config;
  // One threshold for dense and expert parameters, as in the reference.
  const int group_size = plan.grid.size(Grid::shard_axes(false));
  if (config.no_overlap) return UINT64_MAX;  // nothing is launched early, so one launch is cheapest
  if (config.reference_buckets) return reference_bucket_elements(group_size);
  if (config.bucket_elements != 0) return config.bucket_elements;
  if (config.bucket_count == 0) return default_bucket_elements(elements_of(plan, arena), group_size);
  uint64_t total = 0;
  for (const ArenaPlan& each : plan.arenas) total += elements_of(plan, each);
  return std::max<uint64_t>(total / config.bucket_count, 1);
}

void lay_out(const Plan& plan, ArenaPlan* arena) {
  std::vector<LayoutParam> params;
  params.reserve(arena->params.size());
  for (const size_t i : arena->params) params.push_back({plan.params[i].numel, plan.params[i].own_bucket});
  arena->layout = make_layout(params, layout_rules(plan, *arena));
  for (Slot& slot : arena->layout.slots) slot.param = arena->params[slot.param];
}

// With overlap in the order in which backward makes gradients. Without it, what the same ranks reduce stands together, to go at once: also
// on ranks that share dense parameters and have different experts between them.
std::vector<BucketRef> order_launches(const std::vector<ArenaPlan>& arenas, bool overlap) {
  struct Keyed {
    bool expert;
    size_t earliest;
    BucketRef bucket;
  };
  std::vector<Keyed> all;
  for (uint32_t a = 0; a < arenas.size(); ++a) {
    const Layout& layout = arenas[a].layout;
    // Slots lie in reverse registration order, so a bucket's last one was registered first.
    for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
      all.push_back({arenas[a].expert, layout.slots[layout.buckets[b].end_slot - 1].param, {a, b}});
    }
  }
  std::sort(all.begin(), all.end(),
            [overlap](const Keyed& x, const Keyed& y) { return !overlap && x.expert != y.expert ? y.expert : x.earliest > y.earliest; });
  std::vector<BucketRef> order;
  order.reserve(all.size());
  for (const Keyed& keyed : all) order.push_back(keyed.bucket);
  return order;
}

// The groups that registering makes: for dense and for expert parameters one on the channel of gradients and one on that of gathers, and
// the world's on the first.
uint64_t group_bytes(const Plan& plan) {
  const Axes dense = Grid::shard_axes(false), expert = Grid::shard_axes(true);
  const int world = plan.grid.world(), dense_size = plan.grid.size(dense), expert_size = plan.grid.size(expert);
  uint64_t groups = dense_size > 1 ? 2 : 0;
  if (expert_size > 1 && plan.grid.groups(expert) != plan.grid.groups(dense)) groups += 2;
  if (dense_size < world && expert_size < world) ++groups;
  return groups * kGroupBytes;
}

// The communicators that a step's collectives run on, which are made with the first of these: of the parts that have parameters the
// gradients', and the gathers' where the state is sharded; and the world's, for the norm.
uint64_t communicators(const Plan& plan) {
  const Axes dense = Grid::shard_axes(false), expert = Grid::shard_axes(true);
  const bool same = plan.grid.groups(dense) == plan.grid.groups(expert);
  uint64_t count = 0;
  bool world_covered = plan.grid.world() == 1, counted = false;
  for (const bool part : {false, true}) {
    const auto of_part = [part](const ArenaPlan& arena) { return arena.expert == part; };
    const auto arena = std::find_if(plan.arenas.begin(), plan.arenas.end(), of_part);
    if (arena == plan.arenas.end() || arena->group_size == 1 || (same && counted)) continue;
    count += arena->shards > 1 ? 2 : 1;
    counted = true;
    world_covered = world_covered || arena->group_size == plan.grid.world();
  }
  return world_covered ? count : count + 1;
}

}  // namespace

Result<Plan> make_plan(const Grid& grid, const BufferConfig& config, std::vector<ParamSpec> params) {
  if (Status bad = check_config(grid, config); !bad) return bad;
  Plan plan;
  plan.grid = grid;
  plan.config = config;
  plan.params = std::move(params);
  if (Status bad = check_params(&plan); !bad) return bad;
  plan.arenas = sort_into_arenas(plan);
  if (Status bad = check_total(plan); !bad) return bad;
  for (ArenaPlan& arena : plan.arenas) {
    arena.bucket_elements = resolve_bucket_elements(plan, arena);
    lay_out(plan, &arena);
  }
  plan.launch_order = order_launches(plan.arenas, !config.no_overlap);
  return plan;
}

uint64_t reference_bucket_elements(int group_size) {
  return std::max<uint64_t>(40'000'000, uint64_t{1'000'000} * static_cast<uint64_t>(group_size));
}

// A tenth: of models of ten or more parameters of like size this makes 6 to 10 buckets (the parameter that crosses the line stays in, so
// buckets overshoot). Below 8192 elements a launch costs more than it hides.
uint64_t default_bucket_elements(uint64_t arena_elements, int group_size) {
  const uint64_t tenth = arena_elements / 10 + (arena_elements % 10 != 0 ? 1 : 0);
  return std::clamp<uint64_t>(tenth, 8192, reference_bucket_elements(group_size));
}

std::optional<size_t> Plan::find(std::string_view name) const {
  const uint64_t digest = hash_bytes(name.data(), name.size());
  auto at = std::lower_bound(names.begin(), names.end(), digest, [](const Name& each, uint64_t value) { return each.digest < value; });
  for (; at != names.end() && at->digest == digest; ++at) {
    if (params[at->param].name == name) return at->param;
  }
  return {};
}

int Plan::shard(const ArenaPlan& arena, int rank) const {
  return arena.shards == 1 ? 0 : grid.index(Grid::shard_axes(arena.expert), rank);
}

MemoryPlan Plan::memory(uint32_t rule) const {
  MemoryPlan bytes;
  for (const ArenaPlan& arena : arenas) {
    bytes.param += arena.layout.numel * size_of(arena.param_type);
    bytes.grad += arena.layout.numel * size_of(arena.grad_type);
    if (has_master(arena)) bytes.master += shard_elements(arena) * sizeof(float);
    for (const StateArray& state : megadp::rule(rule).state) bytes.state += shard_elements(arena) * size_of(state.type);
  }
  bytes.scratch = scratch_bytes(*this);
  bytes.communicators = communicators(*this) * kCommunicatorBytes;
  return bytes;
}

uint64_t step_count_bytes(const Plan& plan) {
  uint64_t params = 0;
  for (const ArenaPlan& arena : plan.arenas) params += arena.params.size();
  return params * sizeof(uint64_t);
}

uint64_t scratch_bytes(const Plan& plan) {
  uint64_t bytes = 2 * sizeof(StepScalars) + step_count_bytes(plan) + group_bytes(plan);
  bool world_covered = false;
  for (const bool expert : {false, true}) {
    uint64_t params = 0;
    for (const ArenaPlan& arena : plan.arenas) {
      if (arena.expert == expert) params += arena.params.size();
    }
    if (params == 0) continue;
    const int group_size = plan.grid.size(Grid::shard_axes(expert));
    bytes += agreement_bytes(params) * (1 + static_cast<uint64_t>(group_size));
    world_covered = world_covered || group_size == plan.grid.world();
  }
  return world_covered ? bytes : bytes + agreement_bytes(0) * (1 + static_cast<uint64_t>(plan.grid.world()));
}

uint64_t Plan::padding_elements() const {
  uint64_t padding = 0;
  for (const ArenaPlan& arena : arenas) {
    padding += arena.layout.numel;
    for (const Slot& slot : arena.layout.slots) padding -= slot.end - slot.begin;
  }
  return padding;
}

uint64_t Plan::owned_elements(int rank) const {
  uint64_t sum = 0;
  for (const ArenaPlan& arena : arenas)
    for (const OwnedRange& range : owned_ranges(arena.layout, arena.shards, shard(arena, rank))) sum += range.end - range.begin;
  return sum;
}

}  // namespace megadp
