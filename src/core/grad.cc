// SPDX-License-Identifier: Apache-2.0
// The arrival of gradients, and the launch of full buckets in the one order that all ranks share.
#include <algorithm>
#include <utility>

#include "core/gradients.h"

namespace megadp {

void Gradients::start_step() {
  // Of a step that is begun anew: they may still be written to.
  if (is_pooled()) {
    for (const BucketRef& each : arenas_->plan().launch_order) leave_spills(arenas_->arena_of(each), each.bucket);
  }
  for (ParamState& state : states_) {
    state.arrivals = 0;
    state.lent = state.has_gradient = state.ready = state.skipped = false;
    state.had_gradient = state.came = state.skipped_everywhere = false;
    state.turn = 0;
    state.written.reset();
  }
  for (Bucket& bucket : buckets_) {
    bucket.waiting = bucket.params;
    bucket.launched = bucket.summed = false;
  }
  phase_ = Phase::open;
  is_last_ = true;
  begun_ = microbatch_touched_ = touched_ = written_ = kept_ = false;
  tokens_.reset();
  microbatch_ = 1;
  turns_ = 0;
  next_launch_ = next_across_ = 0;
  sync_request_.reset();
}

size_t Gradients::launched() const {
  return static_cast<size_t>(std::count_if(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) { return bucket.launched; }));
}

Status Gradients::launch(std::span<const uint32_t> buckets) {
  const std::vector<BucketRef>& order = arenas_->plan().launch_order;
  const uint32_t microbatch = is_pooled() ? microbatch_ : 0;
  std::vector<WindowOp> calls;
  for (const uint32_t number : buckets) {
    if (is_pooled()) {
      if (Status filled = fill_slot(number); !filled) return filled;
    }
    if (Status measured = measure(number); !measured) return measured;
    const Arena& arena = arenas_->arena_of(order[number]);
    stats_.count(buckets_[number].reduction.get());  // before they are replaced
    stats_.count(buckets_[number].across.get());
    calls.push_back(arena.reduction(order[number].bucket, static_cast<int32_t>(number), microbatch, reduction_divisor()));
    if (const uint64_t squared = buckets_[number].squared; squared > 0) {
      calls.back().squares = squares_of(number);
      calls.back().squared = squared;
    }
    if (goes_to_sums(number)) {
      calls.back().to = arena.sums_of(order[number].bucket);
      calls.back().to_f32 = arena.plan->grad_type != DType::f32;
    } else if (arena.wide != nullptr) {
      if (Status placed = place_wide(number, &calls.back()); !placed) return placed;
    }
  }
  const Arena& first = arenas_->arena_of(order[buckets.front()]);
  auto reduction = first.wire != nullptr ? send_rounded(buckets.front(), calls.front()) : stats_.submit(*first.comms.grads, calls);
  if (!reduction) return reduction.status();
  for (const uint32_t number : buckets) {
    buckets_[number].reduction = *reduction;
    buckets_[number].across.reset();
    buckets_[number].launched = true;
  }
  stats_.buckets += buckets.size();
  return is_pooled() ? add_up(buckets) : Status();
}

Status Gradients::launch_in_order() {
  const auto full = [this](uint32_t number) { return buckets_[number].waiting == 0; };
  for (; next_launch_ < launches_.size(); ++next_launch_) {
    const std::vector<uint32_t>& next = launches_[next_launch_];
    if (!std::all_of(next.begin(), next.end(), full)) break;
    const Status launched = arenas_->context().commit([&]() -> Status {
      if (Status status = launch(next); !status) return status;
      // With a pool the sums of all microbatches, once.
      return !is_pooled() || is_last_ ? sum_across_of(next_launch_ + 1) : Status();
    });
    if (!launched) return launched;
  }
  return {};
}

Status Gradients::wait_for_puts(std::unique_lock<std::mutex>& lock) {
  while (puts_ > 0) {
    if (interrupted(lock)) return interruption();
    puts_over_.wait_until(lock, ask_by(Deadline::never()).time_point());
  }
  return {};
}

Status Gradients::arrive(size_t param) {
  ParamState& state = states_[param];
  state.has_gradient = true;
  microbatch_touched_ = touched_ = true;
  if (++state.arrivals < arenas_->plan().params[param].uses_per_step) return {};
  if (!is_last_ && !is_pooled()) return {};
  state.ready = true;
  state.written.reset();
  state.turn = ++turns_;
  return became_ready(buckets_[arenas_->place(param).bucket]);
}

Status Gradients::became_ready(Bucket& bucket) {
  if (--bucket.waiting > 0) return {};
  bucket.ready_ns = now_ns();
  return arenas_->plan().config.no_overlap ? Status() : launch_in_order();
}

