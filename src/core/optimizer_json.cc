// SPDX-License-Identifier: Apache-2.0
// What an optimizer is, as one line of JSON.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/optimizer_impl.h"
#include "files/json_value.h"

namespace megadp {

namespace {

std::string scaler_json(const LossScaler& scaler, const LossScale& now) {
  return text("{\"kind\":\"", scaler.kind == LossScaler::Kind::dynamic ? "dynamic" : "constant", "\",\"scale\":", json_number(now.scale),
              ",\"clean_steps\":", now.clean_steps, ",\"overflows\":", now.overflows,
              ",\"growth_factor\":", json_number(scaler.growth_factor), ",\"backoff_factor\":", json_number(scaler.backoff_factor),
              ",\"growth_interval\":", scaler.growth_interval, ",\"hysteresis\":", scaler.hysteresis,
              ",\"min_scale\":", json_number(scaler.least), "}");
}

}  // namespace

Result<StoredOptimizer> Optimizer::stored() {
  const auto scalars = read_scalars();
  if (!scalars) return scalars.status();
  const OptimizerConfig& config = impl_->config;
  StoredOptimizer out{impl_->rule().name, scalars->step, {}, {}};
  if (!config.no_master) out.state.push_back({kMasterState, DType::f32});
  for (const StateArray& each : impl_->states) out.state.push_back({each.name, each.type});
  if (impl_->averages()) out.state.push_back({kAverageState, DType::f32});
  std::string& json = out.info;
  json = text("{\"rule\":", json_string(out.rule), ",\"steps\":", out.steps);
  for (const HyperParameter& each : impl_->rule().hyper) json += text(",\"", each.name, "\":", json_number(config.hyper.*each.value));
  json += text(",\"max_grad_norm\":", json_number(config.max_grad_norm), ",\"max_grad_value\":", json_number(config.max_grad_value),
               ",\"norm\":\"", config.norm == Norm::inf ? "inf" : "l2", "\",\"first_group\":", config.first_group, ",\"groups\":[");
  for (size_t group = 0; group < config.groups.size(); ++group) {
    const Hyper hyper = impl_->hyper(config.first_group + group, {});
    const char* comma = group == 0 ? "{" : ",{";
    for (const HyperParameter& each : impl_->rule().hyper) {
      json += text(comma, "\"", each.name, "\":", json_number(hyper.*each.value));
      comma = ",";
    }
    json += "}";
  }
  json += "]";
  if (impl_->averages()) {
    json += text(",\"average_decay\":", json_number(config.average_decay), ",\"swapped\":", impl_->swapped ? "true" : "false");
  }
  if (impl_->scaler.kind != LossScaler::Kind::none) json += text(",\"scaler\":", scaler_json(impl_->scaler, scalars->loss_scale));
  if (!impl_->config.param_states.empty()) {
    json += ",\"param_states\":[";
    for (const ParamState& each : impl_->config.param_states)
      json += text(&each == &impl_->config.param_states.front() ? "" : ",", json_string(each.name));
    json += "]";
  }
  if (config.stochastic_state) json += ",\"stochastic_state\":true";
  if (config.no_master) json += ",\"no_master\":true";
  if (config.draws()) json += text(",\"seed\":", config.seed);
  json += ",\"state\":[";
  const char* comma = "";
  for (const StoredState& each : out.state) {
    json += text(comma, "{\"name\":", json_string(each.name), ",\"dtype\":\"", name_of(each.type), "\"}");
    comma = ",";
  }
  json += "]}";
  return out;
}

Result<std::string> Optimizer::json() {
  auto all = stored();
  if (!all) return all.status();
  return std::move(all->info);
}

namespace {

bool take_number(const JsonValue& from, const char* name, double* out) {
  const JsonValue* const found = from.find(name);
  const auto value = found != nullptr ? found->number() : std::nullopt;
  *out = value.value_or(-1);
  return std::isfinite(*out) && *out >= 0;
}

bool take_number(const JsonValue& from, const char* name, Range range, double* out) {
  return take_number(from, name, out) && is_within(*out, range);
}

// A group that has no value of its own keeps following the optimizer's, if it did so there too. Checkpoints of 0.1 have of each group only
// lr and weight_decay.
bool take_group(const JsonValue& from, const UpdateRule& rule, const Hyper& optimizers, ParamGroup* group) {
  if (!from.is_object()) return false;
  for (const GroupField& field : kGroupFields) {
    const auto* const known =
        std::find_if(rule.hyper.begin(), rule.hyper.end(), [&](const HyperParameter& each) { return each.value == field.value; });
    if (known == rule.hyper.end() || from.find(known->name) == nullptr) continue;
    double stored = 0;
    if (!take_number(from, known->name, known->range, &stored)) return false;
    std::optional<double>& mine = group->*field.of_group;
    if (mine || stored != optimizers.*field.value) mine = stored;
  }
  return true;
}

}  // namespace

bool Optimizer::is_stored_as(const StoredOptimizer& stored) const {
  if (stored.rule != impl_->rule().name) return false;
  const auto json = JsonValue::parse(stored.info);
  double first = 0;
  if (json && json->find("first_group") != nullptr && !take_number(*json, "first_group", &first)) return false;
  return first == static_cast<double>(impl_->config.first_group);
}

Result<std::optional<LossScale>> Optimizer::loss_scale_from(const StoredOptimizer& stored) const {
  const auto json = JsonValue::parse(stored.info);
  if (!json || !json->is_object()) return Status(Code::corrupt, "the optimizer's description is not what it may be");
  const JsonValue* const given = json->find("scaler");
  if (given == nullptr || impl_->scaler.kind == LossScaler::Kind::none) return std::optional<LossScale>();
  double scale = 0, clean_steps = 0, overflows = 0;
  const bool known = given->is_object() && take_number(*given, "scale", &scale) && take_number(*given, "clean_steps", &clean_steps) &&
                     take_number(*given, "overflows", &overflows);
  if (!known || scale < kLeastDivisor || scale > kMostLossScale || clean_steps >= UINT32_MAX || overflows >= UINT32_MAX) {
    return Status(Code::corrupt, "the optimizer's scaler is not what it may be");
  }
  // Within what this scaler, which may be another, can come to itself.
  const LossScaler& mine = impl_->scaler;
  if (mine.kind == LossScaler::Kind::dynamic) scale = std::max(scale, mine.least);
  return std::optional(LossScale{static_cast<float>(scale), std::min(static_cast<uint32_t>(clean_steps), mine.growth_interval - 1),
                                 std::min(static_cast<uint32_t>(overflows), mine.hysteresis), 0});
}

Result<OptimizerConfig> Optimizer::config_from(const StoredOptimizer& stored) const {
  OptimizerConfig config = impl_->config;
  const auto json = JsonValue::parse(stored.info);
  const auto wrong = [](const char* name) { return Status(Code::corrupt, text("the optimizer's ", name, " is not what it may be")); };
  if (!json || !json->is_object()) return wrong("description");
  for (const HyperParameter& each : impl_->rule().hyper) {
    if (!take_number(*json, each.name, each.range, &(config.hyper.*each.value))) return wrong(each.name);
  }
  if (!take_number(*json, "max_grad_norm", &config.max_grad_norm)) return wrong("max_grad_norm");
  if (!take_number(*json, "max_grad_value", Range::factor, &config.max_grad_value)) return wrong("max_grad_value");
  if (const JsonValue* const norm = json->find("norm"); norm != nullptr) {
    if (norm->string() == nullptr || (*norm->string() != "l2" && *norm->string() != "inf")) return wrong("norm");
    config.norm = *norm->string() == "inf" ? Norm::inf : Norm::l2;
  }
  if (impl_->averages() && json->find("average_decay") != nullptr) {
    if (!take_number(*json, "average_decay", Range::decay, &config.average_decay)) return wrong("average_decay");
    if (config.average_decay == 0) return wrong("average_decay");
  }
  const JsonValue* const given = json->find("groups");
  const std::vector<JsonValue> groups = given != nullptr ? given->items() : std::vector<JsonValue>();
  if (groups.size() != config.groups.size() || !given->is_array()) {
    return invalid("the checkpoint's optimizer has ", groups.size(), " parameter groups, and this one ", config.groups.size(),
                   "; leave MDP_CHECKPOINT_LOAD_HYPER (2) out, and it keeps its own values");
  }
  for (size_t number = 0; number < groups.size(); ++number) {
    if (!take_group(groups[number], impl_->rule(), config.hyper, &config.groups[number])) return wrong("parameter groups");
  }
  if (const JsonValue* const seed = json->find("seed"); seed != nullptr && config.draws()) {
    const auto number = seed->whole_number();
    if (!number) return wrong("seed");
    config.seed = *number;
  }
  return config;
}

}  // namespace megadp
