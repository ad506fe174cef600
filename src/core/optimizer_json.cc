// SPDX-License-Identifier: Apache-2.0
// What an optimizer is, as one line of JSON.
#include <nlohmann/json.hpp>

#include "core/optimizer_impl.h"

namespace megadp {

using Json = nlohmann::ordered_json;

Result<std::string> Optimizer::json() {
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
  return json.dump();
}

}  // namespace megadp
