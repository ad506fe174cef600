// SPDX-License-Identifier: Apache-2.0
// The plan: parameters sorted into arenas, and arenas cut into buckets.
#include "core/plan.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/finding.h"
#include "base/hash.h"

namespace megadp {
namespace {

Status check_config(const BufferConfig& config) {
  if (config.bucket_elements != 0 && config.bucket_count != 0) {
    return invalid("bucket_elements is ", config.bucket_elements, " and bucket_count is ", config.bucket_count, "; give one of them");
  }
  const bool pooled = config.sharding == Sharding::zero_2;
  if (!pooled && (config.pool_buckets != 0 || config.spill_limit != 0)) {
    const bool pool = config.pool_buckets != 0;
    return invalid(pool ? "pool_buckets is " : "spill_limit is ", pool ? config.pool_buckets : config.spill_limit,
                   "; only MDP_SHARDING_ZERO_2 has a pool, leave it 0");
  }
  if (config.error_feedback && !config.wire_bf16) {
    return invalid("flags has MDP_BUFFER_ERROR_FEEDBACK (16) and wire_dtype is not MDP_DTYPE_BF16 (3); what is not rounded loses nothing");
  }
  if (config.error_feedback && pooled) {
    return unsupported(
        "flags has MDP_BUFFER_ERROR_FEEDBACK (16) and sharding is MDP_SHARDING_ZERO_2 (3); what rounding loses takes as much memory as "
        "whole f32 gradients, which ZERO_2 is there to save: take ZERO_1 (2), or leave the flag out");
  }
  if (config.reference_buckets && (config.bucket_elements != 0 || config.bucket_count != 0)) {
    const char* other = config.bucket_elements != 0 ? "bucket_elements" : "bucket_count";
    return invalid("flags has MDP_BUFFER_REFERENCE_BUCKETS and ", other, " is ", std::max(config.bucket_elements, config.bucket_count),
                   "; give one of them");
  }
  return {};
}

// First by the leading bits of the digest, as many as make a few to a place, then within each place: in time that grows with the number.
template <class Before>
std::vector<Plan::Name> sort_by_digest(const std::vector<Plan::Name>& unsorted, const Before& before) {
  const int bits = static_cast<int>(std::bit_width(unsorted.size() / 4 + 1));
  const auto place_of = [bits](const Plan::Name& name) { return static_cast<size_t>(name.digest >> (64 - bits)); };
  std::vector<uint32_t> ends((size_t{1} << bits) + 1);  // of what lies before a place, until it is filled
  for (const Plan::Name& name : unsorted) ++ends[place_of(name) + 1];
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  std::vector<Plan::Name> all(unsorted.size());
  for (const Plan::Name& name : unsorted) all[ends[place_of(name)]++] = name;
  size_t begin = 0;
  for (size_t place = 0; place + 1 < ends.size(); begin = ends[place++]) std::sort(all.begin() + begin, all.begin() + ends[place], before);
  return all;
}

// By digests in order: a table of hundreds of thousands of names is slow to walk through in any other.
Result<std::vector<Plan::Name>> sort_names(const std::vector<ParamSpec>& params) {
  using Name = Plan::Name;
  std::vector<Name> all;
  all.reserve(params.size());
  for (size_t i = 0; i < params.size(); ++i) all.push_back({hash_bytes(params[i].name), i});
  all = sort_by_digest(all, [&](const Name& a, const Name& b) {
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

// One stage holds one copy.
Status check_ties(const std::vector<ParamSpec>& params) {
  std::map<std::string_view, size_t> first;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].tie.empty()) continue;
    const auto [at, is_new] = first.emplace(params[i].tie, i);
    if (is_new) continue;
    return invalid(param_label(i, params[i].name), " has the same tie as ", param_label(at->second, params[at->second].name),
                   "; register what one rank uses in several places once, with uses_per_step")
        .with_blame({.param = static_cast<int64_t>(i)});
  }
  return {};
}

// Pieces of one parameter and whole ones lie side by side, also in a pool; a pool, or nothing sharded at all, is a whole buffer's.
Status check_sharding(const BufferConfig& config, size_t index, const ParamSpec& param) {
  if (param.sharding == Sharding::unset || param.sharding == config.sharding) return {};
  if (param.sharding == Sharding::whole && config.sharding != Sharding::zero_0) return {};
  if (param.sharding == Sharding::zero_1 && config.sharding == Sharding::whole) return {};
  return invalid(param_label(index, param.name), " has sharding ", name_of(param.sharding), " in a buffer of ", name_of(config.sharding),
                 "; it may be whole in one of zero_1 or zero_2, and zero_1 in one of whole, else leave it 0")
      .with_blame({.param = static_cast<int64_t>(index)});
}

Status check_params(Plan* plan) {
  std::vector<ParamSpec>& params = plan->params;
  if (params.size() > UINT32_MAX) return invalid("there are ", params.size(), " parameters; at most ", UINT32_MAX, " are allowed");
  const GridConfig& sizes = plan->grid.config();
  bool trainable = false, tied = false;
  for (size_t i = 0; i < params.size(); ++i) {
    ParamSpec& param = params[i];
    const bool needs_placement = sizes.tp > 1 || sizes.ep > 1 || (param.expert && sizes.expert_tp > 1);
    if (Status bad = check_param(i, needs_placement, &param); !bad) return bad;
    if (Status bad = check_sharding(plan->config, i, param); !bad) return bad;
    trainable |= !param.frozen;
    tied |= !param.tie.empty();
    if (plan->config.check_finite && !param.frozen && param.numel >= kMostFindingElements) {
      return invalid(param_label(i, param.name), " has ", param.numel, " elements; with MDP_BUFFER_CHECK_FINITE it must have less than ",
                     kMostFindingElements)
          .with_blame({.param = static_cast<int64_t>(i)});
    }
  }
  if (params.empty()) return invalid("there are no parameters; give at least one");
  auto names = sort_names(params);
  if (!names) return names.status();
  plan->names = *std::move(names);
  if (Status bad = tied ? check_ties(params) : Status(); !bad) return bad;
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
    const Sharding sharding = sharding_of(plan.config, param);
    auto arena = std::find_if(arenas.begin(), arenas.end(), [&](const ArenaPlan& a) {
      return a.param_type == param.dtype && a.grad_type == grad_type && a.expert == param.expert && a.sharding == sharding;
    });
    if (arena == arenas.end()) {
      ArenaPlan fresh;
      fresh.param_type = param.dtype;
      fresh.grad_type = grad_type;
      fresh.expert = param.expert;
      fresh.group_size = plan.grid.size(Grid::replica_axes(param.expert));
      fresh.instances = plan.instances();
      fresh.sharding = sharding;
      fresh.shards = sharding == Sharding::zero_0 ? 1 : fresh.group_size / fresh.instances;
      arena = arenas.insert(arena, std::move(fresh));
    }
    arena->params.push_back(i);
  }
  return arenas;
}

LayoutRules layout_rules(const Plan& plan, const ArenaPlan& arena) {
  LayoutRules rules;
  rules.sharded = arena.sharding != Sharding::zero_0;
  rules.whole = arena.is_whole();
  rules.high_bandwidth_padding = plan.config.high_bandwidth_padding;
  rules.bucket_elements = arena.bucket_elements;
  rules.shards = arena.shards;
  return rules;
}

// No sum of sizes may come near the end of the integers, not even with the most padding there could be: each parameter aligned, and in a
// bucket of its own. Counts each arena's elements.
Status check_total(Plan* plan) {
  uint64_t total = 0;
  for (ArenaPlan& arena : plan->arenas) {
    const uint64_t padding = 64 + std::lcm(static_cast<uint64_t>(arena.shards), uint64_t{65536});
    for (const size_t i : arena.params) {
      const ParamSpec& param = plan->params[i];
      arena.elements += param.numel;
      if (!checked_add(total, param.numel, &total) || !checked_add(total, padding, &total) || total > kMaxElements) {
        return invalid(param_label(i, param.name), " has ", param.numel, " elements, which makes more than ", kMaxElements,
                       " in all with padding: that much cannot be laid out")
            .with_blame({.param = static_cast<int64_t>(i)});
      }
    }
  }
  return {};
}

uint64_t resolve_bucket_elements(const Plan& plan, const ArenaPlan& arena) {
  const BufferConfig& config = plan.config;
  // One threshold for dense and expert parameters, as in the reference.
  const int group_size = plan.grid.size(Grid::replica_axes(false));
  if (config.no_overlap) return UINT64_MAX;  // nothing is launched early, so one launch is cheapest
  if (config.reference_buckets) return reference_bucket_elements(group_size);
  if (config.bucket_elements != 0) return config.bucket_elements;
  if (config.bucket_count == 0) return default_bucket_elements(arena.elements, group_size);
  uint64_t total = 0;
  for (const ArenaPlan& each : plan.arenas) total += each.elements;
  return std::max<uint64_t>(total / config.bucket_count, 1);
}

// `used`: an arena's parameters, which come to be in the order of the forward pass. Mostly they are: then one look at each is enough.
std::vector<LayoutParam> in_order_of_use(const Plan& plan, const std::vector<uint32_t>& owners, std::vector<size_t>* used) {
  std::vector<LayoutParam> params;
  params.reserve(used->size());
  int32_t last = INT32_MIN;
  for (const size_t i : *used) {
    const ParamSpec& param = plan.params[i];
    if (param.use_order < last) {
      std::sort(used->begin(), used->end(), [&plan](size_t a, size_t b) { return plan.used_before(a, b); });
      return in_order_of_use(plan, owners, used);
    }
    last = param.use_order;
    params.push_back({param.numel, param.own_bucket || plan.is_tied(i), owners.empty() ? 0 : owners[i]});
  }
  return params;
}

void lay_out(const Plan& plan, const std::vector<uint32_t>& owners, ArenaPlan* arena) {
  std::vector<size_t> used = arena->params;
  const std::vector<LayoutParam> params = in_order_of_use(plan, owners, &used);
  arena->layout = make_layout(params, layout_rules(plan, *arena));
  for (Slot& slot : arena->layout.slots) slot.param = used[slot.param];
  const bool pooled = plan.config.sharding == Sharding::zero_2;
  uint64_t longest = 0;
  for (const BucketRange& bucket : arena->layout.buckets) longest = std::max(longest, bucket.end - bucket.begin);
  if (arena->instances > 1 && arena->grad_type != DType::f32) {
    arena->wide_slots = pooled ? 1 : std::min<uint64_t>(2, arena->layout.buckets.size());
    for (uint32_t bucket = 0; bucket < arena->layout.buckets.size(); ++bucket)
      arena->wide_elements = std::max(arena->wide_elements, longest_piece(arena->layout, bucket));
  }
  if (plan.config.wire_bf16 && arena->grad_type == DType::f32 && longest > 0) {
    const auto ranks = static_cast<uint64_t>(arena->group_size / arena->instances);
    arena->wire_elements = std::max(std::min(longest, kWireElements), ranks);
  }
  if (!pooled) return;
  const uint64_t wanted = plan.config.pool_buckets != 0 ? plan.config.pool_buckets : kPoolBuckets;
  const uint64_t most = std::max<uint64_t>(kMaxElements / std::max<uint64_t>(longest, 1), 1);  // the product stays a number of elements
  arena->pool_slots = std::min<uint64_t>({wanted, arena->layout.buckets.size(), most});
  arena->slot_elements = longest;
}

// With overlap in the order in which backward makes gradients. Without it, what the same ranks reduce stands together, to go at once: also
// on ranks that share dense parameters and have different experts between them.
std::vector<BucketRef> order_launches(const Plan& plan) {
  const bool overlap = !plan.config.no_overlap;
  struct Keyed {
    bool expert;
    size_t earliest;
    BucketRef bucket;
  };
  std::vector<Keyed> all;
  for (uint32_t a = 0; a < plan.arenas.size(); ++a) {
    const ArenaPlan& arena = plan.arenas[a];
    for (uint32_t b = 0; b < arena.layout.buckets.size(); ++b) {
      // Slots lie in the reverse order of use, unless they lie by owner: else a bucket's last one is used first.
      size_t earliest = arena.layout.slots[arena.layout.buckets[b].end_slot - 1].param;
      for (uint32_t slot = arena.layout.buckets[b].first_slot; arena.is_whole() && slot < arena.layout.buckets[b].end_slot; ++slot) {
        if (const size_t param = arena.layout.slots[slot].param; plan.used_before(param, earliest)) earliest = param;
      }
      all.push_back({arena.expert, earliest, {a, b}});
    }
  }
  std::sort(all.begin(), all.end(), [&](const Keyed& x, const Keyed& y) {
    return !overlap && x.expert != y.expert ? y.expert : plan.used_before(y.earliest, x.earliest);
  });
  std::vector<BucketRef> order;
  order.reserve(all.size());
  for (const Keyed& keyed : all) order.push_back(keyed.bucket);
  return order;
}

}  // namespace

