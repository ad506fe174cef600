// SPDX-License-Identifier: Apache-2.0
// Optimizers.
#include "core/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>

#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"
#include "base/rules.h"

using namespace megadp;

namespace {

static_assert(std::string_view(rule(MDP_RULE_ADAMW).name) == "AdamW");

Status check_number(double value, const std::string& argument) {
  if (std::isfinite(value) && value >= 0) return {};
  return invalid(argument, " is ", value, "; it must be 0 or more and finite");
}

// What kernels compute with, as floats.
Status check_float(double value, const std::string& argument) {
  if (Status status = check_number(value, argument); !status) return status;
  if (value <= std::numeric_limits<float>::max()) return {};
  return invalid(argument, " is ", value, "; as a float that is infinite, at most ", std::numeric_limits<float>::max(), " can be used");
}

// What is divided by: neither it nor its inverse may vanish among floats. 0 stands for a default.
Status check_divisor(double value, const std::string& argument) {
  if (Status status = check_float(value, argument); !status) return status;
  if (value == 0 || (value >= kLeastDivisor && value <= kMostDivisor)) return {};
  return invalid(argument, " is ", value, "; it must be between ", kLeastDivisor, " and ", kMostDivisor, ", or 0 for the default");
}

Status check_decay(double value, const std::string& argument) {
  if (value >= 0 && value < 1) return {};
  return invalid(argument, " is ", value, "; it must be at least 0 and below 1");
}

Status check_range(double value, Range range, const std::string& argument) {
  if (range == Range::decay) return check_decay(value, argument);
  return range == Range::divisor ? check_divisor(value, argument) : check_float(value, argument);
}

// Of the rule's hyperparameters what the caller gave, otherwise what the rule says.
Result<Hyper> take_hyper(const mdp_optimizer_config& config, const UpdateRule& rule) {
  constexpr struct {
    const char* name;
    double mdp_optimizer_config::*given;
    HyperValue value;
    uint64_t literally;  // the flag by which 0 means 0
  } fields[] = {{"lr", &mdp_optimizer_config::lr, &Hyper::lr, MDP_OPTIMIZER_SET_LR},
                {"beta1", &mdp_optimizer_config::beta1, &Hyper::beta1, MDP_OPTIMIZER_SET_BETA1},
                {"beta2", &mdp_optimizer_config::beta2, &Hyper::beta2, MDP_OPTIMIZER_SET_BETA2},
                {"eps", &mdp_optimizer_config::eps, &Hyper::eps, 0},
                {"weight_decay", &mdp_optimizer_config::weight_decay, &Hyper::weight_decay, 0}};
  Hyper hyper{};
  for (const auto& field : fields) {
    const double given = config.*field.given;
    const auto* const known =
        std::find_if(rule.hyper.begin(), rule.hyper.end(), [&](const HyperParameter& each) { return each.value == field.value; });
    if (known == rule.hyper.end()) {
      if (given != 0) return invalid("config.", field.name, " is ", given, "; ", rule.name, " has none, leave it 0");
      continue;
    }
    if (Status status = check_range(given, known->range, text("config.", field.name)); !status) return status;
    hyper.*field.value = given != 0 || (config.flags & field.literally) != 0 ? given : known->preset;
  }
  return hyper;
}

Result<ParamGroup> take_group(const mdp_param_group& given, const std::string& argument) {
  if (Status status = check_reserved(given.reserved, argument + ".reserved"); !status) return status;
  constexpr uint64_t known = MDP_PARAM_GROUP_SET_LR | MDP_PARAM_GROUP_SET_WEIGHT_DECAY;
  if (Status status =
          check_flags(given.flags, known, argument + ".flags", "MDP_PARAM_GROUP_SET_LR (1) and MDP_PARAM_GROUP_SET_WEIGHT_DECAY (2)");
      !status) {
    return status;
  }
  if (Status status = check_float(given.lr, argument + ".lr"); !status) return status;
  if (Status status = check_float(given.weight_decay, argument + ".weight_decay"); !status) return status;
  ParamGroup group;
  if (given.lr != 0 || (given.flags & MDP_PARAM_GROUP_SET_LR) != 0) group.lr = given.lr;
  if (given.weight_decay != 0 || (given.flags & MDP_PARAM_GROUP_SET_WEIGHT_DECAY) != 0) group.weight_decay = given.weight_decay;
  return group;
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
    auto group = take_group(*ours, array->name(i));
    if (!group) return group.status();
    groups.push_back(*group);
  }
  return groups;
}

