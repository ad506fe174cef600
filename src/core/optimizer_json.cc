// SPDX-License-Identifier: Apache-2.0
// What an optimizer is, as one line of JSON.
#include <cmath>
#include <optional>

#include "core/optimizer_impl.h"
#include "files/json_value.h"

namespace megadp {

Result<StoredOptimizer> Optimizer::stored() {
  const auto scalars = read_scalars();
  if (!scalars) return scalars.status();
  const OptimizerConfig& config = impl_->config;
  StoredOptimizer out{impl_->rule().name, scalars->step, {{kMasterState, DType::f32}}, {}};
  for (const StateArray& each : impl_->rule().state) out.state.push_back({each.name, each.type});
  std::string& json = out.info;
  json = text("{\"rule\":", json_string(out.rule), ",\"steps\":", out.steps);
  for (const HyperParameter& each : impl_->rule().hyper) json += text(",\"", each.name, "\":", json_number(config.hyper.*each.value));
  json += text(",\"max_grad_norm\":", json_number(config.max_grad_norm), ",\"max_grad_value\":", json_number(config.max_grad_value),
               ",\"norm\":\"", config.norm == Norm::inf ? "inf" : "l2", "\",\"groups\":[");
  for (size_t group = 0; group < config.groups.size(); ++group) {
    const Hyper hyper = impl_->hyper(static_cast<int>(group), config.hyper.lr);
    json += text(group == 0 ? "" : ",", "{\"lr\":", json_number(hyper.lr), ",\"weight_decay\":", json_number(hyper.weight_decay), "}");
  }
  json += "],\"state\":[";
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

// A group that has no value of its own keeps following the optimizer's, if it did so there too.
std::optional<double> group_value(const std::optional<double>& mine, double stored, double optimizers) {
  return !mine && stored == optimizers ? std::nullopt : std::optional(stored);
}

}  // namespace

Result<OptimizerConfig> Optimizer::config_from(const StoredOptimizer& stored) const {
  OptimizerConfig config = impl_->config;
  const auto json = JsonValue::parse(stored.info);
  const auto wrong = [](const char* name) { return Status(Code::corrupt, text("the optimizer's ", name, " is not what it may be")); };
  if (!json || !json->is_object()) return wrong("description");
  for (const HyperParameter& each : impl_->rule().hyper) {
    if (!take_number(*json, each.name, &(config.hyper.*each.value))) return wrong(each.name);
  }
  if (!take_number(*json, "max_grad_norm", &config.max_grad_norm)) return wrong("max_grad_norm");
  if (!take_number(*json, "max_grad_value", &config.max_grad_value)) return wrong("max_grad_value");
  const JsonValue* const given = json->find("groups");
  const std::vector<JsonValue> groups = given != nullptr ? given->items() : std::vector<JsonValue>();
  if (groups.size() != config.groups.size() || !given->is_array()) {
    return invalid("the checkpoint's optimizer has ", groups.size(), " parameter groups, and this one ", config.groups.size(),
                   "; leave MDP_CHECKPOINT_LOAD_HYPER (2) out, and it keeps its own values");
  }
  for (size_t number = 0; number < groups.size(); ++number) {
    double lr = 0, weight_decay = 0;
    if (!groups[number].is_object() || !take_number(groups[number], "lr", &lr) ||
        !take_number(groups[number], "weight_decay", &weight_decay))
      return wrong("parameter groups");
    ParamGroup& group = config.groups[number];
    group.lr = group_value(group.lr, lr, config.hyper.lr);
    group.weight_decay = group_value(group.weight_decay, weight_decay, config.hyper.weight_decay);
  }
  return config;
}

}  // namespace megadp
