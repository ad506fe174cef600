// SPDX-License-Identifier: Apache-2.0
// Steps of training on made-up gradients, over the public API, with ranks as threads and as processes: against an unsharded reference, and
// the same bits however the work is cut. Vectors 22, 24 and 46 of the specification are here (microbatches, an unused parameter, AdamW on
// any number of ranks and of buckets).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "job.h"

namespace {

using namespace job;

struct Setup {
  mdp_dtype param = MDP_DTYPE_F32, grad = MDP_DTYPE_F32;
  mdp_sharding sharding = MDP_SHARDING_DEFAULT;
  uint64_t bucket_elements = 0, flags = 0;
  mdp_missing missing = MDP_MISSING_ERROR;
  double max_grad_norm = 0;
};

const std::vector<std::vector<int64_t>> kShapes = {{40, 30}, {30}, {17, 5, 3}, {}, {1000}, {64}, {3}};

int64_t numel(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// The model's initial values and every rank's gradients are functions of where they belong, so that any rank can compute any of them.
float initial(size_t param, int64_t i) {
  return 0.01F * static_cast<float>((static_cast<int64_t>(param) * 7919 + i * 31) % 200 - 100);
}
float gradient(int rank, int step, size_t param, int64_t i) {
  return 0.125F * static_cast<float>((static_cast<int64_t>(param) * 131 + i * 17 + rank * 29 + step * 53) % 64 - 32);
}

class Model {
 public:
  Model(const Rank& rank, const Setup& setup) : rank_(rank), setup_(setup) {
    std::vector<mdp_param> params(kShapes.size());
    for (size_t p = 0; p < params.size(); ++p) {
      names_.push_back("layer" + std::to_string(p) + ".weight");
    }
    for (size_t p = 0; p < params.size(); ++p) {
      params[p] = mdp_param{};
      params[p].struct_size = sizeof(mdp_param);
      params[p].dtype = setup.param;
      params[p].name = names_[p].c_str();
      params[p].shape = kShapes[p].data();
      params[p].ndim = static_cast<int32_t>(kShapes[p].size());
      params[p].param_group = p == 1 ? 1 : 0;
    }
    mdp_grid* grid = nullptr;
    ok(mdp_grid_create(rank.comm, nullptr, &grid));
    grid_.reset(grid);
    mdp_buffer_config config{};
    config.struct_size = sizeof config;
    config.grad_dtype = setup.grad;
    config.sharding = setup.sharding;
    config.missing = setup.missing;
    config.bucket_elements = setup.bucket_elements;
    config.flags = setup.flags;
    mdp_buffer* buffer = nullptr;
    ok(mdp_buffer_register(nullptr, grid, &config, params.data(), params.size(), &buffer));
    buffer_.reset(buffer);
    for (size_t p = 0; p < kShapes.size(); ++p) write(p);

    mdp_param_group groups[2] = {};
    groups[0].struct_size = groups[1].struct_size = sizeof(mdp_param_group);
    groups[0].weight_decay = 0.1;
    groups[1].lr = 0.02;
    mdp_optimizer_config rule{};
    rule.struct_size = sizeof rule;
    rule.lr = 0.01;
    rule.max_grad_norm = setup.max_grad_norm;
    rule.param_groups = groups;
    rule.param_group_count = 2;
    mdp_optimizer* optimizer = nullptr;
    ok(mdp_optimizer_create(buffer, &rule, &optimizer));
    optimizer_.reset(optimizer);
  }

  mdp_buffer* buffer() const { return buffer_.get(); }
  mdp_optimizer* optimizer() const { return optimizer_.get(); }
  const std::string& name(size_t p) const { return names_[p]; }

  void write(size_t p) {
    std::vector<float> values;
    for (int64_t i = 0; i < numel(kShapes[p]); ++i) values.push_back(initial(p, i));
    const mdp_tensor tensor = dense(p, values.data());
    ok(mdp_param_write(buffer(), p, &tensor, nullptr));
  }
  std::vector<float> read(size_t p) const {
    std::vector<float> values(static_cast<size_t>(numel(kShapes[p])));
    const mdp_tensor tensor = dense(p, values.data());
    ok(mdp_param_read(buffer(), p, &tensor, nullptr));
    return values;
  }
  void put(size_t p, int step, uint64_t flags = 0, float factor = 1) const {
    std::vector<float> values;
    for (int64_t i = 0; i < numel(kShapes[p]); ++i) values.push_back(factor * gradient(rank_.rank, step, p, i));
    const mdp_tensor tensor = dense(p, values.data());
    ok(mdp_grad_put(buffer(), p, &tensor, flags, nullptr));
  }
  void backward(int step) const {
    // Not quite in backward order, and in another order on every rank.
    std::vector<size_t> order(kShapes.size());
    std::iota(order.rbegin(), order.rend(), size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(step * 100 + rank_.rank)));
    for (const size_t p : order) put(p, step);
  }
  mdp_step_report step(double loss_scale = 0) const {
    mdp_step_config config{};
    config.struct_size = sizeof config;
    config.loss_scale = loss_scale;
    mdp_step_report report{};
    report.struct_size = sizeof report;
    ok(mdp_optimizer_step(optimizer(), &config, &report, nullptr));
    return report;
  }
  std::vector<std::vector<float>> all() const {
    std::vector<std::vector<float>> values;
    for (size_t p = 0; p < kShapes.size(); ++p) values.push_back(read(p));
    return values;
  }
  static mdp_tensor dense(size_t p, float* data) {
    mdp_tensor tensor{};
    tensor.struct_size = sizeof tensor;
    tensor.dtype = MDP_DTYPE_F32;
    tensor.ndim = static_cast<int32_t>(kShapes[p].size());
    tensor.shape = kShapes[p].data();
    tensor.data = data;
    return tensor;
  }

 private:
  Rank rank_;
  Setup setup_;
  std::vector<std::string> names_;
  Grid grid_;
  Buffer buffer_;
  Optimizer optimizer_;
};

// AdamW in float64, one rank, on the mean gradient (Loshchilov and Hutter 2019, algorithm 2).
std::vector<std::vector<double>> reference(int ranks, int steps, double max_norm) {
  std::vector<std::vector<double>> p(kShapes.size()), m = p, v = p;
  for (size_t k = 0; k < kShapes.size(); ++k) {
    for (int64_t i = 0; i < numel(kShapes[k]); ++i) p[k].push_back(initial(k, i));
    m[k].resize(p[k].size());
    v[k].resize(p[k].size());
  }
  for (int step = 1; step <= steps; ++step) {
    auto g = p;
    double square_sum = 0;
    for (size_t k = 0; k < kShapes.size(); ++k) {
      for (size_t i = 0; i < p[k].size(); ++i) {
        g[k][i] = 0;
        for (int rank = 0; rank < ranks; ++rank) g[k][i] += gradient(rank, step, k, static_cast<int64_t>(i)) / static_cast<double>(ranks);
        square_sum += g[k][i] * g[k][i];
      }
    }
    const double clip = max_norm > 0 ? std::min(1.0, max_norm / (std::sqrt(square_sum) + 1e-6)) : 1.0;
    for (size_t k = 0; k < kShapes.size(); ++k) {
      const double lr = k == 1 ? 0.02 : 0.01, decay = k == 1 ? 0.0 : 0.1;
      for (size_t i = 0; i < p[k].size(); ++i) {
        const double grad = g[k][i] * clip;
        m[k][i] = 0.9 * m[k][i] + 0.1 * grad;
        v[k][i] = 0.999 * v[k][i] + 0.001 * grad * grad;
        p[k][i] -= lr * decay * p[k][i];
        p[k][i] -= lr * (m[k][i] / (1 - std::pow(0.9, step))) / (std::sqrt(v[k][i] / (1 - std::pow(0.999, step))) + 1e-8);
      }
    }
  }
  return p;
}

void compare_with_reference(const std::vector<std::vector<float>>& got, int ranks, int steps, double max_norm, double tolerance) {
  const auto expected = reference(ranks, steps, max_norm);
  for (size_t p = 0; p < got.size(); ++p) {
    for (size_t i = 0; i < got[p].size(); ++i) {
      require(std::abs(got[p][i] - expected[p][i]) <= tolerance, "parameter ", p, " element ", i, " is ", got[p][i], ", not ",
              expected[p][i]);
    }
  }
}

constexpr int kSteps = 4;

void train_and_compare(const Rank& rank, const Setup& setup, double tolerance) {
  const Model model(rank, setup);
  for (int step = 1; step <= kSteps; ++step) {
    model.backward(step);
    ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
    const mdp_step_report report = model.step();
    require(report.step == static_cast<uint64_t>(step), "the report says step ", report.step);
    require((report.flags & MDP_STEPPED_CLIPPED) == (setup.max_grad_norm > 0 ? MDP_STEPPED_CLIPPED : 0), "clipped: ", report.clip_factor);
  }
  compare_with_reference(model.all(), rank.size, kSteps, setup.max_grad_norm, tolerance);
  ok(mdp_buffer_verify(model.buffer()));
}

// The values after kSteps steps, from rank 0.
std::vector<std::vector<float>> trained(int ranks, const Setup& setup, bool* good) {
  std::vector<std::vector<float>> values;
  *good = run_threads("train", ranks,
                      [&](const Rank& rank) {
                        const Model model(rank, setup);
                        for (int step = 1; step <= kSteps; ++step) {
                          model.backward(step);
                          ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
                          mdp_request* request = nullptr;  // gathers run on while the next step's gradients come
                          ok(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, &request));
                          ok(mdp_param_wait(model.buffer(), SIZE_MAX, nullptr));
                          ok(mdp_request_wait(request, UINT64_MAX));
                          mdp_request_free(request);
                        }
                        const auto all = model.all();
                        if (rank.rank == 0) values = all;
                      }) &&
          *good;
  return values;
}

