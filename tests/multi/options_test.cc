// SPDX-License-Identifier: Apache-2.0
// What flags and settings do to a step on several ranks: learning rates, betas, uses per step, bucket flags, parameters without elements,
// parameters written through views. Gradients are constant over a tensor: with an equal gradient on every step AdamW moves a value by
// exactly lr (sign(gradient) + weight_decay * value), whatever the betas.
#include <cmath>

#include "job.h"

namespace {

using namespace job;

class Model {
 public:
  Model(const Rank& rank, std::vector<int64_t> sizes) : rank_(rank), sizes_(std::move(sizes)) {
    params.resize(sizes_.size());
    names_.reserve(sizes_.size());
    for (size_t p = 0; p < sizes_.size(); ++p) {
      names_.push_back("layer" + std::to_string(p));
      params[p].struct_size = sizeof(mdp_param);
      params[p].name = names_[p].c_str();
      params[p].shape = &sizes_[p];
      params[p].ndim = 1;
    }
    config.struct_size = sizeof config;
    rule.struct_size = sizeof rule;
    rule.lr = 0.25;
  }

  std::vector<mdp_param> params;  // to be changed before create
  mdp_buffer_config config{};
  mdp_optimizer_config rule{};

  void create() {
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank_.comm, nullptr, &grid));
    grid_.reset(grid);
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(nullptr, grid, &config, params.data(), params.size(), &buffer));
    buffer_.reset(buffer);
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(buffer, &rule, &optimizer));
    optimizer_.reset(optimizer);
    for (size_t p = 0; p < sizes_.size(); ++p) fill(p, 1);
  }
  mdp_buffer* buffer() const { return buffer_.get(); }
  mdp_optimizer* optimizer() const { return optimizer_.get(); }

  void fill(size_t p, float value) const {
    std::vector<float> values(static_cast<size_t>(sizes_[p]), value);
    const mdp_tensor tensor = array(p, values);
    ok(mdp_param_write(buffer(), p, &tensor, nullptr));
  }
  // Rank r gives r + 1 times `gradient`.
  void put(size_t p, float gradient) const {
    std::vector<float> values(static_cast<size_t>(sizes_[p]), gradient * static_cast<float>(rank_.rank + 1));
    const mdp_tensor tensor = array(p, values);
    ok(mdp_grad_put(buffer(), p, &tensor, 0, nullptr));
  }
  float mean(float gradient) const { return gradient * static_cast<float>(rank_.size + 1) / 2; }
  void put_all(float gradient) const {
    for (size_t p = sizes_.size(); p-- > 0;) put(p, gradient);
  }
  mdp_step_report step(const mdp_step_config* step_config = nullptr) const {
    mdp_step_report report{};
    report.struct_size = sizeof report;
    ok(mdp_grad_sync(buffer(), nullptr, nullptr));
    ok(mdp_optimizer_step(optimizer(), step_config, &report, nullptr));
    return report;
  }
  void expect(size_t p, double wanted, const char* when) const {
    std::vector<float> values(static_cast<size_t>(sizes_[p]), -1);
    const mdp_tensor tensor = array(p, values);
    ok(mdp_param_read(buffer(), p, &tensor, nullptr));
    for (const float value : values) {
      require(std::abs(value - wanted) <= 1e-5, when, ": '", names_[p], "' is ", value, ", not ", wanted);
    }
  }
  // Every element that this rank keeps of `name` ("master" and so on); returns how many there were.
  int64_t expect_state(size_t p, const char* name, double wanted) const {
    mdp_tensor slice{};
    slice.struct_size = sizeof slice;
    ok(mdp_optimizer_state(optimizer(), p, name, &slice));
    const int64_t count = slice.data == nullptr ? 0 : slice.shape[0];
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<const float*>(slice.data)[i];
      require(std::abs(value - wanted) <= 1e-5 * std::max(1.0, std::abs(wanted)), name, " of '", names_[p], "' is ", value, ", not ",
              wanted);
    }
    return count;
  }
  // Where every parameter has a bucket to itself; they are numbered in launch order, the last parameter's first.
  mdp_bucket_report bucket_of(size_t p) const {
    mdp_bucket_report report{};
    report.struct_size = sizeof report;
    ok(mdp_buffer_bucket(buffer(), sizes_.size() - 1 - p, &report));
    return report;
  }
  size_t buckets() const {
    mdp_bucket_report report{};
    report.struct_size = sizeof report;
    size_t count = 0;
    while (mdp_buffer_bucket(buffer(), count, &report) == MDP_OK) ++count;
    return count;
  }
  size_t owned() const {
    size_t needed = 0;
    ok(mdp_buffer_owned(buffer(), nullptr, 0, &needed));
    return needed;
  }

 private:
  mdp_tensor array(size_t p, std::vector<float>& values) const {
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = MDP_DTYPE_F32;
    tensor.ndim = 1;
    tensor.shape = &sizes_[p];
    tensor.data = values.data();
    return tensor;
  }

  Rank rank_;
  std::vector<int64_t> sizes_;
  std::vector<std::string> names_;
  Grid grid_;
  Buffer buffer_;
  Optimizer optimizer_;
};

