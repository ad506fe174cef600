// SPDX-License-Identifier: Apache-2.0
// Plans: what registration would do, without a communicator.
#include "core/plan.h"

#include "api/config.h"
#include "api/error.h"
#include "api/intake.h"
#include "api/optimizer_config.h"
#include "core/plan_json.h"

using namespace megadp;

namespace {

Result<Grid> take_grid(const mdp_grid_config* given, int32_t world) {
  auto config = take_grid_config(given, "grid");
  if (!config) return config.status();
  return Grid::create(*config, world);
}

// What mdp_optimizer_create would refuse of it, but for what other ranks say.
Status take_optimizer(const mdp_optimizer_config* given, Plan* plan) {
  auto ours = take_optimizer_config(given, plan->params.size());
  if (!ours) return ours.status().with_context("optimizer");
  if (ours->some_groups) {
    return invalid("optimizer: config.flags has MDP_OPTIMIZER_SOME_GROUPS (16); a plan is of one optimizer that has all groups");
  }
  if (Status groups = check_groups(*ours, *plan); !groups) return groups.with_context("optimizer");
  if (Status masters = check_masters(*ours, *plan); !masters) return masters.with_context("optimizer");
  if (Status states = check_param_states(*ours, *plan); !states) return states.with_context("optimizer");
  plan->optimizer = {ours->rule, ours->bf16_state, ours->no_master, ours->average_decay > 0, ours->state.size(), {}};
  for (ParamState& state : ours->param_states) plan->optimizer.param_states.push_back(std::move(state.bytes));
  return {};
}

Result<Plan> take_plan(const mdp_grid_config* grid, int32_t world, const mdp_buffer_config* config, const mdp_param* params, size_t count,
                       const mdp_optimizer_config* optimizer) {
  auto shape = take_grid(grid, world);
  if (!shape) return shape.status();
  auto ours = take_buffer_config(config, "config");
  if (!ours) return ours.status();
  auto specs = take_params(params, count);
  if (!specs) return specs.status();
  auto plan = make_plan(*shape, *ours, *std::move(specs));
  if (!plan || optimizer == nullptr) return plan;
  if (Status taken = take_optimizer(optimizer, &*plan); !taken) return taken;
  return plan;
}

}  // namespace

mdp_status mdp_grid_groups_json(const mdp_grid_config* grid, int32_t world, uint32_t axes, char* json, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_text_output(json, capacity, needed); !status) return status;
    auto shape = take_grid(grid, world);
    if (!shape) return shape.status();
    if (Status status = shape->check_axes(axes); !status) return status;
    return give_text(grid_groups_json(*shape, axes), json, capacity, needed);
  });
}

mdp_status mdp_plan(const mdp_grid_config* grid, int32_t world, int32_t rank, const mdp_buffer_config* config, const mdp_param* params,
                    size_t count, const mdp_optimizer_config* optimizer, mdp_plan_report* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    auto plan = take_plan(grid, world, config, params, count, optimizer);
    if (!plan) return plan.status();
    if (rank < 0 || rank >= world) return invalid("rank is ", rank, "; in a world of ", world, " it must be 0 to ", world - 1);
    const MemoryPlan memory = plan->memory(rank);
    mdp_plan_report report{};
    report.param_bytes = memory.param;
    report.grad_bytes = memory.grad;
    report.grad_shard_bytes = memory.grad_shard;
    report.master_bytes = memory.master;
    report.state_bytes = memory.state;
    report.scratch_bytes = memory.scratch;
    report.padding_elements = plan->padding_elements();
    report.buckets = plan->launch_order.size();
    report.owned_elements = plan->owned_elements(rank);
    report.communicator_bytes = memory.communicators;
    report.spill_bytes = memory.spill;
    report.feedback_bytes = memory.feedback;
    report.average_bytes = memory.average;
    give(report, out);
    return {};
  });
}

mdp_status mdp_plan_json(const mdp_grid_config* grid, int32_t world, const mdp_buffer_config* config, const mdp_param* params, size_t count,
                         const mdp_optimizer_config* optimizer, char* json, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_text_output(json, capacity, needed); !status) return status;
    auto plan = take_plan(grid, world, config, params, count, optimizer);
    if (!plan) return plan.status();
    return give_text(plan_json(*plan), json, capacity, needed);
  });
}
