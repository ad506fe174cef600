// SPDX-License-Identifier: Apache-2.0
// What an optimizer is, as one line of JSON.
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/optimizer_impl.h"

namespace megadp {

using Json = nlohmann::ordered_json;

Result<StoredOptimizer> Optimizer::stored() {
  const auto scalars = read_scalars();
  if (!scalars) return scalars.status();
  const OptimizerConfig& config = impl_->config;
  Json json{{"rule", impl_->rule().name}, {"steps", scalars->step}};
  for (const HyperParameter& each : impl_->rule().hyper) json[each.name] = config.hyper.*each.value;
  json["max_grad_norm"] = config.max_grad_norm;
  json["max_grad_value"] = config.max_grad_value;
  json["norm"] = config.norm == Norm::inf ? "inf" : "l2";
  for (size_t group = 0; group < config.groups.size(); ++group) {
    const Hyper hyper = impl_->hyper(static_cast<int>(group), config.hyper.lr);
    json["groups"].push_back({{"lr", hyper.lr}, {"weight_decay", hyper.weight_decay}});
  }
  json["state"].push_back({{"name", "master"}, {"dtype", name_of(DType::f32)}});
  for (const StateArray& each : impl_->rule().state) json["state"].push_back({{"name", each.name}, {"dtype", name_of(each.type)}});
  StoredOptimizer out{impl_->rule().name, scalars->step, {{kMasterState, DType::f32}}, json.dump()};
  for (const StateArray& each : impl_->rule().state) out.state.push_back({each.name, each.type});
  return out;
}

Result<std::string> Optimizer::json() {
  auto all = stored();
  if (!all) return all.status();
  return std::move(all->info);
}

namespace {

bool take_number(const Json& from, const char* name, double* out) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_number()) return false;
  *out = found->get<double>();
  return std::isfinite(*out) && *out >= 0;
}

// A group that has no value of its own keeps following the optimizer's, if it did so there too.
std::optional<double> group_value(const std::optional<double>& mine, double stored, double optimizers) {
  return !mine && stored == optimizers ? std::nullopt : std::optional(stored);
}

}  // namespace

Result<OptimizerConfig> Optimizer::config_from(const StoredOptimizer& stored) const {
  OptimizerConfig config = impl_->config;
  const Json json = Json::parse(stored.info, nullptr, false);
  const auto wrong = [](const char* name) { return Status(Code::corrupt, text("the optimizer's ", name, " is not what it may be")); };
  if (!json.is_object()) return wrong("description");
  for (const HyperParameter& each : impl_->rule().hyper) {
    if (!take_number(json, each.name, &(config.hyper.*each.value))) return wrong(each.name);
  }
  if (!take_number(json, "max_grad_norm", &config.max_grad_norm)) return wrong("max_grad_norm");
  if (!take_number(json, "max_grad_value", &config.max_grad_value)) return wrong("max_grad_value");
  const Json groups = json.value("groups", Json::array());
  if (!groups.is_array() || groups.size() != config.groups.size()) {
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
