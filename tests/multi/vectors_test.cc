// SPDX-License-Identifier: Apache-2.0
// The acceptance vectors that need several ranks (17 to 20, 29 and 30 scale, instances, norm and clipping; 21 sums of bf16; 22
// microbatches; 24 an unused parameter), read from the same data file as the others. The checked gradients are the owned ones: only they
// mean anything after a reduce-scatter.
#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "job.h"

namespace {

using namespace job;
using Json = nlohmann::json;

class Registered {
 public:
  Registered(const Rank& rank, const Json& given) {
    const auto sizes = given["sizes"].get<std::vector<int64_t>>();
    for (size_t p = 0; p < sizes.size(); ++p) {
      names_.push_back(given.contains("names") ? given["names"][p].get<std::string>() : std::to_string(p));
    }
    std::vector<mdp_param> params(sizes.size());
    for (size_t p = 0; p < sizes.size(); ++p) {
      params[p] = mdp_param{};
      params[p].struct_size = sizeof(mdp_param);
      params[p].name = names_[p].c_str();
      params[p].shape = &sizes[p];
      if (given.value("dtype", "") == "bf16") params[p].dtype = MDP_DTYPE_BF16;
      params[p].ndim = 1;
      if (given.contains("expert") && given["expert"][p]) params[p].param_class = MDP_PARAM_CLASS_EXPERT;
      if (given.contains("placement")) {
        params[p].placement = given["placement"][p] == "sharded" ? MDP_PLACEMENT_SHARDED : MDP_PLACEMENT_REPLICATED;
      }
    }
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.bucket_elements = given.value("bucket_elements", UINT64_MAX);
    config.missing = given.value("missing", "error") == "zero" ? MDP_MISSING_ZERO : MDP_MISSING_ERROR;
    if (given.value("sharding", "") == "zero_0") config.sharding = MDP_SHARDING_ZERO_0;
    if (given.value("sharding", "") == "zero_2") config.sharding = MDP_SHARDING_ZERO_2;
    if (given.contains("dtype")) config.grad_dtype = MDP_DTYPE_SAME;
    if (given.value("scaling", "") == "sum") config.scaling = MDP_SCALING_SUM;
    if (given.value("scaling", "") == "tokens") config.scaling = MDP_SCALING_TOKENS;
    if (given.value("no_overlap", false)) config.flags = MDP_BUFFER_NO_OVERLAP;
    mdp_grid_config cut{};
    cut.struct_size = sizeof cut;
    cut.tp = given.value("tp", 1);
    cut.cp = given.value("cp", 1);
    cut.ep = given.value("ep", 1);
    cut.expert_tp = given.value("expert_tp", 0);
    cut.instances = given.value("instances", 0);
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank.comm, &cut, &grid));
    grid_.reset(grid);
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(nullptr, grid, &config, params.data(), params.size(), &buffer));
    buffer_.reset(buffer);
  }

  mdp_buffer* get() const { return buffer_.get(); }
  size_t count() const { return names_.size(); }
  const std::string& name(size_t param) const { return names_[param]; }

  void put(size_t param, float value) const {
    mdp_tensor view{};
    view.struct_size = sizeof view;
    ok(mdp_buffer_param_view(get(), param, &view));
    const std::vector<float> values(static_cast<size_t>(view.shape[0]), value);
    view.data = const_cast<float*>(values.data());
    view.dtype = MDP_DTYPE_F32;
    ok(mdp_grad_put(get(), param, &view, 0, nullptr));
  }

  static float element(const mdp_tensor& view, int64_t i) {
    if (view.dtype == MDP_DTYPE_F32) return static_cast<const float*>(view.data)[i];
    return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(view.data)[i]) << 16);
  }

  // Every owned element of every parameter's reduced gradient is what `expected` says; returns how many there were.
  size_t check_owned(const std::function<float(size_t)>& expected) const {
    size_t needed = 0, elements = 0;
    ok(mdp_buffer_owned(get(), nullptr, 0, &needed));
    std::vector<mdp_range> ranges(needed);
    for (mdp_range& range : ranges) range.struct_size = sizeof range;
    ok(mdp_buffer_owned(get(), ranges.data(), ranges.size(), &needed));
    for (const mdp_range& range : ranges) {
      mdp_tensor view{};
      view.struct_size = sizeof view;
      ok(mdp_grad_owned(get(), static_cast<size_t>(range.param), &view));
      const float wanted = expected(static_cast<size_t>(range.param));
      require(view.shape[0] == range.end - range.begin, "an owned gradient of ", view.shape[0], " elements");
      for (int64_t i = 0; i < range.end - range.begin; ++i, ++elements) {
        const float got = element(view, i);
        require(got == wanted, "gradient of '", name(static_cast<size_t>(range.param)), "' element ", i, " is ", got, ", not ", wanted);
      }
    }
    return elements;
  }

 private:
  std::vector<std::string> names_;
  Grid grid_;
  Buffer buffer_;
};

void microbatches(const Rank& rank, const Json& given) {
  const Registered model(rank, given);
  const auto gradients = given["gradients"][static_cast<size_t>(rank.rank)].get<std::vector<float>>();
  require(gradients.size() == given["microbatches"], "a vector with ", gradients.size(), " gradients a rank");
  for (size_t microbatch = 0; microbatch < gradients.size(); ++microbatch) {
    ok(mdp_microbatch_begin(model.get(), microbatch >= given["not_last"].get<size_t>()));
    for (size_t p = model.count(); p-- > 0;) model.put(p, gradients[microbatch]);
  }
  ok(mdp_grad_sync(model.get(), nullptr, nullptr));
  mdp_stats_report stats{};
  stats.struct_size = sizeof stats;
  ok(mdp_buffer_stats(model.get(), &stats));
  mdp_bucket_report bucket{};
  bucket.struct_size = sizeof bucket;
  uint64_t buckets = 0;
  while (mdp_buffer_bucket(model.get(), buckets, &bucket) == MDP_OK) ++buckets;
  // With ZeRO-2 each microbatch is reduced by itself.
  const bool pooled = given.value("sharding", "") == "zero_2";
  const uint64_t each = pooled ? gradients.size() : given["expect"]["collectives_per_bucket"].get<uint64_t>();
  require(buckets > 1 && stats.buckets == buckets * each, stats.buckets, " collectives for ", buckets, " buckets");
  const float expected = given["expect"]["gradient"];
  require(model.check_owned([=](size_t) { return expected; }) > 0 || rank.size > 2, "this rank owns nothing");
}

