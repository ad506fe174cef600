// SPDX-License-Identifier: Apache-2.0
// How much communication a training waits for when its parameters are registered forwards, backwards, and backwards with the order of use
// that the library has told after a step. The parameters are those of a GPT; nothing is computed: each layer of the forward and of the
// backward pass is a pause, as on a device (--compute pause), or keeps the core busy (--compute busy). The three take turns step by step,
// so that a busy machine is busy for all of them.
//
// usage: megadp run -n 2 bench_use_order [--json] [--layers 12] [--width 384] [--steps 20] [--ms 100] [--compute pause|busy]
//   --ms: of one forward and backward pass together, a third of it forward
#include <megadp.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Task {
  bool json = false, busy = false;
  int64_t layers = 12, width = 384, steps = 20;
  double ms = 100;
};

void must(mdp_status status, const char* call) {
  if (status >= 0) return;
  std::cerr << "bench_use_order: " << call << ": " << mdp_status_name(status) << ": " << mdp_last_error() << "\n";
  std::exit(1);
}
#define MUST(call) must((call), #call)

// In the order of the forward pass.
struct Weight {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

std::vector<Weight> gpt(const Task& task) {
  const int64_t c = task.width;
  std::vector<Weight> all = {{"wte", {1024, c}}, {"wpe", {256, c}}};
  for (int64_t i = 0; i < task.layers; ++i) {
    const std::string block = "h." + std::to_string(i) + '.';
    const Weight parts[] = {{"ln1", {c}}, {"qkv", {3 * c, c}}, {"qkv.bias", {3 * c}}, {"proj", {c, c}},    {"proj.bias", {c}},
                            {"ln2", {c}}, {"fc", {4 * c, c}},  {"fc.bias", {4 * c}},  {"out", {c, 4 * c}}, {"out.bias", {c}}};
    for (const Weight& part : parts) all.push_back({std::string(block).append(part.name), part.shape});
  }
  all.push_back({"lnf", {c}});
  all.push_back({"head", {1024, c}});
  return all;
}

void compute(const Task& task, double share) {
  const auto length = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(task.ms * share));
  if (!task.busy) return std::this_thread::sleep_for(length);
  for (const auto end = Clock::now() + length; Clock::now() < end;) continue;
}