bool same_bits_however_cut() {
  bool good = true;
  for (const mdp_dtype dtype : {MDP_DTYPE_F32, MDP_DTYPE_BF16}) {
    for (const int ranks : {2, 3, 4, 6}) {
      const auto expected = trained(ranks, {.param = dtype}, &good);
      for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2}) {
        for (const uint64_t bucket : {uint64_t{1}, uint64_t{500}, UINT64_MAX}) {
          for (const uint64_t flags : {uint64_t{0}, uint64_t{MDP_BUFFER_NO_OVERLAP}}) {
            const auto got = trained(ranks, {.param = dtype, .sharding = sharding, .bucket_elements = bucket, .flags = flags}, &good);
            if (got != expected) {
              std::cerr << "FAILED other bits with dtype " << dtype << ", " << ranks << " ranks, sharding " << sharding << ", bucket "
                        << bucket << ", flags " << flags << "\n";
              good = false;
            }
          }
        }
      }
    }
  }
  return good;
}

// Vector 22: four microbatches, one collective per bucket, the mean over ranks of the sum over microbatches.
void microbatches(const Rank& rank) {
  const Model model(rank, {.bucket_elements = 60});
  for (int step = 1; step <= kSteps; ++step) {
    for (int microbatch = 0; microbatch < 4; ++microbatch) {
      ok(mdp_microbatch_begin(model.buffer(), microbatch == 3));
      for (size_t p = kShapes.size(); p-- > 0;) model.put(p, step, 0, 0.25F);
      mdp_bucket_report first{};
      first.struct_size = sizeof first;
      ok(mdp_buffer_bucket(model.buffer(), 0, &first));
      require(microbatch == 3 || first.state <= MDP_BUCKET_FILLING || first.state >= MDP_BUCKET_GATHERING, "launched in microbatch ",
              microbatch, ", state ", first.state);
    }
    ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
    model.step();
  }
  mdp_stats_report stats{};
  stats.struct_size = sizeof stats;
  ok(mdp_buffer_stats(model.buffer(), &stats));
  require(stats.buckets % kSteps == 0 && stats.buckets / kSteps >= 3, "launched ", stats.buckets, " buckets in ", kSteps, " steps");
  require(stats.launched_in_backward == stats.buckets, "only ", stats.launched_in_backward, " of ", stats.buckets, " launched in backward");
  compare_with_reference(model.all(), rank.size, kSteps, 0, 2e-5);
}