void unused_param(const Rank& rank, const Json& given) {
  const Registered model(rank, given);
  const auto unused_on = given["unused_on"].get<std::vector<int>>();
  const bool lacks = std::find(unused_on.begin(), unused_on.end(), rank.rank) != unused_on.end();
  for (size_t p = 0; p < model.count(); ++p) {
    if (!lacks || p != given["unused"].get<size_t>()) model.put(p, given["gradient"]);
  }
  const mdp_status status = mdp_grad_sync(model.get(), nullptr, nullptr);
  const Json& expect = given["expect"];
  if (expect["status"] != "MDP_OK") {
    refused(status, MDP_E_STATE, {expect["names"]});
    return;
  }
  ok(status);
  model.check_owned([&](size_t param) { return expect["gradients"][model.name(param)].get<float>(); });
}

bool near(double got, double wanted) {
  return std::abs(got - wanted) <= 2e-8 * std::max(1.0, std::abs(wanted));
}

// The first moment after one step is (1 - beta1) times what the optimizer saw.
void check_moments(mdp_optimizer* optimizer, const Registered& model, const Json& reduced, double factor) {
  for (size_t p = 0; p < model.count(); ++p) {
    mdp_tensor moment{};
    moment.struct_size = sizeof moment;
    ok(mdp_optimizer_state(optimizer, p, "exp_avg", &moment));
    const double wanted = 0.1 * reduced[p].get<double>() * factor;
    for (int64_t i = 0; i < (moment.data == nullptr ? 0 : moment.shape[0]); ++i) {
      const double got = static_cast<const float*>(moment.data)[i];
      require(std::abs(got - wanted) <= 1e-6 * std::abs(wanted), "first moment of '", model.name(p), "' is ", got, ", not ", wanted);
    }
  }
}

void one_step(const Rank& rank, const Json& given) {
  const Registered model(rank, given);
  mdp_optimizer_config rule{};
  rule.struct_size = sizeof rule;
  rule.max_grad_norm = given.value("clip", 0.0);
  mdp_optimizer* made = nullptr;
  ok(mdp_optimizer_create(model.get(), &rule, &made));
  const Optimizer optimizer(made);
  const Json& mine = given["gradients"][static_cast<size_t>(rank.rank)];
  if (given.contains("tokens")) ok(mdp_grad_tokens(model.get(), given["tokens"][static_cast<size_t>(rank.rank)]));
  for (size_t p = model.count(); p-- > 0;) model.put(p, mine[p]);
  ok(mdp_grad_sync(model.get(), nullptr, nullptr));
  const Json& expect = given["expect"];
  Json reduced = expect.contains("reduced") ? expect["reduced"] : mine;
  if (reduced[0].is_array()) reduced = Json(reduced[static_cast<size_t>(rank.rank)]);
  model.check_owned([&](size_t param) { return reduced[param].get<float>(); });

  mdp_step_report report{};
  report.struct_size = sizeof report;
  ok(mdp_optimizer_step(optimizer.get(), nullptr, &report, nullptr));
  if (expect.contains("norm")) require(near(report.grad_norm, expect["norm"]), "the norm is ", report.grad_norm);
  if (expect.contains("clip_factor")) {
    const double factor = expect["clip_factor"];
    require(near(report.clip_factor, factor), "the clip factor is ", report.clip_factor);
    require(((report.flags & MDP_STEPPED_CLIPPED) != 0) == (factor < 1), "flags ", report.flags);
    check_moments(optimizer.get(), model, reduced, factor / expect.value("divisor", 1.0));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: multi_vectors VECTORS.json [--threads]\n";
    return 2;
  }
  threads_only(argc, argv);
  const Json file = Json::parse(std::ifstream(argv[1]));
  bool good = true;
  int vectors = 0, cases = 0;
  const std::map<std::string, void (*)(const Rank&, const Json&)> kinds = {
      {"microbatches", microbatches}, {"unused_param", unused_param}, {"step", one_step}};
  for (const Json& vector : file["vectors"]) {
    const auto kind = kinds.find(vector["kind"].get<std::string>());
    if (kind == kinds.end()) continue;
    ++vectors;
    for (const Json& as_given : vector["cases"]) {
      ++cases;
      for (const bool pooled : {false, true}) {
        Json given = as_given;
        if (pooled) given["sharding"] = "zero_2";
        const auto body = [&](const Rank& rank) { kind->second(rank, given); };
        const std::string name = "vector " + vector["id"].dump() + " case " + std::to_string(cases) + (pooled ? " with ZeRO-2" : "");
        const int world = given.contains("world") ? given["world"] : given["dp"];
        good = run_processes(name, world, body) && good;
        good = run_threads(name, world, body) && good;
      }
    }
  }
  const bool counted = vectors == 9 && cases == 28;
  std::cerr << vectors << " vectors, " << cases << " cases, " << (good && counted ? "all passed" : "some FAILED or are missing") << "\n";
  return good && counted ? 0 : 1;
}
