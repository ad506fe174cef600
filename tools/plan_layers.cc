// SPDX-License-Identifier: Apache-2.0
// Layers as people write them, and what the library says of each.
#include "plan_layers.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "core/plan.h"

namespace megadp::tool {
namespace {

constexpr uint64_t kMostFeatures = uint64_t{1} << 31;  // as mdp_tp_linear_create takes
constexpr size_t kMostLayers = size_t{1} << 20;

// The words of a line.
struct Line {
  std::string where, name, kind;
  uint64_t size[2] = {0, 0};
  uint64_t times = 1;
  std::vector<int64_t> blocks;
  bool bias = false, gathers_output = false, takes_whole_input = false, partial = false, frozen = false;
};

struct Kind {
  const char* name;
  const char* sizes;  // how they are written
  bool has_two;
  std::vector<std::string_view> words;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"column", "INxOUT, the features of the whole layer", true, {"bias", "gather-output", "partial", "frozen", "blocks", "times"}},
      {"row", "INxOUT, the features of the whole layer", true, {"bias", "whole-input", "partial", "frozen", "blocks", "times"}},
      {"embedding", "ROWSxFEATURES of the whole table", true, {"partial", "frozen", "times"}},
      {"cross-entropy", "CLASSES, of the whole vocabulary", false, {"times"}}};
  return all;
}

const Kind* find_kind(std::string_view word) {
  for (const Kind& kind : kinds()) {
    if (kind.name == word) return &kind;
  }
  return nullptr;
}

bool read_features(std::string_view word, uint64_t* out) {
  return read_number(word, kMostFeatures, out) && *out > 0;
}

bool read_blocks(std::string_view word, std::vector<int64_t>* blocks) {
  for (;;) {
    const size_t comma = word.find(',');
    uint64_t block = 0;
    if (!read_features(word.substr(0, comma), &block)) return false;
    blocks->push_back(static_cast<int64_t>(block));
    if (comma == std::string_view::npos) return true;
    word.remove_prefix(comma + 1);
  }
}

Status take_word(std::string_view word, const Kind& kind, Line* line) {
  const size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals), value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
  const bool has_value = key == "blocks" || key == "times";
  if (std::find(kind.words.begin(), kind.words.end(), key) == kind.words.end() || has_value != (equals != std::string_view::npos)) {
    std::string known;
    for (const std::string_view one : kind.words) {
      known += text(known.empty() ? "" : ", ", one, one == "blocks" ? "=A,B,..." : one == "times" ? "=N" : "");
    }
    return invalid(line->where, ": ", in_quotes(word), " is no word for ", kind.name, ", which takes ", known);
  }
  if (key == "blocks" && !read_blocks(value, &line->blocks)) {
    return invalid(line->where, ": ", in_quotes(word), " must be sizes from 1 to ", kMostFeatures, ", with commas between them");
  }
  if (key == "times" && (!read_number(value, kMostLayers, &line->times) || line->times == 0)) {
    return invalid(line->where, ": ", in_quotes(word), " must be a number from 1 to ", kMostLayers);
  }
  line->bias |= key == "bias";
  line->gathers_output |= key == "gather-output";
  line->takes_whole_input |= key == "whole-input";
  line->partial |= key == "partial";
  line->frozen |= key == "frozen";
  return {};
}

Status read_line(std::string_view words, const std::string& where, std::vector<Line>* lines) {
  std::string_view left = words;
  Line line;
  line.where = where;
  line.name = text(lines->size());
  std::string_view first = next_word(&left);
  if (first.empty()) return {};
  const Kind* kind = find_kind(first);
  if (kind == nullptr) {
    line.name = first;
    kind = find_kind(next_word(&left));
  }
  if (kind == nullptr) {
    return invalid(where, " is ", in_quotes(words),
                   "; it must be [NAME] KIND SIZE [WORD...], where KIND is column, row, embedding or cross-entropy");
  }
  if (lines->size() == kMostLayers) return invalid(where, " is one too many: at most ", kMostLayers, " layers are taken");
  line.kind = kind->name;
  const std::string_view size = next_word(&left);
  const size_t x = size.find('x');
  const bool good = read_features(size.substr(0, x), &line.size[0]) && (x != std::string_view::npos) == kind->has_two &&
                    (!kind->has_two || read_features(size.substr(x + 1), &line.size[1]));
  if (!good) {
    return invalid(where, ": the size of ", kind->name, " is ", in_quotes(size), "; it must be ", kind->sizes, ", each from 1 to ",
                   kMostFeatures);
  }
  if (line.size[0] * line.size[1] > kMaxElements) {  // each is at most 2^31
    return invalid(where, ": the size of ", kind->name, " is ", in_quotes(size), ", more elements than can be counted; at most ",
                   kMaxElements);
  }
  for (std::string_view word = next_word(&left); !word.empty(); word = next_word(&left)) {
    if (Status taken = take_word(word, *kind, &line); !taken) return taken;
  }
  lines->push_back(std::move(line));
  return {};
}

Result<std::vector<Line>> read_layers(const std::string& given) {
  std::vector<Line> lines;
  if (is_list(given)) {
    const auto take = [&](std::string_view line, const std::string& where) { return read_line(line, where, &lines); };
    if (Status read = read_list("--layers", given, take); !read) return read;
    if (lines.empty()) return invalid("--layers: ", name_of_list(given), " holds no layers");
    return lines;
  }
  std::string_view left = given;
  for (size_t number = 1;; ++number) {
    const size_t end = left.find_first_of(";\n");
    if (Status read = read_line(left.substr(0, end), text("--layers: layer ", number), &lines); !read) return read;
    if (end == std::string_view::npos) break;
    left.remove_prefix(end + 1);
  }
  if (lines.empty()) return invalid("--layers is ", in_quotes(given), ": it holds no layers");
  return lines;
}