// Whether a gradient of `param` may come now; `call` is the function's name.
Status Gradients::may_arrive(const char* call, size_t param) const {
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  const ParamState& state = states_[param];
  const ParamSpec& spec = arenas_->plan().params[param];
  const uint32_t number = arenas_->place(param).bucket;
  const auto refuse = [&](const std::string& why) {
    return Status(Code::state, text(call, ": ", param_label(param, spec.name), " ", why),
                  Blame{.bucket = static_cast<int32_t>(number), .param = static_cast<int64_t>(param)});
  };
  const auto bucket = [&] { return text("its bucket ", number, " is ", name_of(state_of(number))); };
  if (Status own = params_->check_swapped_back(call); !own) return own;
  switch (phase_) {
    case Phase::open:
      break;
    case Phase::syncing:
      return refuse("comes after mdp_grad_sync; " + bucket());
    case Phase::stepping:
      return refuse(text("comes while ", kIsStepping));
    case Phase::reduced:
    case Phase::failed:
      return refuse("comes after mdp_grad_sync; " + bucket() +
                    ". Call mdp_optimizer_step, or begin anew with mdp_buffer_zero_grad or mdp_microbatch_begin");
  }
  if (lacks_tokens())
    return refuse("comes before mdp_grad_tokens has returned, which half-width gradients are divided by as they are reduced");
  if (state.skipped) return refuse("was skipped in this step");
  if (state.being_put) return refuse("is being put by another thread");
  if (state.lent) return refuse(kIsLent);
  if (state.arrivals >= spec.uses_per_step) {
    return refuse(text("is ready already: it came ", state.arrivals, " of ", spec.uses_per_step,
                       " times in this microbatch (mdp_param.uses_per_step); ", bucket()));
  }
  return {};
}

Status Gradients::microbatch_begin(bool is_last) {
  std::unique_lock lock(mutex_);
  if (Status quiet = wait_for_puts(lock); !quiet) return quiet;
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (Status own = params_->check_swapped_back("mdp_microbatch_begin"); !own) return own;
  if (phase_ == Phase::syncing)
    return bad_state("mdp_microbatch_begin: mdp_grad_sync is pending; wait for its request first, or call mdp_grad_sync again");
  if (phase_ == Phase::stepping) return bad_state("mdp_microbatch_begin: ", kIsStepping);
  if (Status none = check_none_lent("mdp_microbatch_begin"); !none) return none;
  if (Status ended = end_reduced(); !ended) return ended;
  if (is_last_ && microbatch_touched_) {
    return bad_state("mdp_microbatch_begin: gradients of the last microbatch have come already; end the step with mdp_grad_sync");
  }
  if (begun_ && !is_last_) {
    if (Status left = is_pooled() ? next_microbatch() : Status(); !left) return left;
    ++microbatch_;
  }
  is_last_ = is_last;
  begun_ = true;
  microbatch_touched_ = false;
  for (ParamState& param : states_) param.arrivals = 0;
  return {};
}

std::optional<size_t> Gradients::find_lent() const {
  const auto lent = std::find_if(states_.begin(), states_.end(), [](const ParamState& state) { return state.lent; });
  return lent == states_.end() ? std::nullopt : std::optional(static_cast<size_t>(lent - states_.begin()));
}

Status Gradients::check_none_lent(const char* call) const {
  const std::optional<size_t> lent = find_lent();
  if (!lent) return {};
  return Status(Code::state, text(call, ": ", param_label(*lent, arenas_->plan().params[*lent].name), " ", kIsLent),
                Blame{.param = static_cast<int64_t>(*lent)});
}

// From here to the end nothing of the parameter arrives, and whoever clears slots or ends the step waits.
struct Gradients::Put {
  Put(Gradients& of, ParamState& one, std::unique_lock<std::mutex>& held) : all(of), state(one), lock(held) {
    state.being_put = true;
    ++all.puts_;
  }
  Put(const Put&) = delete;
  Put& operator=(const Put&) = delete;
  ~Put() {
    if (!lock.owns_lock()) lock.lock();
    state.being_put = false;
    if (--all.puts_ == 0) all.puts_over_.notify_all();
  }
  Gradients& all;
  ParamState& state;
  std::unique_lock<std::mutex>& lock;
};

