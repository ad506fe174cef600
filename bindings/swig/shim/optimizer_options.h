// SPDX-License-Identifier: Apache-2.0
// What an optimizer is created from: rule, values, groups, and what it keeps.
#pragma once

#include "buffer.h"

namespace megadp {

/// One of the optimizer's groups of parameters. What is not given, and eps 0, is the optimizer's.
struct ParamGroup {
  Given lr = 0.0;
  Given weight_decay = 0.0;
  Given beta1 = 0.0;
  Given beta2 = 0.0;
  Given momentum = 0.0;
  double eps = 0.0;
  bool set_lr = false;
  bool set_weight_decay = false;
  bool set_beta1 = false;
  bool set_beta2 = false;
  bool set_momentum = false;

#ifndef SWIG
  mdp_param_group config() const {
    mdp_param_group group{};
    group.struct_size = sizeof group;
    group.lr = lr;
    group.weight_decay = weight_decay;
    group.beta1 = beta1;
    group.beta2 = beta2;
    group.momentum = momentum;
    group.eps = eps;
    group.flags = (set_lr ? MDP_PARAM_GROUP_SET_LR : 0) | (set_weight_decay ? MDP_PARAM_GROUP_SET_WEIGHT_DECAY : 0) |
                  (set_beta1 ? MDP_PARAM_GROUP_SET_BETA1 : 0) | (set_beta2 ? MDP_PARAM_GROUP_SET_BETA2 : 0) |
                  (set_momentum ? MDP_PARAM_GROUP_SET_MOMENTUM : 0);
    return group;
  }
#endif
};

/// Not given: lr 1e-3 (LION 1e-4), beta1 0.9, beta2 0.999 (LION 0.99), momentum 0.9. Zero: eps 1e-8, no weight decay, no clipping. What the
/// rule has not is not to be given. norm is what max_grad_norm and the report are of; max_grad_value clips each element, last. With
/// first_param_group the optimizer has but the groups from that one on, as many as were added: Optimizers step together. With CALLER,
/// begin_step gives out the values as they are, and the arrays that add_state names. average_decay, such as 0.999: a moving average of the
/// parameters is kept, for swap_average. With bf16_state what the rule keeps is bf16, rounded to nearest, or with stochastic_state
/// stochastically; with no_master bf16 parameters have no masters and are rounded so; seed is that rounding's.
/// What CALLER keeps of whole parameters, add_param_state names.
/// check_update, to debug CALLER: copies of each piece's halves come behind it, and a step that makes anything else of them fails.
struct OptimizerOptions {
  Rule rule = Rule::ADAMW;
  Given lr = 0.0;
  Given beta1 = 0.0;
  Given beta2 = 0.0;
  Given momentum = 0.0;
  double eps = 0.0;
  double weight_decay = 0.0;
  double max_grad_norm = 0.0;
  double max_grad_value = 0.0;
  Norm norm = Norm::L2;
  GivenGroup first_param_group = 0;
  double average_decay = 0.0;
  bool set_lr = false;
  bool set_beta1 = false;
  bool set_beta2 = false;
  bool set_momentum = false;
  bool set_first_param_group = false;
  bool bf16_state = false;
  bool stochastic_state = false;
  bool no_master = false;
  bool check_update = false;
  long long seed = 0;

  void add_param_group(const ParamGroup& group) { groups_.push_back(group); }
  /// With CALLER: one more array of state, F32 and zero at first; at most 4.
  void add_state(const std::string& name) { state_.push_back(name); }
  /// With CALLER: bytes, zero at first, that the owner of a whole parameter keeps of it: of each parameter so many, 0: none; at most 4
  /// names.
  void add_param_state(const std::string& name, const Counts& bytes) { param_states_.emplace_back(name, bytes); }

#ifndef SWIG
  // What a configuration points to.
  struct Described {
    std::vector<mdp_param_group> groups;
    std::string state;
    std::vector<std::vector<uint64_t>> bytes;
    std::vector<mdp_param_state> param_states;
  };
  // Of a buffer with so many parameters; *config points into *described, and to this.
  bool describe(long long params, Described* described, mdp_optimizer_config* config, Failure& failure) const {
    if (first_param_group < 0 || first_param_group > INT32_MAX) {
      failure.refuse(MDP_E_INVALID, "first_param_group must be 0 to %d, not %lld", INT32_MAX, static_cast<long long>(first_param_group));
      return false;
    }
    for (const ParamGroup& group : groups_) described->groups.push_back(group.config());
    for (const std::string& name : state_) {
      if (!is_name("state", name, failure)) return false;
      described->state += name + "\n";
    }
    for (const auto& [name, bytes] : param_states_) {
      const std::string argument = "the bytes of '" + name + "'";
      if (!is_name("param_states", name, failure)) return false;
      described->bytes.push_back(bytes.list(params, "parameter", argument.c_str(), failure));
      if (failure.failed()) return false;
      mdp_param_state state{};
      state.struct_size = sizeof state;
      state.name = name.c_str();
      state.bytes = described->bytes.back().data();
      described->param_states.push_back(state);
    }
    *config = values();
    config->param_groups = described->groups.empty() ? nullptr : described->groups.data();
    config->param_group_count = described->groups.size();
    config->state = described->state.empty() ? nullptr : described->state.c_str();
    config->param_states = described->param_states.empty() ? nullptr : described->param_states.data();
    config->param_state_count = described->param_states.size();
    return true;
  }
#endif

 private:
#ifndef SWIG
  // Whether the library would read the name as it is; more it says itself.
  static bool is_name(const char* argument, const std::string& name, Failure& failure) {
    if (!name.empty() && name.find('\n') == std::string::npos && name.find('\0') == std::string::npos) return true;
    failure.refuse(MDP_E_INVALID, "%s has the name '%s'; names are of 1 to 64 letters, digits, '_', '-' and '.'", argument, name.c_str());
    return false;
  }
  mdp_optimizer_config values() const {
    mdp_optimizer_config config{};
    config.struct_size = sizeof config;
    config.rule = static_cast<mdp_rule>(rule);
    config.lr = lr;
    config.beta1 = beta1;
    config.beta2 = beta2;
    config.momentum = momentum;
    config.eps = eps;
    config.weight_decay = weight_decay;
    config.max_grad_norm = max_grad_norm;
    config.max_grad_value = max_grad_value;
    config.norm = static_cast<mdp_norm>(norm);
    config.first_param_group = static_cast<uint32_t>(first_param_group);
    config.average_decay = average_decay;
    config.flags = (set_lr ? MDP_OPTIMIZER_SET_LR : 0) | (set_beta1 ? MDP_OPTIMIZER_SET_BETA1 : 0) |
                   (set_beta2 ? MDP_OPTIMIZER_SET_BETA2 : 0) | (set_momentum ? MDP_OPTIMIZER_SET_MOMENTUM : 0) |
                   (set_first_param_group ? MDP_OPTIMIZER_SOME_GROUPS : 0) | (stochastic_state ? MDP_OPTIMIZER_STOCHASTIC_STATE : 0) |
                   (no_master ? MDP_OPTIMIZER_NO_MASTER : 0) | (check_update ? MDP_OPTIMIZER_CHECK_UPDATE : 0);
    config.state_dtype = bf16_state ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    config.seed = static_cast<uint64_t>(seed);
    return config;
  }
#endif
  std::vector<ParamGroup> groups_;
  std::vector<std::string> state_;
  std::vector<std::pair<std::string, Counts>> param_states_;
};

}  // namespace megadp
