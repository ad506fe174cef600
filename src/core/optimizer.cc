// SPDX-License-Identifier: Apache-2.0
//   masters  | bucket 0's piece | bucket 1's piece | ...     this rank's pieces, end to end, padding and gaps included; not for f32
//   state    | first moments, laid out like masters | second moments |
#include "core/optimizer.h"

#include <array>
#include <charconv>
#include <cstddef>

#include "base/math.h"
#include "core/buffer_impl.h"

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

// So that different numbers are different texts: in six digits 3e-4 and 3e-4F look the same.
std::string exactly(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

}  // namespace

struct Optimizer::Impl {
  struct Owned {  // one owned range, ready for the kernels
    OwnedRange range;
    uint64_t at;  // element of masters and moments
    int group;
    bool counts;  // towards the norm: not a replica that another rank counts
  };
  struct Shard {                                 // of one arena
    Memory *master = nullptr, *state = nullptr;  // in `kept`
    std::vector<std::vector<Owned>> buckets;
    uint64_t elements = 0;
  };
  OptimizerConfig config;
  std::shared_ptr<Kept> kept = std::make_shared<Kept>();
  std::vector<Shard> shards;
  Memory* scalars = nullptr;
  std::vector<uint64_t> versions;  // by parameter: the version that its master stands for

  StepScalars* device_scalars() { return static_cast<StepScalars*>(scalars->data()); }
  AdamW hyper(int group) const;
  float* master_at(const Buffer::Arena& arena, const Shard& shard, const Owned& owned) const;
  float* moment_at(const Shard& shard, const Owned& owned, int which) const {
    return static_cast<float*>(shard.state->data()) + static_cast<uint64_t>(which) * shard.elements + owned.at;
  }
};

AdamW Optimizer::Impl::hyper(int group) const {
  const ParamGroup& g = config.groups[static_cast<size_t>(group)];
  return AdamW{g.has_lr ? g.lr : config.lr, config.beta1, config.beta2, config.eps, g.weight_decay};
}

float* Optimizer::Impl::master_at(const Buffer::Arena& arena, const Shard& shard, const Owned& owned) const {
  if (!Plan::has_master(*arena.plan)) return reinterpret_cast<float*>(arena.param_at(owned.range.begin));
  return static_cast<float*>(shard.master->data()) + owned.at;
}

Optimizer::Optimizer(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config)
    : buffer_(std::move(buffer)), impl_(std::make_unique<Impl>()) {
  impl_->config = config;
}

Optimizer::~Optimizer() {
  Tree& tree = buffer_->tree();
  if (tree.world->in_forked_child()) {
    (void)impl_.release();
    return;
  }
  tree.queue->retain(std::move(impl_->kept));  // the queue may still be updating it
}

Result<std::shared_ptr<Optimizer>> Optimizer::create(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config) {
  Tree& tree = buffer->tree();
  if (Status usable = tree.usable(); !usable) return usable;
  std::shared_ptr<Optimizer> optimizer(new Optimizer(buffer, config));
  if (Status same = optimizer->compare_configurations(); !same) return same;
  if (Status status = optimizer->allocate(); !status) return status;
  return optimizer;
}