// Vector 24: on rank 1 one parameter never comes, on the first step.
void unused_param(const Rank& rank) {
  const Model model(rank, {.bucket_elements = 500});
  const size_t unused = 2;
  for (size_t p = 0; p < kShapes.size(); ++p) {
    if (rank.rank != 1 || p != unused) model.put(p, 1);
  }
  refused(mdp_grad_sync(model.buffer(), nullptr, nullptr), MDP_E_STATE, {"rank 1", model.name(unused), "never became ready"});
  mdp_error_info info{};
  info.struct_size = sizeof info;
  ok(mdp_last_error_info(&info));
  require(info.rank == 1 && info.param == static_cast<int64_t>(unused), "blames rank ", info.rank, " parameter ", info.param);
  const auto before = model.all();
  refused(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr), MDP_E_STATE, {model.name(unused)});
  require(model.all() == before, "a refused step changed parameters");
  // The next step is as good as new.
  ok(mdp_microbatch_begin(model.buffer(), 1));
  model.backward(1);
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
  model.step();
  compare_with_reference(model.all(), rank.size, 1, 0, 2e-5);
}

// By policy: rank 1 adds nothing. Skipped on all ranks: no update at all, not even weight decay.
void missing_by_policy(const Rank& rank, mdp_missing policy) {
  const Model model(rank, {.bucket_elements = 500, .missing = policy});
  const size_t on_one = 2, on_all = 4;
  for (int step = 1; step <= 2; ++step) {
    const auto before = model.all();
    for (size_t p = 0; p < kShapes.size(); ++p) {
      if (p == on_all || (p == on_one && rank.rank == 1)) continue;
      model.put(p, step);
    }
    if (policy == MDP_MISSING_ERROR) {
      ok(mdp_grad_skip(model.buffer(), on_all));
      if (rank.rank == 1) ok(mdp_grad_skip(model.buffer(), on_one));
    }
    ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
    model.step();
    const auto after = model.all();
    require((after[on_all] == before[on_all]) == (policy != MDP_MISSING_ZERO), "policy ", policy, ": a parameter without gradient ",
            after[on_all] == before[on_all] ? "did not move" : "moved");
    require(after[on_one] != before[on_one], "a gradient of one rank was lost");
  }
  ok(mdp_buffer_verify(model.buffer()));
}

