// SPDX-License-Identifier: Apache-2.0
// What a buffer needs for gradients besides its arenas; and what can be asked about them.
#include "core/gradients.h"

#include <algorithm>

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

Gradients::Gradients(std::shared_ptr<Arenas> arenas, std::shared_ptr<Params> params)
    : arenas_(std::move(arenas)), params_(std::move(params)) {}

Status Gradients::allocate() {
  bool world_covered = false;
  for (const bool expert : {false, true}) {
    std::vector<size_t> params;
    std::shared_ptr<Comm> comm;
    for (const Arena& arena : arenas_->all()) {
      if (arena.plan->expert != expert) continue;
      comm = arena.grads_comm;
      params.insert(params.end(), arena.plan->params.begin(), arena.plan->params.end());
    }
    if (!comm) continue;
    std::sort(params.begin(), params.end());
    if (Status status = add_agreement(comm, std::move(params)); !status) return status;
    world_covered = world_covered || comm == arenas_->world();
  }
  // Other pipeline stages and expert ranks must learn of a problem too.
  if (!world_covered) {
    if (Status status = add_agreement(arenas_->world(), {}); !status) return status;
  }
  auto sums = arenas_->backend().allocate(sizeof(StepScalars));
  if (!sums) return sums.status();
  sums_ = arenas_->kept().keep(*std::move(sums));
  index();
  return {};
}

Status Gradients::add_agreement(const std::shared_ptr<Comm>& comm, std::vector<size_t> params) {
  Backend& control = arenas_->backend().control();
  Agreement agreement;
  agreement.comm = comm;
  agreement.params = std::move(params);
  agreement.bytes = agreement_bytes(agreement.params.size());
  auto send = control.allocate(agreement.bytes);
  if (!send) return send.status();
  auto receive = control.allocate(agreement.bytes * static_cast<size_t>(comm->size()));
  if (!receive) return receive.status();
  agreement.send = arenas_->kept().keep(*std::move(send));
  agreement.receive = arenas_->kept().keep(*std::move(receive));
  agreements_.push_back(std::move(agreement));
  return {};
}

void Gradients::index() {
  const Plan& plan = arenas_->plan();
  states_.resize(plan.params.size());
  buckets_.resize(plan.launch_order.size());
  for (const Arena& arena : arenas_->all()) {
    const Axes tp = arena.plan->expert ? (kTp | kExpertGrid) : kTp;
    const bool first_of_tp = plan.grid.index(tp, arenas_->grid()->rank()) == 0;
    const bool first_replica = arena.is_sharded() || arena.grads_comm->rank() == 0;
    for (const size_t param : arena.plan->params) {
      ParamState& state = states_[param];
      state.counts = first_replica && (plan.params[param].placement == Placement::sharded || first_of_tp);
      state.checked = first_replica && !state.counts;
      ++buckets_[arenas_->place(param).bucket].params;
    }
  }
  plan_launches();
  start_step();
}

void Gradients::plan_launches() {
  const Plan& plan = arenas_->plan();
  const auto comm_of = [&](uint32_t number) { return arenas_->arena_of(plan.launch_order[number]).grads_comm; };
  for (uint32_t number = 0; number < buckets_.size(); ++number) {
    const bool joins = plan.config.no_overlap && number > 0 && comm_of(number) == comm_of(number - 1);
    if (!joins) launches_.emplace_back();
    launches_.back().push_back(number);
  }
}

BucketState Gradients::state_of(uint32_t number) const {
  const Bucket& bucket = buckets_[number];
  if (bucket.launched) return bucket.reduction->end->done() ? BucketState::reduced : BucketState::in_flight;
  if (bucket.waiting == 0) return BucketState::ready;
  const std::shared_ptr<Transfer> gather = params_->last_gather(number);
  if (bucket.waiting < bucket.params || !gather) return BucketState::filling;
  return gather->end->done() ? BucketState::whole : BucketState::gathering;
}

Result<std::shared_ptr<Event>> Gradients::mark_updated(std::span<const uint32_t> buckets) {
  auto updated = arenas_->grads().stream().record();
  if (!updated) return updated;
  for (const uint32_t number : buckets) buckets_[number].updated = *updated;
  return updated;
}

void Gradients::count_exposed(uint64_t ns) {
  const std::lock_guard lock(mutex_);
  stats_.exposed_ns += ns;
}

Stats Gradients::stats() {
  const Traffic gathered = params_->traffic();
  const std::lock_guard lock(mutex_);
  for (const Bucket& bucket : buckets_) stats_.count(bucket.reduction.get());
  Stats all = stats_;
  all.comm_ns += gathered.comm_ns;
  all.exposed_ns += gathered.exposed_ns;
  all.bytes += gathered.bytes;
  all.host_syncs = arenas_->backend().host_syncs();
  return all;
}

Result<BucketReport> Gradients::bucket(size_t number) {
  const std::lock_guard lock(mutex_);
  if (number >= buckets_.size()) {
    return invalid("bucket is ", number, "; this buffer has ", buckets_.size(), ", counted from 0 in launch order");
  }
  const Bucket& bucket = buckets_[number];
  BucketReport report;
  report.state = state_of(static_cast<uint32_t>(number));
  report.ready_ns = bucket.ready_ns;
  if (bucket.reduction) {
    report.reduce_begin_ns = bucket.reduction->begin->time_ns();
    report.reduce_end_ns = bucket.reduction->end->time_ns();
  }
  if (const auto gather = params_->last_gather(static_cast<uint32_t>(number))) {
    report.gather_begin_ns = gather->begin->time_ns();
    report.gather_end_ns = gather->end->time_ns();
  }
  report.sync_ns = sync_ns_;
  return report;
}

}  // namespace megadp
