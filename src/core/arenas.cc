// SPDX-License-Identifier: Apache-2.0
#include "core/arenas.h"

#include <algorithm>
#include <map>
#include <utility>

namespace megadp {

WindowOp Arena::reduction(uint32_t bucket, int32_t number, uint32_t microbatch, float divisor) const {
  const bool in_pieces = is_sharded() || is_pooled() || has_instances();
  return {.kind = in_pieces ? Collective::reduce_scatter : Collective::all_reduce,
          .window = grads,
          .type = plan->grad_type,
          .begin = plan->grad_begin(bucket),
          .count = range(bucket).end - range(bucket).begin,
          .tag = {number, "gradients", microbatch},
          .divisor = has_instances() ? 1 : divisor,
          .counts = counts_of(bucket)};
}

WindowOp Arena::gather(uint32_t bucket, int32_t number) const {
  return {.kind = Collective::all_gather,
          .window = params,
          .type = plan->param_type,
          .begin = range(bucket).begin,
          .count = range(bucket).end - range(bucket).begin,
          .tag = {number, "parameters"},
          .counts = counts_of(bucket)};
}

Arenas::~Arenas() {
  // Collectives keep their windows; element-wise work on a stream does not.
  for (const auto& channel : {grads_, gathers_, across_}) {
    if (channel) channel->retain(kept_);
  }
}

Status Arenas::allocate(std::vector<Tie> ties) {
  ties_ = std::move(ties);
  Status first;
  const auto succeeded = [&first](const Status& status) {
    if (first.ok()) first = status;
    return status.ok();
  };
  succeeded(create_channels());
  // Dense, then expert, on every rank, whatever its stage and experts are: splitting is collective over the whole world.
  ReplicaComms comms[2];
  bool world_covered = false;
  const bool same = plan_.grid.groups(Grid::replica_axes(true)) == plan_.grid.groups(Grid::replica_axes(false));
  for (const bool expert : {false, true}) {
    ReplicaComms& part = comms[expert ? 1 : 0];
    if (expert && same) {
      part = comms[0];
    } else {
      succeeded(make_comms(Grid::replica_axes(expert), &part));
    }
    if (plan_.grid.size(Grid::replica_axes(expert)) < plan_.grid.world()) continue;
    world_ = part.all;
    world_covered = true;
  }
  if (!world_covered) {
    auto world = grid_->world()->duplicate(grads_);
    if (succeeded(world.status())) world_ = *std::move(world);
  }
  succeeded(make_tp_comms());
  succeeded(make_tie_comms());
  for (const ArenaPlan& plan : plan_.arenas) {
    const ReplicaComms& of_part = comms[plan.expert ? 1 : 0];
    if (of_part.grads != nullptr && of_part.params != nullptr) succeeded(add(plan, of_part));
  }
  if (first.ok()) index();
  return first;
}

Status Arenas::create_channels() {
  Status first;
  const auto create = [&](std::shared_ptr<Channel>* channel, const char* name) {
    auto made = Channel::create(shared_context(), name);
    if (first.ok()) first = made.status();
    if (made) *channel = *std::move(made);
  };
  create(&grads_, "mdp-grads");
  create(&gathers_, "mdp-gathers");
  if (plan_.instances() > 1) create(&across_, "mdp-across");
  return first;
}

std::vector<int> Arenas::members(Axes axes) const {
  std::vector<int> ranks = plan_.grid.group(axes, grid_->rank());
  for (int& rank : ranks) rank = grid_->world()->group().members()[static_cast<size_t>(rank)];
  return ranks;
}

// On every rank the same ones in the same order, also after a failure.
Status Arenas::make_comms(Axes axes, ReplicaComms* out) const {
  const std::vector<int> replicas = members(axes);
  const int instances = plan_.instances(), index = plan_.grid.index(axes, grid_->rank());
  const std::vector<int> inside = Grid::instance_of(replicas, index, instances);
  Status first;
  const auto make = [&](const std::vector<int>& ranks, const std::shared_ptr<Channel>& channel) -> std::shared_ptr<Comm> {
    auto made = grid_->world()->subset(ranks, channel);
    if (first.ok()) first = made.status();
    return made ? *std::move(made) : nullptr;
  };
  out->grads = make(inside, grads_);
  out->params = make(inside, gathers_);
  if (instances == 1) {
    out->all = out->grads;
    out->all_for_params = out->params;
    return first;
  }
  out->across = make(Grid::across_instances(replicas, index, instances), across_);
  out->all = make(replicas, grads_);
  out->all_for_params = make(replicas, gathers_);
  return first;
}

// Tensor-parallel ranks have partial gradients of the same parameters.
Status Arenas::make_tp_comms() {
  Status first;
  const auto make = [&](Axes axes) -> std::shared_ptr<Comm> {
    if (plan_.grid.size(axes) == plan_.grid.world()) return world_;
    auto made = grid_->world()->subset(members(axes), grads_);
    if (first.ok()) first = made.status();
    return made ? *std::move(made) : nullptr;
  };
  for (const bool expert : {false, true}) {
    if (!plan_.has_partial(expert)) continue;
    tp_[expert ? 1 : 0] = make(Grid::tp_axes(expert));
    with_tp_[expert ? 1 : 0] = make(Grid::tp_axes(expert) | Grid::replica_axes(expert));
  }
  return first;
}

// A group for each set of stages that hold something together, in one order on all ranks; others take part in making it.
Status Arenas::make_tie_comms() {
  std::map<std::vector<int>, std::vector<size_t>> held;  // by the stages: this rank's parameters
  for (const Tie& tie : ties_) {
    if (tie.stages.size() == 1) continue;
    std::vector<size_t>& params = held[tie.stages];
    if (tie.param) params.push_back(*tie.param);
  }
  const std::vector<int> pipeline = members(kPp);
  Status first;
  for (auto& [stages, params] : held) {
    std::vector<int> ranks;
    for (const int stage : stages) {
      if (!params.empty()) ranks.push_back(pipeline[static_cast<size_t>(stage)]);
    }
    auto made = grid_->world()->subset(ranks, grads_);
    if (first.ok()) first = made.status();
    if (made && !params.empty()) tie_groups_.push_back({*std::move(made), std::move(params)});
  }
  return first;
}

bool Arenas::is_first_copy(size_t param) const {
  const int stage = plan_.grid.index(kPp, grid_->rank());
  const auto tie = std::find_if(ties_.begin(), ties_.end(), [param](const Tie& one) { return one.param == param; });
  return tie == ties_.end() || tie->stages.front() == stage;
}

const std::shared_ptr<Comm>& Arenas::agreement_comm(Axes axes) const {
  if (axes == 0) return world_;
  const bool expert = (axes & kExpertGrid) != 0;
  if (axes != Grid::replica_axes(expert)) return with_tp_[expert ? 1 : 0];
  const auto arena = std::find_if(arenas_.begin(), arenas_.end(), [expert](const Arena& one) { return one.plan->expert == expert; });
  return arena->comms.all;
}

Status Arenas::add(const ArenaPlan& plan, const ReplicaComms& comms) {
  Arena arena;
  arena.comms = comms;
  arena.plan = &plan;
  const int shard = plan_.shard(plan, grid_->rank());
  arena.owned = owned_ranges(plan.layout, shard);
  for (uint32_t bucket = 0; bucket < plan.layout.buckets.size(); ++bucket) {
    arena.pieces.push_back(piece_of(plan.layout, bucket, shard));
    if (plan.is_whole() && plan.shards > 1) arena.counts.push_back(std::make_shared<const Counts>(piece_counts(plan.layout, bucket)));
  }
  const uint64_t elements = std::max<uint64_t>(plan.layout.numel, 1);  // all parameters of an arena may be empty; no window is
  auto params = comms.params->group().allocate_window(elements * size_of(plan.param_type));
  auto grads = comms.grads->group().allocate_window(std::max<uint64_t>(plan.grad_elements(), 1) * size_of(plan.grad_type));
  if (!params) return params.status();
  if (!grads) return grads.status();
  arena.params = kept_->keep(*std::move(params));
  arena.grads = kept_->keep(*std::move(grads));
  if (arena.is_pooled()) {
    auto sums = backend().allocate(std::max<uint64_t>(shard_elements(plan.layout, shard), 1) * sizeof(float));
    if (!sums) return sums.status();
    arena.sums = kept_->keep(*std::move(sums));
    uint64_t at = 0;
    for (const Piece& piece : arena.pieces) arena.sums_at.push_back(std::exchange(at, at + piece.count()));
  }
  if (plan.wide_slots > 0) {
    auto wide = backend().allocate(std::max<uint64_t>(plan.wide_slots * plan.wide_elements, 1) * sizeof(float));
    if (!wide) return wide.status();
    arena.wide = kept_->keep(*std::move(wide));
  }
  if (plan.wire_elements > 0) {
    auto wire = comms.grads->group().allocate_window(plan.wire_elements * size_of(DType::bf16));
    if (!wire) return wire.status();
    arena.wire = kept_->keep(*std::move(wire));
    if (plan_.config.error_feedback) {
      auto residual = backend().allocate(plan.layout.numel * sizeof(float));
      if (!residual) return residual.status();
      arena.residual = kept_->keep(*std::move(residual));
    }
  }
  arena.numbers.resize(plan.layout.buckets.size());
  is_sharded_ = is_sharded_ || arena.is_sharded();
  arenas_.push_back(std::move(arena));
  return {};
}

void Arenas::index() {
  places_.resize(plan_.params.size());
  owned_shapes_.resize(plan_.params.size(), {0, 1});
  for (const Arena& arena : arenas_) {
    for (const OwnedRange& range : arena.owned) owned_shapes_[range.param][0] = static_cast<int64_t>(range.end - range.begin);
  }
  for (uint32_t number = 0; number < plan_.launch_order.size(); ++number) {
    const BucketRef ref = plan_.launch_order[number];
    arenas_[ref.arena].numbers[ref.bucket] = number;
    const Layout& layout = plan_.arenas[ref.arena].layout;
    const BucketRange& range = layout.buckets[ref.bucket];
    for (uint32_t slot = range.first_slot; slot < range.end_slot; ++slot) {
      const size_t param = layout.slots[slot].param;
      places_[param] = {ref.arena, number, layout.slots[slot].begin, 0};
    }
  }
  for (size_t param = 0; param < places_.size(); ++param) {
    const std::vector<int64_t>& shape = plan_.params[param].shape;
    places_[param].strides = strides_.size();
    strides_.resize(strides_.size() + shape.size());
    fill_dense_strides(shape, strides_.data() + places_[param].strides);
  }
}

const OwnedRange* Arenas::owned(size_t param) const {
  const std::vector<OwnedRange>& owned = arena_of(param).owned;
  const uint64_t begin = place(param).begin;
  const auto at = std::partition_point(owned.begin(), owned.end(), [begin](const OwnedRange& each) { return each.end <= begin; });
  return at != owned.end() && at->param == param ? &*at : nullptr;
}

Status Arenas::check_loaded() const {
  if (is_loaded_.load(std::memory_order_acquire)) return {};
  return bad_state(
      "the last mdp_checkpoint_load of this buffer has failed half-way: its parameters are neither the old nor the new ones "
      "until one succeeds");
}

Status Arenas::check_param(size_t param) const {
  if (param >= plan_.params.size()) {
    return invalid("param is ", param, "; this buffer has ", plan_.params.size(), " parameters, counted from 0");
  }
  if (plan_.params[param].frozen) {
    return Status(Code::state, text(param_label(param, plan_.params[param].name), " is frozen: the library holds nothing of it"),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  return check_loaded();
}

StridedArray Arenas::strided(size_t param, void* data, DType type) const {
  const std::vector<int64_t>& shape = plan_.params[param].shape;
  return {data, type, shape, std::vector<int64_t>(strides(param), strides(param) + shape.size())};
}

StridedArray Arenas::param_array(size_t param) const {
  const Arena& arena = arena_of(param);
  return strided(param, arena.param_at(place(param).begin), arena.plan->param_type);
}

StridedArray Arenas::grad_array(size_t param) const {
  const Arena& arena = arena_of(param);
  return strided(param, arena.grad_at(local_bucket(param), place(param).begin), arena.plan->grad_type);
}

Result<Arenas::View> Arenas::param_view(size_t param) const {
  if (Status status = check_param(param); !status) return status;
  const Arena& arena = arena_of(param);
  return View{arena.param_at(place(param).begin), arena.plan->param_type, &plan_.params[param].shape, strides(param)};
}

Result<Arenas::View> Arenas::grad_view(size_t param) const {
  if (Status status = check_param(param); !status) return status;
  const Arena& arena = arena_of(param);
  if (arena.is_pooled()) {
    return unsupported(
        "with MDP_SHARDING_ZERO_2 a gradient has no place of its own: write it where mdp_grad_acquire says, and read what "
        "this rank owns of the reduced one with mdp_grad_owned");
  }
  return View{arena.grad_at(local_bucket(param), place(param).begin), arena.plan->grad_type, &plan_.params[param].shape, strides(param)};
}

}  // namespace megadp
