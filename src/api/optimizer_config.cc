// SPDX-License-Identifier: Apache-2.0
#include "api/optimizer_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "api/intake.h"
#include "base/rules.h"

namespace megadp {

namespace {

Status check_number(double value, const Argument& argument) {
  if (std::isfinite(value) && value >= 0) return {};
  return invalid(argument, " is ", value, "; it must be 0 or more and finite");
}

// What kernels compute with, as floats.
Status check_float(double value, const Argument& argument) {
  if (Status status = check_number(value, argument); !status) return status;
  if (is_within(value, Range::factor)) return {};
  return invalid(argument, " is ", value, "; as a float that is infinite, at most ", std::numeric_limits<float>::max(), " can be used");
}

// What is divided by: neither it nor its inverse may vanish among floats. 0 stands for a default.
Status check_divisor(double value, const Argument& argument) {
  if (Status status = check_float(value, argument); !status) return status;
  if (value == 0 || is_within(value, Range::divisor)) return {};
  return invalid(argument, " is ", value, "; it must be between ", kLeastDivisor, " and ", kMostDivisor, ", or 0 for the default");
}

Status check_decay(double value, const Argument& argument) {
  if (is_within(value, Range::decay)) return {};
  return invalid(argument, " is ", value, "; it must be at least 0 and below 1");
}

Status check_range(double value, Range range, const Argument& argument) {
  if (range == Range::decay) return check_decay(value, argument);
  return range == Range::divisor ? check_divisor(value, argument) : check_float(value, argument);
}

// One hyperparameter: where a caller may give it, and the flags by which 0 means 0.
struct Field {
  const char* name;
  HyperValue value;
  double mdp_optimizer_config::*given;
  uint64_t literally;
  double mdp_param_group::*of_group;
  uint64_t literally_of_group;
};
constexpr Field kFields[] = {
    {"lr", &Hyper::lr, &mdp_optimizer_config::lr, MDP_OPTIMIZER_SET_LR, &mdp_param_group::lr, MDP_PARAM_GROUP_SET_LR},
    {"beta1", &Hyper::beta1, &mdp_optimizer_config::beta1, MDP_OPTIMIZER_SET_BETA1, &mdp_param_group::beta1, MDP_PARAM_GROUP_SET_BETA1},
    {"beta2", &Hyper::beta2, &mdp_optimizer_config::beta2, MDP_OPTIMIZER_SET_BETA2, &mdp_param_group::beta2, MDP_PARAM_GROUP_SET_BETA2},
    {"eps", &Hyper::eps, &mdp_optimizer_config::eps, 0, &mdp_param_group::eps, 0},
    {"weight_decay", &Hyper::weight_decay, &mdp_optimizer_config::weight_decay, 0, &mdp_param_group::weight_decay,
     MDP_PARAM_GROUP_SET_WEIGHT_DECAY},
    {"momentum", &Hyper::momentum, &mdp_optimizer_config::momentum, MDP_OPTIMIZER_SET_MOMENTUM, &mdp_param_group::momentum,
     MDP_PARAM_GROUP_SET_MOMENTUM}};

// What the rule says of it; nullptr if it has none, and then the caller may give none.
Result<const HyperParameter*> known_to(const UpdateRule& rule, const Field& field, double given, bool literal, const Argument& argument) {
  for (const HyperParameter& each : rule.hyper) {
    if (each.value != field.value) continue;
    if (Status status = check_range(given, each.range, {{argument, "."}, field.name}); !status) return status;
    return &each;
  }
  if (given != 0) return invalid(argument, ".", field.name, " is ", given, "; ", rule.name, " has none, leave it 0");
  if (literal) return invalid(argument, ".flags says that ", field.name, " is meant literally; ", rule.name, " has none");
  return nullptr;
}

// Of the rule's hyperparameters what the caller gave, otherwise what the rule says.
Result<Hyper> take_hyper(const mdp_optimizer_config& config, const UpdateRule& rule) {
  Hyper hyper{};
  for (const Field& field : kFields) {
    const double given = config.*field.given;
    const bool literal = (config.flags & field.literally) != 0;
    auto known = known_to(rule, field, given, literal, "config");
    if (!known) return known.status();
    if (*known != nullptr) hyper.*field.value = given != 0 || literal ? given : (*known)->preset;
  }
  return hyper;
}

Result<std::vector<ParamGroup>> take_groups(const mdp_optimizer_config& config) {
  std::vector<ParamGroup> groups;
  if (config.param_groups == nullptr && config.param_group_count == 0) {
    groups.emplace_back();
    return groups;
  }
  if (config.param_group_count == 0) {
    return invalid("config.param_group_count is 0, but config.param_groups is not NULL; leave both 0 for one group");
  }
  auto array = Array<mdp_param_group>::open(config.param_groups, config.param_group_count, "config.param_groups");
  if (!array) return array.status();
  for (size_t i = 0; i < array->count(); ++i) {
    auto ours = array->take_at(i);
    if (!ours) return ours.status();
    auto group = take_group(*ours, rule(config.rule), array->name(i));
    if (!group) return group.status();
    groups.push_back(*group);
  }
  return groups;
}

// The last two in the list are the library's own.
Status check_rule(mdp_rule given) {
  static_assert(kGradientRule == kRules - 2 && kAverageRule == kRules - 1);
  if (given < kGradientRule) return {};
  std::string rules;
  for (mdp_rule number = 0; number < kGradientRule; ++number) {
    rules += text(number == 0 ? "" : number + 1 < kGradientRule ? ", " : " or ", number, " (", rule(number).name, ")");
  }
  return invalid("config.rule is ", given, "; it must be ", rules);
}

// Names go into files, sentences and JSON: letters, digits and a few signs.
constexpr size_t kLongestStateName = 64;
constexpr uint64_t kMostStateBytes = uint64_t{1} << 48;  // of a parameter
Status check_state_name(const Argument& argument, const std::string& name, const std::vector<std::string>& before) {
  constexpr const char* known = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  if (name.empty() || name.size() > kLongestStateName || name.find_first_not_of(known) != std::string::npos) {
    return invalid(argument, " has the name '", name, "'; names are of 1 to 64 letters, digits, '_', '-' and '.', one a line");
  }
  if (name == "master" || name == "param" || name == kAverageState)
    return invalid(argument, " has the name '", name, "', which is the library's; choose another");
  if (std::find(before.begin(), before.end(), name) != before.end()) return invalid(argument, " has the name '", name, "' twice");
  return {};
}

Result<std::vector<std::string>> take_state(const mdp_optimizer_config& config) {
  std::vector<std::string> names;
  if (config.state == nullptr) return names;
  if (config.rule != kCallerRule) {
    return invalid("config.state names arrays of the caller's rule; ", rule(config.rule).name, " has its own, leave it NULL");
  }
  for (std::string_view left = config.state; !left.empty();) {
    const size_t end = std::min(left.find('\n'), left.size());
    const std::string name(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
    if (Status good = check_state_name("config.state", name, names); !good) return good;
    names.push_back(name);
  }
  if (names.size() <= kMostStates) return names;
  return invalid("config.state names ", names.size(), " arrays; an optimizer has at most ", kMostStates);
}

// params: of the buffer. before: names that are taken.
Result<std::vector<ParamState>> take_param_states(const mdp_optimizer_config& config, size_t params,
                                                  const std::vector<std::string>& state) {
  std::vector<ParamState> all;
  if (config.param_states == nullptr && config.param_state_count == 0) return all;
  if (config.rule != kCallerRule) {
    return invalid("config.param_states is of the caller's rule; ", rule(config.rule).name, " has its own state, leave it NULL");
  }
  if (config.param_state_count == 0 || config.param_state_count > kMostStates) {
    return invalid("config.param_state_count is ", config.param_state_count, "; it must be 1 to ", kMostStates,
                   " with config.param_states");
  }
  auto array = Array<mdp_param_state>::open(config.param_states, config.param_state_count, "config.param_states");
  if (!array) return array.status();
  std::vector<std::string> names = state;
  for (size_t i = 0; i < array->count(); ++i) {
    auto ours = array->take_at(i);
    if (!ours) return ours.status();
    const Argument argument = array->name(i);
    if (Status status = check_reserved(ours->reserved, {argument, ".reserved"}); !status) return status;
    if (ours->name == nullptr) return invalid(argument, ".name is NULL; every state needs a name of its own");
    const std::string name(ours->name, strnlen(ours->name, kLongestStateName + 1));
    if (Status good = check_state_name({argument, ".name"}, name, names); !good) return good;
    if (Status status = check_pointer(ours->bytes, {argument, ".bytes"}, alignof(uint64_t)); !status) return status;
    ParamState taken{name, {ours->bytes, ours->bytes + params}};
    for (size_t param = 0; param < params; ++param) {
      if (taken.bytes[param] <= kMostStateBytes) continue;
      return invalid(argument, ".bytes[", param, "] is ", taken.bytes[param], "; at most ", kMostStateBytes, " can be kept");
    }
    names.push_back(name);
    all.push_back(std::move(taken));
  }
  return all;
}

Status check_checking(const mdp_optimizer_config& config) {
  if ((config.flags & MDP_OPTIMIZER_CHECK_UPDATE) == 0) return {};
  if (config.rule != kCallerRule) {
    return invalid("config.flags has MDP_OPTIMIZER_CHECK_UPDATE (128), and the rule is ", rule(config.rule).name,
                   "; it is for the caller's");
  }
  if (config.param_state_count == 0) return {};
  return invalid(
      "config.flags has MDP_OPTIMIZER_CHECK_UPDATE (128), which cuts parameters in two; with config.param_states an update needs "
      "all of one");
}

// How state and parameters without masters are stored and rounded.
Status check_storage(const mdp_optimizer_config& config) {
  if (Status status = check_reserved(config.reserved, "config.reserved"); !status) return status;
  const bool bf16 = config.state_dtype == MDP_DTYPE_BF16, no_master = (config.flags & MDP_OPTIMIZER_NO_MASTER) != 0;
  const bool stochastic = (config.flags & MDP_OPTIMIZER_STOCHASTIC_STATE) != 0;
  if (!bf16 && config.state_dtype != MDP_DTYPE_DEFAULT && config.state_dtype != MDP_DTYPE_F32) {
    return invalid("config.state_dtype is ", config.state_dtype, "; it must be F32 (2), which 0 stands for, or BF16 (3)");
  }
  const UpdateRule& rule = megadp::rule(config.rule);
  if (config.rule == kCallerRule && (bf16 || no_master)) {
    return unsupported(bf16 ? "config.state_dtype is BF16 (3)" : "config.flags has MDP_OPTIMIZER_NO_MASTER (32)", ", and the rule is ",
                       rule.name, ", whose masters and state are f32");
  }
  if (bf16 && rule.state.size() == 0) return invalid("config.state_dtype is BF16 (3); ", rule.name, " keeps no state, leave it 0");
  if (stochastic && !bf16) {
    return invalid("config.flags has MDP_OPTIMIZER_STOCHASTIC_STATE (64); without config.state_dtype BF16 (3) no state is rounded");
  }
  if (no_master && config.average_decay > 0) {
    return unsupported("config.flags has MDP_OPTIMIZER_NO_MASTER (32) and config.average_decay is ", config.average_decay,
                       "; an average follows fp32 masters, leave one of them out");
  }
  if (config.seed != 0 && !stochastic && !no_master) {
    return invalid("config.seed is ", config.seed,
                   "; only MDP_OPTIMIZER_NO_MASTER (32) and STOCHASTIC_STATE (64) take random bits, leave it 0 without them");
  }
  return {};
}

}  // namespace

Result<ParamGroup> take_group(const mdp_param_group& given, const UpdateRule& rule, const Argument& argument) {
  if (Status status = check_reserved(given.reserved, {argument, ".reserved"}); !status) return status;
  constexpr uint64_t known_flags = MDP_PARAM_GROUP_SET_LR | MDP_PARAM_GROUP_SET_WEIGHT_DECAY | MDP_PARAM_GROUP_SET_BETA1 |
                                   MDP_PARAM_GROUP_SET_BETA2 | MDP_PARAM_GROUP_SET_MOMENTUM;
  if (Status status = check_flags(given.flags, known_flags, {argument, ".flags"},
                                  "MDP_PARAM_GROUP_SET_LR (1), SET_WEIGHT_DECAY (2), SET_BETA1 (4), SET_BETA2 (8) and SET_MOMENTUM (16)");
      !status) {
    return status;
  }
  ParamGroup group;
  for (const Field& field : kFields) {
    const double value = given.*field.of_group;
    const bool literal = (given.flags & field.literally_of_group) != 0;
    auto known = known_to(rule, field, value, literal, argument);
    if (!known) return known.status();
    if (*known == nullptr || (value == 0 && !literal)) continue;
    for (const GroupField& each : kGroupFields) {
      if (each.value == field.value) group.*each.of_group = value;
    }
  }
  return group;
}

Result<OptimizerConfig> take_optimizer_config(const mdp_optimizer_config* given, size_t params) {
  auto ours = take_or_default(given, "config");
  if (!ours) return ours.status();
  if (Status status = check_rule(ours->rule); !status) return status;
  constexpr uint64_t known = MDP_OPTIMIZER_SET_LR | MDP_OPTIMIZER_SET_BETA1 | MDP_OPTIMIZER_SET_BETA2 | MDP_OPTIMIZER_SET_MOMENTUM |
                             MDP_OPTIMIZER_SOME_GROUPS | MDP_OPTIMIZER_NO_MASTER | MDP_OPTIMIZER_STOCHASTIC_STATE |
                             MDP_OPTIMIZER_CHECK_UPDATE;
  if (Status status = check_flags(ours->flags, known, "config.flags",
                                  "MDP_OPTIMIZER_SET_LR (1), SET_BETA1 (2), SET_BETA2 (4), SET_MOMENTUM (8), SOME_GROUPS (16), NO_MASTER "
                                  "(32), STOCHASTIC_STATE (64) and CHECK_UPDATE (128)");
      !status) {
    return status;
  }
  auto hyper = take_hyper(*ours, rule(ours->rule));
  if (!hyper) return hyper.status();
  if (Status status = check_number(ours->max_grad_norm, "config.max_grad_norm"); !status) return status;
  if (Status status = check_float(ours->max_grad_value, "config.max_grad_value"); !status) return status;
  if (ours->norm > MDP_NORM_INF) return invalid("config.norm is ", ours->norm, "; it must be MDP_NORM_L2 (0) or MDP_NORM_INF (1)");
  const bool some_groups = (ours->flags & MDP_OPTIMIZER_SOME_GROUPS) != 0;
  if (ours->first_param_group != 0 && !some_groups) {
    return invalid("config.first_param_group is ", ours->first_param_group,
                   "; without MDP_OPTIMIZER_SOME_GROUPS (16) an optimizer has all groups, from 0 on");
  }
  if (ours->first_param_group > INT32_MAX) {
    return invalid("config.first_param_group is ", ours->first_param_group, "; mdp_param.param_group is at most ", INT32_MAX);
  }
  if (Status status = check_decay(ours->average_decay, "config.average_decay"); !status) return status;
  auto groups = take_groups(*ours);
  if (!groups) return groups.status();
  auto state = take_state(*ours);
  if (!state) return state.status();
  auto param_states = take_param_states(*ours, params, *state);
  if (!param_states) return param_states.status();
  if (Status status = check_checking(*ours); !status) return status;
  if (Status status = check_storage(*ours); !status) return status;
  return OptimizerConfig{ours->rule,
                         *hyper,
                         ours->max_grad_norm,
                         ours->max_grad_value,
                         static_cast<Norm>(ours->norm),
                         *std::move(groups),
                         ours->first_param_group,
                         some_groups,
                         *std::move(state),
                         *std::move(param_states),
                         ours->average_decay,
                         ours->state_dtype == MDP_DTYPE_BF16,
                         (ours->flags & MDP_OPTIMIZER_STOCHASTIC_STATE) != 0,
                         (ours->flags & MDP_OPTIMIZER_NO_MASTER) != 0,
                         ours->seed,
                         (ours->flags & MDP_OPTIMIZER_CHECK_UPDATE) != 0};
}

Result<mdp_step_config> take_step_config(const mdp_step_config* given, const Place& place) {
  auto ours = take_or_default(given, "config");
  if (!ours) return ours;
  if (Status status = check_reserved(ours->reserved, "config.reserved"); !status) return status;
  if (Status status =
          check_flags(ours->flags, MDP_STEP_SET_LR | MDP_STEP_UNCHECKED, "config.flags", "MDP_STEP_SET_LR (1) and MDP_STEP_UNCHECKED (2)");
      !status) {
    return status;
  }
  if (Status status = check_float(ours->lr, "config.lr"); !status) return status;
  if (Status status = check_divisor(ours->loss_scale, "config.loss_scale"); !status) return status;
  if (Status status = check_divisor(ours->grad_divisor, "config.grad_divisor"); !status) return status;
  if (Status status = check_stream(ours->stream, "config.stream", place); !status) return status;
  return ours;
}

// What is left 0, as the rules of mdp_scaler have it.
Result<Scaler> take_scaler(const mdp_scaler* given) {
  if (given == nullptr) return Scaler{};
  auto ours = take(given, "scaler");
  if (!ours) return ours.status();
  if (Status status = check_reserved(ours->reserved, "scaler.reserved"); !status) return status;
  if (Status status = check_flags(ours->flags, MDP_SCALER_CONSTANT, "scaler.flags", "MDP_SCALER_CONSTANT (1)"); !status) return status;
  const bool constant = (ours->flags & MDP_SCALER_CONSTANT) != 0;
  const auto or_else = [](auto value, decltype(value) preset) { return value != 0 ? value : preset; };
  const LossScaler scaler{.kind = constant ? LossScaler::Kind::constant : LossScaler::Kind::dynamic,
                          .growth_interval = or_else(ours->growth_interval, 2000),
                          .hysteresis = or_else(ours->hysteresis, 1),
                          .reserved = 0,
                          .growth_factor = or_else(ours->growth_factor, 2),
                          .backoff_factor = or_else(ours->backoff_factor, 0.5),
                          .least = or_else(ours->min_scale, 1)};
  const double scale = or_else(ours->scale, 65536);
  if (Status status = check_divisor(scale, "scaler.scale"); !status) return status;
  if (Status status = check_divisor(scaler.least, "scaler.min_scale"); !status) return status;
  // In f32, in which the scale is kept: at its floor it is there what rounding made of min_scale.
  if (!constant && static_cast<float>(scale) < static_cast<float>(scaler.least)) {
    return invalid("scaler.scale is ", scale, ", below scaler.min_scale, ", scaler.least, "; it must be at least that");
  }
  if (!(scaler.growth_factor >= 1 && scaler.growth_factor <= kMostLossScale)) {
    return invalid("scaler.growth_factor is ", scaler.growth_factor, "; it must be at least 1 and finite, such as 2");
  }
  if (!(scaler.backoff_factor > 0 && scaler.backoff_factor < 1)) {
    return invalid("scaler.backoff_factor is ", scaler.backoff_factor, "; it must be above 0 and below 1, such as 0.5");
  }
  if (ours->clean_steps >= scaler.growth_interval) {
    return invalid("scaler.clean_steps is ", ours->clean_steps, "; it must be below growth_interval, ", scaler.growth_interval);
  }
  if (ours->overflows > scaler.hysteresis) {
    return invalid("scaler.overflows is ", ours->overflows, "; it must be at most hysteresis, ", scaler.hysteresis);
  }
  return Scaler{scaler, {static_cast<float>(scale), ours->clean_steps, ours->overflows, 0}};
}

mdp_scaler scaler_struct(const Scaler& from) {
  mdp_scaler scaler{};
  scaler.growth_interval = from.scaler.growth_interval;
  scaler.hysteresis = from.scaler.hysteresis;
  scaler.clean_steps = from.scale.clean_steps;
  scaler.overflows = from.scale.overflows;
  scaler.scale = from.scale.scale;
  scaler.growth_factor = from.scaler.growth_factor;
  scaler.backoff_factor = from.scaler.backoff_factor;
  scaler.min_scale = from.scaler.least;
  scaler.flags = from.scaler.kind == LossScaler::Kind::constant ? MDP_SCALER_CONSTANT : 0;
  return scaler;
}

}  // namespace megadp