Status check_rule(mdp_rule given) {
  if (given < kRules) return {};
  std::string rules;
  for (mdp_rule number = 0; number < kRules; ++number) {
    rules += text(number == 0 ? "" : number + 1 < kRules ? ", " : " or ", number, " (", rule(number).name, ")");
  }
  return invalid("config.rule is ", given, "; it must be ", rules);
}

Result<OptimizerConfig> take_config(const mdp_optimizer_config* given) {
  auto ours = take_or_default(given, "config");
  if (!ours) return ours.status();
  if (Status status = check_rule(ours->rule); !status) return status;
  constexpr uint64_t known = MDP_OPTIMIZER_SET_LR | MDP_OPTIMIZER_SET_BETA1 | MDP_OPTIMIZER_SET_BETA2;
  if (Status status = check_flags(ours->flags, known, "config.flags",
                                  "MDP_OPTIMIZER_SET_LR (1), MDP_OPTIMIZER_SET_BETA1 (2) and MDP_OPTIMIZER_SET_BETA2 (4)");
      !status) {
    return status;
  }
  auto hyper = take_hyper(*ours, rule(ours->rule));
  if (!hyper) return hyper.status();
  if (Status status = check_number(ours->max_grad_norm, "config.max_grad_norm"); !status) return status;
  if (Status status = check_float(ours->max_grad_value, "config.max_grad_value"); !status) return status;
  if (ours->norm > MDP_NORM_INF) return invalid("config.norm is ", ours->norm, "; it must be MDP_NORM_L2 (0) or MDP_NORM_INF (1)");
  if (Status status = check_reserved(ours->reserved, "config.reserved"); !status) return status;
  auto groups = take_groups(*ours);
  if (!groups) return groups.status();
  return OptimizerConfig{ours->rule, *hyper, ours->max_grad_norm, ours->max_grad_value, static_cast<Norm>(ours->norm), *std::move(groups)};
}

Result<mdp_step_config> take_step_config(const mdp_step_config* given, const Place& place) {
  auto ours = take_or_default(given, "config");
  if (!ours) return ours;
  if (Status status = check_reserved(ours->reserved, "config.reserved"); !status) return status;
  if (Status status = check_flags(ours->flags, MDP_STEP_SET_LR, "config.flags", "MDP_STEP_SET_LR (1)"); !status) return status;
  if (Status status = check_float(ours->lr, "config.lr"); !status) return status;
  if (Status status = check_divisor(ours->loss_scale, "config.loss_scale"); !status) return status;
  if (Status status = check_divisor(ours->grad_divisor, "config.grad_divisor"); !status) return status;
  if (Status status = check_stream(ours->stream, "config.stream", place); !status) return status;
  return ours;
}

void give_step_report(const StepReport& from, mdp_step_report* out) {
  mdp_step_report report{};
  report.grad_norm = from.grad_norm;
  report.clip_factor = from.clip_factor;
  report.loss_scale = from.loss_scale;
  report.step = from.step;
  report.flags = (from.skipped ? MDP_STEPPED_SKIPPED : 0) | (from.clipped ? MDP_STEPPED_CLIPPED : 0);
  give(report, out);
}

}  // namespace

mdp_status mdp_optimizer_create(mdp_buffer* buffer, const mdp_optimizer_config* config, mdp_optimizer** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::all_ranks); !status) return status;
    auto ours = take_config(config);
    if (!ours) return ours.status();
    auto optimizer = Optimizer::create(buffer->object, *ours);
    if (!optimizer) return optimizer.status();
    auto handle = std::make_unique<mdp_optimizer>(buffer->context, *optimizer);
    handle->buffer = buffer->object;
    *out = handle.release();
    return {};
  });
}

