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
    : arenas_(std::move(arenas)),
      params_(std::move(params)),
      checks_(arenas_),
      spill_(arenas_->backend(), arenas_->plan().config.spill_limit) {}

Gradients::~Gradients() {
  for (Spill::Left& left : spill_.left()) arenas_->grads().retain(std::move(left.memory));
  for (ParamState& state : states_) {  // copies of them may be under way, if their launch has failed
    if (state.spill != nullptr) arenas_->grads().retain(std::move(state.spill));
  }
}

Status Gradients::allocate(bool divides_at_once) {
  for (AgreementPlan& plan : arenas_->plan().agreements()) {
    if (plan.axes == 0) {  // bits for all ties of the world: the plan knows only those that this rank holds
      plan.params.clear();
      for (const Tie& tie : arenas_->ties()) plan.params.push_back(tie.param.value_or(kNotHere));
    }
    if (Status status = add_agreement(arenas_->agreement_comm(plan.axes), std::move(plan.params)); !status) return status;
  }
  wide_.resize(arenas_->all().size());
  if (Status have = checks_.allocate(); !have) return have;
  auto sums = arenas_->backend().allocate(sizeof(StepScalars));
  if (!sums) return sums.status();
  norm_ = arenas_->kept().keep(*std::move(sums));
  index();
  const bool by_tokens = arenas_->plan().config.scaling == Scaling::tokens;
  at_once_ = by_tokens && divides_at_once;
  if (by_tokens) {
    auto told = arenas_->backend().control().allocate(token_bytes(arenas_->plan()));
    if (!told) return told.status();
    told_tokens_ = arenas_->kept().keep(*std::move(told));
  }
  if (Status found = find_owned_sums(); !found) return found;
  return find_squared();
}

Status Gradients::add_agreement(const std::shared_ptr<Comm>& comm, std::vector<size_t> params) {
  Backend& control = arenas_->backend().control();
  Agreement agreement;
  agreement.comm = comm;
  agreement.params = std::move(params);
  const std::vector<int>& world = arenas_->grid()->world()->group().members();
  for (const int member : comm->group().members()) {
    agreement.ranks.push_back(static_cast<int>(std::find(world.begin(), world.end(), member) - world.begin()));
  }
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
    const bool first_replica = plan.is_first_replica(*arena.plan, arenas_->grid()->rank());
    for (const size_t param : arena.plan->params) {
      ParamState& state = states_[param];
      const bool first_of_tp = plan.holders[param].index == 0;
      state.counts = first_replica && (first_of_tp || plan.params[param].placement == Placement::sharded) && arenas_->is_first_copy(param);
      state.checked = first_replica && !state.counts;
      ++buckets_[arenas_->place(param).bucket].params;
    }
  }
  plan_launches();
  start_step();
}

void Gradients::plan_launches() {
  const Plan& plan = arenas_->plan();
  const auto arena_of = [&](uint32_t number) -> const Arena& { return arenas_->arena_of(plan.launch_order[number]); };
  const auto passes_through = [&](uint32_t number) { return arena_of(number).wide != nullptr || arena_of(number).wire != nullptr; };
  for (uint32_t number = 0; number < buckets_.size(); ++number) {
    // What passes through slots goes one by one.
    const bool may_join = plan.config.no_overlap && !is_pooled() && !passes_through(number);
    const bool joins =
        may_join && number > 0 && arena_of(number).comms.grads == arena_of(number - 1).comms.grads && !passes_through(number - 1);
    if (!joins) launches_.emplace_back();
    launches_.back().push_back(number);
  }
}

BucketState Gradients::state_of(uint32_t number) const {
  const Bucket& bucket = buckets_[number];
  if (bucket.launched) return bucket.reduced()->done() ? BucketState::reduced : BucketState::in_flight;
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
  for (const Bucket& bucket : buckets_) {
    stats_.count(bucket.reduction.get());
    stats_.count(bucket.across.get());
  }
  for (const OwnedSum& sum : owned_sums_) stats_.count(sum.transfer.get());
  Stats all = stats_;
  all.comm_ns += gathered.comm_ns;
  all.exposed_ns += gathered.exposed_ns;
  all.bytes += gathered.bytes;
  all.spill_peak = spill_.peak();
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
    report.reduce_end_ns = bucket.reduced()->time_ns();
  }
  if (const auto gather = params_->last_gather(static_cast<uint32_t>(number))) {
    report.gather_begin_ns = gather->begin->time_ns();
    report.gather_end_ns = gather->end->time_ns();
  }
  report.sync_ns = sync_ns_;
  return report;
}

}  // namespace megadp
