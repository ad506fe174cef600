// SPDX-License-Identifier: Apache-2.0
// The step: what is submitted to the queue, and how its outcome is read.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "core/optimizer_impl.h"

namespace megadp {

namespace {

// Neighbouring ranges of a bucket that `take` accepts and that have one group are handed to `submit` as one: a call for each would be many
// small ones. Only alignment gaps lie between them, which hold zeros in gradient, master and moments and so stay zero.
template <class Ranges, class Take, class Submit>
Status submit_merged(const Ranges& ranges, const Take& take, const Submit& submit) {
  for (size_t i = 0; i < ranges.size();) {
    auto merged = ranges[i++];
    if (!take(merged)) continue;
    for (; i < ranges.size() && ranges[i].group == merged.group && take(ranges[i]); ++i) merged.range.end = ranges[i].range.end;
    if (Status submitted = submit(merged); !submitted) return submitted;
  }
  return {};
}

// `count` when all are finite.
template <class T>
uint64_t first_nonfinite(const std::byte* bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    T element;
    std::memcpy(&element, bytes + i * sizeof element, sizeof element);
    if (!std::isfinite(to_f32(element))) return i;
  }
  return count;
}
uint64_t first_nonfinite(DType type, const std::byte* bytes, uint64_t count) {
  if (type == DType::bf16) return first_nonfinite<Bf16>(bytes, count);
  if (type == DType::f16) return first_nonfinite<F16>(bytes, count);
  return first_nonfinite<float>(bytes, count);
}

}  // namespace

AdamW Optimizer::Impl::hyper(int group) const {
  const ParamGroup& g = config.groups[static_cast<size_t>(group)];
  return AdamW{g.has_lr ? g.lr : config.lr, config.beta1, config.beta2, config.eps, g.weight_decay};
}

// Masters follow parameters that were written from outside, or by another optimizer, since the last step.
Status Optimizer::submit_refresh() {
  Buffer::Impl& s = *buffer_->impl_;
  Tree& tree = buffer_->tree();
  for (size_t a = 0; a < s.arenas.size(); ++a) {
    const Buffer::Arena& arena = s.arenas[a];
    if (!Plan::has_master(*arena.plan)) continue;
    for (const auto& bucket : impl_->shards[a].buckets) {
      for (const Impl::Owned& owned : bucket) {
        if (impl_->versions[owned.range.param] == s.params[owned.range.param].version) continue;
        const Status submitted =
            tree.backend->cast(*tree.queue, impl_->master_at(arena, impl_->shards[a], owned), DType::f32, arena.param_at(owned.range.begin),
                               arena.plan->param_type, owned.range.end - owned.range.begin);
        if (!submitted) return submitted;
      }
    }
  }
  for (size_t param = 0; param < s.params.size(); ++param) impl_->versions[param] = s.params[param].version;
  return {};
}

// What this step writes is news to other optimizers of the same buffer only.
void Optimizer::count_changes() {
  Buffer::Impl& s = *buffer_->impl_;
  for (size_t param = 0; param < s.params.size(); ++param) {
    if (!s.params[param].skipped_everywhere) impl_->versions[param] = ++s.params[param].version;
  }
}

// The norm over the whole model: every element is counted once in the world. Replicas over tensor-parallel ranks are gradients of their own
// programs, which should be equal and need not be: one that is not finite would spoil its own parameters, so all are looked at.
Status Optimizer::submit_norm(double loss_scale) {
  Buffer::Impl& s = *buffer_->impl_;
  Tree& tree = buffer_->tree();
  StepScalars* scalars = impl_->device_scalars();
  static_assert(offsetof(StepScalars, nonfinite) == offsetof(StepScalars, square_sum) + sizeof(double));  // reduced together
  const auto add = [&](bool Impl::Owned::*which) -> Status {
    for (size_t a = 0; a < s.arenas.size(); ++a) {
      const Buffer::Arena& arena = s.arenas[a];
      for (const auto& bucket : impl_->shards[a].buckets) {
        const Status submitted = submit_merged(
            bucket, [which](const Impl::Owned& owned) { return owned.*which; },
            [&](const Impl::Owned& owned) {
              return tree.backend->square_sum(*tree.queue, arena.grad_at(owned.range.begin), arena.plan->grad_type,
                                              owned.range.end - owned.range.begin, scalars);
            });
        if (!submitted) return submitted;
      }
    }
    return {};
  };
  if (Status zeroed = tree.backend->zero(*tree.queue, &scalars->square_sum, 2 * sizeof(double)); !zeroed) return zeroed;
  if (Status checked = add(&Impl::Owned::checked); !checked) return checked;
  // Of the replicas only the number of elements that are not finite stays.
  if (Status zeroed = tree.backend->zero(*tree.queue, &scalars->square_sum, sizeof(double)); !zeroed) return zeroed;
  if (Status added = add(&Impl::Owned::counts); !added) return added;
  Group& world = buffer_->grid()->world()->group();
  if (Status summed =
          world.all_reduce(*tree.queue, &scalars->square_sum, &scalars->square_sum, 2, DType::f64, Op::sum, Tag{-1, "gradient norm"});
      !summed) {
    return summed;
  }
  const OptimizerConfig& config = impl_->config;
  return tree.backend->begin_step(*tree.queue, scalars, config.max_grad_norm, loss_scale, config.beta1, config.beta2, true);
}