// ── what they come to ──

ParamSpec param_of(const Line& line, const char* what, std::vector<int64_t> shape, DType type, Placement placement) {
  ParamSpec param;
  param.name = text(line.name, ".", what);
  param.shape = std::move(shape);
  param.dtype = type;
  param.placement = placement;
  param.frozen = line.frozen;
  return param;
}

Result<PlannedLayer> plan_linear(const Line& line, const LayersTask& task) {
  TpLinearShape shape;
  const bool column = line.kind == "column";
  shape.split = column ? TpSplit::column : TpSplit::row;
  shape.in = static_cast<int64_t>(line.size[0]);
  shape.out = static_cast<int64_t>(line.size[1]);
  shape.blocks = line.blocks.empty() ? std::vector<int64_t>{column ? shape.out : shape.in} : line.blocks;
  shape.type = task.type;
  shape.has_bias = line.bias;
  shape.sequence = task.sequence;
  shape.gathers_output = line.gathers_output;
  shape.takes_whole_input = line.takes_whole_input;
  shape.grad_is_partial = line.partial;
  shape.ranks = task.tp;
  if (Status good = shape.check(); !good) return good.with_context(line.where);
  if (Status good = line.frozen ? Status() : shape.check_blocks_in_buffer(); !good) return good.with_context(line.where);
  PlannedLayer layer{line.name, line.kind, line.times, shape.weight_shape(), {}, {}};
  layer.each = shape.plan(static_cast<int64_t>(task.tokens), !line.frozen);
  ParamSpec weight = param_of(line, "weight", layer.weight, task.type, Placement::sharded);
  weight.shard_dim = column ? 0 : 1;
  weight.shard_stride = static_cast<int>(shape.blocks.size());
  layer.params.push_back(weight);
  if (!line.bias) return layer;
  const Placement placement = column ? Placement::sharded : task.sequence ? Placement::partial_sum : Placement::replicated;
  ParamSpec bias = param_of(line, "bias", {shape.local_out()}, task.type, placement);
  if (column) bias.shard_stride = weight.shard_stride;
  layer.params.push_back(bias);
  return layer;
}

Result<PlannedLayer> plan_embedding(const Line& line, const LayersTask& task) {
  const EmbeddingShape shape{static_cast<int64_t>(line.size[0]), task.sequence, line.partial};
  if (Status good = shape.check(task.tp); !good) return good.with_context(line.where);
  const auto features = static_cast<int64_t>(line.size[1]);
  PlannedLayer layer{line.name, line.kind, line.times, {shape.rows / task.tp, features}, {}, {}};
  layer.each = shape.plan(features, task.type, static_cast<int64_t>(task.tokens), task.tp);
  layer.params.push_back(param_of(line, "weight", layer.weight, task.type, Placement::sharded));
  return layer;
}

Result<PlannedLayer> plan_layer(const Line& line, const LayersTask& task) {
  if (line.kind == "embedding") return plan_embedding(line, task);
  if (line.kind != "cross-entropy") return plan_linear(line, task);
  return PlannedLayer{line.name, line.kind, line.times, {}, plan_cross_entropy(static_cast<int64_t>(task.tokens), task.tp), {}};
}

Status add_up(const PlannedLayer& layer, TpLayerPlan* all) {
  for (const auto field :
       {&TpLayerPlan::weight, &TpLayerPlan::bias, &TpLayerPlan::saved, &TpLayerPlan::sent_forward, &TpLayerPlan::sent_backward}) {
    uint64_t more = 0;
    if (!checked_mul(layer.each.*field, layer.times, &more) || !checked_add(all->*field, more, &(all->*field)) || all->*field > INT64_MAX) {
      return invalid("--layers: with layer ", in_quotes(layer.name), " there are more bytes than can be counted");
    }
  }
  for (size_t i = 0; i < kScratchPieces; ++i) all->scratch[i] = std::max(all->scratch[i], layer.each.scratch[i]);
  return {};
}

}  // namespace

bool LayersPlan::has_params() const {
  const auto trains = [](const ParamSpec& param) { return !param.frozen; };
  return std::any_of(layers.begin(), layers.end(),
                     [&](const PlannedLayer& layer) { return std::any_of(layer.params.begin(), layer.params.end(), trains); });
}

std::vector<ParamSpec> LayersPlan::params() const {
  std::vector<ParamSpec> params;
  for (const PlannedLayer& layer : layers) {
    for (uint64_t i = 0; i < layer.times; ++i) {
      for (ParamSpec param : layer.params) {
        if (layer.times > 1) param.name.insert(layer.name.size(), text(".", i));
        params.push_back(std::move(param));
      }
    }
  }
  return params;
}

Result<LayersPlan> plan_layers(const LayersTask& task) {
  if (task.sequence && task.tokens % static_cast<uint64_t>(task.tp) != 0) {
    return invalid("--tokens is ", task.tokens, ", which ", task.tp, " ranks cannot share evenly with --sequence");
  }
  auto lines = read_layers(task.given);
  if (!lines) return lines.status();
  LayersPlan plan;
  plan.task = task;
  size_t params = 0;
  for (const Line& line : *lines) {
    auto layer = plan_layer(line, task);
    if (!layer) return layer.status();
    if (Status added = add_up(*layer, &plan.all); !added) return added;
    params += layer->params.size() * layer->times;
    if (params > kMostParams) return invalid(line.where, ": there are more than ", kMostParams, " parameters");
    plan.multiplies |= line.kind == "column" || line.kind == "row";
    plan.layers.push_back(*std::move(layer));
  }
  return plan;
}

}  // namespace megadp::tool