Result<Plan> make_plan(const Grid& grid, const BufferConfig& config, std::vector<ParamSpec> params) {
  if (Status bad = check_config(config); !bad) return bad;
  Plan plan;
  plan.grid = grid;
  plan.config = config;
  plan.params = std::move(params);
  if (Status bad = check_params(&plan); !bad) return bad;
  plan.arenas = sort_into_arenas(plan);
  if (Status bad = check_total(&plan); !bad) return bad;
  const std::vector<uint32_t> owners = assign_owners(plan);
  for (ArenaPlan& arena : plan.arenas) {
    arena.bucket_elements = resolve_bucket_elements(plan, arena);
    lay_out(plan, owners, &arena);
  }
  plan.launch_order = order_launches(plan);
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
  const uint64_t digest = hash_bytes(name);
  auto at = std::lower_bound(names.begin(), names.end(), digest, [](const Name& each, uint64_t value) { return each.digest < value; });
  for (; at != names.end() && at->digest == digest; ++at) {
    if (params[at->param].name == name) return at->param;
  }
  return {};
}

int Plan::instances() const {
  return config.sharding == Sharding::zero_0 ? 1 : grid.config().instances;
}

int Plan::shard(const ArenaPlan& arena, int rank) const {
  return grid.index(Grid::replica_axes(arena.expert), rank) % arena.shards;
}