// One bucket: every owned range updated and rounded into the parameter arena, then gathered.
Status Optimizer::submit_bucket(uint32_t number) {
  Buffer::Impl& s = *buffer_->impl_;
  Tree& tree = buffer_->tree();
  Buffer::Bucket& bucket = s.buckets[number];
  const Buffer::Arena& arena = s.arenas[bucket.arena];
  const Impl::Shard& shard = impl_->shards[bucket.arena];
  const Status updated = submit_merged(
      shard.buckets[bucket.index], [&](const Impl::Owned& owned) { return !s.params[owned.range.param].skipped_everywhere; },
      [&](const Impl::Owned& owned) {
        return tree.backend->adamw(*tree.queue, impl_->hyper(owned.group), impl_->device_scalars(), arena.grad_at(owned.range.begin),
                                   arena.plan->grad_type, impl_->master_at(arena, shard, owned), impl_->moment_at(shard, owned, 0),
                                   impl_->moment_at(shard, owned, 1), arena.param_at(owned.range.begin), arena.plan->param_type,
                                   owned.range.end - owned.range.begin);
      });
  if (!updated) return updated;
  s.count_times(bucket);
  auto begin = tree.queue->record();
  if (!begin) return begin.status();
  if (arena.plan->shards > 1) {
    const BucketRange& range = arena.range(bucket.index);
    const Status gathered = arena.comm->group().all_gather(*tree.queue, *arena.params, arena.plan->param_type, range.begin,
                                                           range.end - range.begin, Tag{static_cast<int32_t>(number), "parameters"});
    if (!gathered) return gathered;
    s.stats.bytes += (range.end - range.begin) * size_of(arena.plan->param_type);
  }
  auto end = tree.queue->record();
  if (!end) return end.status();
  bucket.gather_begin = *begin;
  bucket.gather_end = *end;
  bucket.gather_counted = false;
  return {};
}

Status Optimizer::await_sync() {
  Buffer::Impl& s = *buffer_->impl_;
  std::shared_ptr<Request> pending;
  {
    std::lock_guard lock(s.mutex);
    if (Status usable = buffer_->tree().usable(); !usable) return usable;
    if (s.phase == Phase::syncing) pending = s.sync_request;
  }
  return pending ? pending->wait(Deadline::never()) : Status();
}

