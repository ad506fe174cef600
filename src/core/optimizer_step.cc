// SPDX-License-Identifier: Apache-2.0
// The step: what is submitted to the channels, and how its outcome is read.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/log.h"
#include "core/optimizer_impl.h"

namespace megadp {

namespace {

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

Hyper Optimizer::Impl::hyper(size_t group, std::optional<double> lr) const {
  const auto now = stepping.lock();
  const ParamGroup& g = (now ? *now : config.groups)[group - config.first_group];
  Hyper hyper = config.hyper;
  if (lr) hyper.lr = *lr;
  for (const GroupField& field : kGroupFields) {
    if (const std::optional<double>& value = g.*field.of_group) hyper.*field.value = *value;
  }
  return hyper;
}

Update Optimizer::Impl::update(const Arena& arena, const Shard& shard, const Owned& owned, std::optional<double> lr) {
  Update update{};
  update.hyper = hyper(owned.group, lr);
  update.scalars = device_scalars();
  update.steps = device_steps(classes.of(owned.param));
  update.grad = arena.reduced_at(owned);
  update.master = master_at(arena, shard, owned);
  for (size_t k = 0; k < states.size(); ++k) update.state[k] = state_at(shard, owned, k);
  update.param = arena.param_at(owned.begin);
  update.count = owned.end - owned.begin;
  update.grad_type = arena.reduced_type();
  update.param_type = arena.plan->param_type;
  update.rule = config.rule;
  if (config.bf16_state) update.state_type = DType::bf16;
  update.rounds_state_with_bits = config.stochastic_state;
  if (draws(*arena.plan)) update.random = source(owned);
  return update;
}

// A master follows its parameter if that was written from outside, or by another optimizer, since the last step: only where it does not
// round to what was written, so that a write that leaves elements as they are loses none of their digits; and all of it where the
// parameter was replaced as a whole, since masters of replicas are the same then, whatever they were.
Status Optimizer::Impl::submit_master(Buffer& buffer, Stream& stream, size_t a, const Owned& owned, uint64_t version) const {
  const Arenas& arenas = buffer.arenas();
  const Arena& arena = arenas.all()[a];
  if (!has_master(*arena.plan) || versions[owned.param] == version) return {};
  float* const master = master_at(arena, shards[a], owned);
  const void* const param = arena.param_at(owned.begin);
  const DType type = arena.plan->param_type;
  const uint64_t count = owned.end - owned.begin;
  if (versions[owned.param] >= buffer.params().last_replacement(owned.param)) {
    return arenas.backend().refresh_masters(stream, master, param, type, count);
  }
  return arenas.backend().cast(stream, master, DType::f32, param, type, count);
}

Status Optimizer::submit_refresh() {
  std::vector<uint64_t> now(impl_->versions.size());
  for (size_t param = 0; param < now.size(); ++param) now[param] = buffer_->params().version(param);
  for (size_t a = 0; a < impl_->shards.size(); ++a) {
    for (const auto& bucket : impl_->shards[a].buckets) {
      for (const Impl::Owned& owned : bucket) {
        if (Status submitted = impl_->submit_master(*buffer_, buffer_->arenas().grads().stream(), a, owned, now[owned.param]); !submitted)
          return submitted;
      }
    }
  }
  impl_->versions = std::move(now);
  return impl_->averages() ? submit_first_averages() : Status();
}

// What this step writes is news to other optimizers of the same buffer only.
void Optimizer::note_changes(Together optimizers, const Step& step) const {
  StepChanges& all = buffer_->params().step_changes();
  if (!all.are_wanted()) return;
  for (const auto& each : optimizers) {
    StepChanges::Change change{&each->impl_->versions, {}, step.normed, step.outcome};
    for (size_t param = 0; param < each->impl_->versions.size(); ++param) {
      if (each->covers(param) && !buffer_->gradients().skipped_everywhere(param)) change.params.push_back(param);
    }
    all.add(std::move(change));
  }
}

// What others have changed before the masters of these follow.
void Optimizer::settle_changes(Together optimizers) const {
  std::vector<const StepChanges::Versions*> these;
  for (const auto& each : optimizers) these.push_back(&each->impl_->versions);
  buffer_->params().step_changes().settle(these);
}

// One more step for every parameter that takes part in it; unless it is skipped, which the device knows.
Status Optimizer::submit_counts() {
  Backend& backend = *buffer_->context().backend;
  Stream& stream = buffer_->arenas().grads().stream();
  return impl_->classes.step(
      [&](size_t param) { return covers(param) ? std::optional(!buffer_->gradients().skipped_everywhere(param)) : std::nullopt; },
      [&](uint32_t from, uint32_t to) {
        return backend.cast(stream, impl_->device_steps(to), DType::i64, impl_->device_steps(from), DType::i64, 1);
      },
      [&](uint32_t first, uint32_t count) {
        return backend.count_steps(stream, impl_->device_scalars(), impl_->device_steps(first), count);
      });
}

Status Optimizer::for_each_update(uint32_t number, std::optional<double> lr,
                                  const std::function<Status(const OwnedRange&, const Update&)>& take) {
  const Arenas& arenas = buffer_->arenas();
  const BucketRef bucket = arenas.plan().launch_order[number];
  const Arena& arena = arenas.arena_of(bucket);
  const Impl::Shard& shard = impl_->shards[bucket.arena];
  if (impl_->is_callers() && !Plan::has_master(*arena.plan)) return {};  // the caller has written the parameter itself
  return submit_merged(
      shard.buckets[bucket.bucket], [&](const Impl::Owned& owned) { return !buffer_->gradients().skipped_everywhere(owned.param); },
      [&](const Impl::Owned& a, const Impl::Owned& b) {
        return b.joined && !impl_->draws(*arena.plan) && a.group == b.group && impl_->classes.of(a.param) == impl_->classes.of(b.param);
      },
      [&](const Impl::Owned& owned) { return take(owned, impl_->update(arena, shard, owned, lr)); });
}

// Every owned range of the bucket updated and rounded into the parameter arena.
Status Optimizer::submit_update(uint32_t number, std::optional<double> lr) {
  const Arenas& arenas = buffer_->arenas();
  return for_each_update(number, lr,
                         [&](const OwnedRange&, const Update& update) { return arenas.backend().update(arenas.grads().stream(), update); });
}

// A place for the outcome of one step, which the next step must not overwrite before somebody has looked: one that nobody holds any more,
// or a new one.
Result<std::shared_ptr<Memory>> Optimizer::outcome_place() {
  for (const std::shared_ptr<Memory>& known : *outcomes_) {
    if (known.use_count() == 1) return known;
  }
  auto place = buffer_->arenas().backend().allocate_host(sizeof(StepScalars));
  if (!place) return place.status();
  outcomes_->push_back(*std::move(place));
  return outcomes_->back();
}

// If nobody waited for a step, the next one reports its non-finite gradient and is refused on every rank; otherwise the ranks that went
// ahead would wait for those that refused. It first waits for the earlier outcome, so the host is at most one step ahead of a device, which
// still has the next backward pass to do by then.
Status Optimizer::unseen_outcome(std::unique_lock<std::mutex>* lock) {
  if (!unseen_.place) return {};
  const PendingOutcome unseen = std::exchange(unseen_, {});
  if (!unseen.known->done()) {
    lock->unlock();
    (void)unseen.known->await();
    lock->lock();
  }
  if (Status reached = unseen.known->status(); !reached) return reached;
  return judge(unseen.place, unseen.scaled, false, nullptr).with_context("the last step");
}

double Optimizer::divisor_of(const StepOptions& options) const {
  return options.divisor() * buffer_->gradients().step_divisor();
}

Optimizer::Scaled Optimizer::scaled(const StepOptions& options) const {
  return {options.loss_scale || impl_->scaler.kind != LossScaler::Kind::none, options.loss_scale.value_or(1), !options.unchecked};
}

// The norm, what follows from it, and a copy of both in `outcome`: an event at that point. Optimizers that step together begin with the
// same numbers, and so decide the same.
Result<std::shared_ptr<Event>> Optimizer::submit_norm(Together optimizers, const StepOptions& options, void* outcome) {
  Backend& backend = buffer_->arenas().backend();
  Stream& stream = buffer_->arenas().grads().stream();
  for (const auto& each : optimizers) {
    if (Status submitted = each->submit_refresh(); !submitted) return submitted;
  }
  StepScalars* const scalars = impl_->device_scalars();
  if (Status summed = options.unchecked ? submit_no_norm() : buffer_->gradients().submit_square_sum(scalars, {}, "gradient norm");
      !summed) {
    return summed;
  }
  if (impl_->config.norm == Norm::inf && !options.unchecked) {
    if (Status submitted = buffer_->gradients().submit_largest(scalars); !submitted) return submitted;
  }
  static_assert(kStepInputBytes % sizeof(int64_t) == 0);
  for (const auto& each : optimizers.subspan(1)) {
    const Status copied =
        backend.cast(stream, each->impl_->device_scalars(), DType::i64, scalars, DType::i64, kStepInputBytes / sizeof(int64_t));
    if (!copied) return copied;
  }
  const StepSettings settings{impl_->config.max_grad_norm, divisor_of(options), impl_->config.max_grad_value, impl_->config.norm,
                              impl_->scaler};
  for (const auto& each : optimizers) {
    if (Status begun = backend.begin_step(stream, each->impl_->device_scalars(), settings); !begun) return begun;
    if (Status counted = each->submit_counts(); !counted) return counted;
  }
  if (Status fetched = backend.fetch(stream, outcome, scalars, sizeof(StepScalars)); !fetched) return fetched;
  return stream.record();
}

// Gradients become final from the last layer to the first; the next forward reads parameters from the first to the last. What was launched
// at once is gathered at once, after its update.
Status Optimizer::submit_updates(Together optimizers, std::optional<double> lr) {
  const std::vector<std::vector<uint32_t>>& launches = buffer_->gradients().launches();
  for (size_t number = launches.size(); number-- > 0;) {
    for (const uint32_t bucket : launches[number]) {
      for (const auto& each : optimizers) {
        if (Status submitted = each->submit_update(bucket, lr); !submitted) return submitted;
        if (Status averaged = each->submit_average(bucket); !averaged) return averaged;
      }
    }
    auto updated = buffer_->gradients().mark_updated(launches[number]);
    if (!updated) return updated.status();
    if (Status submitted = buffer_->params().gather(launches[number], *updated); !submitted) return submitted;
  }
  return {};
}

Result<std::shared_ptr<Request>> Optimizer::step(Together optimizers, const StepOptions& options, StepReport* report, bool want_request) {
  return optimizers.front()->lead(optimizers, options, report, want_request);
}

Result<std::shared_ptr<Request>> Optimizer::lead(Together optimizers, const StepOptions& options, StepReport* report, bool want_request) {
  if (Status possible = check_unchecked(optimizers, options); !possible) return possible;
  if (std::any_of(optimizers.begin(), optimizers.end(), [](const auto& each) { return each->has_callers_rule(); })) {
    return call_updates(optimizers, options, report, want_request);
  }
  if (Status ready = make_ready(optimizers, options); !ready) return ready;
  Step step{options, scaled(options)};
  std::shared_ptr<Event> end;
  {
    std::unique_lock lock = buffer_->gradients().lock();
    if (Status begun = submit_begin(optimizers, &lock, &step); !begun) {
      lock.unlock();
      return step.refused(begun);
    }
    auto submitted = buffer_->context().commit([&] { return submit_end(optimizers, step); });
    if (!submitted) return submitted.status();
    end = *std::move(submitted);
  }
  return conclude(step, end, report, want_request);
}

Status Optimizer::check_whole(const char* call) const {
  if (!impl_->broken) return {};
  return bad_state(call,
                   ": an update of the caller's has failed, so masters and state are not whole; load a checkpoint, or write them and call "
                   "mdp_optimizer_set_steps");
}

Status Optimizer::make_ready(Together optimizers, const StepOptions& options, const Status& mine) {
  if (Status loaded = buffer_->arenas().check_loaded(); !loaded) return loaded;
  if (Status own = buffer_->params().check_swapped_back("mdp_optimizer_step"); !own) return own;
  for (const auto& each : optimizers) {
    if (Status whole = each->check_whole("mdp_optimizer_step"); !whole) return whole;
  }
  if (Status together = agree_together(optimizers, mine); !together) return together;
  return buffer_->gradients().sync_for_step(options.caller, values_of(optimizers, options), may_be_in_one_pass(optimizers, options));
}

StepValues Optimizer::values_of(Together optimizers, const StepOptions& options) const {
  StepValues values{.divisor = options.divisor()};
  double weight = 1;  // another one for each value, so that no two that change places go unseen
  for (const auto& each : optimizers) {
    const Impl& impl = *each->impl_;
    for (size_t group = 0; group < impl.config.groups.size(); ++group) {
      const Hyper hyper = impl.hyper(impl.config.first_group + group, options.lr);
      if (group == 0 && each == optimizers.front()) values.shown_lr = hyper.lr;
      for (const GroupField& field : kGroupFields) {
        (field.value == &Hyper::lr ? values.lr : values.others) += weight * logarithm_of(hyper.*field.value);
        weight += 0.382;
      }
    }
  }
  return values;
}

// What all ranks refuse alike after the sync.
Status Optimizer::check_synced(const Step& step) const {
  if (!step.nonfinite.ok() && step.options.unchecked) {  // it was looked for, and no norm will say so
    return Status(
        step.nonfinite.code(),
        text(step.nonfinite.text(), "; the gradients stay: begin anew with mdp_buffer_zero_grad, or step without MDP_STEP_UNCHECKED"),
        step.nonfinite.blame());
  }
  if (const double divisor = divisor_of(step.options); !is_within(divisor, Range::divisor)) {
    return invalid("mdp_optimizer_step: loss_scale times grad_divisor times the step's tokens is ", divisor, "; it must be between ",
                   kLeastDivisor, " and ", kMostDivisor);
  }
  return {};
}

// All of a step that comes before the updates. The gradients' lock is held.
Status Optimizer::submit_begin(Together optimizers, std::unique_lock<std::mutex>* lock, Step* step) {
  Gradients& gradients = buffer_->gradients();
  if (Status usable = buffer_->context().usable(); !usable) return usable;
  if (Status reduced = gradients.check_reduced("mdp_optimizer_step", true); !reduced) return reduced;
  step->nonfinite = gradients.sync_status();
  if (!step->nonfinite.ok() && step->scaled.skips) {
    log(LogLevel::info, text(step->nonfinite.text(), "; a step with a loss scale is skipped for it"));
  }
  const Status possible = check_synced(*step);
  if (!possible || !may_be_in_one_pass(optimizers, step->options)) {
    auto reduced = gradients.launch_kept();
    if (!reduced) return reduced.status();
    step->reduced = *std::move(reduced);
  }
  if (!possible) return possible;
  for (const auto& each : optimizers) {
    if (Status unseen = each->unseen_outcome(lock); !unseen) return unseen;
  }
  settle_changes(optimizers);
  if (Status ordered = buffer_->params().order_writes(step->options.caller); !ordered) return ordered;
  auto place = outcome_place();
  if (!place) return place.status();
  step->outcome = *std::move(place);
  auto judged = buffer_->context().commit([&] { return submit_norm(optimizers, step->options, step->outcome->data()); });
  if (!judged) return judged.status();
  step->normed = *std::move(judged);
  return {};
}

// The rest of it. The gradients' lock is held.
Result<std::shared_ptr<Event>> Optimizer::submit_end(Together optimizers, const Step& step) {
  const std::optional<double>& lr = step.options.lr;
  const bool in_one_pass = buffer_->gradients().keeps_buckets();
  note_changes(optimizers, step);
  if (Status submitted = in_one_pass ? submit_in_one_pass(optimizers, step) : submit_updates(optimizers, lr); !submitted) return submitted;
  auto end = buffer_->params().record();
  if (!end) return end;
  if (lr) impl_->config.hyper.lr = *lr;  // only now: a step that could not be submitted has changed nothing
  for (const auto& each : optimizers) each->last_step_ = *end;
  buffer_->gradients().note_values(values_of(optimizers, step.options));
  buffer_->gradients().start_step();
  return end;
}

Result<std::shared_ptr<Request>> Optimizer::conclude(const Step& step, const std::shared_ptr<Event>& end, StepReport* report,
                                                     bool want_request) {
  Context& context = buffer_->context();
  const Channel& last = buffer_->arenas().last();
  // What the sync has found on a rank says more than what can be seen in the sum; with a loss scale it is nothing to worry about.
  const bool refused = !step.nonfinite.ok() && !step.scaled.skips;
  if (report != nullptr || refused || (!want_request && !context.on_device())) {
    Status found = await(want_request || context.on_device() ? *step.normed : *end, step.outcome, step.scaled, report);
    if (!found) return refused && found.code() == Code::numeric ? step.nonfinite : found;
  } else if (!want_request) {
    unseen_ = {step.outcome, step.normed, step.scaled};
  }
  // On the host it has been waited for; a device goes on while the caller does.
  if (!want_request) {
    if (Status ordered = last.stream().make_caller_wait(step.options.caller, *end); !ordered) return ordered;
    return std::shared_ptr<Request>();
  }
  // Only now: a step that failed above hands out no request, so that nobody would take its notification off the event fd.
  return context.commit([&] {
    return last.request(buffer_->arenas().shared_context(), [self = shared_from_this(), outcome = step.outcome, scaled = step.scaled] {
      return self->judge(outcome, scaled, false, nullptr);
    });
  });
}

Status Optimizer::await(Event& event, const std::shared_ptr<Memory>& outcome, Scaled scaled, StepReport* report) {
  const uint64_t begin = now_ns();
  const Status reached = event.await();
  buffer_->gradients().count_exposed(now_ns() - begin);
  return reached.ok() ? judge(outcome, scaled, true, report) : reached;
}

Status Optimizer::judge(const std::shared_ptr<Memory>& outcome, Scaled scaled, bool look, StepReport* report) {
  const StepScalars& scalars = *static_cast<const StepScalars*>(outcome->data());
  if (report != nullptr) {
    report->grad_norm = scaled.checked ? scalars.grad_norm : std::numeric_limits<double>::quiet_NaN();
    report->unchecked = !scaled.checked;
    report->clip_factor = scalars.clip_factor;
    report->loss_scale = scaled.loss_scale * scalars.used_scale;
    report->step = scalars.step;
    report->skipped = scalars.skip != 0;
    report->clipped = scalars.skip == 0 && scalars.clip_factor < 1;
  }
  if (scalars.skip == 0 || scaled.skips) return {};
  const auto [where, blame] =
      look ? find_nonfinite() : std::pair<std::string, Blame>(" (a step with a report and without a request says where)", {});
  return {Code::numeric,
          text("mdp_optimizer_step: the reduced gradient has ", static_cast<uint64_t>(scalars.nonfinite), " elements that are not finite",
               where, "; no rank has changed anything"),
          blame};
}

// Where, as the end of a sentence. Each rank looks through what it owns only: not all of them need be in this call, so they cannot confer.
std::pair<std::string, Blame> Optimizer::find_nonfinite() {
  const Arenas& arenas = buffer_->arenas();
  Gradients& gradients = buffer_->gradients();
  constexpr uint64_t chunk = 1 << 16;
  std::vector<std::byte> bytes(chunk * sizeof(float));
  // The next step's gradients may come already: into the slots, or, with a pool, by a launch into the sums.
  std::unique_lock<std::mutex> no_launch;
  const bool pooled = gradients.is_pooled();
  if (pooled) no_launch = gradients.lock();
  if (pooled && gradients.has_launched()) return {"; which ones cannot be said, as the next step's have come", {}};
  for (const Arena& arena : arenas.all()) {
    const DType type = arena.reduced_type();
    for (const OwnedRange& range : arena.owned) {
      std::unique_lock slot(gradients.slot_mutex(range.param), std::defer_lock);
      if (!pooled) slot.lock();
      const auto* const gradient = static_cast<const std::byte*>(arena.reduced_at(range));
      for (uint64_t begin = 0; begin < range.end - range.begin; begin += chunk) {
        const uint64_t count = std::min(chunk, range.end - range.begin - begin);
        if (!arenas.backend().read(bytes.data(), gradient + begin * size_of(type), count * size_of(type))) return {};
        const uint64_t at = first_nonfinite(type, bytes.data(), count);
        if (at == count) continue;
        return {text(", among them element ", range.param_begin + begin + at, " of ",
                     param_label(range.param, buffer_->plan().params[range.param].name)),
                Blame{.bucket = static_cast<int32_t>(arenas.place(range.param).bucket), .param = static_cast<int64_t>(range.param)}};
      }
    }
  }
  return {", none of them among those that this rank owns; the rank that owns one names it", {}};
}

}  // namespace megadp
