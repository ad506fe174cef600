// SPDX-License-Identifier: Apache-2.0
#include "bench_linear_run.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "api/backends.h"
#include "base/deadline.h"
#include "base/math.h"
#include "control/agreement.h"
#include "control/launch/launch.h"
#include "core/tp_linear.h"
#include "median.h"

namespace megadp::tool {
namespace {

constexpr uint64_t kJoinTimeout = 60'000'000'000;

// Arrays of this rank: x -> up (columns) -> h -> down (rows) -> y, and their gradients.
class LinearBench {
 public:
  explicit LinearBench(const LinearTask& task) : task_(task) {}
  Status open();
  Status check_results();
  Result<LinearFigures> run();
  int rank() const { return comm_->rank(); }
  Result<std::string> gemm_library() const { return comm_->context().backend->gemm_library(); }

 private:
  Result<StridedArray> array(int64_t rows, int64_t columns, float value);
  Status layers();
  Status products();
  Status product(const StridedArray& c, const Matrix& a, const Matrix& b);
  Status timed(const std::function<Status()>& work, std::vector<double>* times);

  const LinearTask task_;
  std::shared_ptr<Comm> comm_;
  std::shared_ptr<TpLinear> up_, down_;
  std::vector<std::unique_ptr<Memory>> memory_;
  StridedArray x_, h_, y_, up_weight_, down_weight_, dx_, dh_, dy_, d_up_, d_down_;
  StridedArray whole_x_, whole_y_;  // with a sequence: of all ranks
};

Result<StridedArray> LinearBench::array(int64_t rows, int64_t columns, float value) {
  Backend& backend = *comm_->context().backend;
  const auto count = static_cast<size_t>(rows) * static_cast<size_t>(columns);
  auto memory = backend.allocate(std::max<size_t>(count * size_of(task_.type), 64));
  if (!memory) return memory.status();
  const StridedArray made = dense_array((*memory)->data(), task_.type, {rows, columns});
  memory_.push_back(*std::move(memory));
  // One element, seen as all of them.
  const StridedArray from{&value, DType::f32, {rows, columns}, {0, 0}};
  if (Status filled = backend.copy(made, from, false, nullptr); !filled) return filled;
  return made;
}

Status LinearBench::open() {
  Result<Launch> launch = launch_from_environment();
  if (!launch) return launch.status();
  auto world = World::join(*launch, kJoinTimeout);
  if (!world) return world.status();
  auto backend = open_backend({.kind = BackendKind::host}, *world);
  if (!backend) return backend.status();
  auto comm = Comm::create(*world, *backend, {});
  if (!comm) return comm.status();
  comm_ = *comm;
  TpLinearConfig column;
  column.in = task_.features;
  column.out = task_.hidden;
  column.type = task_.type;
  column.sequence = task_.sequence;
  column.chunk_rows = task_.chunk_rows;
  TpLinearConfig row = column;
  row.split = TpSplit::row;
  std::swap(row.in, row.out);
  for (auto [config, layer] : {std::pair(&column, &up_), {&row, &down_}}) {
    auto made = TpLinear::create(comm_, *config);
    if (!made) return made.status();
    *layer = *made;
  }
  const int64_t size = comm_->size(), part = task_.hidden / size;
  if (task_.sequence && task_.batch % size != 0) {
    return invalid("--batch is ", task_.batch, ", which ", size, " ranks cannot share evenly with --sequence");
  }
  const int64_t rows = task_.sequence ? task_.batch / size : task_.batch;
  const struct {
    StridedArray* to;
    int64_t rows, columns;
    float value;
  } arrays[] = {{&x_, rows, task_.features, 0.5F},
                {&h_, task_.batch, part, 0},
                {&y_, rows, task_.features, 0},
                {&up_weight_, part, task_.features, 0.25F},
                {&down_weight_, task_.features, part, 0.125F},
                {&dx_, rows, task_.features, 0},
                {&dh_, task_.batch, part, 0},
                {&dy_, rows, task_.features, 0.5F},
                {&d_up_, part, task_.features, 0},
                {&d_down_, task_.features, part, 0},
                {&whole_x_, task_.batch, task_.features, 0.5F},
                {&whole_y_, task_.batch, task_.features, 0.5F}};
  for (const auto& one : arrays) {
    auto made = array(one.rows, one.columns, one.value);
    if (!made) return made.status();
    *one.to = *made;
  }
  return {};
}

Status LinearBench::layers() {
  if (Status done = up_->forward({&x_, &up_weight_, nullptr, &h_}, nullptr); !done) return done;
  if (Status done = down_->forward({&h_, &down_weight_, nullptr, &y_}, nullptr); !done) return done;
  TpLinear::Backward back{nullptr, &h_, &down_weight_, &dy_};
  back.grad_input = &dh_;
  back.grad_weight = &d_down_;
  if (Status done = down_->backward(back, nullptr); !done) return done;
  back = {nullptr, &x_, &up_weight_, &dh_};
  back.grad_input = &dx_;
  back.grad_weight = &d_up_;
  return up_->backward(back, nullptr);
}

Status LinearBench::product(const StridedArray& c, const Matrix& a, const Matrix& b) {
  return comm_->context().backend->gemm(*fold(c), a, b, false, nullptr);
}

// The same six on the same shapes.
Status LinearBench::products() {
  const Matrix x = *fold(whole_x_), h = *fold(h_), dy = *fold(whole_y_), dh = *fold(dh_), up = *fold(up_weight_),
               down = *fold(down_weight_);
  if (Status done = product(h_, x, transposed(up)); !done) return done;
  if (Status done = product(whole_y_, h, transposed(down)); !done) return done;
  if (Status done = product(dh_, dy, down); !done) return done;
  if (Status done = product(d_down_, transposed(dy), h); !done) return done;
  if (Status done = product(whole_x_, dh, up); !done) return done;
  return product(d_up_, transposed(dh), x);
}

// All values are equal: so are those of each result, and all sums are exact in f32 where they stay small enough.
Status LinearBench::check_results() {
  if (Status done = layers(); !done) return done;
  const auto hidden = static_cast<double>(task_.hidden), features = static_cast<double>(task_.features);
  const double h = 0.5 * 0.25 * features, dh = 0.5 * 0.125 * features;
  const struct {
    const StridedArray& array;
    double wanted;
    const char* name;
  } all[] = {{h_, h, "hidden features"},
             {y_, h * 0.125 * hidden, "outputs"},
             {dh_, dh, "gradients of hidden features"},
             {dx_, dh * 0.25 * hidden, "gradients of inputs"},
             {d_down_, 0.5 * h * static_cast<double>(task_.batch), "gradients of the second weight"},
             {d_up_, 0.5 * dh * static_cast<double>(task_.batch), "gradients of the first weight"}};
  const double slack = task_.type == DType::bf16 ? 0.02 : 1e-5;
  for (const auto& one : all) {
    float first = 0;
    StridedArray element = one.array;
    element.shape = {1, 1};
    const StridedArray to{&first, DType::f32, {1, 1}, {1, 1}};
    if (Status read = comm_->context().backend->copy(to, element, false, nullptr); !read) return read;
    if (std::fabs(first - one.wanted) > slack * one.wanted) {
      return internal_error("the first of the ", one.name, " is ", first, "; ", one.wanted, " is right");
    }
  }
  return {};
}

Status LinearBench::timed(const std::function<Status()>& work, std::vector<double>* times) {
  auto together = comm_->barrier(false);
  if (!together) return together.status();
  const uint64_t begin = now_ns();
  if (Status done = work(); !done) return done;
  times->push_back(static_cast<double>(now_ns() - begin) / 1e6);
  return {};
}

Result<LinearFigures> LinearBench::run() {
  std::vector<double> ours, bare;
  for (int round = -1; round < task_.rounds; ++round) {  // one to warm up
    if (Status done = timed([this] { return layers(); }, &ours); !done) return done;
    if (Status done = timed([this] { return products(); }, &bare); !done) return done;
  }
  std::vector<double> shares;
  for (size_t i = 0; i < ours.size(); ++i) {
    struct Pair {
      double ours, bare;
    };
    auto all = exchange_as(*comm_->context().world, comm_->group().members(), "megadp bench linear", Pair{ours[i], bare[i]});
    if (!all) return all.status();
    for (const Pair& one : *all) {
      ours[i] = std::max(ours[i], one.ours);
      bare[i] = std::max(bare[i], one.bare);
    }
    shares.push_back(bare[i] / ours[i]);
  }
  for (auto* list : {&ours, &bare, &shares}) list->erase(list->begin());
  return LinearFigures{median(ours), median(bare), median(shares)};
}

}  // namespace

Result<LinearOutcome> bench_linear(const LinearTask& task) {
  LinearBench bench(task);
  if (Status opened = bench.open(); !opened) return opened;
  if (Status right = bench.check_results(); !right) return right;
  auto figures = bench.run();
  if (!figures) return figures.status();
  auto library = bench.gemm_library();
  if (!library) return library.status();
  return LinearOutcome{bench.rank(), *figures, *library};
}

}  // namespace megadp::tool