Status Optimizer::compare_configurations() {
  Tree& tree = buffer_->tree();
  const OptimizerConfig& config = impl_->config;
  std::string mine = text("lr ", exactly(config.lr), " betas ", exactly(config.beta1), " ", exactly(config.beta2), " eps ",
                          exactly(config.eps), " max_grad_norm ", exactly(config.max_grad_norm), " groups ", config.groups.size());
  for (const ParamGroup& group : config.groups)
    mine += text("; ", group.has_lr ? text("lr ", exactly(group.lr)) : "", " weight_decay ", exactly(group.weight_decay));
  const std::vector<int>& members = buffer_->grid()->world()->group().members();
  auto all = tree.world->exchange(members, "mdp_optimizer_create", mine);
  if (!all) return all.status();
  for (size_t r = 1; r < all->size(); ++r) {
    if ((*all)[r] != (*all)[0]) {
      return Status(
          Code::desync,
          text("ranks ", members[0], " and ", members[r], " configure the optimizer differently: '", (*all)[0], "' and '", (*all)[r], "'"),
          Blame{.rank = members[r]});
    }
  }
  // After the comparison, so that a wrong group is the same error on every rank that has it.
  for (size_t param = 0; param < buffer_->plan().params.size(); ++param) {
    const ParamSpec& spec = buffer_->plan().params[param];
    if (spec.frozen || (spec.group >= 0 && static_cast<size_t>(spec.group) < config.groups.size())) continue;
    return Status(Code::invalid,
                  text(param_label(param, spec.name), " is in group ", spec.group, "; the optimizer has ", config.groups.size(),
                       config.groups.size() == 1 ? " group, number 0" : " groups, counted from 0"),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  return {};
}

Status Optimizer::allocate() {
  Backend& backend = *buffer_->tree().backend;
  const Plan& plan = buffer_->plan();
  const int rank = buffer_->grid()->rank();
  impl_->versions.resize(plan.params.size());  // 0: of none yet
  for (const Buffer::Arena& arena : buffer_->impl_->arenas) {
    Impl::Shard shard;
    shard.elements = Plan::shard_elements(*arena.plan);
    if (Plan::has_master(*arena.plan)) {
      auto master = backend.allocate(shard.elements * sizeof(float));
      if (!master) return master.status();
      shard.master = impl_->kept->keep(*std::move(master));
    }
    auto state = backend.allocate(2 * shard.elements * sizeof(float));
    if (!state) return state.status();
    shard.state = impl_->kept->keep(*std::move(state));

    const auto shards = static_cast<uint64_t>(arena.plan->shards);
    const auto piece_number = static_cast<uint64_t>(plan.shard(*arena.plan, rank));
    const Axes tp = arena.plan->expert ? (kTp | kExpertGrid) : kTp;
    const bool first_replica = arena.plan->shards > 1 || arena.comm->rank() == 0;
    const bool first_tp = plan.grid.index(tp, rank) == 0;
    shard.buckets.resize(arena.plan->layout.buckets.size());
    for (const OwnedRange& range : arena.owned) {
      const BucketRange& bucket = arena.range(range.bucket);
      const uint64_t piece = (bucket.end - bucket.begin) / shards;
      // Pieces of all earlier buckets come first: together bucket.begin / shards elements.
      const uint64_t at = bucket.begin / shards + (range.begin - (bucket.begin + piece_number * piece));
      const ParamSpec& spec = plan.params[range.param];
      const bool counts = first_replica && (spec.placement == Placement::sharded || first_tp);
      shard.buckets[range.bucket].push_back({range, at, spec.group, counts});
    }
    impl_->shards.push_back(std::move(shard));
  }
  auto scalars = backend.allocate(sizeof(StepScalars));
  if (!scalars) return scalars.status();
  impl_->scalars = impl_->kept->keep(*std::move(scalars));
  StepScalars start{};
  start.beta1_power = start.beta2_power = 1;
  start.clip_factor = start.grad_factor = 1;
  return backend.write(impl_->device_scalars(), &start, sizeof start);
}

Status Optimizer::set_group(size_t group, const ParamGroup& value) {
  if (group >= impl_->config.groups.size()) {
    return invalid("group is ", group, "; this optimizer has ", impl_->config.groups.size(), " groups, counted from 0");
  }
  impl_->config.groups[group] = value;
  return {};
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

// The norm over the whole model: every element is counted once in the world.
Status Optimizer::submit_norm(double loss_scale) {
  Buffer::Impl& s = *buffer_->impl_;
  Tree& tree = buffer_->tree();
  StepScalars* scalars = impl_->device_scalars();
  static_assert(offsetof(StepScalars, nonfinite) == offsetof(StepScalars, square_sum) + sizeof(double));  // reduced together
  if (Status zeroed = tree.backend->zero(*tree.queue, &scalars->square_sum, 2 * sizeof(double)); !zeroed) return zeroed;
  for (size_t a = 0; a < s.arenas.size(); ++a) {
    const Buffer::Arena& arena = s.arenas[a];
    for (const auto& bucket : impl_->shards[a].buckets) {
      const Status submitted = submit_merged(
          bucket, [](const Impl::Owned& owned) { return owned.counts; },
          [&](const Impl::Owned& owned) {
            return tree.backend->square_sum(*tree.queue, arena.grad_at(owned.range.begin), arena.plan->grad_type,
                                            owned.range.end - owned.range.begin, scalars);
          });
      if (!submitted) return submitted;
    }
  }
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
      [self = shared_from_this(), loss_scale = options.loss_scale] { return self->read_outcome(loss_scale, nullptr); });
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
  return reached.ok() ? read_outcome(loss_scale, report) : reached;
}

Status Optimizer::read_outcome(std::optional<double> loss_scale, StepReport* report) {
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
  return {Code::numeric, text("mdp_optimizer_step: the reduced gradient has ", static_cast<uint64_t>(scalars.nonfinite),
                              " elements that are not finite; no rank has changed anything")};
}

Result<Optimizer::Slice> Optimizer::state(size_t param, const char* name) {
  if (Status status = buffer_->check_param(param); !status) return status;
  const std::string wanted = name;
  if (wanted != "master" && wanted != "exp_avg" && wanted != "exp_avg_sq") {
    return invalid("name is '", wanted, "'; AdamW keeps 'master', 'exp_avg' and 'exp_avg_sq'");
  }
  if (last_step_) {
    if (Status stepped = last_step_->wait(Deadline::never()); !stepped) return stepped;
  }
  Buffer::Impl& s = *buffer_->impl_;
  const uint32_t a = s.params[param].arena;
  const Impl::Shard& shard = impl_->shards[a];
  for (const Impl::Owned& owned : shard.buckets[s.buckets[s.params[param].bucket].index]) {
    if (owned.range.param != param) continue;
    float* data =
        wanted == "master" ? impl_->master_at(s.arenas[a], shard, owned) : impl_->moment_at(shard, owned, wanted == "exp_avg" ? 0 : 1);
    return Slice{data, owned.range.end - owned.range.begin, owned.range.param_begin};
  }
  return Slice{nullptr, 0, 0};
}

}  // namespace megadp