// While the last layer's backward sleeps, the first bucket is reduced on all ranks.
void overlap(const Rank& rank) {
  const Model model(rank, {.bucket_elements = 500});
  for (size_t p = kShapes.size(); p-- > 1;) model.put(p, 1);
  mdp_bucket_report first{};
  first.struct_size = sizeof first;
  for (int tries = 0; tries < 2000 && first.state != MDP_BUCKET_REDUCED; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ok(mdp_buffer_bucket(model.buffer(), 0, &first));
  }
  require(first.state == MDP_BUCKET_REDUCED, "the first bucket is in state ", first.state, " while backward goes on");
  model.put(0, 1);
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
  ok(mdp_buffer_bucket(model.buffer(), 0, &first));
  require(first.ready_ns > 0 && first.ready_ns <= first.reduce_begin_ns && first.reduce_begin_ns <= first.reduce_end_ns &&
              first.reduce_end_ns < first.sync_ns,
          "times: ready ", first.ready_ns, " begin ", first.reduce_begin_ns, " end ", first.reduce_end_ns, " end of backward ",
          first.sync_ns);
}

// A gradient that is not finite on one rank: no rank changes anything.
void not_finite(const Rank& rank) {
  const Model model(rank, {.bucket_elements = 500});
  const auto before = model.all();
  for (const double loss_scale : {0.0, 1024.0}) {
    for (size_t p = 0; p < kShapes.size(); ++p) model.put(p, 1, 0, p == 1 && rank.rank == rank.size - 1 ? INFINITY : 1.0F);
    ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
    if (loss_scale == 0.0) {
      refused(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr), MDP_E_NUMERIC, {"not finite"});
    } else {
      const mdp_step_report report = model.step(loss_scale);
      require((report.flags & MDP_STEPPED_SKIPPED) != 0 && report.step == 0, "not skipped: flags ", report.flags, " step ", report.step);
    }
    require(model.all() == before, "a skipped step changed parameters");
  }
  // Gradients that carry the scale give the same step as unscaled ones.
  for (size_t p = 0; p < kShapes.size(); ++p) model.put(p, 1, 0, 1024.0F);
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
  require(model.step(1024).step == 1, "the first step taken is not number 1");
  compare_with_reference(model.all(), rank.size, 1, 0, 2e-5);
}