Status Gradients::put(size_t param, const StridedArray& grad, bool add, bool more, void* producer) {
  if (Status status = arenas_->check_param(param); !status) return status;
  const ParamSpec& spec = arenas_->plan().params[param];
  if (grad.shape != spec.shape) {
    return Status(Code::invalid,
                  text("grad has shape ", shape_text(grad.shape), "; ", param_label(param, spec.name), " has ", shape_text(spec.shape)),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  ParamState& state = states_[param];
  std::unique_lock slot(slot_mutex(param), std::defer_lock);
  if (Status locked = lock_unless_interrupted(slot); !locked) return locked;
  std::unique_lock lock(mutex_);
  if (Status may = may_arrive("mdp_grad_put", param); !may) return may;
  if (add && is_pooled()) {
    return unsupported("mdp_grad_put of ", param_label(param, spec.name),
                       ": flags has MDP_GRAD_ADD (1); with MDP_SHARDING_ZERO_2 nothing lies there before the first put of a microbatch");
  }
  auto place = place_for(param, more);
  if (!place) return place.status().with_context(text("mdp_grad_put of ", param_label(param, spec.name)));
  const bool add_to_slot = add || state.has_gradient;
  const Put putting(*this, state, lock);
  lock.unlock();

  if (Status ordered = wait_for_slot(param, producer); !ordered) return ordered;
  if (Status copied = arenas_->backend().copy(*place, grad, add_to_slot, producer); !copied) {
    return copied.with_context(text("mdp_grad_put of ", param_label(param, spec.name)));
  }
  if (Status searched = checks_.search(param, place->data, place->type, microbatch_, producer); !searched) return searched;
  lock.lock();
  auto written = arenas_->grads().stream().follow_caller(producer);
  if (!written) return written.status();
  state.written = *std::move(written);
  state.has_gradient = microbatch_touched_ = touched_ = true;
  return more ? Status() : arrive(param);
}

Status Gradients::ready(size_t param, void* producer) {
  if (Status status = arenas_->check_param(param); !status) return status;
  std::unique_lock slot(slot_mutex(param), std::defer_lock);
  if (checks_.finite()) {  // the search is without the lock, one at a time
    if (Status locked = lock_unless_interrupted(slot); !locked) return locked;
  }
  std::unique_lock lock(mutex_);
  ParamState& state = states_[param];
  const bool lent = std::exchange(state.lent, false);
  Status may = may_arrive("mdp_grad_ready", param);
  if (may.ok() && !lent && is_pooled()) {
    may = bad_state("mdp_grad_ready: ", param_label(param, arenas_->plan().params[param].name),
                    " was not acquired; with MDP_SHARDING_ZERO_2 call mdp_grad_acquire and write where it says, or mdp_grad_put");
  }
  std::optional<Put> searching;
  if (may.ok() && checks_.finite()) {
    const StridedArray place = where_it_lies(param);
    searching.emplace(*this, state, lock);
    lock.unlock();
    may = checks_.search(param, place.data, place.type, microbatch_, producer);
    lock.lock();
  }
  if (may.ok()) {
    auto written = arenas_->grads().stream().follow_caller(producer);
    may = written.status();
    if (written) state.written = *std::move(written);
  }
  if (may.ok()) return arrive(param);
  state.lent = lent;
  return may;
}

Result<Arenas::View> Gradients::acquire(size_t param, bool* first, void* producer) {
  if (Status status = arenas_->check_param(param); !status) return status;
  std::unique_lock lock(mutex_);
  if (Status may = may_arrive("mdp_grad_acquire", param); !may) return may;
  ParamState& state = states_[param];
  auto place = place_for(param, false);
  if (!place) return place.status().with_context(text("mdp_grad_acquire of ", param_label(param, arenas_->plan().params[param].name)));
  state.lent = true;
  *first = !state.has_gradient;
  lock.unlock();
  if (Status ordered = wait_for_slot(param, producer); !ordered) {
    lock.lock();
    state.lent = false;
    return ordered;
  }
  return Arenas::View{place->data, place->type, &arenas_->plan().params[param].shape, arenas_->strides(param)};
}

Status Gradients::release(size_t param) {
  if (Status status = arenas_->check_param(param); !status) return status;
  const std::lock_guard lock(mutex_);
  ParamState& state = states_[param];
  if (!std::exchange(state.lent, false)) {
    return bad_state("mdp_grad_release: ", param_label(param, arenas_->plan().params[param].name), " is not lent");
  }
  if (!state.has_gradient) state.spill.reset();  // the next one may need another type
  return {};
}

Status Gradients::skip(size_t param) {
  if (Status status = arenas_->check_param(param); !status) return status;
  std::lock_guard lock(mutex_);
  if (Status may = may_arrive("mdp_grad_skip", param); !may) return may;
  ParamState& state = states_[param];
  microbatch_touched_ = touched_ = true;
  if (!is_last_ && !is_pooled()) {  // this microbatch adds nothing; what earlier ones added stays
    state.came = true;
    return {};
  }
  if (Status cleared = clear_if_empty(param); !cleared) return cleared;
  state.skipped = !state.has_gradient;
  state.arrivals = arenas_->plan().params[param].uses_per_step;
  state.ready = true;
  return became_ready(buckets_[arenas_->place(param).bucket]);
}

// A slot that nothing of this step was written to must add zero to the sum, whatever an earlier step left in it.
Status Gradients::clear_if_empty(size_t param) {
  if (states_[param].has_gradient || is_pooled()) return {};  // a pool's is cleared when it is the bucket's turn
  const Arena& arena = arenas_->arena_of(param);
  return arenas_->backend().zero(arenas_->grads().stream(), arena.grad_at(arenas_->local_bucket(param), arenas_->place(param).begin),
                                 arenas_->plan().params[param].numel * size_of(arena.plan->grad_type));
}

Status Gradients::wait_for_slot(size_t param, void* caller) {
  std::shared_ptr<Event> written, zeroed, reduced, updated;
  Stream& stream = arenas_->grads().stream();
  {
    std::lock_guard lock(mutex_);
    zeroed = zeroed_;
    written = states_[param].written;
    const Bucket& last = buckets_[arenas_->place(param).bucket];
    if (!is_pooled()) {  // what a step reads lies apart there
      updated = last.updated;
      // Of a step that was begun anew without the optimizer.
      if (last.reduction && !last.launched) reduced = last.reduced();
    }
  }
  // On the host these are over. What was written may have been on this very stream: to ask for that would cost more than to wait for it.
  for (const std::shared_ptr<Event>& before : {zeroed, written, reduced}) {
    if (!before || (before != written && before->done())) continue;
    if (Status ordered = stream.make_caller_wait(caller, *before); !ordered) return ordered;
  }
  // The last step may still be reading the slot.
  if (!updated || updated->done()) return updated ? updated->status() : Status();
  const uint64_t begin = now_ns();
  Status status = stream.make_caller_wait(caller, *updated);  // where it blocks, at most for the communicator's timeout
  std::lock_guard lock(mutex_);
  stats_.exposed_ns += now_ns() - begin;
  return status;
}

// A synced step ends without a step of the library's: it was given up, or, where the buffer has no optimizer, the caller has used the
// gradients.
Status Gradients::end_reduced() {
  if (phase_ == Phase::open) return {};
  if (phase_ == Phase::failed || params_->step_changes().has_optimizer()) {
    if (Status forgotten = zero_residuals(); !forgotten) return forgotten;
  }
  start_step();
  return {};
}

Status Gradients::zero(void* caller) {
  std::unique_lock lock(mutex_);
  if (Status quiet = wait_for_puts(lock); !quiet) return quiet;
  if (Status usable = arenas_->context().usable(); !usable) return usable;
  if (Status own = params_->check_swapped_back("mdp_buffer_zero_grad"); !own) return own;
  if (phase_ == Phase::syncing)
    return bad_state("mdp_buffer_zero_grad: mdp_grad_sync is pending; wait for its request first, or call mdp_grad_sync again");
  if (phase_ == Phase::stepping) return bad_state("mdp_buffer_zero_grad: ", kIsStepping);
  if (phase_ == Phase::open && has_launched()) {
    if (next_launch_ > 0) {
      return bad_state("mdp_buffer_zero_grad: ", launched(), " of ", buckets_.size(),
                       " buckets of this step are launched already; end the step with mdp_grad_sync");
    }
    return bad_state("mdp_buffer_zero_grad: the buckets of the microbatches before number ", microbatch_,
                     " of this step are launched already; end the step with mdp_microbatch_begin (is_last 1) and mdp_grad_sync");
  }
  if (Status none = check_none_lent("mdp_buffer_zero_grad"); !none) return none;
  Stream& stream = arenas_->grads().stream();
  if (Status ordered = stream.wait_for_caller(caller); !ordered) return ordered;
  for (const Arena& arena : arenas_->all()) {
    if (arena.is_pooled()) continue;  // the first of a step replaces what is there
    if (Status zeroed = arenas_->backend().zero(stream, arena.grads->data(), arena.grads->bytes()); !zeroed) return zeroed;
  }
  if (Status forgotten = checks_.forget(stream); !forgotten) return forgotten;
  auto done = stream.record();
  if (!done) return done.status();
  // Often called right after mdp_microbatch_begin or mdp_grad_tokens: what these said holds.
  const bool was_reduced = phase_ != Phase::open, is_last = was_reduced || is_last_, begun = !was_reduced && begun_;
  const std::optional<double> tokens = was_reduced ? std::nullopt : tokens_;
  if (Status ended = end_reduced(); !ended) return ended;
  if (!was_reduced) start_step();
  tokens_ = tokens;
  is_last_ = is_last;
  begun_ = begun;
  zeroed_ = *done;
  lock.unlock();
  return stream.make_caller_wait(caller, **done);
}

}  // namespace megadp
