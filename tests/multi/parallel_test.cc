// SPDX-License-Identifier: Apache-2.0
// Grids that are more than data-parallel: tensor, context, expert and pipeline sizes above 1, with expert and dense parameters in turns.
// Training against a reference that knows nothing of the library's grid, and what one group of ranks must learn of another.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "job.h"

namespace {

using namespace job;

struct Cut {
  const char* name;
  int world, tp = 1, cp = 1, ep = 1, pp = 1, expert_tp = 0;
  int etp() const { return expert_tp > 0 ? expert_tp : tp; }
  int replicas(bool expert) const { return expert ? world / (etp() * ep * pp) : world / (tp * pp); }
};

struct Given {
  int64_t numel;
  bool expert, sharded;
};
const std::vector<Given> kParams = {{300, false, true}, {70, true, true},  {64, false, false},
                                    {900, true, false}, {5, false, false}, {40, true, true}};

// Which part of which replica of a parameter a rank holds, by the arithmetic of the default order: tp, cp, ep, dp, pp.
struct Place {
  int stage, part, expert_part, replica;
};
Place place(const Cut& cut, int rank, const Given& given) {
  const int stage = rank / (cut.world / cut.pp), within = rank % (cut.world / cut.pp);
  if (!given.expert) return {stage, given.sharded ? within % cut.tp : 0, 0, within / cut.tp};
  const int behind = within / cut.etp();
  return {stage, given.sharded ? within % cut.etp() : 0, behind % cut.ep, behind / cut.ep};
}

float initial(const Place& at, size_t param, int64_t i) {
  const int64_t sum = static_cast<int64_t>(param) * 7919 + i * 31 + at.part * 77 + at.expert_part * 111 + at.stage * 13;
  return 0.01F * static_cast<float>(sum % 200 - 100);
}
float gradient(const Place& at, int step, size_t param, int64_t i) {
  const int64_t sum =
      static_cast<int64_t>(param) * 131 + i * 17 + at.replica * 29 + step * 53 + at.part * 41 + at.expert_part * 59 + at.stage * 61;
  return 0.125F * static_cast<float>(sum % 64 - 32);
}

// The mean that the optimizer must see: experts are divided by the dense dp x cp too.
double mean_gradient(const Cut& cut, Place at, int step, size_t param, int64_t i) {
  double sum = 0;
  for (at.replica = 0; at.replica < cut.replicas(kParams[param].expert); ++at.replica) sum += gradient(at, step, param, i);
  return sum / cut.replicas(false);
}

// Every element of the whole model once: a replicated parameter counts once, each part of a sharded one counts.
double norm(const Cut& cut, int step) {
  double squares = 0;
  for (size_t p = 0; p < kParams.size(); ++p) {
    const Given& given = kParams[p];
    Place at{};
    for (at.stage = 0; at.stage < cut.pp; ++at.stage) {
      for (at.part = 0; at.part < (!given.sharded ? 1 : given.expert ? cut.etp() : cut.tp); ++at.part) {
        for (at.expert_part = 0; at.expert_part < (given.expert ? cut.ep : 1); ++at.expert_part) {
          for (int64_t i = 0; i < given.numel; ++i) squares += std::pow(mean_gradient(cut, at, step, p, i), 2);
        }
      }
    }
  }
  return std::sqrt(squares);
}

struct Setup {
  mdp_sharding sharding = MDP_SHARDING_ZERO_1;
  bool reversed = false;  // order of registration
  bool told = false;      // by use_order
  double max_grad_norm = 0;
  int longer_on = -1;  // this rank registers one more element in its last parameter
};

class Model {
 public:
  Model(const Rank& rank, const Cut& cut, const Setup& setup = {}) : rank_(rank), cut_(cut) {
    mdp_grid_config grid_config{};
    grid_config.struct_size = sizeof grid_config;
    grid_config.tp = cut.tp, grid_config.cp = cut.cp, grid_config.ep = cut.ep, grid_config.pp = cut.pp;
    grid_config.expert_tp = cut.expert_tp;
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank.comm, &grid_config, &grid));
    grid_.reset(grid);

