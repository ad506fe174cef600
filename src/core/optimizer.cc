// SPDX-License-Identifier: Apache-2.0
// Making an optimizer, and what can be asked of it between steps.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/hash.h"
#include "control/agreement.h"
#include "control/memory_check.h"
#include "core/optimizer_impl.h"

namespace megadp {

namespace {

const std::optional<double>& field_of(const ParamGroup& group, const HyperParameter& hyper) {
  const auto* const field =
      std::find_if(std::begin(kGroupFields), std::end(kGroupFields), [&](const GroupField& each) { return each.value == hyper.value; });
  return group.*field->of_group;
}

}  // namespace

const UpdateRule& Optimizer::rule() const {
  return impl_->rule();
}

bool OptimizerConfig::covers(const ParamSpec& spec) const {
  const auto group = static_cast<size_t>(spec.group);
  return !spec.frozen && group >= first_group && group - first_group < groups.size();
}

bool Optimizer::covers(size_t param) const {
  return impl_->config.covers(buffer_->plan().params[param]);
}

float* Optimizer::Impl::master_at(const Arena& arena, const Shard& shard, const Owned& owned) const {
  if (!Plan::has_master(*arena.plan)) return reinterpret_cast<float*>(arena.param_at(owned.begin));
  if (!has_master(*arena.plan)) return nullptr;
  return static_cast<float*>(shard.master->data()) + owned.place;
}

const Optimizer::Impl::Owned* Optimizer::Impl::owned(const Arenas& arenas, size_t param) const {
  const BucketRef ref = arenas.plan().launch_order[arenas.place(param).bucket];
  const std::vector<Owned>& pieces = shards[ref.arena].buckets[ref.bucket];
  const uint64_t begin = arenas.place(param).begin;
  const auto at = std::partition_point(pieces.begin(), pieces.end(), [begin](const Owned& each) { return each.end <= begin; });
  return at != pieces.end() && at->param == param ? &*at : nullptr;
}

Optimizer::Optimizer(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config)
    : buffer_(std::move(buffer)), impl_(std::make_unique<Impl>()) {
  impl_->config = config;
  impl_->state_names = config.state;
  impl_->states.assign(impl_->rule().state.begin(), impl_->rule().state.end());
  for (StateArray& each : impl_->states) {
    if (config.bf16_state && each.type == DType::f32) each.type = DType::bf16;
  }
  for (const std::string& name : impl_->state_names) impl_->states.push_back({name.c_str(), DType::f32});
}

Optimizer::~Optimizer() {
  Context& context = buffer_->context();
  if (context.world->in_forked_child()) {
    (void)impl_.release();
    return;
  }
  if (impl_->swapped) {  // nobody can swap back: the averages stay, as if the caller had written them
    const std::vector<size_t> params = covered();
    for (const size_t param : params) (void)buffer_->params().count_change(param);
    buffer_->params().set_swapped(params, false);
  }
  if (pieces_) give_up(pieces_->others, pieces_->skipped);  // nobody will finish that step
  {
    const auto lock = buffer_->gradients().lock();
    buffer_->params().step_changes().leave(&impl_->versions);
    if (pieces_) buffer_->gradients().start_step();
  }
  // They may still be being updated: on the channel of gradients, or in one pass on that of gathers.
  buffer_->arenas().grads().retain(impl_->kept);
  buffer_->arenas().gathers().retain(impl_->kept);
  buffer_->arenas().grads().retain(outcomes_);
}

Result<std::shared_ptr<Optimizer>> Optimizer::create(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config) {
  Context& context = buffer->context();
  if (Status usable = context.usable(); !usable) return usable;
  std::shared_ptr<Optimizer> optimizer(new Optimizer(buffer, config));
  if (Status same = optimizer->compare_configurations(); !same) return same;
  if (Status found = optimizer->find_sources(check_masters(optimizer->impl_->config, buffer->plan())); !found) return found;
  optimizer->lay_out();
  optimizer->lay_out_param_states();
  if (Status room = optimizer->check_room(); !room) return room;
  Status mine = check_groups(optimizer->impl_->config, buffer->plan());
  if (mine.ok()) mine = check_param_states(optimizer->impl_->config, buffer->plan());
  if (mine.ok()) mine = optimizer->allocate();
  // One rank's stage may have a wrong group, or no memory be left there: then no rank has an optimizer.
  const std::vector<int>& members = buffer->arenas().grid()->world()->group().members();
  if (Status all_have = agree(*context.world, members, {"mdp_optimizer_create"}, mine); !all_have) return all_have;
  const auto lock = buffer->gradients().lock();
  buffer->params().step_changes().join(&optimizer->impl_->versions);
  return optimizer;
}

Status Optimizer::compare_configurations() {
  const OptimizerConfig& config = impl_->config;
  std::string mine = impl_->rule().name;
  for (const HyperParameter& each : impl_->rule().hyper) mine += text(" ", each.name, " ", exactly(config.hyper.*each.value));
  mine += text(" max_grad_norm ", exactly(config.max_grad_norm), " norm ", static_cast<uint32_t>(config.norm), " max_grad_value ",
               exactly(config.max_grad_value), " groups ", config.groups.size(), " from ", config.first_group,
               config.some_groups ? " of several optimizers" : "", config.bf16_state ? " bf16 state" : "",
               config.stochastic_state ? " rounded stochastically" : "", config.no_master ? " no masters" : "");
  if (config.draws()) mine += text(" seed ", config.seed);
  if (config.average_decay > 0) mine += text(" average_decay ", exactly(config.average_decay));
  for (const std::string& name : config.state) mine += text(" state '", name, "'");
  for (const ParamState& state : config.param_states) mine += text(" param_state '", state.name, "'");
  for (const ParamGroup& group : config.groups) {
    mine += ";";
    for (const HyperParameter& each : impl_->rule().hyper) {
      const std::optional<double>& value = field_of(group, each);
      if (value) mine += text(" ", each.name, " ", exactly(*value));
    }
  }
  if (Status same = compare_on_all("mdp_optimizer_create", "configure the optimizer", mine); !same) return same;
  return config.param_states.empty() ? Status() : compare_param_states();
}

// The same text on all ranks, or none goes on.
Status Optimizer::compare_on_all(const char* call, const char* what, const std::string& mine) {
  const std::vector<int>& members = buffer_->arenas().grid()->world()->group().members();
  auto compared = buffer_->context().world->compare(members, call, mine);
  if (!compared) return compared.status();
  if (!*compared) return {};
  const Mismatch& found = **compared;
  return Status(
      Code::desync,
      text("ranks ", found.first, " and ", found.other, " ", what, " differently: '", found.first_bytes, "' and '", found.other_bytes, "'"),
      Blame{.rank = found.other});
}

Status check_masters(const OptimizerConfig& config, const Plan& plan) {
  for (size_t param = 0; param < plan.params.size() && config.no_master; ++param) {
    const ParamSpec& spec = plan.params[param];
    if (!config.covers(spec) || spec.dtype != DType::f16) continue;
    return Status(Code::unsupported,
                  text("config.flags has MDP_OPTIMIZER_NO_MASTER (32), and ", param_label(param, spec.name),
                       " is f16; only bf16 parameters are updated without a master"),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  return {};
}

// Of this rank's parameters, which need not be those of another stage.
Status check_groups(const OptimizerConfig& config, const Plan& plan) {
  for (size_t param = 0; param < plan.params.size(); ++param) {
    const ParamSpec& spec = plan.params[param];
    if (spec.frozen || config.covers(spec) || (config.some_groups && spec.group >= 0)) continue;
    return Status(
        Code::invalid,
        text(param_label(param, spec.name), " is in parameter group ", spec.group, "; the optimizer has ", config.names_of_groups()),
        Blame{.param = static_cast<int64_t>(param)});
  }
  return {};
}

std::string OptimizerConfig::names_of_groups() const {
  const size_t count = groups.size();
  return count == 1 ? text("1 group, number ", first_group)
                    : text(count, " groups, numbers ", first_group, " to ", first_group + count - 1);
}

std::string Optimizer::not_covered(size_t param) const {
  const ParamSpec& spec = buffer_->plan().params[param];
  return text(param_label(param, spec.name), " is in parameter group ", spec.group, ", another optimizer's; this one has ",
              impl_->config.names_of_groups());
}

Status Optimizer::check_room() const {
  Context& context = buffer_->context();
  uint64_t arrays = 0;
  for (size_t a = 0; a < impl_->shards.size() && context.backend->place().type == DeviceType::cpu; ++a) {
    const bool master = impl_->has_master(*buffer_->arenas().all()[a].plan);
    arrays += impl_->shards[a].elements * (master ? sizeof(float) : 0);
    for (const StateArray& each : impl_->states) arrays += impl_->shards[a].elements * size_of(each.type);
    if (impl_->averages()) arrays += impl_->shards[a].elements * Plan::average_bytes(*buffer_->arenas().all()[a].plan);
  }
  for (const Impl::ParamStateMemory& state : impl_->param_states) {
    if (context.backend->place().type == DeviceType::cpu) arrays += state.bytes;
  }
  if (impl_->is_callers() && arrays > 0) arrays += impl_->gradient_elements() * sizeof(float);
  return check_memory(*context.world, buffer_->arenas().grid()->world()->group().members(), "mdp_optimizer_create", arrays,
                      buffer_->plan().config.ignore_memory)
      .with_context("mdp_optimizer_create");
}

// Where each piece lies in the shard: as in the buffer's, or, if others are another optimizer's, without those. There too a piece begins
// as far from a multiple of an alignment's elements as in its arena.
void Optimizer::lay_out() {
  const int rank = buffer_->arenas().grid()->rank();
  for (const Arena& arena : buffer_->arenas().all()) {
    Impl::Shard shard;
    shard.buckets.resize(arena.plan->layout.buckets.size());
    size_t before = 0;  // of the last piece taken, one past its place among all
    for (size_t i = 0; i < arena.owned.size(); ++i) {
      const OwnedRange& range = arena.owned[i];
      if (!covers(range.param)) continue;
      std::vector<Impl::Owned>& bucket = shard.buckets[range.bucket];
      const auto group = static_cast<size_t>(buffer_->plan().params[range.param].group);
      Impl::Owned owned{range, group, range.at, !bucket.empty() && before == i};
      if (impl_->config.some_groups) {
        owned.place = owned.joined ? bucket.back().place + (range.begin - bucket.back().begin)
                                   : shard.elements + (range.begin - shard.elements) % kParamAlignment;
        shard.elements = owned.place + (range.end - range.begin);
      }
      bucket.push_back(owned);
      before = i + 1;
    }
    if (!impl_->config.some_groups) shard.elements = shard_elements(arena.plan->layout, buffer_->plan().shard(*arena.plan, rank));
    impl_->shards.push_back(std::move(shard));
  }
}

Status Optimizer::allocate() {
  Backend& backend = *buffer_->context().backend;
  const Plan& plan = buffer_->plan();
  impl_->versions.resize(plan.params.size());  // 0: of none yet
  impl_->average_begun.resize(plan.params.size());
  for (size_t a = 0; a < impl_->shards.size(); ++a) {
    const Arena& arena = buffer_->arenas().all()[a];
    Impl::Shard& shard = impl_->shards[a];
    if (impl_->has_master(*arena.plan)) {
      auto master = backend.allocate(shard.elements * sizeof(float));
      if (!master) return master.status();
      shard.master = impl_->kept->keep(*std::move(master));
    }
    for (size_t k = 0; k < impl_->states.size(); ++k) {
      auto allocated = backend.allocate(shard.elements * size_of(impl_->states[k].type));
      if (!allocated) return allocated.status();
      shard.states[k] = impl_->kept->keep(*std::move(allocated));
    }
    if (!impl_->averages()) continue;
    auto average = backend.allocate(shard.elements * sizeof(float));
    if (!average) return average.status();
    shard.average = impl_->kept->keep(*std::move(average));
    auto aside = backend.allocate(shard.elements * size_of(arena.plan->param_type));
    if (!aside) return aside.status();
    shard.aside = impl_->kept->keep(*std::move(aside));
  }
  if (impl_->is_callers()) {
    auto gradient = backend.allocate(impl_->gradient_elements() * sizeof(float));
    if (!gradient) return gradient.status();
    impl_->gradient = impl_->kept->keep(*std::move(gradient));
  }
  if (Status allocated = allocate_param_states(); !allocated) return allocated;
  impl_->classes = StepClasses(plan.params.size());
  auto scalars = backend.allocate(sizeof(StepScalars) + step_count_bytes(plan));
  if (!scalars) return scalars.status();
  impl_->scalars = impl_->kept->keep(*std::move(scalars));
  StepScalars start{};
  start.clip_factor = start.grad_factor = 1;
  start.grad_limit = HUGE_VALF;
  return backend.write(impl_->device_scalars(), &start, sizeof start);
}

Status Optimizer::await_last_step() {
  return last_step_ ? last_step_->await() : Status();
}

Result<StepScalars> Optimizer::read_scalars() {
  if (Status stepped = await_last_step(); !stepped) return stepped;
  StepScalars scalars{};
  if (Status read = buffer_->context().backend->read(&scalars, impl_->device_scalars(), sizeof scalars); !read) return read;
  return scalars;
}

Status Optimizer::check_own(size_t param) const {
  if (Status status = buffer_->arenas().check_param(param); !status) return status;
  return covers(param) ? Status() : invalid(not_covered(param));
}

Result<uint64_t> Optimizer::steps(size_t param) {
  if (Status status = check_own(param); !status) return status;
  if (Status stepped = await_last_step(); !stepped) return stepped;
  uint64_t count = 0;
  const uint64_t* const kept = impl_->device_steps(impl_->classes.of(param));
  if (Status read = buffer_->context().backend->read(&count, kept, sizeof count); !read) return read;
  return count;
}

Result<std::vector<uint64_t>> Optimizer::steps_of_all() {
  if (Status stepped = await_last_step(); !stepped) return stepped;
  return read_steps();
}

Result<std::vector<uint64_t>> Optimizer::read_steps() const {
  std::vector<uint64_t> steps(buffer_->plan().params.size());
  std::vector<size_t> own;
  for (size_t param = 0; param < steps.size(); ++param) {
    if (covers(param)) own.push_back(param);
  }
  if (own.empty()) return steps;  // and no counts are kept
  std::vector<uint64_t> of_classes(impl_->classes.count());
  if (Status read = buffer_->context().backend->read(of_classes.data(), impl_->device_steps(0), of_classes.size() * sizeof(uint64_t));
      !read) {
    return read;
  }
  for (const size_t param : own) steps[param] = of_classes[impl_->classes.of(param)];
  return steps;
}

Status Optimizer::set_steps(uint64_t taken, std::span<const uint64_t> steps) {
  if (Status between = buffer_->gradients().check_between_steps("mdp_optimizer_set_steps"); !between) return between;
  const std::vector<ParamSpec>& params = buffer_->plan().params;
  for (size_t param = 0; param < steps.size(); ++param) {
    if (!covers(param) || steps[param] <= taken) continue;
    return invalid("steps[", param, "], of ", param_label(param, params[param].name), ", is ", steps[param], "; it must be at most taken, ",
                   taken);
  }
  const auto steps_of = [&](size_t param) { return steps.empty() ? taken : steps[param]; };
  if (Status written = write_steps(taken, steps_of); !written) return written;
  impl_->broken = false;
  // Of what it covers, as each parameter counts now.
  uint64_t digest = hash_bytes(&taken, sizeof taken);
  for (size_t param = 0; param < params.size(); ++param) {
    const uint64_t told[] = {param, steps_of(param)};
    if (covers(param)) digest ^= hash_bytes(told, sizeof told);
  }
  const auto lock = buffer_->gradients().lock();
  buffer_->gradients().note_change(fraction_of(digest));
  return {};
}

Status Optimizer::write_steps(uint64_t taken, const std::function<uint64_t(size_t param)>& steps_of) {
  auto scalars = read_scalars();
  if (!scalars) return scalars.status();
  scalars->step = taken;
  StepClasses classes = impl_->classes;
  const std::vector<uint64_t> counts =
      classes.assign([&](size_t param) { return covers(param) ? std::optional(steps_of(param)) : std::nullopt; });
  // In one piece: all of it is written, or nothing is.
  std::vector<std::byte> bytes(sizeof *scalars + counts.size() * sizeof(uint64_t));
  std::memcpy(bytes.data(), &*scalars, sizeof *scalars);
  if (!counts.empty()) std::memcpy(bytes.data() + sizeof *scalars, counts.data(), counts.size() * sizeof(uint64_t));
  Backend& backend = *buffer_->context().backend;
  if (Status written = backend.write(impl_->device_scalars(), bytes.data(), bytes.size()); !written) return written;
  impl_->classes = std::move(classes);
  return {};
}

Status Optimizer::set_group(size_t group, const ParamGroup& value) {
  const size_t first = impl_->config.first_group;
  if (group < first || group - first >= impl_->config.groups.size()) {
    return invalid("group is ", group, "; this optimizer has ", impl_->config.names_of_groups());
  }
  impl_->config.groups[group - first] = value;
  return {};
}

const LossScaler& Optimizer::scaler() const {
  return impl_->scaler;
}

float* Optimizer::loss_scale_place() {
  return &impl_->device_scalars()->loss_scale.scale;
}

Result<LossScale> Optimizer::loss_scale() {
  auto scalars = read_scalars();
  if (!scalars) return scalars.status();
  return scalars->loss_scale;
}

Status Optimizer::set_scaler(const LossScaler& scaler, const LossScale& scale) {
  if (Status between = buffer_->gradients().check_between_steps("mdp_optimizer_set_scaler"); !between) return between;
  const std::string mine =
      text("kind ", static_cast<uint32_t>(scaler.kind), " growth_interval ", scaler.growth_interval, " hysteresis ", scaler.hysteresis,
           " growth_factor ", exactly(scaler.growth_factor), " backoff_factor ", exactly(scaler.backoff_factor), " min_scale ",
           exactly(scaler.least), " scale ", exactly(scale.scale), " clean_steps ", scale.clean_steps, " overflows ", scale.overflows);
  if (Status same = compare_on_all("mdp_optimizer_set_scaler", "set the loss scaler", mine); !same) return same;
  if (Status written = set_loss_scale(scale); !written) return written;
  impl_->scaler = scaler;
  return {};
}

Status Optimizer::set_loss_scale(const LossScale& scale) {
  if (Status stepped = await_last_step(); !stepped) return stepped;
  return buffer_->context().backend->write(&impl_->device_scalars()->loss_scale, &scale, sizeof scale);
}

void Optimizer::set_config(OptimizerConfig config) {
  impl_->config = std::move(config);
}

void Optimizer::adopt(size_t param) {
  const auto lock = buffer_->gradients().lock();
  impl_->versions[param] = buffer_->params().count_replacement(param);
}

Status Optimizer::Impl::refresh_master(Buffer& buffer, size_t arena, const Owned& owned) {
  Arenas& arenas = buffer.arenas();
  if (!has_master(*arenas.all()[arena].plan)) return {};
  std::shared_ptr<Event> taken;
  uint64_t before = 0;
  {
    const auto lock = buffer.gradients().lock();
    buffer.params().step_changes().settle(std::array{&versions});
    const uint64_t version = buffer.params().version(owned.param);
    before = versions[owned.param];
    if (before == version) return {};
    auto stream = buffer.params().apart();
    if (!stream) return stream.status();
    if (Status submitted = submit_master(buffer, **stream, arena, owned, version); !submitted) return submitted;
    auto recorded = buffer.params().record_apart();
    if (!recorded) return recorded.status();
    taken = *std::move(recorded);
    versions[owned.param] = version;
  }
  Status reached = taken->await();
  if (!reached) {  // it may have been interrupted: then it is taken over anew when it is asked for again
    const auto lock = buffer.gradients().lock();
    versions[owned.param] = before;
  }
  return reached;
}

std::string Optimizer::names_of_state() const {
  std::vector<std::string_view> names;
  if (!impl_->config.no_master) names.emplace_back(kMasterState);
  for (const StateArray& each : impl_->states) names.emplace_back(each.name);
  for (const ParamState& each : impl_->config.param_states) names.emplace_back(each.name);
  if (impl_->averages()) names.emplace_back(kAverageState);
  std::string sentence = text(impl_->rule().name, impl_->config.no_master ? " without masters" : "", " keeps ");
  if (names.empty()) return sentence + "nothing";
  for (size_t k = 0; k < names.size(); ++k) sentence += text(k == 0 ? "'" : k + 1 < names.size() ? ", '" : " and '", names[k], "'");
  return sentence;
}

Result<Slice> Optimizer::state(size_t param, std::string_view name) {
  if (Status status = check_own(param); !status) return status;
  const std::vector<StateArray>& states = impl_->states;
  const auto array = std::find_if(states.begin(), states.end(), [&](const StateArray& each) { return name == each.name; });
  const std::vector<ParamState>& opaque = impl_->config.param_states;
  const auto bytes = std::find_if(opaque.begin(), opaque.end(), [&](const ParamState& each) { return name == each.name; });
  if (bytes != opaque.end()) {
    if (Status stepped = await_last_step(); !stepped) return stepped;
    return impl_->param_state(static_cast<size_t>(bytes - opaque.begin()), param);
  }
  const bool master = name == kMasterState && !impl_->config.no_master, average = impl_->averages() && name == kAverageState;
  if (!master && !average && array == states.end()) return invalid("name is '", name, "'; ", names_of_state());
  if (Status stepped = await_last_step(); !stepped) return stepped;
  const Arenas& arenas = buffer_->arenas();
  const BucketRef ref = arenas.plan().launch_order[arenas.place(param).bucket];
  const Impl::Shard& shard = impl_->shards[ref.arena];
  const DType type = master || average ? DType::f32 : array->type;
  const Impl::Owned* const range = impl_->owned(arenas, param);
  if (range == nullptr) return arenas.slice(param, nullptr, type);
  void* data = nullptr;
  if (average && !impl_->average_begun[param]) {
    if (Status fresh = impl_->refresh_master(*buffer_, ref.arena, *range); !fresh) return fresh;
    if (Status begun = impl_->begin_average(*buffer_, ref.arena, *range); !begun) return begun;
  }
  if (average) {
    data = impl_->average_at(shard, *range);
  } else if (master) {
    if (Status own = buffer_->params().check_swapped_back("mdp_optimizer_state of a 'master'"); !own) return own;
    if (Status fresh = impl_->refresh_master(*buffer_, ref.arena, *range); !fresh) return fresh;
    data = impl_->master_at(arenas.arena_of(ref), shard, *range);
  } else {
    data = impl_->state_at(shard, *range, static_cast<size_t>(array - states.begin()));
  }
  return arenas.slice(param, data, type);
}

}  // namespace megadp
