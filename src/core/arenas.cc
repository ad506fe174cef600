// SPDX-License-Identifier: Apache-2.0
#include "core/arenas.h"

#include <algorithm>
#include <utility>

namespace megadp {

WindowOp Arena::reduction(uint32_t bucket, int32_t number) const {
  return {.kind = is_sharded() ? Collective::reduce_scatter : Collective::all_reduce,
          .window = grads,
          .type = plan->grad_type,
          .begin = range(bucket).begin,
          .count = range(bucket).end - range(bucket).begin,
          .tag = {number, "gradients"},
          .divisor = divisor};
}

WindowOp Arena::gather(uint32_t bucket, int32_t number) const {
  return {.kind = Collective::all_gather,
          .window = params,
          .type = plan->param_type,
          .begin = range(bucket).begin,
          .count = range(bucket).end - range(bucket).begin,
          .tag = {number, "parameters"}};
}

Arenas::~Arenas() {
  // Collectives keep their windows; element-wise work on a stream does not.
  for (const auto& channel : {grads_, gathers_}) {
    if (channel) channel->retain(kept_);
  }
}

Status Arenas::allocate() {
  Status first;
  const auto succeeded = [&first](const Status& status) {
    if (first.ok()) first = status;
    return status.ok();
  };
  // Both, in this order, on every rank, whatever its stage and experts are: splitting is collective over the whole world.
  std::shared_ptr<Comm> comms[2];
  for (const bool expert : {false, true}) {
    auto comm = grid_->comm(Grid::shard_axes(expert));
    if (succeeded(comm.status())) comms[expert ? 1 : 0] = *std::move(comm);
  }
  for (const auto& [channel, name] : {std::pair(&grads_, "mdp-grads"), std::pair(&gathers_, "mdp-gathers")}) {
    auto made = Channel::create(shared_context(), name);
    if (succeeded(made.status())) *channel = *std::move(made);
  }
  std::shared_ptr<Comm> grads[2], params[2];
  succeeded(duplicate(comms, grads, params));
  for (const ArenaPlan& arena_plan : plan_.arenas) {
    const size_t part = arena_plan.expert ? 1 : 0;
    if (grads[part] != nullptr && params[part] != nullptr) succeeded(add(arena_plan, grads[part], params[part]));
  }
  if (first.ok()) index();
  return first;
}

// The communicators of dense and expert parameters on both channels, and the world's on the one of gradients; a communicator that is
// another one, too, is duplicated once.
Status Arenas::duplicate(std::span<const std::shared_ptr<Comm>, 2> comms, std::span<std::shared_ptr<Comm>, 2> grads,
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
    grads[part] = same ? grads[0] : make(comms[part], grads_);
    params[part] = same ? params[0] : make(comms[part], gathers_);
    if (comms[part] == grid_->world()) world_ = grads[part];
  }
  if (comms[0] != grid_->world() && comms[1] != grid_->world()) world_ = make(grid_->world(), grads_);
  return first;
}

Status Arenas::add(const ArenaPlan& plan, std::shared_ptr<Comm> grads_comm, std::shared_ptr<Comm> params_comm) {
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
  arena.params = kept_->keep(*std::move(params));
  arena.grads = kept_->keep(*std::move(grads));
  is_sharded_ = is_sharded_ || arena.is_sharded();
  arenas_.push_back(std::move(arena));
  return {};
}

void Arenas::index() {
  places_.resize(plan_.params.size());
  for (uint32_t number = 0; number < plan_.launch_order.size(); ++number) {
    const BucketRef ref = plan_.launch_order[number];
    const Layout& layout = plan_.arenas[ref.arena].layout;
    const BucketRange& range = layout.buckets[ref.bucket];
    for (uint32_t slot = range.first_slot; slot < range.end_slot; ++slot) {
      const size_t param = layout.slots[slot].param;
      places_[param] = {ref.arena, number, layout.slots[slot].begin, dense_strides(plan_.params[param].shape)};
    }
  }
}

Status Arenas::check_param(size_t param) const {
  if (param >= plan_.params.size()) {
    return invalid("param is ", param, "; this buffer has ", plan_.params.size(), " parameters, counted from 0");
  }
  if (plan_.params[param].frozen) {
    return Status(Code::state, text(param_label(param, plan_.params[param].name), " is frozen: the library holds nothing of it"),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  return {};
}

StridedArray Arenas::param_array(size_t param) const {
  const Arena& arena = arena_of(param);
  return {arena.param_at(place(param).begin), arena.plan->param_type, plan_.params[param].shape, place(param).strides};
}

StridedArray Arenas::grad_array(size_t param) const {
  const Arena& arena = arena_of(param);
  return {arena.grad_at(place(param).begin), arena.plan->grad_type, plan_.params[param].shape, place(param).strides};
}

Result<Arenas::View> Arenas::param_view(size_t param) const {
  if (Status status = check_param(param); !status) return status;
  const Arena& arena = arena_of(param);
  return View{arena.param_at(place(param).begin), arena.plan->param_type, &plan_.params[param].shape, &place(param).strides};
}

Result<Arenas::View> Arenas::grad_view(size_t param) const {
  if (Status status = check_param(param); !status) return status;
  const Arena& arena = arena_of(param);
  return View{arena.grad_at(place(param).begin), arena.plan->grad_type, &plan_.params[param].shape, &place(param).strides};
}

}  // namespace megadp
