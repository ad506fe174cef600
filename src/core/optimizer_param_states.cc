// SPDX-License-Identifier: Apache-2.0
// Bytes of any number that whoever owns a whole parameter keeps for the caller's update of it: what is not one element for each element,
// such as the factors of a preconditioner.
#include "base/checked.h"
#include "control/agreement.h"
#include "core/optimizer_impl.h"

namespace megadp {
// Of a parameter that is cut nobody could say whose they are.
Status check_param_states(const OptimizerConfig& config, const Plan& plan) {
  std::vector<Sharding> shardings(plan.params.size(), Sharding::zero_1);
  for (const ArenaPlan& arena : plan.arenas) {
    for (const size_t param : arena.params) shardings[param] = arena.sharding;
  }
  for (const ParamState& state : config.param_states) {
    for (size_t param = 0; param < state.bytes.size(); ++param) {
      if (state.bytes[param] == 0) continue;
      const ParamSpec& spec = plan.params[param];
      const auto refused = [&](const auto&... words) {
        return Status(Code::invalid,
                      text("config.param_states gives ", param_label(param, spec.name), " ", state.bytes[param], " bytes of '", state.name,
                           "'", words...),
                      Blame{.param = static_cast<int64_t>(param)});
      };
      if (spec.frozen) return refused(", but it is frozen; give it 0");
      if (!config.covers(spec)) return refused(", but it is another optimizer's; give it 0");
      if (shardings[param] == Sharding::whole || shardings[param] == Sharding::zero_0) continue;
      return refused(", but it is cut over the ranks; register it with MDP_SHARDING_WHOLE (4)");
    }
  }
  return {};
}

// Of parameters of which ranks hold replicas: whoever owns one, all must know what is kept of it.
Status Optimizer::compare_param_states() {
  const Plan& plan = buffer_->plan();
  for (const bool expert : {false, true}) {
    std::string mine;
    for (const ParamState& state : impl_->config.param_states) {
      append_all(&mine, "bytes of '", state.name, "'");
      for (size_t param = 0; param < state.bytes.size(); ++param) {
        if (plan.params[param].expert == expert && state.bytes[param] > 0) append_all(&mine, " ", param, ":", state.bytes[param]);
      }
      mine += '\n';
    }
    auto compared = buffer_->context().world->compare(buffer_->arenas().members(Grid::replica_axes(expert)), "mdp_optimizer_create", mine);
    if (!compared) return compared.status();
    if (!*compared) continue;
    const Mismatch& found = **compared;
    return Status(Code::desync,
                  text("ranks ", found.first, " and ", found.other, " give parameters different param_states: '", found.first_bytes,
                       "' and '", found.other_bytes, "'"),
                  Blame{.rank = found.other});
  }
  return {};
}

void Optimizer::lay_out_param_states() {
  const Arenas& arenas = buffer_->arenas();
  for (const ParamState& state : impl_->config.param_states) {
    Impl::ParamStateMemory mine;
    mine.at.resize(state.bytes.size());
    mine.shapes.resize(state.bytes.size(), {0, 1});
    for (size_t param = 0; param < state.bytes.size(); ++param) {
      if (state.bytes[param] == 0 || buffer_->plan().params[param].frozen || impl_->owned(arenas, param) == nullptr) continue;
      mine.at[param] = mine.bytes;
      mine.shapes[param][0] = static_cast<int64_t>(state.bytes[param]);
      mine.bytes += round_up(state.bytes[param], kParamStateAlignment);
    }
    impl_->param_states.push_back(std::move(mine));
  }
}

Status Optimizer::allocate_param_states() {
  for (Impl::ParamStateMemory& state : impl_->param_states) {
    if (state.bytes == 0) continue;
    auto memory = buffer_->context().backend->allocate(state.bytes);
    if (!memory) return memory.status();
    state.memory = impl_->kept->keep(*std::move(memory));
  }
  return {};
}

Slice Optimizer::Impl::param_state(size_t state, size_t param) const {
  const ParamStateMemory& mine = param_states[state];
  const bool owns = mine.shapes[param][0] > 0;
  return {owns ? static_cast<std::byte*>(mine.memory->data()) + mine.at[param] : nullptr, DType::u8, &mine.shapes[param]};
}

Slice Optimizer::param_state(size_t state, size_t param) const {
  return impl_->param_state(state, param);
}

const std::vector<ParamState>& Optimizer::param_states() const {
  return impl_->config.param_states;
}

}  // namespace megadp
