// SPDX-License-Identifier: Apache-2.0
#include "bench_overlap_run.h"

#include <array>
#include <cmath>
#include <vector>

#include "answer.h"
#include "base/deadline.h"
#include "median.h"

namespace megadp::tool {
namespace {

constexpr int kSteps = 4;  // of a round, timed from the end of one before them: gathers of a step are under way in the next

// One dimension, which lives as long as *count.
mdp_tensor tensor_of(mdp_dtype dtype, const int64_t* count, void* data) {
  mdp_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = dtype;
  tensor.ndim = 1;
  tensor.shape = count;
  tensor.data = data;
  return tensor;
}

// Arithmetic on what the nearest cache holds: a piece takes a few microseconds.
class Arithmetic {
 public:
  void work(double pieces) {
    for (carried_ += pieces; carried_ >= 1; carried_ -= 1) {
      for (float& value : values_) value = value * 0.999F + 0.001F;
      __asm__ volatile("" : : "r"(values_.data()) : "memory");  // or the compiler finds that nobody reads them
    }
  }

 private:
  std::array<float, 4096> values_{};
  double carried_ = 0;  // parts of a piece
};

class OverlapBench {
 public:
  explicit OverlapBench(const OverlapTask& task) : task_(task) {}
  ~OverlapBench() {
    mdp_optimizer_destroy(optimizer_);
    mdp_buffer_destroy(buffer_);
    mdp_comm_destroy(comm_);
  }
  OverlapBench(const OverlapBench&) = delete;
  OverlapBench& operator=(const OverlapBench&) = delete;

  Status open();
  Status check_averages();
  Status calibrate();
  Status run();
  Result<OverlapOutcome> outcome() const;

 private:
  Status forward(bool communicates, double pieces);
  Status backward(bool communicates, double pieces);
  Status step(bool communicates, double pieces);
  // Of kSteps steps, on the slowest rank, for each of them.
  Result<double> milliseconds(bool communicates, double pieces);
  Result<double> largest(double value) const;
  size_t layers() const { return static_cast<size_t>(task_.layers); }

