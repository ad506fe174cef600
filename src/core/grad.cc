// SPDX-License-Identifier: Apache-2.0
// The arrival of gradients, and the launch of full buckets in the one order that all ranks share.
#include <algorithm>

#include "core/buffer_impl.h"

namespace megadp {

void Buffer::Impl::start_step() {
  for (ParamState& param : params) {
    param.arrivals = 0;
    param.has_gradient = param.ready = param.skipped = param.skipped_everywhere = false;
  }
  for (Bucket& bucket : buckets) {
    bucket.waiting = bucket.params;
    bucket.launched = false;
  }
  phase = Phase::open;
  is_last = true;
  microbatch_touched = false;
  next_launch = 0;
  sync_request.reset();
}

// Times are added up once both ends are known, and before the events are replaced by the next step's.
void Buffer::Impl::count_times(const Bucket& bucket) {
  for (Transfer* const transfer : {bucket.reduction.get(), bucket.gather.get()}) {
    if (transfer == nullptr || transfer->counted || !transfer->end->done()) continue;
    const uint64_t end_ns = transfer->end->time_ns();
    stats.comm_ns += end_ns - std::min(end_ns, transfer->begin->time_ns());  // after a failure both are the moments in which it was learned
    transfer->counted = true;
  }
}

BucketState Buffer::Impl::state_of(const Bucket& bucket) const {
  if (bucket.launched) return bucket.reduction->end->done() ? BucketState::reduced : BucketState::in_flight;
  if (bucket.waiting == 0) return BucketState::ready;
  if (bucket.waiting < bucket.params || !bucket.gather) return BucketState::filling;
  return bucket.gather->end->done() ? BucketState::whole : BucketState::gathering;
}

bool Buffer::Impl::is_sharded() const {
  return std::any_of(arenas.begin(), arenas.end(), [](const Arena& arena) { return arena.plan->shards > 1; });
}

Status Buffer::Impl::order_writes(void* caller) {
  if (Status ordered = grads->stream().wait_for_caller(caller); !ordered) return ordered;
  return gathered ? grads->stream().wait_for(gathered) : Status();
}

size_t Buffer::Impl::launched() const {
  return static_cast<size_t>(std::count_if(buckets.begin(), buckets.end(), [](const Bucket& bucket) { return bucket.launched; }));
}

void Buffer::Impl::plan_launches(bool overlap) {
  const auto goes_with = [&](const Bucket& a, const Bucket& b) {
    return !overlap && arenas[a.arena].grads_comm == arenas[b.arena].grads_comm;
  };
  for (size_t begin = 0, end = 0; begin < buckets.size(); begin = end) {
    while (end < buckets.size() && (end == begin || goes_with(buckets[begin], buckets[end]))) ++end;
    launches.emplace_back(&buckets[begin], end - begin);
  }
}

Result<std::shared_ptr<Buffer::Transfer>> Buffer::Impl::transfer(Comm& comm, std::span<const Bucket> those,
                                                                 std::span<const WindowCall> calls) {
  for (const Bucket& bucket : those) count_times(bucket);
  Stream& stream = comm.channel().stream();
  auto begin = stream.record();
  if (!begin) return begin.status();
  if (Status submitted = comm.group().together(stream, calls); !submitted) return submitted;
  auto end = stream.record();
  if (!end) return end.status();
  for (const WindowCall& call : calls) stats.bytes += call.count * size_of(call.type);
  return std::make_shared<Transfer>(Transfer{*std::move(begin), *std::move(end)});
}

Status Buffer::Impl::launch(std::span<Bucket> those) {
  std::vector<WindowCall> calls;
  for (const Bucket& bucket : those) {
    const Arena& arena = arenas[bucket.arena];
    const BucketRange& range = arena.range(bucket.index);
    calls.push_back({.kind = arena.plan->shards > 1 ? Collective::reduce_scatter : Collective::all_reduce,
                     .window = arena.grads,
                     .type = arena.plan->grad_type,
                     .begin = range.begin,
                     .count = range.end - range.begin,
                     .tag = {number_of(bucket), "gradients"},
                     .divisor = arena.divisor});
  }
  auto reduction = transfer(*arenas[those.front().arena].grads_comm, those, calls);
  if (!reduction) return reduction.status();
  for (Bucket& bucket : those) {
    bucket.reduction = *reduction;
    bucket.launched = true;
  }
  stats.buckets += those.size();
  return {};
}

Status Buffer::Impl::launch_in_order() {
  const auto full = [](const Bucket& bucket) { return bucket.waiting == 0; };
  for (; next_launch < launches.size(); ++next_launch) {
    const std::span<Bucket> those = launches[next_launch];
    if (!std::all_of(those.begin(), those.end(), full)) break;
    if (Status status = launch(those); !status) return status;
  }
  return {};
}

void Buffer::Impl::wait_for_puts(std::unique_lock<std::mutex>& lock) {
  puts_over.wait(lock, [this] { return puts == 0; });
}

Status Buffer::Impl::arrive(Buffer& buffer, size_t param) {
  ParamState& state = params[param];
  state.has_gradient = true;
  microbatch_touched = true;
  if (++state.arrivals < buffer.plan().params[param].uses_per_step) return {};
  if (!is_last) return {};
  state.ready = true;
  return became_ready(buffer, buckets[state.bucket]);
}

Status Buffer::Impl::became_ready(Buffer& buffer, Bucket& bucket) {
  if (--bucket.waiting > 0) return {};
  bucket.ready_ns = now_ns();
  return buffer.plan().config.no_overlap ? Status() : launch_in_order();
}

// Whether a gradient of `param` may come now; `call` is the function's name.
Status Buffer::may_arrive(const char* call, size_t param) const {
  const Impl& s = *impl_;
  const ParamState& state = s.params[param];
  const ParamSpec& spec = plan_.params[param];
  const auto refuse = [&](const std::string& why) {
    return Status(Code::state, text(call, ": ", param_label(param, spec.name), " ", why),
                  Blame{.bucket = static_cast<int32_t>(state.bucket), .param = static_cast<int64_t>(param)});
  };
  const auto bucket = [&] { return text("its bucket ", state.bucket, " is ", name_of(s.state_of(s.buckets[state.bucket]))); };
  switch (s.phase) {
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

Status Buffer::microbatch_begin(bool is_last) {
  Impl& s = *impl_;
  std::unique_lock lock(s.mutex);
  s.wait_for_puts(lock);
  if (Status usable = tree().usable(); !usable) return usable;
  if (s.phase == Phase::syncing)
    return bad_state("mdp_microbatch_begin: mdp_grad_sync is pending; wait for its request first, or call mdp_grad_sync again");
  if (s.phase != Phase::open) s.start_step();
  if (s.is_last && s.microbatch_touched) {
    return bad_state("mdp_microbatch_begin: gradients of the last microbatch have come already; end the step with mdp_grad_sync");
  }
  s.is_last = is_last;
  s.microbatch_touched = false;
  for (ParamState& param : s.params) param.arrivals = 0;
  return {};
}

Status Buffer::grad_put(size_t param, const StridedArray& grad, bool add, bool more, void* producer) {
  if (Status status = check_param(param); !status) return status;
  const ParamSpec& spec = plan_.params[param];
  if (grad.shape != spec.shape) {
    return Status(Code::invalid,
                  text("grad has shape ", shape_text(grad.shape), "; ", param_label(param, spec.name), " has ", shape_text(spec.shape)),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  Impl& s = *impl_;
  ParamState& state = s.params[param];
  std::lock_guard slot(s.param_mutexes[param % s.param_mutexes.size()]);
  std::unique_lock lock(s.mutex);
  if (Status usable = tree().usable(); !usable) return usable;
  if (Status may = may_arrive("mdp_grad_put", param); !may) return may;
  const bool add_to_slot = add || state.has_gradient;
  // From here to the end nothing of the parameter arrives, and whoever clears slots or ends the step waits.
  struct Put {
    Put(Impl& all, ParamState& one, std::unique_lock<std::mutex>& held) : s(all), state(one), lock(held) {
      state.being_put = true;
      ++s.puts;
    }
    ~Put() {
      if (!lock.owns_lock()) lock.lock();
      state.being_put = false;
      if (--s.puts == 0) s.puts_over.notify_all();
    }
    Impl& s;
    ParamState& state;
    std::unique_lock<std::mutex>& lock;
  } put(s, state, lock);
  lock.unlock();

  // The last step may still be reading the slot.
  if (Status stepped = wait_until_stepped(state.bucket, producer); !stepped) return stepped;
  const Arena& arena = s.arenas[state.arena];
  const StridedArray to{arena.grad_at(state.begin), arena.plan->grad_type, spec.shape, state.strides};
  if (Status copied = tree().backend->copy(to, grad, add_to_slot, producer); !copied) {
    return copied.with_context(text("mdp_grad_put of ", param_label(param, spec.name)));
  }
  lock.lock();
  if (Status ordered = s.grads->stream().wait_for_caller(producer); !ordered) return ordered;
  state.has_gradient = s.microbatch_touched = true;
  return more ? Status() : s.arrive(*this, param);
}

Status Buffer::grad_ready(size_t param, void* producer) {
  if (Status status = check_param(param); !status) return status;
  Impl& s = *impl_;
  std::lock_guard lock(s.mutex);
  if (Status usable = tree().usable(); !usable) return usable;
  if (Status may = may_arrive("mdp_grad_ready", param); !may) return may;
  if (Status ordered = s.grads->stream().wait_for_caller(producer); !ordered) return ordered;
  return s.arrive(*this, param);
}

Status Buffer::grad_skip(size_t param) {
  if (Status status = check_param(param); !status) return status;
  Impl& s = *impl_;
  std::lock_guard lock(s.mutex);
  if (Status usable = tree().usable(); !usable) return usable;
  if (Status may = may_arrive("mdp_grad_skip", param); !may) return may;
  ParamState& state = s.params[param];
  s.microbatch_touched = true;
  if (!s.is_last) return {};  // this microbatch adds nothing; what earlier ones added stays
  if (Status cleared = clear_if_empty(param); !cleared) return cleared;
  state.skipped = !state.has_gradient;
  state.arrivals = plan_.params[param].uses_per_step;
  state.ready = true;
  return s.became_ready(*this, s.buckets[state.bucket]);
}

// A slot that nothing of this step was written to must add zero to the sum, whatever an earlier step left in it.
Status Buffer::clear_if_empty(size_t param) {
  const ParamState& state = impl_->params[param];
  if (state.has_gradient) return {};
  const Arena& arena = impl_->arenas[state.arena];
  return tree().backend->zero(impl_->grads->stream(), arena.grad_at(state.begin),
                              plan_.params[param].numel * size_of(arena.plan->grad_type));
}

Status Buffer::wait_until_stepped(uint32_t bucket, void* caller) {
  std::shared_ptr<Event> updated, reduced;
  Stream& stream = impl_->grads->stream();
  {
    std::lock_guard lock(impl_->mutex);
    const Bucket& last = impl_->buckets[bucket];
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
  std::lock_guard lock(impl_->mutex);
  impl_->stats.exposed_ns += now_ns() - begin;
  return status;
}

Status Buffer::zero_grad(void* caller) {
  Impl& s = *impl_;
  std::unique_lock lock(s.mutex);
  s.wait_for_puts(lock);
  if (Status usable = tree().usable(); !usable) return usable;
  if (s.phase == Phase::syncing)
    return bad_state("mdp_buffer_zero_grad: mdp_grad_sync is pending; wait for its request first, or call mdp_grad_sync again");
  if (s.phase == Phase::open && s.next_launch > 0) {
    return bad_state("mdp_buffer_zero_grad: ", s.launched(), " of ", s.buckets.size(),
                     " buckets of this step are launched already; end the step with mdp_grad_sync");
  }
  Stream& stream = s.grads->stream();
  if (Status ordered = stream.wait_for_caller(caller); !ordered) return ordered;
  for (Arena& arena : s.arenas) {
    if (Status zeroed = tree().backend->zero(stream, arena.grads->data(), arena.grads->bytes()); !zeroed) return zeroed;
  }
  auto done = stream.record();
  if (!done) return done.status();
  const bool is_last = s.phase != Phase::open || s.is_last;  // often called right after mdp_microbatch_begin: what that said holds
  s.start_step();
  s.is_last = is_last;
  lock.unlock();
  return stream.make_caller_wait(caller, **done);
}

}  // namespace megadp
