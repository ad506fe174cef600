// SPDX-License-Identifier: Apache-2.0
// `megadp plan`: how parameters of given sizes would be laid out, cut into buckets and owned, and what memory that takes. Nothing is
// allocated and no other rank is needed. What is printed is computed as it is printed: of a million ranks a few lines are shown, and the
// rest takes no memory.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "core/plan_json.h"
#include "plan_layers.h"
#include "plan_print.h"
#include "rule_names.h"

namespace megadp::tool {
namespace {

struct Options {
  std::string sizes, model, layers;
  int32_t dp = 1, instances = 1, tp = 1;
  uint64_t tokens = 0;
  bool sequence = false;
  std::string param_dtype, grad_dtype = "f32", bucket_size, rule = "adamw";
  std::string state_dtype = "f32";
  bool high_bandwidth = false, bf16_wire = false, error_feedback = false, no_master = false, average = false, json = false;
  std::vector<std::string> own_bucket, use_order;
  std::string sharding = "1";
  uint64_t pool_buckets = 0;
};

Status take_bucket_size(const std::string& given, BufferConfig* config) {
  if (given.empty()) return {};
  if (given == "reference") {
    config->reference_buckets = true;
    return {};
  }
  if (given == "all") {
    config->bucket_elements = UINT64_MAX;
    return {};
  }
  if (read_number(given, UINT64_MAX, &config->bucket_elements) && config->bucket_elements > 0) return {};
  return invalid("--bucket-size is '", given, "': it must be a number of elements from 1 on, reference or all");
}

Status take_own_buckets(const Options& options, std::vector<ParamSpec>* params) {
  for (const std::string& word : options.own_bucket) {
    uint64_t i = 0;
    if (!read_number(word, UINT64_MAX, &i)) return invalid("--own-bucket is '", word, "'; it must be the number of a parameter");
    if (i >= params->size()) return invalid("--own-bucket is ", i, ", but there are ", params->size(), " parameters, counted from 0");
    (*params)[i].own_bucket = true;
  }
  return {};
}

// What mdp_buffer_use_order has told: of each parameter its place in the forward pass. Or the reverse of the order given.
Status take_use_order(const std::vector<std::string>& words, std::vector<ParamSpec>* params) {
  if (words.empty()) return {};
  const bool reversed = words.size() == 1 && words[0] == "reversed";
  if (!reversed && words.size() != params->size())
    return invalid("--use-order has ", words.size(), " numbers, and there are ", params->size(),
                   " parameters: give one for each, or reversed");
  for (size_t i = 0; i < params->size(); ++i) {
    uint64_t place = params->size() - 1 - i;
    if (!reversed && !read_number(words[i], INT32_MAX, &place))
      return invalid("--use-order is '", words[i], "' for parameter ", i, "; it must be a number from 0 to ", INT32_MAX,
                     ", or reversed for all");
    (*params)[i].use_order = static_cast<int32_t>(place);
  }
  return {};
}

// Gradients are f32 or of the parameters' type; a model's file may have parameters of several.
Status take_grad_dtype(const Options& options, const std::vector<ParamSpec>& params, BufferConfig* config) {
  config->grad_same_as_param = options.grad_dtype == "same";
  if (options.grad_dtype == "same" || options.grad_dtype == "f32") return {};
  config->grad_same_as_param = true;
  for (const ParamSpec& param : params) {
    if (name_of(param.dtype) == options.grad_dtype) continue;
    return invalid("--grad-dtype is ", options.grad_dtype, ", but ", options.model.empty() ? "the parameters are " : "some parameters are ",
                   name_of(param.dtype), ": gradients are f32 or of the parameters' type");
  }
  return {};
}

// What mdp_optimizer_create would refuse.
Status check_storage(const Options& options, const std::vector<ParamSpec>& params) {
  if (options.state_dtype == "bf16" && rule(rule_of(options.rule)).state.size() == 0)
    return invalid("--state-dtype is bf16; ", options.rule, " keeps no state");
  for (const ParamSpec& param : params) {
    if (options.no_master && param.dtype == DType::f16) return invalid("--no-master, but some parameters are f16; it is for bf16 ones");
  }
  return {};
}

DType param_dtype(const Options& options) {
  const std::string& type = options.param_dtype;
  return type == "bf16" ? DType::bf16 : type == "f16" ? DType::f16 : DType::f32;
}

const std::map<std::string, Sharding> kShardings{
    {"0", Sharding::zero_0}, {"1", Sharding::zero_1}, {"2", Sharding::zero_2}, {"whole", Sharding::whole}};

// Of layers, when they are given, what they come to besides.
Result<std::optional<LayersPlan>> take_layers(const Options& options) {
  const int given = (options.sizes.empty() ? 0 : 1) + (options.model.empty() ? 0 : 1) + (options.layers.empty() ? 0 : 1);
  if (given != 1) return invalid("give either --sizes, --model or --layers, which say how large the parameters are");
  if (options.layers.empty()) {
    const char* const alone = options.tp != 1 ? "--tp" : options.tokens != 0 ? "--tokens" : options.sequence ? "--sequence" : nullptr;
    if (alone != nullptr) return invalid(alone, " goes with --layers; sizes are of what a rank has");
    return std::optional<LayersPlan>();
  }
  if (options.tokens == 0) return invalid("--layers needs --tokens, how many go through them at once");
  if (options.param_dtype == "f16") return invalid("--param-dtype is f16; layers are f32 or bf16");
  auto plan = plan_layers({options.layers, options.tp, options.tokens, options.sequence, param_dtype(options)});
  if (!plan) return plan.status();
  return std::optional<LayersPlan>(*std::move(plan));
}

Result<ModelFile> take_params(const Options& options, const std::optional<LayersPlan>& layers) {
  if (layers) return ModelFile{layers->params(), 0};
  if (!options.model.empty()) return read_model(options.model, options.param_dtype);
  auto params = read_sizes(options.sizes, param_dtype(options));
  if (!params) return params.status();
  return ModelFile{*std::move(params), 0};
}

// In the words of the command line: the library speaks of its flags.
Status check_feedback(const Options& options) {
  if (!options.error_feedback) return {};
  if (!options.bf16_wire) return invalid("--error-feedback goes with --bf16-wire; what is not rounded loses nothing");
  if (kShardings.at(options.sharding) != Sharding::zero_2) return {};
  return invalid("--error-feedback does not go with --sharding 2; what rounding loses takes as much memory as whole f32 gradients");
}

Result<Plan> make_plan_of(const Options& options, const std::optional<LayersPlan>& layers, size_t* left_out) {
  BufferConfig config;
  config.sharding = kShardings.at(options.sharding);
  config.pool_buckets = options.pool_buckets;
  config.high_bandwidth_padding = options.high_bandwidth;
  config.wire_bf16 = options.bf16_wire;
  config.error_feedback = options.error_feedback;
  if (Status fits = check_feedback(options); !fits) return fits;
  if (Status taken = take_bucket_size(options.bucket_size, &config); !taken) return taken;
  auto model = take_params(options, layers);
  if (!model) return model.status();
  *left_out = model->left_out;
  if (Status taken = take_grad_dtype(options, model->params, &config); !taken) return taken;
  if (Status fits = check_storage(options, model->params); !fits) return fits;
  if (Status taken = take_own_buckets(options, &model->params); !taken) return taken;
  if (Status taken = take_use_order(options.use_order, &model->params); !taken) return taken;
  GridConfig cut;
  cut.instances = options.instances;
  cut.tp = options.tp;
  auto grid = Grid::create(cut, options.dp * options.tp);
  if (!grid) return grid.status();
  auto plan = make_plan(*grid, config, std::move(model->params));
  if (plan) plan->optimizer = {rule_of(options.rule), options.state_dtype == "bf16", options.no_master, options.average, 0, {}};
  return plan;
}

// Everything that can be wrong came from the command line, or could not be read.
int refuse(const Status& why) {
  return why.code() == Code::invalid ? used_wrongly("plan", why.text() + ".") : failed("plan", why.text());
}

int plan(const Options& options) {
  size_t left_out = 0;
  const Result<std::optional<LayersPlan>> layers = take_layers(options);
  if (!layers) return refuse(layers.status());
  if (*layers && !(*layers)->has_params()) {
    options.json ? fmt::print("{}}}\n", layers_json(**layers)) : print_layers(**layers);
    return written("plan");
  }
  const Result<Plan> made = make_plan_of(options, *layers, &left_out);
  if (!made) return refuse(made.status());
  if (left_out > 0)
    fmt::print(stderr, "megadp plan: {} tensor{} of whole numbers or truth values {} left out: nothing to train\n", left_out,
               left_out == 1 ? "" : "s", left_out == 1 ? "is" : "are");
  if (options.json) {
    if (*layers) fmt::print("{},\"plan\":", layers_json(**layers));
    write_plan_json(*made, [](std::string_view piece) { std::fwrite(piece.data(), 1, piece.size(), stdout); });
    fmt::print("{}\n", *layers ? "}" : "");
  } else {
    if (*layers) print_layers(**layers), fmt::print("\n");
    print_plan(*made);
  }
  return written("plan");
}

// Of the optimizer that memory is counted for.
void add_optimizer_options(CLI::App& sub, Options* options) {
  sub.add_option("--rule", options->rule, "Of the optimizer: adamw (default), adam, sgd, sgd_momentum, sgd_nesterov or lion")
      ->check(CLI::IsMember(rule_names()));
  sub.add_flag("--average", options->average, "The optimizer keeps an average of the parameters");
  sub.add_option("--state-dtype", options->state_dtype, "Of what the rule keeps: f32 (default) or bf16")
      ->check(CLI::IsMember({"f32", "bf16"}));
  sub.add_flag("--no-master", options->no_master, "bf16 parameters without fp32 masters, rounded stochastically");
}

}  // namespace

Command add_plan(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("plan", "How parameters would be laid out, bucketed and owned, and the memory of each rank");
  sub->add_option("--sizes", options->sizes,
                  "Elements of each parameter, in order of registration: 1000,500,300; or @FILE, or - for standard input,\n"
                  "with one a line: 1000, 1000x500 or NAME 1000x500 (# begins a comment)");
  sub->add_option("--model", options->model,
                  "Take the parameters from the header of a .safetensors file, in its order, with their types; or from\n"
                  "model.safetensors.index.json and the files that it names");
  sub->add_option("--layers", options->layers,
                  "Take them from tensor-parallel layers, and tell what each saves, sends and needs besides: [NAME] KIND SIZE\n"
                  "[WORD...] with ; between them; or @FILE, or - for standard input, with one a line (# begins a comment).\n"
                  "  column INxOUT, row INxOUT   linear layers: bias, blocks=A,B,... (fused), frozen, times=N,\n"
                  "                              gather-output (column), whole-input (row), partial (the gradient that comes back)\n"
                  "  embedding ROWSxFEATURES     partial, frozen, times=N\n"
                  "  cross-entropy CLASSES       times=N");
  sub->add_option("--tp", options->tp, "With --layers: tensor-parallel ranks (default 1)")->check(CLI::Range(1, 1 << 10));
  sub->add_option("--tokens", options->tokens, "With --layers: how many go through them at once, over all --tp ranks")
      ->check(CLI::Range(1, 1 << 24));
  sub->add_flag("--sequence", options->sequence, "With --layers: sequence parallelism");
  sub->add_option("--dp", options->dp, "Data-parallel ranks (default 1)")->check(CLI::Range(1, 1 << 20));
  sub->add_option("--instances", options->instances,
                  "Optimizer instances: runs of neighbouring ranks, each with all of the optimizer's state (default 1)")
      ->check(CLI::Range(1, 1 << 20));
  sub->add_option("--param-dtype", options->param_dtype, "Of the parameters (default f32, or as a model's file says)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  sub->add_option("--grad-dtype", options->grad_dtype, "Of the gradients: f32 (default) or the parameters'")
      ->check(CLI::IsMember({"f32", "bf16", "f16", "same"}));
  sub->add_option(
      "--bucket-size", options->bucket_size,
      "Elements at which a bucket closes; reference: max(40,000,000, 1,000,000 x dp); all: one bucket; default: the library decides");
  sub->add_flag("--pad-high-bandwidth", options->high_bandwidth, "Pad buckets to multiples of 65536 elements too");
  sub->add_option("--own-bucket", options->own_bucket, "Number of a parameter that gets a bucket to itself; more of them: 0,2")
      ->delimiter(',');
  sub->add_option("--use-order", options->use_order,
                  "When each parameter is used by the forward pass, if not in the order given: 2,0,1, as mdp_buffer_use_order tells it;\n"
                  "reversed: the last one first")
      ->delimiter(',');
  sub->add_option(
         "--sharding", options->sharding,
         "1 (default): optimizer state is sharded; 2: gradients too; 0: every rank keeps everything; whole: each parameter is owned\n"
         "by one rank")
      ->check(CLI::IsMember(kShardings));
  add_optimizer_options(*sub, options.get());
  sub->add_option("--pool-buckets", options->pool_buckets, "With --sharding 2: for how many buckets the pool has room (default 2)");
  sub->add_flag("--bf16-wire", options->bf16_wire, "f32 gradients are sent as bf16");
  sub->add_flag("--error-feedback", options->error_feedback, "With --bf16-wire: what rounding loses is kept for the next step");
  sub->add_flag(
      "--json", options->json,
      "One line, written as it is made: {\"dp\",\"arenas\":[{\"params\",\"buckets\",\"owned\",...}],\"bytes\":[...]}, with a list of\n"
      "what it owns (for each rank of an instance), and of its bytes, for each of the ranks; with --layers\n"
      "{\"tp\",\"tokens\",\"layers\":[{\"name\",\"saved\",...}],\"all\",\"workspace\",\"plan\":{as above}}");
  return [options](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("plan", "nothing may follow --.");
    return plan(*options);
  };
}

}  // namespace megadp::tool
