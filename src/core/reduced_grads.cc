// SPDX-License-Identifier: Apache-2.0
// Gradients between mdp_grad_sync and the step: their norm, a factor on them, and what was written through views.
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/hash.h"
#include "core/gradients.h"

namespace megadp {

Status Gradients::await_sync() {
  std::shared_ptr<Request> pending;
  {
    std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    if (phase_ == Phase::syncing) pending = sync_request_;
  }
  if (!pending) return {};
  const Status ended = pending->await();
  return ended.code() == Code::numeric ? Status() : ended;  // gradients are reduced all the same
}

Status Gradients::sync_for_step(void* caller, const StepValues& values, bool keeps) {
  bool open = false;
  {
    std::lock_guard lock(mutex_);
    open = phase_ == Phase::open;
  }
  if (!open) return await_sync();
  const Status synced = sync(caller, false, keeps, values).status();
  return synced.code() == Code::numeric ? Status() : synced;  // the step says so
}

Status Gradients::check_reduced(const char* call, bool kept_too) const {
  switch (phase_) {
    case Phase::reduced:
      if (!kept_ || kept_too) return {};
      return bad_state(call,
                       ": the gradients are kept for a step in one pass, which was not taken; take it, or begin anew with "
                       "mdp_buffer_zero_grad");
    case Phase::failed:
      return bad_state(call, ": the gradients are not whole: ", sync_status_.text());
    case Phase::syncing:
      return bad_state(call, ": mdp_grad_sync is pending; wait for its request first");
    case Phase::stepping:
      return bad_state(call, ": ", kIsStepping);
    case Phase::open:
      break;
  }
  return bad_state(call, ": the gradients are not reduced; call mdp_grad_sync first");
}

Status Gradients::check_between_steps(const char* call) {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::stepping ? bad_state(call, ": ", kIsStepping) : Status();
}

Status Gradients::check_none_accumulated(const char* call) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::open || (is_last_ && microbatch_ <= 1)) return {};
  for (size_t param = 0; param < states_.size(); ++param) {
    const ParamState& state = states_[param];
    if (!state.has_gradient && !state.had_gradient) continue;
    return bad_state(
        call, " comes between the microbatches of a step: ", param_label(param, arenas_->plan().params[param].name),
        " has a gradient, to which the next ones would be added; mdp_buffer_zero_grad throws it away, or the last microbatch and "
        "mdp_grad_sync end the step");
  }
  return {};
}

Gradients::Launched Gradients::launched_of_step() {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::open) return {kAllLaunched, kAllLaunched};
  Launched launched{0, 0};
  for (size_t number = 0; number < buckets_.size(); ++number) {
    const bool expert = arenas_->plan().arenas[arenas_->plan().launch_order[number].arena].expert;
    (expert ? launched.expert : launched.dense) += (buckets_[number].launched ? 1U : 0U) + (is_pooled() ? microbatch_ - 1 : 0U);
  }
  return launched;
}

Status Gradients::check_launched_alike(const char* call, const std::vector<Launched>& launched) const {
  const std::vector<int>& world = arenas_->grid()->world()->group().members();
  const auto mine = static_cast<size_t>(arenas_->grid()->rank());
  const auto told = [](uint64_t count) { return count == kAllLaunched ? std::string("all") : text(count); };
  for (const Arena& arena : arenas_->all()) {
    const auto of = [&](size_t rank) { return arena.plan->expert ? launched[rank].expert : launched[rank].dense; };
    for (const int member : arena.comms.all->group().members()) {
      const auto other = static_cast<size_t>(std::find(world.begin(), world.end(), member) - world.begin());
      if (of(other) == of(mine)) continue;
      return bad_state(call, " comes in the middle of backward: ", told(of(mine)),
                       " of the step's buckets of gradients are being reduced here, and ", told(of(other)), " on rank ", member,
                       "; a rank that has no gradients for the others says so at mdp_grad_sync, which is to come first");
    }
  }
  return {};
}

Result<Gradients::Chosen> Gradients::choose(const ParamList& list) const {
  if (!list) return Chosen();
  Chosen chosen{.all = false, .params = std::vector<bool>(arenas_->plan().params.size())};
  for (size_t i = 0; i < list->size(); ++i) {
    const size_t param = (*list)[i];
    if (param >= arenas_->plan().params.size()) {
      return invalid("params[", i, "] is ", param, "; this buffer has ", arenas_->plan().params.size(), " parameters, counted from 0");
    }
    const auto refuse = [&](const char* why) {
      return Status(Code::invalid, text("params[", i, "] is ", param, ": ", param_label(param, arenas_->plan().params[param].name), why),
                    Blame{.param = static_cast<int64_t>(param)});
    };
    if (arenas_->plan().params[param].frozen) return refuse(" is frozen and has no gradient");
    if (chosen.params[param]) return refuse(" is listed already");
    chosen.params[param] = true;
  }
  return chosen;
}

