// SPDX-License-Identifier: Apache-2.0
// Three hundred thousand parameters: what is done once for each of them must not look at all of them. If it does, this program takes
// minutes instead of seconds, and ctest's limit ends it.
#include "job.h"

namespace {

using namespace job;

constexpr size_t kParams = 300'000;
constexpr int64_t kShape[] = {3};

std::string name_of(size_t param) {
  return "model.layers." + std::to_string(param) + ".weight";
}

struct Model {
  Buffer buffer;
  Optimizer optimizer;
};

Model make(const Rank& rank, uint64_t bucket_elements, Grid* grid) {
  std::vector<std::string> names;
  names.reserve(kParams);
  std::vector<mdp_param> params(kParams);
  for (size_t p = 0; p < kParams; ++p) {
    names.push_back(name_of(p));
    params[p] = mdp_param{};
    params[p].struct_size = sizeof(mdp_param);
    params[p].name = names[p].c_str();
    params[p].shape = kShape;
    params[p].ndim = 1;
  }
  mdp_buffer_config config{};
  config.struct_size = sizeof config;
  config.bucket_elements = bucket_elements;
  mdp_plan_report plan{};
  plan.struct_size = sizeof plan;
  ok(mdp_plan(nullptr, rank.size, rank.rank, &config, params.data(), kParams, nullptr, &plan));
  require(plan.buckets == (bucket_elements == 1 ? kParams : 1), plan.buckets, " buckets were planned");

  mdp_grid* made = nullptr;
  ok(mdp_grid_create(rank.comm, nullptr, &made));
  grid->reset(made);
  mdp_buffer* buffer = nullptr;
  ok(mdp_buffer_register(nullptr, made, &config, params.data(), kParams, &buffer));
  mdp_optimizer* optimizer = nullptr;
  ok(mdp_optimizer_create(buffer, nullptr, &optimizer));
  return {Buffer(buffer), Optimizer(optimizer)};
}

mdp_tensor empty_tensor() {
  mdp_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  return tensor;
}

// As a checkpoint does that was written by names.
void look_up(mdp_buffer* buffer) {
  for (size_t p = 0; p < kParams; ++p) {
    size_t found = kParams;
    ok(mdp_buffer_find(buffer, name_of(p).c_str(), &found));
    require(found == p, "parameter ", p, " is found as ", found);
  }
}

// Every call that names one parameter, for every parameter.
void train(const Rank& rank, uint64_t bucket_elements) {
  Grid grid;
  const Model model = make(rank, bucket_elements, &grid);
  mdp_buffer* const buffer = model.buffer.get();
  for (int step = 0; step < 2; ++step) {
    for (size_t p = kParams; p-- > 0;) {
      mdp_tensor grad = empty_tensor();
      ok(mdp_buffer_grad_view(buffer, p, &grad));
      *static_cast<float*>(grad.data) = 1;
      ok(mdp_grad_ready(buffer, p, nullptr));
    }
    ok(mdp_grad_sync(buffer, nullptr, nullptr));
    ok(mdp_optimizer_step(model.optimizer.get(), nullptr, nullptr, nullptr));
    for (size_t p = 0; p < kParams; ++p) {
      mdp_tensor param = empty_tensor();
      ok(mdp_param_wait(buffer, p, nullptr));
      ok(mdp_buffer_param_view(buffer, p, &param));
      require(*static_cast<const float*>(param.data) < 0, "parameter ", p, " has not moved");
    }
    ok(mdp_buffer_zero_grad(buffer, nullptr));
  }
  // What a rank owns of each parameter, as a checkpoint asks for it.
  int64_t kept = 0;
  for (size_t p = 0; p < kParams; ++p) {
    mdp_tensor state = empty_tensor();
    ok(mdp_optimizer_state(model.optimizer.get(), p, "exp_avg", &state));
    kept += state.shape[0];
  }
  look_up(buffer);
  size_t ranges = 0;
  ok(mdp_buffer_owned(buffer, nullptr, 0, &ranges));
  require(rank.size > 1 || kept == static_cast<int64_t>(3 * kParams), "state of ", kept, " elements is kept");
  require(ranges <= kParams && kept <= static_cast<int64_t>(3 * ranges), ranges, " ranges hold ", kept, " elements");
  ok(mdp_buffer_verify(buffer));
}

}  // namespace

int main() {
  bool good = run_processes("a bucket for each", 1, [](const Rank& rank) { train(rank, 1); });
  good = run_processes("one bucket for all", 1, [](const Rank& rank) { train(rank, UINT64_MAX); }) && good;
  good = run_processes("one bucket for all", 2, [](const Rank& rank) { train(rank, UINT64_MAX); }) && good;
  std::cerr << "3 cases of " << kParams << " parameters, " << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