// One registration of the model, and what its steps cost.
class Model {
 public:
  Model(const char* called, mdp_comm* comm, mdp_sharding sharding, const std::vector<Weight>& weights, bool backwards,
        const std::vector<int32_t>* use_order)
      : name(called), weights_(weights), backwards_(backwards) {
    std::vector<mdp_param> params(weights.size());
    for (size_t used = 0; used < weights.size(); ++used) {
      mdp_param& param = params[number(used)];
      param = {};
      param.struct_size = sizeof param;
      param.name = weights[used].name.c_str();
      param.shape = weights[used].shape.data();
      param.ndim = static_cast<int32_t>(weights[used].shape.size());
      if (use_order != nullptr) param.use_order = (*use_order)[number(used)];
    }
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.sharding = sharding;
    MUST(mdp_buffer_register(comm, nullptr, &config, params.data(), params.size(), &buffer_));
    MUST(mdp_optimizer_create(buffer_, nullptr, &optimizer_));
    for (const Weight& weight : weights) total_ += weight.numel();
    gradient_.resize(static_cast<size_t>(total_), 0.5F);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() {
    mdp_request_free(stepped_);
    mdp_optimizer_destroy(optimizer_);
    mdp_buffer_destroy(buffer_);
  }

  void step(const Task& task) {
    const mdp_stats_report before = stats();
    const auto begin = Clock::now();
    for (size_t used = 0; used < weights_.size(); ++used) {
      MUST(mdp_param_wait(buffer_, number(used), nullptr));
      compute(task, share(used) / 3);
    }
    if (stepped_ != nullptr) MUST(mdp_request_wait(stepped_, UINT64_MAX));
    mdp_request_free(stepped_);
    stepped_ = nullptr;
    int64_t at = total_;
    for (size_t used = weights_.size(); used-- > 0;) {
      compute(task, share(used) * 2 / 3);
      at -= weights_[used].numel();
      mdp_tensor grad{};
      grad.struct_size = sizeof grad;
      grad.dtype = MDP_DTYPE_F32;
      grad.ndim = static_cast<int32_t>(weights_[used].shape.size());
      grad.data = gradient_.data() + at;
      grad.shape = weights_[used].shape.data();
      MUST(mdp_grad_put(buffer_, number(used), &grad, 0, nullptr));
    }
    MUST(mdp_grad_sync(buffer_, nullptr, nullptr));
    MUST(mdp_optimizer_step(optimizer_, nullptr, nullptr, &stepped_));
    steps_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    const mdp_stats_report after = stats();
    exposed_ms.push_back(static_cast<double>(after.exposed_ns - before.exposed_ns) / 1e6);
    comm_ms.push_back(static_cast<double>(after.comm_ns - before.comm_ns) / 1e6);
  }

  std::vector<int32_t> seen_order() const {
    std::vector<int32_t> order(weights_.size());
    MUST(mdp_buffer_use_order(buffer_, order.data(), order.size()));
    return order;
  }
  mdp_stats_report stats() const {
    mdp_stats_report report{};
    report.struct_size = sizeof report;
    MUST(mdp_buffer_stats(buffer_, &report));
    return report;
  }
  void forget() {
    steps_ms.clear();
    exposed_ms.clear();
    comm_ms.clear();
  }

  const std::string name;
  std::vector<double> steps_ms, exposed_ms, comm_ms;

 private:
  size_t number(size_t used) const { return backwards_ ? weights_.size() - 1 - used : used; }
  double share(size_t used) const { return static_cast<double>(weights_[used].numel()) / static_cast<double>(total_); }

  const std::vector<Weight>& weights_;
  const bool backwards_;
  int64_t total_ = 0;
  mdp_buffer* buffer_ = nullptr;
  mdp_optimizer* optimizer_ = nullptr;
  mdp_request* stepped_ = nullptr;
  std::vector<float> gradient_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void run(const Task& task, mdp_comm* comm, mdp_sharding sharding) {
  const std::vector<Weight> weights = gpt(task);
  std::deque<Model> models;
  models.emplace_back("forward", comm, sharding, weights, false, nullptr);
  models.emplace_back("backward", comm, sharding, weights, true, nullptr);
  models.back().step(task);
  const std::vector<int32_t> seen = models.back().seen_order();
  models.emplace_back("seen", comm, sharding, weights, true, &seen);
  for (int64_t step = -2; step < task.steps; ++step) {
    for (Model& model : models) {
      if (step == 0) model.forget();  // warmed up
      model.step(task);
    }
  }
  if (mdp_comm_rank(comm) != 0) return;
  const int zero = static_cast<int>(sharding) - static_cast<int>(MDP_SHARDING_ZERO_0);
  for (const Model& model : models) {
    const double exposed = median(model.exposed_ms), all = median(model.comm_ms), step = median(model.steps_ms);
    const auto spill = static_cast<double>(model.stats().spill_peak_bytes) / (1 << 20);
    if (task.json) {
      std::cout << "{\"sharding\":" << zero << ",\"registered\":\"" << model.name << "\",\"compute\":\"" << (task.busy ? "busy" : "pause")
                << "\",\"exposed_ms\":" << exposed << ",\"comm_ms\":" << all << ",\"step_ms\":" << step << ",\"spill_mib\":" << spill
                << "}\n";
    } else {
      std::cout << "ZeRO-" << zero << "  registered " << model.name << std::string(10 - model.name.size(), ' ') << "exposed " << exposed
                << " of " << all << " ms in a step of " << step << " ms"
                << (spill > 0 ? ", outside the pool " + std::to_string(spill) + " MiB" : "") << "\n";
    }
  }
}

bool take(int argc, char** argv, Task* task) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (word == "--json") {
      task->json = true;
      continue;
    }
    ++i;
    if (word == "--layers")
      task->layers = std::atoll(value);
    else if (word == "--width")
      task->width = std::atoll(value);
    else if (word == "--steps")
      task->steps = std::atoll(value);
    else if (word == "--ms")
      task->ms = std::atof(value);
    else if (word == "--compute" && (!std::strcmp(value, "busy") || !std::strcmp(value, "pause")))
      task->busy = !std::strcmp(value, "busy");
    else
      return false;
  }
  return task->layers > 0 && task->width > 0 && task->steps > 0 && task->ms >= 0;
}

}  // namespace

int main(int argc, char** argv) {
  Task task;
  if (!take(argc, argv, &task)) {
    std::cerr
        << "usage: megadp run -n 2 bench_use_order [--json] [--layers 12] [--width 384] [--steps 20] [--ms 100] [--compute pause|busy]\n";
    return 2;
  }
  MUST(mdp_log_set([](void*, mdp_log_level, const char*, size_t) {}, nullptr));  // the warnings are what is measured here
  mdp_comm* comm = nullptr;
  MUST(mdp_comm_create(nullptr, nullptr, &comm));
  for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2}) run(task, comm, sharding);
  mdp_comm_destroy(comm);
  return 0;
}