    const size_t count = kParams.size();
    std::vector<mdp_param> params(count);
    for (size_t p = 0; p < count; ++p) {
      names_.push_back("stage" + std::to_string(at(p).stage) + ".weight" + std::to_string(p));
      numel_.push_back(kParams[p].numel + (rank.rank == setup.longer_on && p + 1 == count ? 1 : 0));
    }
    for (size_t p = 0; p < count; ++p) {
      order_.push_back(setup.reversed ? count - 1 - p : p);
      mdp_param& param = params[order_[p]];
      param = mdp_param{};
      param.struct_size = sizeof param;
      param.name = names_[p].c_str();
      param.shape = &numel_[p];
      param.ndim = 1;
      param.param_class = kParams[p].expert ? MDP_PARAM_CLASS_EXPERT : MDP_PARAM_CLASS_DENSE;
      if (setup.told) param.use_order = static_cast<int32_t>(p);
      param.placement = kParams[p].sharded ? MDP_PLACEMENT_SHARDED : MDP_PLACEMENT_REPLICATED;
    }
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.sharding = setup.sharding;
    config.bucket_elements = 256;
    mdp_buffer* buffer = nullptr;
    status_ = mdp_buffer_register(nullptr, grid, &config, params.data(), params.size(), &buffer);
    buffer_.reset(buffer);
    if (status_ != MDP_OK) return;
    mdp_optimizer_config rule{};
    rule.struct_size = sizeof rule;
    rule.lr = 0.01;
    rule.weight_decay = 0.1;
    rule.max_grad_norm = setup.max_grad_norm;
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(buffer, &rule, &optimizer));
    optimizer_.reset(optimizer);
  }

  mdp_status status() const { return status_; }
  mdp_buffer* buffer() const { return buffer_.get(); }
  mdp_optimizer* optimizer() const { return optimizer_.get(); }
  const std::string& name(size_t p) const { return names_[p]; }
  size_t index(size_t p) const { return order_[p]; }  // at registration
  Place at(size_t p) const { return place(cut_, rank_.rank, kParams[p]); }

  void write(size_t p, float more = 0) const {
    std::vector<float> values;
    for (int64_t i = 0; i < numel_[p]; ++i) values.push_back(initial(at(p), p, i) + more);
    const mdp_tensor tensor = dense(p, values.data());
    ok(mdp_param_write(buffer(), index(p), &tensor, nullptr));
  }
  std::vector<float> read(size_t p) const {
    std::vector<float> values(static_cast<size_t>(numel_[p]));
    const mdp_tensor tensor = dense(p, values.data());
    ok(mdp_param_read(buffer(), index(p), &tensor, nullptr));
    return values;
  }
  void put(size_t p, int step, float factor = 1) const {
    std::vector<float> values;
    for (int64_t i = 0; i < numel_[p]; ++i) values.push_back(factor * gradient(at(p), step, p, i));
    const mdp_tensor tensor = dense(p, values.data());
    ok(mdp_grad_put(buffer(), index(p), &tensor, 0, nullptr));
  }
  mdp_step_report step() const {
    mdp_step_report report{};
    report.struct_size = sizeof report;
    ok(mdp_grad_sync(buffer(), nullptr, nullptr));
    ok(mdp_optimizer_step(optimizer(), nullptr, &report, nullptr));
    return report;
  }

 private:
  mdp_tensor dense(size_t p, float* data) const {
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = MDP_DTYPE_F32;
    tensor.ndim = 1;
    tensor.shape = &numel_[p];
    tensor.data = data;
    return tensor;
  }

  Rank rank_;
  Cut cut_;
  std::vector<std::string> names_;
  std::vector<int64_t> numel_;
  std::vector<size_t> order_;
  mdp_status status_ = MDP_OK;
  Grid grid_;
  Buffer buffer_;
  Optimizer optimizer_;
};

