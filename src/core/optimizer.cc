// SPDX-License-Identifier: Apache-2.0
// Making an optimizer, and what can be asked of it between steps.
#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <optional>

#include "control/agreement.h"
#include "control/memory_check.h"
#include "core/optimizer_impl.h"

namespace megadp {

namespace {

// So that different numbers are different texts: in six digits 3e-4 and 3e-4F look the same.
std::string exactly(double value) {
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}

}  // namespace

float* Optimizer::Impl::master_at(const Arena& arena, const Shard& shard, const OwnedRange& owned) const {
  if (!Plan::has_master(*arena.plan)) return reinterpret_cast<float*>(arena.param_at(owned.begin));
  return static_cast<float*>(shard.master->data()) + owned.at;
}

Optimizer::Optimizer(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config)
    : buffer_(std::move(buffer)), impl_(std::make_unique<Impl>()) {
  impl_->config = config;
}

Optimizer::~Optimizer() {
  Context& context = buffer_->context();
  if (context.world->in_forked_child()) {
    (void)impl_.release();
    return;
  }
  // They may still be being updated.
  buffer_->arenas().grads().retain(impl_->kept);
  buffer_->arenas().grads().retain(outcomes_);
}

Result<std::shared_ptr<Optimizer>> Optimizer::create(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config) {
  Context& context = buffer->context();
  if (Status usable = context.usable(); !usable) return usable;
  std::shared_ptr<Optimizer> optimizer(new Optimizer(buffer, config));
  if (Status same = optimizer->compare_configurations(); !same) return same;
  if (Status room = optimizer->check_room(); !room) return room;
  Status mine = optimizer->check_groups();
  if (mine.ok()) mine = optimizer->allocate();
  // One rank's stage may have a wrong group, or no memory be left there: then no rank has an optimizer.
  const std::vector<int>& members = buffer->arenas().grid()->world()->group().members();
  if (Status all_have = agree(*context.world, members, {"mdp_optimizer_create"}, mine); !all_have) return all_have;
  return optimizer;
}

Status Optimizer::compare_configurations() {
  Context& context = buffer_->context();
  const OptimizerConfig& config = impl_->config;
  std::string mine = impl_->rule().name;
  for (const HyperParameter& each : impl_->rule().hyper) mine += text(" ", each.name, " ", exactly(config.hyper.*each.value));
  mine += text(" max_grad_norm ", exactly(config.max_grad_norm), " norm ", static_cast<uint32_t>(config.norm), " max_grad_value ",
               exactly(config.max_grad_value), " groups ", config.groups.size());
  for (const ParamGroup& group : config.groups) {
    mine += text("; ", group.lr ? text("lr ", exactly(*group.lr)) : "",
                 group.weight_decay ? text(" weight_decay ", exactly(*group.weight_decay)) : "");
  }
  const std::vector<int>& members = buffer_->arenas().grid()->world()->group().members();
  auto compared = context.world->compare(members, "mdp_optimizer_create", mine);
  if (!compared) return compared.status();
  if (!*compared) return {};
  const Mismatch& found = **compared;
  return Status(Code::desync,
                text("ranks ", found.first, " and ", found.other, " configure the optimizer differently: '", found.first_bytes, "' and '",
                     found.other_bytes, "'"),
                Blame{.rank = found.other});
}

// Of this rank's parameters, which need not be those of another stage.
Status Optimizer::check_groups() const {
  const OptimizerConfig& config = impl_->config;
  for (size_t param = 0; param < buffer_->plan().params.size(); ++param) {
    const ParamSpec& spec = buffer_->plan().params[param];
    if (spec.frozen || (spec.group >= 0 && static_cast<size_t>(spec.group) < config.groups.size())) continue;
    return Status(Code::invalid,
                  text(param_label(param, spec.name), " is in parameter group ", spec.group, "; the optimizer has ", config.groups.size(),
                       config.groups.size() == 1 ? " group, number 0" : " groups, counted from 0"),
                  Blame{.param = static_cast<int64_t>(param)});
  }
  return {};
}

Status Optimizer::check_room() const {
  Context& context = buffer_->context();
  const MemoryPlan memory = buffer_->plan().memory(impl_->config.rule);
  const uint64_t arrays = context.backend->place().type == DeviceType::cpu ? memory.master + memory.state : 0;
  return check_memory(*context.world, buffer_->arenas().grid()->world()->group().members(), "mdp_optimizer_create", arrays,
                      buffer_->plan().config.ignore_memory)
      .with_context("mdp_optimizer_create");
}

Status Optimizer::allocate() {
  Backend& backend = *buffer_->context().backend;
  const Plan& plan = buffer_->plan();
  impl_->versions.resize(plan.params.size());  // 0: of none yet
  for (const Arena& arena : buffer_->arenas().all()) {
    Impl::Shard shard;
    shard.elements = Plan::shard_elements(*arena.plan);
    if (Plan::has_master(*arena.plan)) {
      auto master = backend.allocate(shard.elements * sizeof(float));
      if (!master) return master.status();
      shard.master = impl_->kept->keep(*std::move(master));
    }
    for (size_t k = 0; k < impl_->rule().state.size(); ++k) {
      auto allocated = backend.allocate(shard.elements * size_of(impl_->rule().state[k].type));
      if (!allocated) return allocated.status();
      shard.states[k] = impl_->kept->keep(*std::move(allocated));
    }

    shard.buckets.resize(arena.plan->layout.buckets.size());
    for (const OwnedRange& range : arena.owned) shard.buckets[range.bucket].push_back({range, plan.params[range.param].group});
    impl_->shards.push_back(std::move(shard));
  }
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

Result<uint64_t> Optimizer::steps(size_t param) {
  if (Status status = buffer_->arenas().check_param(param); !status) return status;
  if (Status stepped = await_last_step(); !stepped) return stepped;
  uint64_t count = 0;
  const uint64_t* const kept = impl_->device_steps(impl_->classes.of(param));
  if (Status read = buffer_->context().backend->read(&count, kept, sizeof count); !read) return read;
  return count;
}

Status Optimizer::set_steps(uint64_t taken, std::span<const uint64_t> steps) {
  const std::vector<ParamSpec>& params = buffer_->plan().params;
  for (size_t param = 0; param < steps.size(); ++param) {
    if (params[param].frozen || steps[param] <= taken) continue;
    return invalid("steps[", param, "], of ", param_label(param, params[param].name), ", is ", steps[param], "; it must be at most taken, ",
                   taken);
  }
  auto scalars = read_scalars();
  if (!scalars) return scalars.status();
  scalars->step = taken;
  StepClasses classes = impl_->classes;
  const std::vector<uint64_t> counts = classes.assign(
      [&](size_t param) { return params[param].frozen ? std::nullopt : std::optional(steps.empty() ? taken : steps[param]); });
  // In one piece: all of it is written, or nothing is.
  std::vector<std::byte> bytes(sizeof *scalars + counts.size() * sizeof(uint64_t));
  std::memcpy(bytes.data(), &*scalars, sizeof *scalars);
  std::memcpy(bytes.data() + sizeof *scalars, counts.data(), counts.size() * sizeof(uint64_t));
  Backend& backend = *buffer_->context().backend;
  if (Status written = backend.write(impl_->device_scalars(), bytes.data(), bytes.size()); !written) return written;
  impl_->classes = std::move(classes);
  return {};
}

Status Optimizer::set_group(size_t group, const ParamGroup& value) {
  if (group >= impl_->config.groups.size()) {
    return invalid("group is ", group, "; this optimizer has ", impl_->config.groups.size(), " groups, counted from 0");
  }
  impl_->config.groups[group] = value;
  return {};
}

void Optimizer::set_config(OptimizerConfig config) {
  impl_->config = std::move(config);
}

void Optimizer::adopt(size_t param) {
  const auto lock = buffer_->gradients().lock();
  impl_->versions[param] = buffer_->params().count_change(param);
}

Status Optimizer::Impl::refresh_master(Buffer& buffer, size_t arena, const OwnedRange& owned) {
  Arenas& arenas = buffer.arenas();
  if (!Plan::has_master(*arenas.all()[arena].plan)) return {};
  std::shared_ptr<Event> taken;
  {
    const auto lock = buffer.gradients().lock();
    const uint64_t version = buffer.params().version(owned.param);
    if (versions[owned.param] == version) return {};
    if (Status submitted = submit_master(arenas, arena, owned, version); !submitted) return submitted;
    auto recorded = arenas.grads().stream().record();
    if (!recorded) return recorded.status();
    taken = *std::move(recorded);
    versions[owned.param] = version;
  }
  Status reached = taken->await();
  if (!reached) {  // it may have been interrupted: then it is taken over anew when it is asked for again
    const auto lock = buffer.gradients().lock();
    versions[owned.param] = 0;
  }
  return reached;
}

std::string Optimizer::names_of_state() const {
  std::string names = text(impl_->rule().name, " keeps 'master'");
  const Entries<StateArray>& state = impl_->rule().state;
  for (size_t k = 0; k < state.size(); ++k) names += text(k + 1 < state.size() ? ", '" : " and '", state[k].name, "'");
  return names;
}

Result<Slice> Optimizer::state(size_t param, std::string_view name) {
  if (Status status = buffer_->arenas().check_param(param); !status) return status;
  const Entries<StateArray>& states = impl_->rule().state;
  const StateArray* const array = std::find_if(states.begin(), states.end(), [&](const StateArray& each) { return name == each.name; });
  const bool master = name == "master";
  if (!master && array == states.end()) return invalid("name is '", name, "'; ", names_of_state());
  if (Status stepped = await_last_step(); !stepped) return stepped;
  const Arenas& arenas = buffer_->arenas();
  const BucketRef ref = arenas.plan().launch_order[arenas.place(param).bucket];
  const Impl::Shard& shard = impl_->shards[ref.arena];
  const DType type = master ? DType::f32 : array->type;
  const OwnedRange* const range = arenas.owned(param);
  if (range == nullptr) return arenas.slice(param, nullptr, type);
  void* data = nullptr;
  if (master) {
    if (Status fresh = impl_->refresh_master(*buffer_, ref.arena, *range); !fresh) return fresh;
    data = impl_->master_at(arenas.arena_of(ref), shard, *range);
  } else {
    data = impl_->state_at(shard, *range, static_cast<size_t>(array - states.begin()));
  }
  return arenas.slice(param, data, type);
}

}  // namespace megadp