mdp_status mdp_optimizer_set_param_group(mdp_optimizer* optimizer, size_t group, const mdp_param_group* value) {
  return guard([&]() -> Status {
    if (Status status = check_handle(optimizer, "optimizer", Need::usable); !status) return status;
    auto ours = take(value, "value");
    if (!ours) return ours.status();
    auto taken = take_group(*ours, "value");
    if (!taken) return taken.status();
    return optimizer->object->set_group(group, *taken);
  });
}

mdp_status mdp_optimizer_step(mdp_optimizer* optimizer, const mdp_step_config* config, mdp_step_report* report, mdp_request** out) {
  return guard([&]() -> Status {
    if (report != nullptr) {
      if (Status status = check_output(report, "report"); !status) return status;
    }
    if (Status status = check_request_out(out); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::all_ranks); !status) return status;
    auto ours = take_step_config(config, place_of(*optimizer));
    if (!ours) return ours.status();
    auto request = prepare_request(out, optimizer->context, optimizer->object);
    StepOptions options;
    if (ours->lr != 0 || (ours->flags & MDP_STEP_SET_LR) != 0) options.lr = ours->lr;
    if (ours->loss_scale != 0) options.loss_scale = ours->loss_scale;
    if (ours->grad_divisor != 0) options.grad_divisor = ours->grad_divisor;
    options.caller = ours->stream;
    StepReport answer;
    auto pending = optimizer->object->step(options, report != nullptr ? &answer : nullptr, out != nullptr);
    if (!pending) return pending.status();
    if (report != nullptr) give_step_report(answer, report);
    return give_request(std::move(request), *std::move(pending), out);
  });
}

mdp_status mdp_optimizer_state(mdp_optimizer* optimizer, size_t param, const char* name, mdp_tensor* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::process); !status) return status;
    if (name == nullptr) return invalid("name is NULL; ", optimizer->object->names_of_state());
    constexpr size_t longest = 63;
    auto slice = optimizer->object->state(param, std::string_view(name, strnlen(name, longest)));
    if (!slice) return slice.status();
    give_slice(place_of(*optimizer), *slice, out);
    return {};
  });
}

mdp_status mdp_optimizer_steps(mdp_optimizer* optimizer, size_t param, uint64_t* steps) {
  return guard([&]() -> Status {
    if (Status status = check_out(steps, "steps"); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::process); !status) return status;
    auto count = optimizer->object->steps(param);
    if (!count) return count.status();
    *steps = *count;
    return {};
  });
}

mdp_status mdp_optimizer_set_steps(mdp_optimizer* optimizer, uint64_t taken, const uint64_t* steps, size_t count) {
  return guard([&]() -> Status {
    if (Status status = check_handle(optimizer, "optimizer", Need::usable); !status) return status;
    if (taken > INT64_MAX) return invalid("taken is ", taken, "; at most ", INT64_MAX, " steps can be counted");
    if (steps == nullptr && count == 0) return optimizer->object->set_steps(taken, {});
    if (Status status = check_pointer(steps, "steps", alignof(uint64_t)); !status) return status;
    const size_t params = optimizer->buffer->plan().params.size();
    if (count != params) {
      return invalid("count is ", count, "; the optimizer's buffer has ", params,
                     " parameters, frozen ones too. For all alike give NULL and 0");
    }
    return optimizer->object->set_steps(taken, std::span(steps, count));
  });
}

mdp_status mdp_optimizer_info(mdp_optimizer* optimizer, char* json, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_text_output(json, capacity, needed); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::process); !status) return status;
    auto info = optimizer->object->json();
    if (!info) return info.status();
    return give_text(*info, json, capacity, needed);
  });
}

void mdp_optimizer_destroy(mdp_optimizer* optimizer) {
  destroy_handle(optimizer);
}
