// SPDX-License-Identifier: Apache-2.0
// The tensor-parallel layers that `megadp plan` is asked about: their description, and what they come to.
#pragma once

#include <string>
#include <vector>

#include "core/tp_shape.h"
#include "plan_options.h"

namespace megadp::tool {

struct LayersTask {
  std::string given;  // of --layers
  int32_t tp = 1;
  uint64_t tokens = 0;  // of one pass, over all ranks of a model
  bool sequence = false;
  DType type = DType::f32;
};

struct PlannedLayer {
  std::string name, kind;
  uint64_t times = 1;
  std::vector<int64_t> weight;  // its shape on a rank; empty: it has none
  TpLayerPlan each;
  std::vector<ParamSpec> params;  // of one of the times
};

struct LayersPlan {
  LayersTask task;
  std::vector<PlannedLayer> layers;
  TpLayerPlan all;  // each as often as it is there; scratch memory is one for all
  bool multiplies = false;
  // For the buffer of a rank; false: there are none to train.
  bool has_params() const;
  std::vector<ParamSpec> params() const;
};

// "[NAME] KIND SIZE [WORD...]" a layer, separated by ; or line ends; "@FILE" and "-" as for --sizes.
Result<LayersPlan> plan_layers(const LayersTask& task);

void print_layers(const LayersPlan& plan);
// {"tp":…,"layers":[…],"total":{…}} without the last brace.
std::string layers_json(const LayersPlan& plan);

}  // namespace megadp::tool
