// SPDX-License-Identifier: Apache-2.0
// The arrival of gradients, and the launch of full buckets in the one order that all ranks share.
#include <algorithm>

#include "core/gradients.h"

namespace megadp {

void Gradients::start_step() {
  for (ParamState& state : states_) {
    state.arrivals = 0;
    state.has_gradient = state.ready = state.skipped = state.skipped_everywhere = false;
  }
  for (Bucket& bucket : buckets_) {
    bucket.waiting = bucket.params;
    bucket.launched = false;
  }
  phase_ = Phase::open;
  is_last_ = true;
  microbatch_touched_ = false;
  next_launch_ = 0;
  sync_request_.reset();
}

size_t Gradients::launched() const {
  return static_cast<size_t>(std::count_if(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return bucket.launched; }));
}

Status Gradients::launch(std::span<const uint32_t> buckets) {
  const std::vector<BucketRef>& order = arenas_->plan().launch_order;
  std::vector<WindowOp> calls;
  for (const uint32_t number : buckets) {
    stats_.count(buckets_[number].reduction.get());  // before it is replaced
    calls.push_back(arenas_->arena_of(order[number]).reduction(order[number].bucket, static_cast<int32_t>(number)));
  }
  auto reduction = stats_.submit(*arenas_->arena_of(order[buckets.front()]).grads_comm, calls);
  if (!reduction) return reduction.status();
  for (const uint32_t number : buckets) {
    buckets_[number].reduction = *reduction;
    buckets_[number].launched = true;
  }
  stats_.buckets += buckets.size();
  return {};
}

Status Gradients::launch_in_order() {
  const auto full = [this](uint32_t number) { return buckets_[number].waiting == 0; };
  for (; next_launch_ < launches_.size(); ++next_launch_) {
    const std::vector<uint32_t>& next = launches_[next_launch_];
    if (!std::all_of(next.begin(), next.end(), full)) break;
    if (Status status = launch(next); !status) return status;
  }
  return {};
}

void Gradients::wait_for_puts(std::unique_lock<std::mutex>& lock) {
  puts_over_.wait(lock, [this] { return puts_ == 0; });
}

Status Gradients::arrive(size_t param) {
  ParamState& state = states_[param];
  state.has_gradient = true;
  microbatch_touched_ = true;
  if (++state.arrivals < arenas_->plan().params[param].uses_per_step) return {};
  if (!is_last_) return {};
  state.ready = true;
  return became_ready(buckets_[arenas_->place(param).bucket]);
}

Status Gradients::became_ready(Bucket& bucket) {
  if (--bucket.waiting > 0) return {};
  bucket.ready_ns = now_ns();
  return arenas_->plan().config.no_overlap ? Status() : launch_in_order();
}

// Whether a gradient of `param` may come now; `call` is the function's name.
Status Gradients::may_arrive(const char* call, size_t param) const {
  const ParamState& state = states_[param];
  const ParamSpec& spec = arenas_->plan().params[param];
  const uint32_t number = arenas_->place(param).bucket;
  const auto refuse = [&](const std::string& why) {
    return Status(Code::state, text(call, ": ", param_label(param, spec.name), " ", why),
                  Blame{.bucket = static_cast<int32_t>(number), .param = static_cast<int64_t>(param)});
  };
  const auto bucket = [&] { return text("its bucket ", number, " is ", name_of(state_of(number))); };
  switch (phase_) {
    case Phase::open:
      break;
    case Phase::syncing:
      return refuse("comes after mdp_grad_sync; " + bucket());
    case Phase::reduced:
    case Phase::failed:
      return refuse("comes after mdp_grad_sync; " + bucket() +
                    ". Call mdp_optimizer_step, or begin anew with mdp_buffer_zero_grad or mdp_microbatch_begin");
  }
  if (state.skipped) return refuse("was skipped in this step");
  if (state.being_put) return refuse("is being put by another thread");
  if (state.arrivals >= spec.uses_per_step) {
    return refuse(text("is ready already: it came ", state.arrivals, " of ", spec.uses_per_step,
                       " times in this microbatch (mdp_param.uses_per_step); ", bucket()));
  }
  return {};
}

Status Gradients::microbatch_begin(bool is_last) {
  std::unique_lock lock(mutex_);
  wait_for_puts(lock);
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (phase_ == Phase::syncing)
    return bad_state("mdp_microbatch_begin: mdp_grad_sync is pending; wait for its request first, or call mdp_grad_sync again");
  if (phase_ != Phase::open) start_step();
  if (is_last_ && microbatch_touched_) {
    return bad_state("mdp_microbatch_begin: gradients of the last microbatch have come already; end the step with mdp_grad_sync");
  }
  is_last_ = is_last;
  microbatch_touched_ = false;
  for (ParamState& param : states_) param.arrivals = 0;
  return {};
}