// A weight used twice: both gradients are added, its bucket goes at the second arrival and not before, on the first step as on the next.
void used_twice(const Rank& rank) {
  Model model(rank, {300, 200});
  model.config.bucket_elements = 1;
  model.params[1].uses_per_step = 2;
  model.create();
  for (int step = 1; step <= 2; ++step) {
    for (const bool last : {false, true}) {
      ok(mdp_microbatch_begin(model.buffer(), last));
      model.put(1, 1);
      const mdp_bucket_state state = model.bucket_of(1).state;
      require(state == MDP_BUCKET_FILLING || (step == 2 && state == MDP_BUCKET_WHOLE), "after one of two uses the bucket is in state ",
              state);
      model.put(1, 2);
      if (last) require(model.bucket_of(1).state >= MDP_BUCKET_IN_FLIGHT, "after both uses it is in state ", model.bucket_of(1).state);
      model.put(0, 1);
    }
    const mdp_step_report report = model.step();
    const double expected = std::sqrt(300 * std::pow(model.mean(2), 2) + 200 * std::pow(model.mean(6), 2));
    require(std::abs(report.grad_norm - expected) <= 1e-6 * expected, "the norm is ", report.grad_norm, ", not ", expected);
    model.expect(0, 1 - 0.25 * step, "used once");
    model.expect(1, 1 - 0.25 * step, "used twice");
  }
  ok(mdp_microbatch_begin(model.buffer(), 1));
  model.put(0, 1);
  model.put(1, 1);
  refused(mdp_grad_sync(model.buffer(), nullptr, nullptr), MDP_E_STATE, {"layer1", "1 of 2"});
}

void learning_rates(const Rank& rank) {
  mdp_param_group groups[2] = {};
  for (mdp_param_group& group : groups) group.struct_size = sizeof group;
  groups[1].lr = 0.5;
  Model model(rank, {100, 300});
  model.params[1].param_group = 1;
  model.rule.param_groups = groups;
  model.rule.param_group_count = 2;
  model.create();
  double first = 1, second = 1;
  const auto stepped = [&](double by_first, double by_second, const mdp_step_config* config, const char* when) {
    model.put_all(1);
    model.step(config);
    model.expect(0, first -= by_first, when);
    model.expect(1, second -= by_second, when);
  };
  stepped(0.25, 0.5, nullptr, "the optimizer's and the group's");
  mdp_step_config config{};
  config.struct_size = sizeof config;
  config.lr = 0.125;
  stepped(0.125, 0.5, &config, "mdp_step_config.lr");
  stepped(0.125, 0.5, nullptr, "which stays");
  config.lr = 0;
  stepped(0.125, 0.5, &config, "0: unchanged");
  config.flags = MDP_STEP_SET_LR;
  stepped(0, 0.5, &config, "MDP_STEP_SET_LR: 0");
  groups[1].lr = 0;
  ok(mdp_optimizer_set_param_group(model.optimizer(), 1, &groups[1]));
  config.flags = 0;
  config.lr = 0.0625;
  stepped(0.0625, 0.0625, &config, "a group without lr follows the optimizer");
  groups[1].flags = MDP_PARAM_GROUP_SET_LR;
  ok(mdp_optimizer_set_param_group(model.optimizer(), 1, &groups[1]));
  stepped(0.0625, 0, nullptr, "MDP_PARAM_GROUP_SET_LR: 0");
  groups[0].lr = 0.5;
  groups[0].weight_decay = 0.5;
  ok(mdp_optimizer_set_param_group(model.optimizer(), 0, &groups[0]));
  stepped(0.5 + 0.25 * first, 0, nullptr, "a group's lr and weight decay");
  ok(mdp_buffer_verify(model.buffer()));
}

// Without memory of earlier steps every step is by lr, against its own gradient; with betas left 0 the defaults hold.
void betas(const Rank& rank) {
  for (const bool literally : {false, true}) {
    Model model(rank, {500});
    model.rule.flags = literally ? uint64_t{MDP_OPTIMIZER_SET_BETA1 | MDP_OPTIMIZER_SET_BETA2} : 0;
    model.create();
    model.put_all(1);
    model.step();
    model.put_all(-3);
    model.step();
    const double g1 = model.mean(1), g2 = model.mean(-3);
    model.expect_state(0, "exp_avg", literally ? g2 : 0.9 * 0.1 * g1 + 0.1 * g2);
    model.expect_state(0, "exp_avg_sq", literally ? g2 * g2 : 0.999 * 0.001 * g1 * g1 + 0.001 * g2 * g2);
    const double m = (0.09 * g1 + 0.1 * g2) / (1 - 0.81), v = (0.000999 * g1 * g1 + 0.001 * g2 * g2) / (1 - 0.998001);
    model.expect(0, literally ? 1.0 : 1 - 0.25 - 0.25 * m / std::sqrt(v), literally ? "betas 0" : "betas 0.9, 0.999");
  }
}