bool Plan::has_ties() const {
  if (grid.size(kPp) == 1) return false;
  return std::any_of(params.begin(), params.end(), [](const ParamSpec& param) { return !param.tie.empty(); });
}

bool Plan::divides_by_tokens_at_once() const {
  return config.scaling == Scaling::tokens &&
         std::any_of(arenas.begin(), arenas.end(), [](const ArenaPlan& arena) { return arena.grad_type != DType::f32; });
}

bool Plan::has_partial(bool expert) const {
  if (grid.size(Grid::tp_axes(expert)) == 1) return false;
  return std::any_of(params.begin(), params.end(),
                     [expert](const ParamSpec& param) { return !param.frozen && param.expert == expert && is_partial(param.placement); });
}

// Dense, expert, and of each the partial ones, which tensor-parallel ranks must agree on as well; and the world if none of these is the
// whole of it: other pipeline stages and expert ranks must learn of a problem too. What is tied all agree on.
std::vector<AgreementPlan> Plan::agreements() const {
  AgreementPlan parts[4];  // plain, partial; then the experts'
  bool apart[2];
  for (const bool expert : {false, true}) {
    AgreementPlan* const part = parts + (expert ? 2 : 0);
    part[0].axes = Grid::replica_axes(expert);
    part[1].axes = part[0].axes | Grid::tp_axes(expert);
    apart[expert ? 1 : 0] = has_partial(expert);
  }
  for (size_t param = 0; param < params.size(); ++param) {
    const ParamSpec& spec = params[param];
    if (spec.frozen || is_tied(param)) continue;
    const size_t expert = spec.expert ? 1 : 0;
    parts[2 * expert + (apart[expert] && is_partial(spec.placement) ? 1 : 0)].params.push_back(param);
  }
  std::vector<AgreementPlan> all;
  bool world_covered = false;
  for (AgreementPlan& one : parts) {
    if (one.params.empty()) continue;
    world_covered = world_covered || grid.size(one.axes) == grid.world();
    all.push_back(std::move(one));
  }
  if (world_covered) return all;
  all.push_back({0, {}});
  for (size_t param = 0; param < params.size(); ++param) {
    if (is_tied(param)) all.back().params.push_back(param);
  }
  return all;
}

bool Plan::is_first_replica(const ArenaPlan& arena, int rank) const {
  return grid.index(Grid::replica_axes(arena.expert), rank) < arena.shards;
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
    for (const OwnedRange& range : owned_ranges(arena.layout, shard(arena, rank))) sum += range.end - range.begin;
  return sum;
}

}  // namespace megadp