  const OverlapTask task_;
  mdp_comm* comm_ = nullptr;
  mdp_buffer* buffer_ = nullptr;
  mdp_optimizer* optimizer_ = nullptr;
  Arithmetic arithmetic_;
  double pieces_ = 0;  // of a step
  OverlapFigures figures_;
};

Status OverlapBench::open() {
  mdp_comm_config comm{};
  comm.struct_size = sizeof comm;
  if (Status made = api_status(mdp_comm_create(&comm, nullptr, &comm_)); !made) return made;
  const int64_t each = task_.numel / task_.layers;
  std::vector<std::string> names;
  std::vector<mdp_param> params(layers());
  for (size_t i = 0; i < layers(); ++i) names.push_back("layer" + std::to_string(i));
  for (size_t i = 0; i < layers(); ++i) {
    params[i].struct_size = sizeof params[i];
    params[i].name = names[i].c_str();
    params[i].dtype = task_.type;
    params[i].ndim = 1;
    params[i].shape = &each;
  }
  mdp_buffer_config buffer{};
  buffer.struct_size = sizeof buffer;
  buffer.sharding = task_.sharding;
  buffer.bucket_elements = task_.bucket_elements;
  if (Status made = api_status(mdp_buffer_register(comm_, nullptr, &buffer, params.data(), params.size(), &buffer_)); !made) return made;
  mdp_optimizer_config adamw{};
  adamw.struct_size = sizeof adamw;
  adamw.lr = 1e-3;
  return api_status(mdp_optimizer_create(buffer_, &adamw, &optimizer_));
}

// Rank r's gradients are r + 1 everywhere, so the mean is half of the ranks and one more.
Status OverlapBench::check_averages() {
  float value = static_cast<float>(mdp_comm_rank(comm_)) + 1;
  const int64_t each = task_.numel / task_.layers, repeated = 0;
  mdp_tensor grad = tensor_of(MDP_DTYPE_F32, &each, &value);
  grad.strides = &repeated;
  for (size_t i = layers(); i-- > 0;) {
    if (Status put = api_status(mdp_grad_put(buffer_, i, &grad, 0, nullptr)); !put) return put;
  }
  mdp_step_report report{};
  report.struct_size = sizeof report;
  if (Status stepped = api_status(mdp_optimizer_step(optimizer_, nullptr, &report, nullptr)); !stepped) return stepped;
  const double wanted = (mdp_comm_size(comm_) + 1) / 2.0 * std::sqrt(static_cast<double>(each * task_.layers));
  if (std::fabs(report.grad_norm - wanted) <= 1e-6 * wanted) return {};
  return internal_error("the norm of the averaged gradients is ", report.grad_norm, "; ", wanted, " is right");
}

// A third of the computing, as without recomputation.
Status OverlapBench::forward(bool communicates, double pieces) {
  for (size_t i = 0; i < layers(); ++i) {
    if (communicates) {
      if (Status whole = api_status(mdp_param_wait(buffer_, i, nullptr)); !whole) return whole;
    }
    arithmetic_.work(pieces / 3 / task_.layers);
  }
  return {};
}

// What lies in a gradient's place is sent again: a program's own write is not what is measured.
Status OverlapBench::backward(bool communicates, double pieces) {
  for (size_t i = layers(); i-- > 0;) {
    arithmetic_.work(pieces * 2 / 3 / task_.layers);
    if (!communicates) continue;
    mdp_tensor place{};
    place.struct_size = sizeof place;
    int32_t first = 0;
    if (Status lent = api_status(mdp_grad_acquire(buffer_, i, &place, &first, nullptr)); !lent) return lent;
    if (Status ready = api_status(mdp_grad_ready(buffer_, i, nullptr)); !ready) return ready;
  }
  return {};
}

Status OverlapBench::step(bool communicates, double pieces) {
  if (Status done = forward(communicates, pieces); !done) return done;
  if (Status done = backward(communicates, pieces); !done) return done;
  if (!communicates) return {};
  mdp_request* gathers = nullptr;
  const Status stepped = api_status(mdp_optimizer_step(optimizer_, nullptr, nullptr, &gathers));
  mdp_request_free(gathers);
  return stepped;
}

Result<double> OverlapBench::largest(double value) const {
  const int64_t one = 1;
  const mdp_tensor tensor = tensor_of(MDP_DTYPE_F64, &one, &value);
  if (Status reduced = api_status(mdp_all_reduce(comm_, &tensor, &tensor, MDP_OP_MAX, nullptr, nullptr)); !reduced) return reduced;
  return value;
}

Result<double> OverlapBench::milliseconds(bool communicates, double pieces) {
  if (Status met = api_status(mdp_barrier(comm_, nullptr)); !met) return met;
  if (Status before = step(communicates, pieces); !before) return before;
  const uint64_t begin = now_ns();
  for (int i = 0; i < kSteps; ++i) {
    if (Status done = step(communicates, pieces); !done) return done;
  }
  const auto mine = static_cast<double>(now_ns() - begin) / 1e6 / kSteps;
  if (communicates) {
    if (Status whole = api_status(mdp_param_wait(buffer_, SIZE_MAX, nullptr)); !whole) return whole;
  }
  return largest(mine);
}

// How much arithmetic takes `ratio` times as long as the communication, with all ranks at work.
Status OverlapBench::calibrate() {
  std::vector<double> communicating, thousand;
  for (int round = 0; round < 5; ++round) {
    auto alone = milliseconds(true, 0);
    auto arithmetic = milliseconds(false, 1000);
    if (!alone || !arithmetic) return alone ? arithmetic.status() : alone.status();
    communicating.push_back(*alone);
    thousand.push_back(*arithmetic);
  }
  pieces_ = 1000 * task_.ratio * median(communicating) / median(thousand);
  return {};
}

Status OverlapBench::run() {
  std::vector<double> computing, communicating, steps, exposed;
  for (int round = -1; round < task_.rounds; ++round) {  // one to warm up
    auto arithmetic = milliseconds(false, pieces_);
    if (!arithmetic) return arithmetic.status();
    auto alone = milliseconds(true, 0);
    if (!alone) return alone.status();
    auto both = milliseconds(true, pieces_);
    if (!both) return both.status();
    if (round < 0) continue;
    computing.push_back(*arithmetic);
    communicating.push_back(*alone);
    steps.push_back(*both);
    exposed.push_back((*both - *arithmetic) / *alone);
  }
  figures_ = {median(computing), median(communicating), median(steps), median(exposed)};
  return {};
}

Result<OverlapOutcome> OverlapBench::outcome() const {
  size_t params = 0, buckets = 0;
  if (Status counted = api_status(mdp_buffer_counts(buffer_, &params, &buckets)); !counted) return counted;
  return OverlapOutcome{mdp_comm_rank(comm_), mdp_comm_size(comm_), buckets, figures_};
}

}  // namespace

Result<OverlapOutcome> bench_overlap(const OverlapTask& task) {
  OverlapBench bench(task);
  for (Status (OverlapBench::*part)() :
       {&OverlapBench::open, &OverlapBench::check_averages, &OverlapBench::calibrate, &OverlapBench::run}) {
    if (Status done = (bench.*part)(); !done) return done;
  }
  return bench.outcome();
}

}  // namespace megadp::tool