// AdamW in float64 on what this rank holds of parameter p (Loshchilov and Hutter 2019, algorithm 2).
std::vector<double> reference(const Cut& cut, const Place& at, size_t p, int steps, double max_norm) {
  std::vector<double> values, m(static_cast<size_t>(kParams[p].numel)), v = m;
  for (int64_t i = 0; i < kParams[p].numel; ++i) values.push_back(initial(at, p, i));
  for (int step = 1; step <= steps; ++step) {
    const double clip = max_norm > 0 ? std::min(1.0, max_norm / (norm(cut, step) + 1e-6)) : 1.0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double g = clip * mean_gradient(cut, at, step, p, static_cast<int64_t>(i));
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.999 * v[i] + 0.001 * g * g;
      const double update = m[i] / (1 - std::pow(0.9, step)) / (std::sqrt(v[i] / (1 - std::pow(0.999, step))) + 1e-8);
      values[i] -= 0.01 * (update + 0.1 * values[i]);
    }
  }
  return values;
}

void compare(const Model& model, const Cut& cut, int steps, double max_norm) {
  for (size_t p = 0; p < kParams.size(); ++p) {
    const auto expected = reference(cut, model.at(p), p, steps, max_norm);
    const auto got = model.read(p);
    for (size_t i = 0; i < got.size(); ++i) {
      require(std::abs(got[i] - expected[i]) <= 2e-5, "'", model.name(p), "' element ", i, " is ", got[i], ", not ", expected[i]);
    }
  }
}

void trains(const Rank& rank, const Cut& cut, const Setup& setup) {
  constexpr int kSteps = 3;
  const Model model(rank, cut, setup);
  ok(model.status());
  for (size_t p = 0; p < kParams.size(); ++p) model.write(p);
  for (int step = 1; step <= kSteps; ++step) {
    for (size_t p = kParams.size(); p-- > 0;) model.put(p, step);
    const double expected = norm(cut, step), got = model.step().grad_norm;
    require(std::abs(got - expected) <= 1e-6 * expected, "the norm of step ", step, " is ", got, ", not ", expected);
  }
  compare(model, cut, kSteps, setup.max_grad_norm);
  ok(mdp_buffer_verify(model.buffer()));
}

// A problem of one rank is one of every rank, also of those that share no parameter with it; then a step as if nothing had been.
void problem_elsewhere(const Rank& rank, const Cut& cut, size_t lacking) {
  const Model model(rank, cut);
  ok(model.status());
  for (size_t p = 0; p < kParams.size(); ++p) model.write(p);
  const int culprit = rank.size - 1;
  for (size_t p = kParams.size(); p-- > 0;) {
    if (rank.rank != culprit || p != lacking) model.put(p, 1);
  }
  const std::string name = "stage" + std::to_string(cut.pp - 1) + ".weight" + std::to_string(lacking);
  refused(mdp_grad_sync(model.buffer(), nullptr, nullptr), MDP_E_STATE, {"rank " + std::to_string(culprit), name, "never became ready"});
  mdp_error_info info{};
  info.struct_size = sizeof info;
  ok(mdp_last_error_info(&info));
  require(info.rank == culprit && info.param == static_cast<int64_t>(lacking), "blames rank ", info.rank, " parameter ", info.param);

  ok(mdp_microbatch_begin(model.buffer(), 1));
  const float bad = std::numeric_limits<float>::infinity();
  for (size_t p = kParams.size(); p-- > 0;) model.put(p, 1, rank.rank == culprit && p == lacking ? bad : 1.0F);
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
  refused(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr), MDP_E_NUMERIC, {"not finite"});
  for (size_t p = kParams.size(); p-- > 0;) model.put(p, 1);
  require(model.step().step == 1, "a refused step was counted");
  compare(model, cut, 1, 0);
}

// Skipped by all ranks that hold it, a parameter of the last stage rests; its namesake of another stage, or another expert's, does not.
void skipped_elsewhere(const Rank& rank, const Cut& cut, size_t skipped) {
  const Model model(rank, cut);
  ok(model.status());
  for (size_t p = 0; p < kParams.size(); ++p) model.write(p);
  const Place mine = model.at(skipped), last = place(cut, rank.size - 1, kParams[skipped]);
  const bool skips = mine.stage == last.stage && mine.expert_part == last.expert_part;
  for (size_t p = kParams.size(); p-- > 0;) {
    if (p == skipped && skips) {
      ok(mdp_grad_skip(model.buffer(), p));
    } else {
      model.put(p, 1);
    }
  }
  const auto before = model.read(skipped);
  model.step();
  require((model.read(skipped) == before) == skips, "'", model.name(skipped), "' ", skips ? "moved" : "did not move");
}

