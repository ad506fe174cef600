// SPDX-License-Identifier: Apache-2.0
// What a plan costs: the bytes of a rank's arrays, of small fixed allocations, of groups and of a device's communicators.
#include <algorithm>

#include "backend/group.h"
#include "base/checked.h"
#include "base/rules.h"
#include "core/plan.h"

namespace megadp {
namespace {

// The groups that registering makes for the parts that are not the same: on the channels of gradients and of gathers one each, with
// instances those of an instance too, and the one across them; where gradients are partial those of tensor-parallel ranks, for the sum and
// the agreement; where parameters are tied those of their stages, taken for the same with all; and the world's on the first channel.
uint64_t group_bytes(const Plan& plan) {
  const Axes dense = Grid::replica_axes(false), expert = Grid::replica_axes(true);
  const int world = plan.grid.world(), dense_size = plan.grid.size(dense), expert_size = plan.grid.size(expert);
  const int instances = plan.instances();
  const auto of_part = [instances](int size) -> uint64_t {
    if (size == 1) return 0;
    return instances == 1 ? 2 : size == instances ? 3 : 5;
  };
  uint64_t groups = of_part(dense_size);
  if (plan.grid.groups(expert) != plan.grid.groups(dense)) groups += of_part(expert_size);
  if (dense_size < world && expert_size < world) ++groups;
  for (const bool part : {false, true}) {
    if (!plan.has_partial(part)) continue;
    for (const Axes axes : {Grid::tp_axes(part), Grid::tp_axes(part) | Grid::replica_axes(part)}) groups += plan.grid.size(axes) < world;
  }
  if (plan.has_ties()) ++groups;
  return groups * kGroupBytes;
}

// The communicators that a step's collectives run on, which are made with the first of these: of the parts that have parameters the
// gradients', inside and across instances, and the gathers' where the state is sharded; and the world's, for the norm.
uint64_t communicators(const Plan& plan) {
  const Axes dense = Grid::replica_axes(false), expert = Grid::replica_axes(true);
  const bool same = plan.grid.groups(dense) == plan.grid.groups(expert);
  uint64_t count = 0;
  bool world_covered = plan.grid.world() == 1, counted = false;
  for (const bool part : {false, true}) {
    const auto of_part = [part](const ArenaPlan& arena) { return arena.expert == part; };
    const auto arena = std::find_if(plan.arenas.begin(), plan.arenas.end(), of_part);
    if (arena == plan.arenas.end() || arena->group_size == 1 || (same && counted)) continue;
    const bool one_instance = arena->instances == 1;
    count += (arena->shards > 1 ? 2 : one_instance ? 1 : 0) + (one_instance ? 0 : 1);
    counted = true;
    world_covered = world_covered || (one_instance && arena->group_size == plan.grid.world());
  }
  for (const bool part : {false, true}) count += plan.has_partial(part) && plan.grid.size(Grid::tp_axes(part)) < plan.grid.world();
  if (plan.has_ties()) ++count;
  return world_covered ? count : count + 1;
}

// The groups that add up what was sent as bf16.
uint64_t summing_groups(const Plan& plan) {
  uint64_t count = 0;
  for (const bool part : {false, true}) {
    const bool any = std::any_of(plan.arenas.begin(), plan.arenas.end(), [part](const ArenaPlan& arena) {
      return arena.expert == part && arena.wire_elements > 0 && arena.group_size > arena.instances;
    });
    count += any ? 1 : 0;
  }
  return count;
}

// Of one microbatch, in f32: half-width gradients that come in several parts are added up in it.
uint64_t spill_bytes(const Plan& plan, const ArenaPlan& arena) {
  uint64_t elements = 0;
  for (const size_t i : arena.params) elements += plan.params[i].numel;
  return elements * sizeof(float);
}

// What an optimizer of the caller's keeps of parameters, where this rank owns them.
uint64_t param_state_bytes(const Plan& plan, const std::vector<OwnedRange>& owned) {
  uint64_t bytes = 0;
  for (const std::vector<uint64_t>& of_each : plan.optimizer.param_states) {
    for (const OwnedRange& range : owned) bytes += round_up(of_each[range.param], kParamStateAlignment);
  }
  return bytes;
}

// The gradients of a bucket, which are handed to the caller's update together.
uint64_t most_packed(const std::vector<OwnedRange>& owned) {
  uint64_t most = 0;
  PackedPieces bucket;
  for (size_t i = 0; i < owned.size(); ++i) {
    if (i > 0 && owned[i].bucket != owned[i - 1].bucket) bucket = {};
    bucket.add(owned[i].begin, owned[i].end);
    most = std::max(most, bucket.elements());
  }
  return most;
}

}  // namespace

uint64_t Plan::packed_elements() const {
  uint64_t elements = 0;
  const bool tied = has_ties();
  for (const ArenaPlan& arena : arenas) {
    const bool partial = has_partial(arena.expert);
    if (!partial && !tied) continue;
    for (const BucketRange& bucket : arena.layout.buckets) {
      uint64_t packed = 0;
      for (uint32_t slot = bucket.first_slot; slot < bucket.end_slot; ++slot) {
        const Slot& place = arena.layout.slots[slot];
        if (is_tied(place.param) || (partial && is_partial(params[place.param].placement))) packed += place.end - place.begin;
      }
      elements += std::min(packed, longest_piece(arena.layout, static_cast<uint32_t>(&bucket - arena.layout.buckets.data())));
    }
  }
  return elements;
}

MemoryPlan Plan::memory(int rank) const {
  const bool is_callers = optimizer.rule == kCallerRule;
  const uint64_t kept = is_callers ? optimizer.states * sizeof(float) : state_bytes(megadp::rule(optimizer.rule), optimizer.bf16_state);
  uint64_t handed_out = 0;
  MemoryPlan bytes;
  for (const ArenaPlan& arena : arenas) {
    const uint64_t owned = shard_elements(arena.layout, shard(arena, rank));
    bytes.param += arena.layout.numel * size_of(arena.param_type);
    bytes.grad += arena.grad_elements() * size_of(arena.grad_type);
    if (arena.pool_slots > 0) {
      bytes.grad_shard += owned * sizeof(float);
      bytes.spill += spill_bytes(*this, arena);
    }
    if (config.error_feedback && arena.wire_elements > 0) bytes.feedback += arena.layout.numel * sizeof(float);
    const bool without = optimizer.no_master && arena.param_type == DType::bf16;
    if (has_master(arena) && !without) bytes.master += owned * sizeof(float);
    bytes.state += owned * kept;
    bytes.average += owned * average_bytes(arena);
    bytes.snapshot += owned * (size_of(arena.param_type) + (optimizer.average ? sizeof(float) : 0));
    if (!is_callers) continue;
    const std::vector<OwnedRange> ranges = owned_ranges(arena.layout, shard(arena, rank));
    bytes.state += param_state_bytes(*this, ranges);
    handed_out = std::max(handed_out, most_packed(ranges));
  }
  bytes.snapshot += bytes.master + bytes.state;
  if (config.spill_limit != 0) bytes.spill = std::min(bytes.spill, config.spill_limit);
  bytes.scratch = scratch_bytes(*this) + handed_out * sizeof(float);
  bytes.communicators = communicators(*this) * kCommunicatorBytes + summing_groups(*this) * kSumBytes;
  return bytes;
}

uint64_t step_count_bytes(const Plan& plan) {
  uint64_t params = 0;
  for (const ArenaPlan& arena : plan.arenas) params += arena.params.size();
  return params * sizeof(uint64_t);
}

uint64_t token_bytes(const Plan& plan) {
  return static_cast<uint64_t>(1 + plan.grid.world()) * sizeof(double);
}

uint64_t square_bytes(const Plan& plan) {
  return 2 * sizeof(double) * plan.launch_order.size();
}

uint64_t scratch_bytes(const Plan& plan) {
  uint64_t bytes = 2 * sizeof(StepScalars) + square_bytes(plan) + step_count_bytes(plan) + group_bytes(plan);
  for (const ArenaPlan& arena : plan.arenas)
    bytes += arena.wide_slots * arena.wide_elements * sizeof(float) + arena.wire_elements * size_of(DType::bf16);
  bytes += plan.packed_elements() * sizeof(float);
  if (plan.config.scaling == Scaling::tokens) bytes += token_bytes(plan);
  if (plan.config.check_finite) bytes += step_count_bytes(plan);     // a number for each parameter
  if (plan.config.check_large) bytes += 2 * step_count_bytes(plan);  // a sum and a count
  for (const AgreementPlan& agreement : plan.agreements()) {
    const auto ranks = static_cast<uint64_t>(agreement.axes == 0 ? plan.grid.world() : plan.grid.size(agreement.axes));
    bytes += agreement_bytes(agreement.params.size()) * (1 + ranks);
  }
  return bytes;
}

}  // namespace megadp
