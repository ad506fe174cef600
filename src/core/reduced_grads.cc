// SPDX-License-Identifier: Apache-2.0
// Gradients between mdp_grad_sync and the step: their norm, a factor on them, and what was written through views.
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/buffer_impl.h"

namespace megadp {

Status Buffer::await_sync() {
  std::shared_ptr<Request> pending;
  {
    std::lock_guard lock(impl_->mutex);
    if (Status usable = tree().usable(); !usable) return usable;
    if (impl_->phase == Phase::syncing) pending = impl_->sync_request;
  }
  return pending ? pending->wait(Deadline::never()) : Status();
}

Status Buffer::Impl::check_reduced(const char* call) const {
  switch (phase) {
    case Phase::reduced:
      return {};
    case Phase::failed:
      return bad_state(call, ": the gradients are not whole: ", sync_status.text());
    case Phase::syncing:
      return bad_state(call, ": mdp_grad_sync is pending; wait for its request first");
    case Phase::open:
      break;
  }
  return bad_state(call, ": the gradients are not reduced; call mdp_grad_sync first");
}

Result<Buffer::Chosen> Buffer::choose(const ParamList& list) const {
  if (!list) return Chosen();
  Chosen chosen{.all = false, .params = std::vector<bool>(plan_.params.size())};
  for (size_t i = 0; i < list->size(); ++i) {
    const size_t param = (*list)[i];
    if (param >= plan_.params.size()) {
      return invalid("params[", i, "] is ", param, "; this buffer has ", plan_.params.size(), " parameters, counted from 0");
    }
    const auto refuse = [&](const char* why) {
      return Status(Code::invalid, text("params[", i, "] is ", param, ": ", param_label(param, plan_.params[param].name), why),
                    Blame{.param = static_cast<int64_t>(param)});
    };
    if (plan_.params[param].frozen) return refuse(" is frozen and has no gradient");
    if (chosen.params[param]) return refuse(" is listed already");
    chosen.params[param] = true;
  }
  return chosen;
}

// The norm over the whole model: every element is counted once in the world. Replicas over tensor-parallel ranks are gradients of their own
// programs, which should be equal and need not be: one that is not finite would spoil its own parameters, so all are looked at.
Status Buffer::submit_square_sum(StepScalars* scalars, const Chosen& chosen, const char* what) {
  Impl& s = *impl_;
  Stream& stream = impl_->grads->stream();
  Backend& backend = *tree().backend;
  static_assert(offsetof(StepScalars, nonfinite) == offsetof(StepScalars, square_sum) + sizeof(double));  // reduced together
  const auto add = [&](bool ParamState::*which) -> Status {
    for (const Arena& arena : s.arenas) {
      const Status submitted = submit_merged(
          arena.owned, [&](const OwnedRange& range) { return s.params[range.param].*which && chosen.has(range.param); },
          [](const OwnedRange&, const OwnedRange&) { return true; },
          [&](const OwnedRange& range) {
            return backend.square_sum(stream, arena.grad_at(range.begin), arena.plan->grad_type, range.end - range.begin, scalars);
          });
      if (!submitted) return submitted;
    }
    return {};
  };
  if (Status zeroed = backend.zero(stream, &scalars->square_sum, 2 * sizeof(double)); !zeroed) return zeroed;
  if (Status checked = add(&ParamState::checked); !checked) return checked;
  // Of the replicas only the number of elements that are not finite stays.
  if (Status zeroed = backend.zero(stream, &scalars->square_sum, sizeof(double)); !zeroed) return zeroed;
  if (Status added = add(&ParamState::counts); !added) return added;
  return s.world->group().all_reduce(stream, &scalars->square_sum, &scalars->square_sum, 2, DType::f64, Op::sum, Tag{-1, what});
}

Result<double> Buffer::grad_norm(const ParamList& list) {
  if (Status synced = await_sync(); !synced) return synced;
  Impl& s = *impl_;
  auto* const sums = static_cast<StepScalars*>(s.sums->data());
  std::shared_ptr<Event> summed;
  {
    std::lock_guard lock(s.mutex);
    if (Status usable = tree().usable(); !usable) return usable;
    if (Status reduced = s.check_reduced("mdp_grad_norm"); !reduced) return reduced;
    auto chosen = choose(list);
    if (!chosen) return chosen.status();
    if (Status submitted = submit_square_sum(sums, *chosen, "mdp_grad_norm"); !submitted) return submitted;
    auto recorded = s.grads->stream().record();
    if (!recorded) return recorded.status();
    summed = *std::move(recorded);
  }
  const uint64_t begin = now_ns();
  const Status reached = summed->wait(Deadline::never());
  {
    std::lock_guard lock(s.mutex);
    s.stats.exposed_ns += now_ns() - begin;
  }
  if (!reached) return reached;
  StepScalars found{};
  if (Status read = tree().backend->read(&found, sums, offsetof(StepScalars, nonfinite) + sizeof found.nonfinite); !read) return read;
  const double norm = std::sqrt(found.square_sum);
  // An element of a replica that does not count may be the one that is not finite.
  return found.nonfinite > 0 && std::isfinite(norm) ? std::numeric_limits<double>::quiet_NaN() : norm;
}

Status Buffer::grad_scale(const ParamList& list, float factor, void* caller) {
  Impl& s = *impl_;
  Stream& stream = impl_->grads->stream();
  std::shared_ptr<Event> done;
  {
    std::lock_guard lock(s.mutex);
    if (Status usable = tree().usable(); !usable) return usable;
    if (Status reduced = s.check_reduced("mdp_grad_scale"); !reduced) return reduced;
    auto chosen = choose(list);
    if (!chosen) return chosen.status();
    if (Status ordered = stream.wait_for_caller(caller); !ordered) return ordered;
    if (factor == 1) return {};  // most steps are not clipped
    for (const Arena& arena : s.arenas) {
      const Status submitted = submit_merged(
          arena.owned, [&](const OwnedRange& range) { return chosen->has(range.param); },
          [](const OwnedRange&, const OwnedRange&) { return true; },
          [&](const OwnedRange& range) {
            return tree().backend->scale(stream, arena.grad_at(range.begin), arena.plan->grad_type, range.end - range.begin, factor);
          });
      if (!submitted) return submitted;
    }
    auto recorded = stream.record();
    if (!recorded) return recorded.status();
    done = *std::move(recorded);
  }
  return stream.make_caller_wait(caller, *done);
}

Status Buffer::grad_changed(void* producer) {
  std::lock_guard lock(impl_->mutex);
  if (Status usable = tree().usable(); !usable) return usable;
  if (Status reduced = impl_->check_reduced("mdp_grad_changed"); !reduced) return reduced;
  return impl_->grads->stream().wait_for_caller(producer);
}

}  // namespace megadp