Result<std::shared_ptr<Request>> Optimizer::step(const StepOptions& options, StepReport* report, bool want_request) {
  if (Status synced = await_sync(); !synced) return synced;
  // The outcome of the last step is still in the scalars, which this one overwrites. Its event has passed, so this does not wait.
  if (const auto last = last_request_.lock()) (void)last->wait(Deadline::never());
  Buffer::Impl& s = *buffer_->impl_;
  Tree& tree = buffer_->tree();
  std::shared_ptr<Event> normed, end;
  {
    std::lock_guard lock(s.mutex);
    if (Status usable = tree.usable(); !usable) return usable;
    if (s.phase == Phase::failed) return bad_state("mdp_optimizer_step: the gradients are not whole: ", s.sync_status.text());
    if (s.phase != Phase::reduced) return bad_state("mdp_optimizer_step: the gradients are not reduced; call mdp_grad_sync first");
    if (Status ordered = tree.queue->wait_for_caller(options.caller); !ordered) return ordered;
    if (options.lr) impl_->config.lr = *options.lr;
    if (Status submitted = submit_refresh(); !submitted) return submitted;
    if (Status submitted = submit_norm(options.loss_scale.value_or(1)); !submitted) return submitted;
    auto recorded = tree.queue->record();
    if (!recorded) return recorded.status();
    normed = *recorded;
    // Gradients become final from the last layer to the first; the next forward reads parameters from the first to the last.
    for (size_t number = s.buckets.size(); number-- > 0;) {
      if (Status submitted = submit_bucket(static_cast<uint32_t>(number)); !submitted) return submitted;
    }
    recorded = tree.queue->record();
    if (!recorded) return recorded.status();
    end = last_step_ = *recorded;
    count_changes();
    s.start_step();
  }

  if (report != nullptr || !want_request) {
    if (Status outcome = await(report != nullptr && want_request ? *normed : *end, options.loss_scale, report); !outcome) return outcome;
  }
  if (!want_request) return std::shared_ptr<Request>();
  // Only now: a step that failed above hands out no request, so that nobody would take its notification off the event fd.
  auto request = buffer_->grid()->world()->request(
      [self = shared_from_this(), loss_scale = options.loss_scale] { return self->read_outcome(loss_scale, false, nullptr); });
  if (request) last_request_ = *request;
  return request;
}

Status Optimizer::await(Event& event, std::optional<double> loss_scale, StepReport* report) {
  const uint64_t begin = now_ns();
  const Status reached = event.wait(Deadline::never());
  {
    std::lock_guard lock(buffer_->impl_->mutex);
    buffer_->impl_->stats.exposed_ns += now_ns() - begin;
  }
  return reached.ok() ? read_outcome(loss_scale, true, report) : reached;
}

Status Optimizer::read_outcome(std::optional<double> loss_scale, bool look, StepReport* report) {
  StepScalars scalars{};
  if (Status read = buffer_->tree().backend->read(&scalars, impl_->device_scalars(), sizeof scalars); !read) return read;
  if (report != nullptr) {
    report->grad_norm = scalars.grad_norm;
    report->clip_factor = scalars.clip_factor;
    report->loss_scale = loss_scale.value_or(1);
    report->step = scalars.step;
    report->skipped = scalars.skip != 0;
    report->clipped = scalars.skip == 0 && scalars.clip_factor < 1;
  }
  if (scalars.skip == 0 || loss_scale) return {};
  const auto [where, blame] = look ? find_nonfinite() : std::pair<std::string, Blame>(" (a step without a request says where)", {});
  return {Code::numeric,
          text("mdp_optimizer_step: the reduced gradient has ", static_cast<uint64_t>(scalars.nonfinite), " elements that are not finite",
               where, "; no rank has changed anything"),
          blame};
}

// Where, as the end of a sentence. Each rank looks through what it owns only: not all of them need be in this call, so they cannot confer.
std::pair<std::string, Blame> Optimizer::find_nonfinite() {
  Buffer::Impl& s = *buffer_->impl_;
  constexpr uint64_t chunk = 1 << 16;
  std::vector<std::byte> bytes(chunk * sizeof(float));
  for (const Buffer::Arena& arena : s.arenas) {
    const DType type = arena.plan->grad_type;
    for (const OwnedRange& range : arena.owned) {
      const std::lock_guard slot(s.param_mutexes[range.param % s.param_mutexes.size()]);  // the next step's gradient may come already
      for (uint64_t begin = range.begin; begin < range.end; begin += chunk) {
        const uint64_t count = std::min(chunk, range.end - begin);
        if (!buffer_->tree().backend->read(bytes.data(), arena.grad_at(begin), count * size_of(type))) return {};
        const uint64_t at = first_nonfinite(type, bytes.data(), count);
        if (at == count) continue;
        return {text(", among them element ", range.param_begin + (begin - range.begin) + at, " of ",
                     param_label(range.param, buffer_->plan().params[range.param].name)),
                Blame{.bucket = static_cast<int32_t>(s.params[range.param].bucket), .param = static_cast<int64_t>(range.param)}};
      }
    }
  }
  return {", none of them among those that this rank owns", {}};
}

}  // namespace megadp
