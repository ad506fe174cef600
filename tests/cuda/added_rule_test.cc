// SPDX-License-Identifier: Apache-2.0
// An update rule that the library does not have (added_rule/base/toy_rule.h), over the public API, on the host and on the stand-in for the
// CUDA plugin: its values, its state, its bytes, its hyperparameters. All that was written for it are the rule and its place in the list.
#include <algorithm>

#include "api/handle.h"
#include "base/rules.h"
#include "standin_job.h"

namespace {

using namespace job;

constexpr mdp_rule kToy = 1;
constexpr int kSteps = 3;

mdp_tensor state_of(const Model& model, size_t p, const char* name) {
  mdp_tensor state{};
  state.struct_size = sizeof state;
  ok(mdp_optimizer_state(model.optimizer(), p, name, &state));
  return state;
}

struct Trained {
  std::vector<std::vector<float>> before, after;
  std::vector<std::vector<uint16_t>> velocity;  // as bf16
  bool operator==(const Trained& other) const { return after == other.after && velocity == other.velocity; }
};

Trained train(const KindRank& rank, const Setup& setup) {
  const Model model(rank, setup);
  Trained trained;
  trained.before = model.read();
  for (int step = 1; step <= kSteps; ++step) {
    model.backward(step);
    ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr));
  }
  trained.after = model.read();
  for (size_t p = 0; p < kShapes.size(); ++p) {
    const mdp_tensor state = state_of(model, p, "velocity");
    require(state.dtype == MDP_DTYPE_BF16, "velocity has the dtype ", state.dtype);
    const auto* const bits = static_cast<const uint16_t*>(state.data);
    trained.velocity.emplace_back(bits, bits + state.shape[0]);
  }
  return trained;
}

// One rank: the rule's formula by hand, bit by bit.
void formula(KindRank& rank) {
  Setup setup;
  setup.rule = kToy;
  const Trained trained = train(rank, setup);
  const Model gradients(rank, setup);
  const float lr = 0.01F, beta = 0.5F, decay = static_cast<float>(1 - 0.01 * 0.1);  // beta by the rule's preset, the others by Model
  for (size_t p = 0; p < kShapes.size(); ++p) {
    std::vector<float> values = trained.before[p];
    std::vector<megadp::Bf16> velocity(values.size(), megadp::Bf16{0});
    for (int step = 1; step <= kSteps; ++step) {
      const std::vector<float> grad = gradients.gradient(p, step);
      for (size_t i = 0; i < values.size(); ++i) {
        const float sum = beta * megadp::to_f32(velocity[i]) + grad[i];
        values[i] = values[i] * decay - lr * sum;
        megadp::from_f32(&velocity[i], sum);
      }
    }
    require(trained.after[p] == values, "parameter ", p, " has other values than by the formula");
    const bool same = std::equal(velocity.begin(), velocity.end(), trained.velocity[p].begin(), trained.velocity[p].end(),
                                 [](megadp::Bf16 a, uint16_t b) { return a.bits == b; });
    require(same, "parameter ", p, " has another velocity than by the formula");
  }
}

// Two ranks, bf16 parameters, clipped: the stand-in has the host's bits.
bool same_on_both() {
  Setup setup{MDP_DTYPE_BF16, MDP_SHARDING_ZERO_1, 1.0};
  setup.rule = kToy;
  std::vector<Trained> host(2), device(2);
  const auto into = [&setup](std::vector<Trained>& all) {
    return [&](KindRank& rank) { all[static_cast<size_t>(rank.rank)] = train(rank, setup); };
  };
  bool good = run_kind("toy rule on the host", {MDP_BACKEND_HOST, 0}, 2, into(host));
  good = run_kind("toy rule on the stand-in", {}, 2, into(device)) && good;
  if (host == device && host[0].after != host[0].before) return good;
  std::cerr << "FAILED the toy rule gives other values on the stand-in than on the host, or changes nothing\n";
  return false;
}

mdp_status create(const Model& model, mdp_optimizer_config config) {
  config.struct_size = sizeof config;
  mdp_optimizer* made = nullptr;
  const mdp_status status = mdp_optimizer_create(model.buffer(), &config, &made);
  mdp_optimizer_destroy(made);
  return status;
}

void follows_from_the_table(KindRank& rank) {
  Setup setup;
  setup.rule = kToy;
  const Model model(rank, setup);
  const megadp::Plan& adamw = model.buffer()->object->plan();
  megadp::Plan toy = adamw;
  toy.optimizer.rule = kToy;
  require(adamw.memory(0).state == 4 * toy.memory(0).state, "AdamW's two f32 have 4 times the bytes of one bf16, not ",
          adamw.memory(0).state, " beside ", toy.memory(0).state);
  mdp_tensor state{};
  state.struct_size = sizeof state;
  refused(mdp_optimizer_state(model.optimizer(), 0, "exp_avg", &state), MDP_E_INVALID, {"toy keeps 'master' and 'velocity'"});
  require(state_of(model, 0, "master").dtype == MDP_DTYPE_F32, "the master is not f32");
  mdp_optimizer_config config{};
  config.rule = kToy + 2;  // after the caller's
  refused(create(model, config), MDP_E_INVALID, {"config.rule is 3", "0 (AdamW), 1 (toy) or 2 (the caller's rule)"});
  config.rule = kToy;
  config.eps = 1e-8;
  refused(create(model, config), MDP_E_INVALID, {"config.eps", "toy has none"});
  config.eps = 0;
  config.beta1 = 1;
  refused(create(model, config), MDP_E_INVALID, {"config.beta1 is 1", "below 1"});
}

void compared_between_ranks(KindRank& rank) {
  Setup setup;
  setup.rule = kToy;
  const Model model(rank, setup);
  mdp_optimizer_config config{};
  config.rule = kToy;
  config.beta1 = rank.rank == 0 ? 0 : 0.75;
  refused(create(model, config), MDP_E_DESYNC, {"toy lr 0.25 beta1 0.5 ", "toy lr 0.25 beta1 0.75 "});
  config.beta1 = 0;
  config.rule = rank.rank == 0 ? mdp_rule{MDP_RULE_ADAMW} : kToy;
  refused(create(model, config), MDP_E_DESYNC, {"AdamW lr", "toy lr"});
}

}  // namespace

int main() {
  megadp::cuda::use_plugin(plugin());
  bool good = true;
  for (const Kind& kind : {Kind{MDP_BACKEND_HOST, 0}, Kind{}}) {
    good = run_kind("formula", kind, 1, formula) && good;
    good = run_kind("table", kind, 1, follows_from_the_table) && good;
  }
  good = same_on_both() && good;
  good = run_kind("compared", {MDP_BACKEND_HOST, 0}, 2, compared_between_ranks) && good;
  return good ? 0 : 1;
}