// Rank `root` of each group gives its values to that group alone; a replica that differs is named to all.
void broadcast_and_verify(const Rank& rank, const Cut& cut) {
  const Model model(rank, cut);
  ok(model.status());
  for (int root = 0; root < std::min(cut.replicas(false), cut.replicas(true)); ++root) {
    for (size_t p = 0; p < kParams.size(); ++p) model.write(p, static_cast<float>(model.at(p).replica));
    ok(mdp_buffer_broadcast(model.buffer(), root, nullptr));
    for (size_t p = 0; p < kParams.size(); ++p) {
      const auto got = model.read(p);
      for (size_t i = 0; i < got.size(); ++i) {
        const float expected = initial(model.at(p), p, static_cast<int64_t>(i)) + static_cast<float>(root);
        require(got[i] == expected, "'", model.name(p), "' element ", i, " is ", got[i], ", not ", expected);
      }
    }
    ok(mdp_buffer_verify(model.buffer()));
  }
  for (const size_t p : {size_t{0}, size_t{1}}) {  // a dense one, an expert's
    const int odd = rank.size - 1;
    model.write(p, rank.rank == odd ? 1 : 0);
    ok(mdp_buffer_broadcast(model.buffer(), 0, nullptr));
    if (rank.rank == odd) model.write(p, 2);
    const mdp_status status = mdp_buffer_verify(model.buffer());
    if (cut.replicas(kParams[p].expert) > 1) {
      refused(status, MDP_E_DESYNC, {"weight" + std::to_string(p), "differs between", std::to_string(odd)});
    } else {
      ok(status);
    }
    ok(mdp_buffer_broadcast(model.buffer(), 0, nullptr));
    ok(mdp_buffer_verify(model.buffer()));
  }
}

}  // namespace

int main(int argc, char** argv) {
  threads_only(argc, argv);
  bool good = true;
  int cases = 0;
  const auto both = [&](const std::string& name, const Cut& cut, const auto& body) {
    ++cases;
    const std::string full = name + ", " + cut.name;
    good = run_processes(full, cut.world, [&](const Rank& rank) { body(rank, cut); }) && good;
    good = run_threads(full, cut.world, [&](const Rank& rank) { body(rank, cut); }) && good;
  };
  const Cut tensor{.name = "tp 2 dp 2", .world = 4, .tp = 2}, context{.name = "cp 2 dp 2", .world = 4, .cp = 2},
      expert{.name = "ep 2 dp 4", .world = 4, .ep = 2}, pipeline{.name = "pp 2 dp 2", .world = 4, .pp = 2},
      plain_experts{.name = "tp 2 dp 2, experts not cut", .world = 4, .tp = 2, .expert_tp = 1},
      all{.name = "tp 2 cp 2 ep 2 pp 2", .world = 8, .tp = 2, .cp = 2, .ep = 2, .pp = 2, .expert_tp = 1};
  for (const Cut& cut : {tensor, context, expert, pipeline, plain_experts, all}) {
    for (const bool reversed : {false, true}) {
      for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2}) {
        const Setup setup{.sharding = sharding, .reversed = reversed, .told = sharding != MDP_SHARDING_ZERO_1, .max_grad_norm = 1};
        both("trains", cut, [=](const Rank& rank, const Cut& c) { trains(rank, c, setup); });
      }
    }
    for (size_t param = 0; param < 4; ++param) {  // also replicas that do not count in the norm
      both("problem elsewhere", cut, [=](const Rank& rank, const Cut& c) { problem_elsewhere(rank, c, param); });
    }
    for (const size_t param : {size_t{0}, size_t{1}}) {  // a dense one, an expert's
      both("skipped elsewhere", cut, [=](const Rank& rank, const Cut& c) { skipped_elsewhere(rank, c, param + 2); });
    }
    both("broadcast and verify", cut, broadcast_and_verify);
  }
  std::cerr << cases << " cases, " << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