// Uses per step, "more to come", adding, and every misuse in between.
void arrivals(const Rank& rank) {
  const Model model(rank, {.bucket_elements = 1});
  model.put(0, 1, MDP_GRAD_MORE, 0.5F);
  model.put(0, 1, 0, 0.5F);
  const mdp_status twice = mdp_grad_ready(model.buffer(), 0, nullptr);
  refused(twice, MDP_E_STATE, {model.name(0), "ready already"});
  for (size_t p = 1; p < kShapes.size(); ++p) model.put(p, 1);
  refused(mdp_grad_skip(model.buffer(), 3), MDP_E_STATE, {model.name(3)});
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));
  ok(mdp_grad_sync(model.buffer(), nullptr, nullptr));  // twice is a no-op
  refused(mdp_grad_ready(model.buffer(), 3, nullptr), MDP_E_STATE, {model.name(3), "after mdp_grad_sync"});
  model.step();
  refused(mdp_optimizer_step(model.optimizer(), nullptr, nullptr, nullptr), MDP_E_STATE, {"mdp_grad_sync"});
  compare_with_reference(model.all(), rank.size, 1, 0, 2e-5);
}

}  // namespace

int main(int argc, char** argv) {
  threads_only(argc, argv);
  bool good = true;
  int cases = 0;
  const auto add = [&](bool passed) {
    ++cases;
    good = passed && good;
  };
  const auto both = [&](const std::string& name, int ranks, const Body& body) {
    if (with_processes) add(run_processes(name, ranks, body));
    add(run_threads(name, ranks, body));
  };
  for (const int ranks : {1, 2, 3, 4, 6}) {
    for (const mdp_sharding sharding : {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2}) {
      const Setup plain{.sharding = sharding, .bucket_elements = 500};
      both("f32", ranks, [=](const Rank& rank) { train_and_compare(rank, plain, 2e-5); });
      Setup clipped = plain;
      clipped.max_grad_norm = 1;
      both("f32 clipped", ranks, [=](const Rank& rank) { train_and_compare(rank, clipped, 2e-5); });
      Setup bf16 = plain;
      bf16.param = MDP_DTYPE_BF16;
      both("bf16", ranks, [=](const Rank& rank) { train_and_compare(rank, bf16, 1e-2); });
      Setup f16 = plain;
      f16.param = MDP_DTYPE_F16;
      f16.grad = MDP_DTYPE_SAME;
      both("f16", ranks, [=](const Rank& rank) { train_and_compare(rank, f16, 2e-3); });
    }
  }
  add(same_bits_however_cut());
  both("microbatches", 2, microbatches);
  both("unused parameter", 3, unused_param);
  for (const mdp_missing policy : {MDP_MISSING_ERROR, MDP_MISSING_ZERO, MDP_MISSING_SKIP}) {
    both("missing by policy", 2, [=](const Rank& rank) { missing_by_policy(rank, policy); });
  }
  both("overlap", 3, overlap);
  both("not finite", 2, not_finite);
  both("arrivals", 2, arrivals);
  std::cerr << cases << " cases, " << (good ? "all passed" : "some FAILED") << "\n";
  return good ? 0 : 1;
}
