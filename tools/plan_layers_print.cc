// SPDX-License-Identifier: Apache-2.0
// A plan of layers, for a person and for a program.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/matrix.h"
#include "plan_layers.h"

namespace megadp::tool {
namespace {

uint64_t sum_of(const std::array<uint64_t, kScratchPieces>& scratch) {
  uint64_t sum = 0;
  for (const uint64_t piece : scratch) sum += piece;
  return sum;
}

void print_row(const std::string& name, const std::string& kind, const std::string& weight, const std::string& times,
               const TpLayerPlan& plan) {
  fmt::print("  {:<20} {:<13} {:>17} {:>6} {:>14} {:>14} {:>14} {:>14} {:>14}\n", name, kind, weight, times, plan.weight + plan.bias,
             plan.saved, plan.sent_forward, plan.sent_backward, sum_of(plan.scratch));
}

nlohmann::ordered_json bytes_of(const TpLayerPlan& plan) {
  return {{"weight", plan.weight},
          {"bias", plan.bias},
          {"saved", plan.saved},
          {"sent_forward", plan.sent_forward},
          {"sent_backward", plan.sent_backward},
          {"scratch", sum_of(plan.scratch)}};
}

}  // namespace

void print_layers(const LayersPlan& plan) {
  const LayersTask& task = plan.task;
  fmt::print("{} tokens over {} tensor-parallel rank{}{}, {}: bytes of each rank for one pass, forward and backward\n", task.tokens,
             task.tp, task.tp == 1 ? "" : "s", task.sequence ? ", cut along the sequence outside of the layers" : "", name_of(task.type));
  fmt::print("  {:<20} {:<13} {:>17} {:>6} {:>14} {:>14} {:>14} {:>14} {:>14}\n", "layer", "kind", "weight", "times", "parameters", "saved",
             "sent forward", "sent backward", "scratch");
  for (const PlannedLayer& layer : plan.layers) {
    const std::string shape = layer.weight.empty() ? "" : fmt::format("{}x{}", layer.weight[0], layer.weight[1]);
    print_row(layer.name, layer.kind, shape, std::to_string(layer.times), layer.each);
  }
  print_row("all", "", "", "", plan.all);
  fmt::print("Layers share scratch memory: it is as large as the largest need. What is saved is so for each pass in flight.\n");
  if (plan.multiplies) fmt::print("On a device, besides: {} bytes in which products are computed\n", kGemmWorkspaceBytes);
}

std::string layers_json(const LayersPlan& plan) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const PlannedLayer& layer : plan.layers) {
    nlohmann::ordered_json one = {{"name", layer.name}, {"kind", layer.kind}, {"times", layer.times}, {"shape", layer.weight}};
    one.update(bytes_of(layer.each));
    layers.push_back(std::move(one));
  }
  const nlohmann::ordered_json all = {{"tp", plan.task.tp},
                                      {"tokens", plan.task.tokens},
                                      {"sequence", plan.task.sequence},
                                      {"dtype", name_of(plan.task.type)},
                                      {"layers", std::move(layers)},
                                      {"all", bytes_of(plan.all)},
                                      {"workspace", plan.multiplies ? kGemmWorkspaceBytes : 0}};
  std::string out = all.dump();
  out.pop_back();
  return out;
}

}  // namespace megadp::tool