// Vector 2: with this padding rank 0 owns everything; norm and step of the others, who own nothing, are the same. A bucket of its own for
// one parameter changes nothing but the buckets.
void bucket_flags(const Rank& rank) {
  for (const bool padded : {false, true}) {
    for (const bool own : {false, true}) {
      Model model(rank, {1000, 500, 300});
      model.config.bucket_elements = UINT64_MAX;
      model.config.flags = padded ? uint64_t{MDP_BUFFER_HIGH_BANDWIDTH_PADDING} : 0;
      model.params[1].flags = own ? uint64_t{MDP_PARAM_OWN_BUCKET} : 0;
      model.create();
      require(model.buckets() == (own ? 3 : 1), model.buckets(), " buckets");
      if (padded && rank.rank > 0) require(model.owned() == 0, "rank ", rank.rank, " owns ", model.owned(), " ranges");
      for (int step = 1; step <= 2; ++step) {
        model.put_all(1);
        const double got = model.step().grad_norm, expected = model.mean(1) * std::sqrt(1800.0);
        require(std::abs(got - expected) <= 1e-6 * expected, "the norm is ", got, ", not ", expected);
        for (size_t p = 0; p < 3; ++p) model.expect(p, 1 - 0.25 * step, padded ? "padded" : "not padded");
      }
      ok(mdp_buffer_verify(model.buffer()));
    }
  }
}

void without_elements(const Rank& rank) {
  for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2}) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{0, 64, 0, 10, 0}, std::vector<int64_t>{0}, std::vector<int64_t>{0, 0}}) {
      for (const uint64_t bucket : {uint64_t{1}, UINT64_MAX}) {
        Model model(rank, sizes);
        model.config.sharding = sharding;
        model.config.bucket_elements = bucket;
        model.create();
        double elements = 0;
        for (const int64_t size : sizes) elements += static_cast<double>(size);
        for (int step = 1; step <= 2; ++step) {
          model.put_all(1);
          const mdp_step_report report = model.step();
          const double expected = model.mean(1) * std::sqrt(elements);
          require(std::abs(report.grad_norm - expected) <= 1e-6 * expected, "the norm is ", report.grad_norm, ", not ", expected);
          require(report.step == static_cast<uint64_t>(step), "step ", report.step);
          for (size_t p = 0; p < sizes.size(); ++p) model.expect(p, 1 - 0.25 * step, "beside parameters without elements");
          ok(mdp_param_wait(model.buffer(), SIZE_MAX, nullptr));
        }
        for (size_t p = 0; p < sizes.size(); ++p) {
          if (sizes[p] == 0) require(model.expect_state(p, "exp_avg", 0) == 0, "there is state of nothing");
        }
        ok(mdp_buffer_broadcast(model.buffer(), rank.size - 1, nullptr));
        ok(mdp_buffer_verify(model.buffer()));
      }
    }
  }
}

// The masters of bf16 parameters take over what was written through views, and go on from there.
void written_through_views(const Rank& rank) {
  Model model(rank, {300, 200});
  for (mdp_param& param : model.params) param.dtype = MDP_DTYPE_BF16;
  model.config.bucket_elements = 1;
  model.create();
  model.put_all(1);
  model.step();
  model.expect(1, 0.75, "before");
  model.expect_state(1, "master", 0.75);
  mdp_tensor view{};
  view.struct_size = sizeof view;
  ok(mdp_buffer_param_view(model.buffer(), 1, &view));
  require(view.dtype == MDP_DTYPE_BF16, "the view has dtype ", view.dtype);
  for (int64_t i = 0; i < view.shape[0]; ++i) static_cast<uint16_t*>(view.data)[i] = 0x4080;  // 4
  ok(mdp_param_changed(model.buffer()));
  model.put_all(1);
  model.step();
  model.expect(0, 0.5, "the parameter that was not written");
  model.expect(1, 3.75, "the one that was");
  const int64_t kept = model.expect_state(1, "master", 3.75);
  require(kept > 0 || rank.size > 2, "this rank keeps no master of it");
}

}  // namespace

int main(int argc, char** argv) {
  threads_only(argc, argv);
  bool good = true;
  int cases = 0;
  const auto both = [&](const std::string& name, int ranks, const Body& body) {
    ++cases;
    good = run_processes(name, ranks, body) && good;
    good = run_threads(name, ranks, body) && good;
  };
  for (const int ranks : {1, 2, 4}) {
    both("used twice", ranks, used_twice);
    both("learning rates", ranks, learning_rates);
    both("betas", ranks, betas);
    both("bucket flags", ranks, bucket_flags);
    both("without elements", ranks, without_elements);
    both("written through views", ranks, written_through_views);
  }
  std::cerr << cases << " cases, " << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
