// SPDX-License-Identifier: Apache-2.0
// The acceptance vectors that need several ranks (22 microbatches, 24 an unused parameter), read from the same data file as the others. The
// checked gradients are the owned ones: only they mean anything after a reduce-scatter.
#include <algorithm>
#include <fstream>
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
      params[p].ndim = 1;
    }
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.bucket_elements = given.value("bucket_elements", UINT64_MAX);
    config.missing = given.value("missing", "error") == "zero" ? MDP_MISSING_ZERO : MDP_MISSING_ERROR;
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank.comm, nullptr, &grid));
    grid_.reset(grid);
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(grid, &config, params.data(), params.size(), &buffer));
    buffer_.reset(buffer);
  }

  mdp_buffer* get() const { return buffer_.get(); }
  size_t count() const { return names_.size(); }
  const std::string& name(size_t param) const { return names_[param]; }

  void put(size_t param, float value) const {
    mdp_tensor view{};
    view.struct_size = sizeof view;
    ok(mdp_buffer_grad_view(get(), param, &view));
    const std::vector<float> values(static_cast<size_t>(view.shape[0]), value);
    view.data = const_cast<float*>(values.data());
    ok(mdp_grad_put(get(), param, &view, 0, nullptr));
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
      ok(mdp_buffer_grad_view(get(), static_cast<size_t>(range.param), &view));
      const float wanted = expected(static_cast<size_t>(range.param));
      for (int64_t i = range.param_begin; i < range.param_begin + range.end - range.begin; ++i, ++elements) {
        const float got = static_cast<const float*>(view.data)[i];
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
  require(buckets > 1 && stats.buckets == buckets * given["expect"]["collectives_per_bucket"].get<uint64_t>(), stats.buckets,
          " collectives for ", buckets, " buckets");
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
  for (const Json& vector : file["vectors"]) {
    const std::string kind = vector["kind"];
    if (kind != "microbatches" && kind != "unused_param") continue;
    ++vectors;
    for (const Json& given : vector["cases"]) {
      ++cases;
      const auto body = [&](const Rank& rank) { kind == "microbatches" ? microbatches(rank, given) : unused_param(rank, given); };
      const std::string name = "vector " + vector["id"].dump() + " case " + std::to_string(cases);
      good = run_processes(name, given["dp"], body) && good;
      good = run_threads(name, given["dp"], body) && good;
    }
  }
  const bool counted = vectors == 2 && cases == 5;
  std::cerr << vectors << " vectors, " << cases << " cases, " << (good && counted ? "all passed" : "some FAILED or are missing") << "\n";
  return good && counted ? 0 : 1;
}
