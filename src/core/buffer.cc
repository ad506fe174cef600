// SPDX-License-Identifier: Apache-2.0
// Registration: agreement on what is registered, memory, and views of it.
#include "core/buffer.h"

#include <algorithm>

#include "backend/agreement.h"
#include "backend/memory_check.h"
#include "base/hash.h"
#include "base/shape.h"
#include "core/buffer_impl.h"
#include "core/replicas.h"

namespace megadp {

const char* name_of(BucketState state) noexcept {
  switch (state) {
    case BucketState::filling:
      return "filling";
    case BucketState::ready:
      return "ready";
    case BucketState::in_flight:
      return "in flight";
    case BucketState::reduced:
      return "reduced";
    case BucketState::gathering:
      return "gathering";
    case BucketState::whole:
      return "whole";
  }
  return "?";
}

Buffer::Buffer(std::shared_ptr<GridComm> grid, Plan plan)
    : grid_(std::move(grid)), plan_(std::move(plan)), impl_(std::make_unique<Impl>()) {}

Buffer::~Buffer() {
  if (tree().world->in_forked_child()) {
    (void)impl_.release();  // its windows and locks belong to the parent
    return;
  }
  // Collectives keep their windows; element-wise work on a stream does not.
  for (const auto& channel : {impl_->grads, impl_->gathers}) {
    if (channel) channel->retain(impl_->kept);
  }
}

Result<std::shared_ptr<Buffer>> Buffer::create(std::shared_ptr<GridComm> grid, const BufferConfig& config, std::vector<ParamSpec> params) {
  if (Status usable = grid->world()->tree().usable(); !usable) return usable;
  auto plan = make_plan(grid->grid(), config, std::move(params));
  if (!plan) return plan.status();
  std::shared_ptr<Buffer> buffer(new Buffer(grid, *std::move(plan)));
  if (Status status = buffer->agree_on_registration(); !status) return status;
  if (Status status = buffer->check_room(); !status) return status;
  if (Status status = buffer->allocate(); !status) return status;
  buffer->index_params();
  return buffer;
}

// The dense and the expert part are compared even where they are empty: another rank's may not be.
Status Buffer::agree_on_registration() {
  Held held{.call = "mdp_buffer_register", .digests = {}, .detail = {}};
  held.detail = [this](bool expert) { return describe_registration(plan_, expert); };
  for (const bool expert : {false, true}) {
    const std::string text = held.detail(expert);
    held.digests[expert ? 1 : 0] = hash_bytes(text.data(), text.size());
  }
  return compare_replicas(*grid_, held, [](const Pair& pair) {
    const std::string difference = first_difference(pair.first_detail, pair.other_detail, pair.other);
    return Finding{text("ranks ", pair.first, " and ", pair.other, " registered different parameters",
                        difference.empty() ? "" : text(": on rank ", pair.first, " ", difference))};
  });
}

Status Buffer::check_room() {
  const MemoryPlan memory = plan_.memory();
  const uint64_t arrays = tree().backend->place().type == DeviceType::cpu ? memory.param + memory.grad : 0;
  return check_memory(*tree().world, grid_->world()->group().members(), "mdp_buffer_register", arrays + memory.scratch,
                      plan_.config.ignore_memory)
      .with_context("mdp_buffer_register");
}

// Failures are agreed on in each group, which may be a part of the world. All ranks go through all of it, so that none waits for one that
// has failed, and agree at the end.
Status Buffer::allocate() {
  Status first;
  const auto went_well = [&first](const Status& status) {
    if (first.ok()) first = status;
    return status.ok();
  };
  // Both, in this order, on every rank, whatever its stage and experts are: making a device's communicator takes the whole world.
  std::shared_ptr<Comm> comms[2];
  for (const bool expert : {false, true}) {
    auto comm = grid_->comm(Grid::shard_axes(expert));
    if (went_well(comm.status())) comms[expert ? 1 : 0] = *std::move(comm);
  }
  for (const auto& [channel, name] : {std::pair(&impl_->grads, "mdp-grads"), std::pair(&impl_->gathers, "mdp-gathers")}) {
    auto made = Channel::create(grid_->world()->shared_tree(), name);
    if (went_well(made.status())) *channel = *std::move(made);
  }
  std::shared_ptr<Comm> grads[2], params[2];
  went_well(duplicate(comms, grads, params));
  for (const ArenaPlan& arena_plan : plan_.arenas) {
    const size_t part = arena_plan.expert ? 1 : 0;
    if (grads[part] != nullptr && params[part] != nullptr) went_well(allocate_arena(arena_plan, grads[part], params[part]));
  }
  if (first.ok()) went_well(allocate_agreements());
  if (first.ok()) went_well(allocate_sums());
  return agree(*tree().world, grid_->world()->group().members(), {"mdp_buffer_register"}, first);
}

// The communicators of dense and expert parameters on both channels, and the world's on the one of gradients; a communicator that is
// another one, too, is duplicated once.
Status Buffer::duplicate(std::span<const std::shared_ptr<Comm>, 2> comms, std::span<std::shared_ptr<Comm>, 2> grads,
                         std::span<std::shared_ptr<Comm>, 2> params) {
  Status first;
  const auto make = [&](const std::shared_ptr<Comm>& comm, const std::shared_ptr<Channel>& channel) -> std::shared_ptr<Comm> {
    if (comm == nullptr) return nullptr;
    auto made = comm->duplicate(channel);
    if (first.ok()) first = made.status();
    return made ? *std::move(made) : nullptr;
  };
  for (const size_t part : {0, 1}) {
    const bool same = part == 1 && comms[1] == comms[0];
    grads[part] = same ? grads[0] : make(comms[part], impl_->grads);
    params[part] = same ? params[0] : make(comms[part], impl_->gathers);
    if (comms[part] == grid_->world()) impl_->world = grads[part];
  }
  if (comms[0] != grid_->world() && comms[1] != grid_->world()) impl_->world = make(grid_->world(), impl_->grads);
  return first;
}

Status Buffer::allocate_arena(const ArenaPlan& plan, std::shared_ptr<Comm> grads_comm, std::shared_ptr<Comm> params_comm) {
  Arena arena;
  arena.plan = &plan;
  arena.grads_comm = std::move(grads_comm);
  arena.params_comm = std::move(params_comm);
  arena.divisor = static_cast<float>(plan_.grid.size(kDp | kCp));
  arena.owned = owned_ranges(plan.layout, plan.shards, plan_.shard(plan, grid_->rank()));
  const uint64_t elements = std::max<uint64_t>(plan.layout.numel, 1);  // all parameters of an arena may be empty; no window is
  auto params = arena.params_comm->group().allocate_window(elements * size_of(plan.param_type));
  auto grads = arena.grads_comm->group().allocate_window(elements * size_of(plan.grad_type));
  if (!params) return params.status();
  if (!grads) return grads.status();
  arena.params = impl_->kept->keep(*std::move(params));
  arena.grads = impl_->kept->keep(*std::move(grads));
  impl_->arenas.push_back(std::move(arena));
  return {};
}

Status Buffer::allocate_agreements() {
  Backend& control = tree().backend->control();
  const auto add_agreement = [&](const std::shared_ptr<Comm>& comm, std::vector<size_t> params) -> Status {
    Agreement agreement;
    agreement.comm = comm;
    agreement.params = std::move(params);
    agreement.bytes = agreement_bytes(agreement.params.size());
    auto send = control.allocate(agreement.bytes);
    if (!send) return send.status();
    auto receive = control.allocate(agreement.bytes * static_cast<size_t>(comm->size()));
    if (!receive) return receive.status();
    agreement.send = impl_->kept->keep(*std::move(send));
    agreement.receive = impl_->kept->keep(*std::move(receive));
    impl_->agreements.push_back(std::move(agreement));
    return {};
  };
  bool world_covered = false;
  for (const bool expert : {false, true}) {
    std::vector<size_t> params;
    std::shared_ptr<Comm> comm;
    for (const Arena& arena : impl_->arenas) {
      if (arena.plan->expert != expert) continue;
      comm = arena.grads_comm;
      params.insert(params.end(), arena.plan->params.begin(), arena.plan->params.end());
    }
    if (!comm) continue;
    std::sort(params.begin(), params.end());
    if (Status status = add_agreement(comm, std::move(params)); !status) return status;
    world_covered = world_covered || comm == impl_->world;
  }
  // Other pipeline stages and expert ranks must learn of a problem too.
  return world_covered ? Status() : add_agreement(impl_->world, {});
}

Status Buffer::allocate_sums() {
  auto sums = tree().backend->allocate(sizeof(StepScalars));
  if (!sums) return sums.status();
  impl_->sums = impl_->kept->keep(*std::move(sums));
  return {};
}

void Buffer::index_params() {
  Impl& s = *impl_;
  s.params.resize(plan_.params.size());
  s.buckets.resize(plan_.launch_order.size());
  for (uint32_t number = 0; number < s.buckets.size(); ++number) {
    const BucketRef ref = plan_.launch_order[number];
    const Layout& layout = plan_.arenas[ref.arena].layout;
    Bucket& bucket = s.buckets[number];
    bucket.arena = ref.arena;
    bucket.index = ref.bucket;
    const BucketRange& range = layout.buckets[ref.bucket];
    bucket.params = range.end_slot - range.first_slot;
    for (uint32_t slot = range.first_slot; slot < range.end_slot; ++slot) {
      ParamState& param = s.params[layout.slots[slot].param];
      param.arena = ref.arena;
      param.bucket = number;
      param.begin = layout.slots[slot].begin;
      const ParamSpec& spec = plan_.params[layout.slots[slot].param];
      param.strides = dense_strides(spec.shape);
      const Arena& arena = s.arenas[ref.arena];
      const Axes tp = arena.plan->expert ? (kTp | kExpertGrid) : kTp;
      const bool first_replica = arena.plan->shards > 1 || arena.grads_comm->rank() == 0;
      param.counts = first_replica && (spec.placement == Placement::sharded || plan_.grid.index(tp, grid_->rank()) == 0);
      param.checked = first_replica && !param.counts;
    }
  }
  s.plan_launches(!plan_.config.no_overlap);
  s.start_step();
}

Status Buffer::check_param(size_t param) const {
  if (param >= plan_.params.size()) {
    return invalid("param is ", param, "; this buffer has ", plan_.params.size(), " parameters, counted from 0");
  }
  if (plan_.params[param].frozen) {
    return Status(Code::state, text(param_label(param, plan_.params[param].name), " is frozen: the library holds nothing of it"),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  return {};
}

Result<Buffer::View> Buffer::param_view(size_t param) {
  if (Status status = check_param(param); !status) return status;
  const ParamState& state = impl_->params[param];
  const Arena& arena = impl_->arenas[state.arena];
  return View{arena.param_at(state.begin), arena.plan->param_type, &plan_.params[param].shape, &state.strides};
}

Result<Buffer::View> Buffer::grad_view(size_t param) {
  if (Status status = check_param(param); !status) return status;
  const ParamState& state = impl_->params[param];
  const Arena& arena = impl_->arenas[state.arena];
  return View{arena.grad_at(state.begin), arena.plan->grad_type, &plan_.params[param].shape, &state.strides};
}

const std::vector<OwnedRange>& Buffer::owned(size_t arena) const {
  return impl_->arenas[arena].owned;
}

uint32_t Buffer::bucket_of(size_t param) const {
  return impl_->params[param].bucket;
}

}  // namespace megadp