Status Gradients::put(size_t param, const StridedArray& grad, bool add, bool more, void* producer) {
  if (Status status = arenas_->check_param(param); !status) return status;
  const ParamSpec& spec = arenas_->plan().params[param];
  if (grad.shape != spec.shape) {
    return Status(Code::invalid,
                  text("grad has shape ", shape_text(grad.shape), "; ", param_label(param, spec.name), " has ", shape_text(spec.shape)),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  ParamState& state = states_[param];
  const std::lock_guard slot(slot_mutex(param));
  std::unique_lock lock(mutex_);
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (Status may = may_arrive("mdp_grad_put", param); !may) return may;
  const bool add_to_slot = add || state.has_gradient;
  // From here to the end nothing of the parameter arrives, and whoever clears slots or ends the step waits.
  struct Put {
    Put(Gradients& of, ParamState& one, std::unique_lock<std::mutex>& held) : all(of), state(one), lock(held) {
      state.being_put = true;
      ++all.puts_;
    }
    ~Put() {
      if (!lock.owns_lock()) lock.lock();
      state.being_put = false;
      if (--all.puts_ == 0) all.puts_over_.notify_all();
    }
    Gradients& all;
    ParamState& state;
    std::unique_lock<std::mutex>& lock;
  } putting(*this, state, lock);
  lock.unlock();

  // The last step may still be reading the slot.
  if (Status stepped = wait_until_updated(arenas_->place(param).bucket, producer); !stepped) return stepped;
  if (Status copied = arenas_->backend().copy(arenas_->grad_array(param), grad, add_to_slot, producer); !copied) {
    return copied.with_context(text("mdp_grad_put of ", param_label(param, spec.name)));
  }
  lock.lock();
  if (Status ordered = arenas_->grads().stream().wait_for_caller(producer); !ordered) return ordered;
  state.has_gradient = microbatch_touched_ = true;
  return more ? Status() : arrive(param);
}

Status Gradients::ready(size_t param, void* producer) {
  if (Status status = arenas_->check_param(param); !status) return status;
  std::lock_guard lock(mutex_);
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (Status may = may_arrive("mdp_grad_ready", param); !may) return may;
  if (Status ordered = arenas_->grads().stream().wait_for_caller(producer); !ordered) return ordered;
  return arrive(param);
}

Status Gradients::skip(size_t param) {
  if (Status status = arenas_->check_param(param); !status) return status;
  std::lock_guard lock(mutex_);
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (Status may = may_arrive("mdp_grad_skip", param); !may) return may;
  ParamState& state = states_[param];
  microbatch_touched_ = true;
  if (!is_last_) return {};  // this microbatch adds nothing; what earlier ones added stays
  if (Status cleared = clear_if_empty(param); !cleared) return cleared;
  state.skipped = !state.has_gradient;
  state.arrivals = arenas_->plan().params[param].uses_per_step;
  state.ready = true;
  return became_ready(buckets_[arenas_->place(param).bucket]);
}

// A slot that nothing of this step was written to must add zero to the sum, whatever an earlier step left in it.
Status Gradients::clear_if_empty(size_t param) {
  if (states_[param].has_gradient) return {};
  const Arena& arena = arenas_->arena_of(param);
  return arenas_->backend().zero(arenas_->grads().stream(), arena.grad_at(arenas_->place(param).begin),
                                 arenas_->plan().params[param].numel * size_of(arena.plan->grad_type));
}

Status Gradients::wait_until_updated(uint32_t bucket, void* caller) {
  std::shared_ptr<Event> updated, reduced;
  Stream& stream = arenas_->grads().stream();
  {
    std::lock_guard lock(mutex_);
    const Bucket& last = buckets_[bucket];
    updated = last.updated;
    if (last.reduction && !last.launched) reduced = last.reduction->end;
  }
  // Of a step that was begun anew without the optimizer; on the host it is over with the sync.
  if (reduced && !reduced->done()) {
    if (Status ordered = stream.make_caller_wait(caller, *reduced); !ordered) return ordered;
  }
  if (!updated || updated->done()) return updated ? updated->status() : Status();
  const uint64_t begin = now_ns();
  Status status = stream.make_caller_wait(caller, *updated);  // where it blocks, at most for the communicator's timeout
  std::lock_guard lock(mutex_);
  stats_.exposed_ns += now_ns() - begin;
  return status;
}

Status Gradients::zero(void* caller) {
  std::unique_lock lock(mutex_);
  wait_for_puts(lock);
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (phase_ == Phase::syncing)
    return bad_state("mdp_buffer_zero_grad: mdp_grad_sync is pending; wait for its request first, or call mdp_grad_sync again");
  if (phase_ == Phase::open && next_launch_ > 0) {
    return bad_state("mdp_buffer_zero_grad: ", launched(), " of ", buckets_.size(),
                     " buckets of this step are launched already; end the step with mdp_grad_sync");
  }
  Stream& stream = arenas_->grads().stream();
  if (Status ordered = stream.wait_for_caller(caller); !ordered) return ordered;
  for (const Arena& arena : arenas_->all()) {
    if (Status zeroed = arenas_->backend().zero(stream, arena.grads->data(), arena.grads->bytes()); !zeroed) return zeroed;
  }
  auto done = stream.record();
  if (!done) return done.status();
  const bool is_last = phase_ != Phase::open || is_last_;  // often called right after mdp_microbatch_begin: what that said holds
  start_step();
  is_last_ = is_last;
  lock.unlock();
  return stream.make_caller_wait(caller, **done);
}

}  // namespace megadp