Result<double> Gradients::norm(const ParamList& list) {
  if (Status synced = await_sync(); !synced) return synced;
  auto* const sums = static_cast<StepScalars*>(norm_->data());
  std::shared_ptr<Event> summed;
  {
    std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    if (Status reduced = check_reduced("mdp_grad_norm"); !reduced) return reduced;
    auto chosen = choose(list);
    if (!chosen) return chosen.status();
    if (Status submitted = submit_square_sum(sums, *chosen, "mdp_grad_norm"); !submitted) return submitted;
    auto recorded = arenas_->grads().stream().record();
    if (!recorded) return recorded.status();
    summed = *std::move(recorded);
  }
  const uint64_t begin = now_ns();
  const Status reached = summed->await();
  {
    std::lock_guard lock(mutex_);
    stats_.exposed_ns += now_ns() - begin;
  }
  if (!reached) return reached;
  StepScalars found{};
  if (Status read = arenas_->backend().read(&found, sums, offsetof(StepScalars, nonfinite) + sizeof found.nonfinite); !read) return read;
  const double norm = std::sqrt(found.square_sum) / step_divisor();
  // An element of a replica that does not count may be the one that is not finite.
  return found.nonfinite > 0 && std::isfinite(norm) ? std::numeric_limits<double>::quiet_NaN() : norm;
}

// Of these parameters in any order, however they were listed.
double Gradients::weight_of(const Chosen& chosen) const {
  uint64_t digest = 0;
  for (size_t param = 0; param < states_.size(); ++param) {
    if (chosen.has(param) && !arenas_->plan().params[param].frozen) digest ^= hash_bytes(&param, sizeof param);
  }
  return 1 + fraction_of(digest);
}

Status Gradients::scale(const ParamList& list, float factor, void* caller) {
  Stream& stream = arenas_->grads().stream();
  std::shared_ptr<Event> done;
  {
    std::lock_guard lock(mutex_);
    if (Status usable = arenas_->context().usable(); !usable) return usable;
    if (Status reduced = check_reduced("mdp_grad_scale"); !reduced) return reduced;
    auto chosen = choose(list);
    if (!chosen) return chosen.status();
    if (Status ordered = stream.wait_for_caller(caller); !ordered) return ordered;
    if (factor == 1) return {};  // most steps are not clipped
    written_ = true;
    note_change((logarithm_of(factor) - logarithm_of(1)) * weight_of(*chosen));
    for (const Arena& arena : arenas_->all()) {
      const Status submitted = submit_merged(
          arena.owned, [&](const OwnedRange& range) { return chosen->has(range.param); },
          [](const OwnedRange&, const OwnedRange&) { return true; },
          [&](const OwnedRange& range) {
            return arenas_->backend().scale(stream, arena.reduced_at(range), arena.reduced_type(), range.end - range.begin, factor);
          });
      if (!submitted) return submitted;
    }
    auto recorded = stream.record();
    if (!recorded) return recorded.status();
    done = *std::move(recorded);
  }
  const Uninterrupted to_the_end;  // called again it would multiply once more; and what it waits for is this rank's alone
  return stream.make_caller_wait(caller, *done);
}

Result<Slice> Gradients::owned(size_t param) {
  if (Status status = arenas_->check_param(param); !status) return status;
  std::lock_guard lock(mutex_);
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (Status reduced = check_reduced("mdp_grad_owned"); !reduced) return reduced;
  written_ = true;
  const Arena& arena = arenas_->arena_of(param);
  const OwnedRange* const range = arenas_->owned(param);
  return arenas_->slice(param, range != nullptr ? arena.reduced_at(*range) : nullptr, arena.reduced_type());
}

Status Gradients::changed(void* producer) {
  std::lock_guard lock(mutex_);
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (Status reduced = check_reduced("mdp_grad_changed"); !reduced) return reduced;
  written_ = true;
  return arenas_->grads().stream().wait_for_caller(producer);
}

void Gradients::note_view() {
  const std::lock_guard lock(mutex_);
  viewed_ = true;
}

}  // namespace megadp
