// SPDX-License-Identifier: Apache-2.0
// Works on the inner layers, as bench_rank.cc does, since the windows are what gradients and parameters live in. A call is waited for on
// the thread that makes it, as in the C interface.
#include "bench_sweep.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "bench_values.h"

namespace megadp::tool {
namespace {

constexpr uint64_t kLeastBytes = 8;
constexpr uint64_t kSizeNs = 200'000'000;  // to be spent on one size, about
constexpr int kFewestCalls = 3, kMostCalls = 5000;

class Sweep {
 public:
  static Result<std::unique_ptr<Sweep>> open(const SweepTask& task);
  Status run(const std::function<void(const SweepLine&)>& tell);

 private:
  explicit Sweep(const SweepTask& task) : task_(task) {}
  Status call(std::byte* data, size_t count);
  Status finish();
  Result<double> most_of_all(double mine);
  Result<SweepLine> measure(size_t count);
  double least_share() const;

  const SweepTask task_;
  HostRank joined_;
  std::unique_ptr<Window> window_;
  std::vector<std::byte> own_;
};

Result<std::unique_ptr<Sweep>> Sweep::open(const SweepTask& task) {
  std::unique_ptr<Sweep> sweep(new Sweep(task));
  Result<HostRank> joined = join_on_host();
  if (!joined) return joined.status();
  sweep->joined_ = *std::move(joined);
  const size_t bytes =
      std::max<uint64_t>(task.collective.bytes, static_cast<size_t>(sweep->joined_.group->size()) * size_of(task.collective.type));
  if (task.user_memory) {
    sweep->own_.resize(bytes);
    return sweep;
  }
  Result<std::unique_ptr<Window>> window = sweep->joined_.group->allocate_window(bytes);
  if (!window) return window.status();
  sweep->window_ = *std::move(window);
  return sweep;
}

// In place: the own piece is in the middle of the rest.
Status Sweep::call(std::byte* data, size_t count) {
  const CallerWaits here(*joined_.stream, true);
  const BenchTask& task = task_.collective;
  if (!task_.user_memory) {
    const WindowOp op = call_of(task, *window_, count, joined_.group->size());
    return joined_.group->together(*joined_.stream, {&op, 1});
  }
  const size_t piece = count / static_cast<size_t>(joined_.group->size());
  std::byte* const own = data + piece * static_cast<size_t>(joined_.group->rank()) * size_of(task.type);
  const Tag tag{-1, "bench"};
  if (task.collective == Collective::all_reduce)
    return joined_.group->all_reduce(*joined_.stream, data, data, count, task.type, Op::avg, tag);
  if (task.collective == Collective::all_gather) return joined_.group->all_gather(*joined_.stream, own, data, piece, task.type, tag);
  return joined_.group->reduce_scatter(*joined_.stream, data, own, piece, task.type, Op::avg, tag);
}

Status Sweep::finish() {
  return joined_.stream->make_caller_wait_for_all(nullptr);
}

Result<double> Sweep::most_of_all(double mine) {
  const CallerWaits here(*joined_.stream, true);
  if (Status submitted = joined_.group->all_reduce(*joined_.stream, &mine, &mine, 1, DType::f64, Op::max, {-1, "bench"}); !submitted)
    return submitted;
  if (Status done = finish(); !done) return done;
  return mine;
}

// Of the buffer, what a rank that does no more than it must sends and receives: as nccl-tests reckon the bandwidth of the bus.
double Sweep::least_share() const {
  const double others = (joined_.group->size() - 1) / static_cast<double>(joined_.group->size());
  return task_.collective.collective == Collective::all_reduce ? 2 * others : others;
}

Result<SweepLine> Sweep::measure(size_t count) {
  const BenchTask& task = task_.collective;
  std::byte* const data = task_.user_memory ? own_.data() : window_->data();
  SweepLine line{count * size_of(task.type), count};
  fill_values(data, task.type, count, joined_.group->rank());
  if (Result<double> all = most_of_all(0); !all) return all.status();  // all have filled theirs
  if (Status done = call(data, count); !done) return done;
  if (Status done = finish(); !done) return done;
  Result<double> wrong =
      most_of_all(check_values(data, task, count, joined_.group->rank(), joined_.group->size(), 0, "the library").ok() ? 0 : 1);
  if (!wrong) return wrong.status();
  line.right = *wrong == 0;

  const auto time_calls = [&](int calls) -> Result<double> {
    if (Result<double> all = most_of_all(0); !all) return all.status();
    const uint64_t begin_ns = now_ns();
    for (int i = 0; i < calls; ++i) {
      if (Status done = call(data, count); !done) return done;
      if (Status done = finish(); !done) return done;
    }
    return most_of_all(static_cast<double>(now_ns() - begin_ns) / calls);
  };
  Result<double> first = time_calls(kWarmUps);
  if (!first) return first.status();
  const double fit = static_cast<double>(kSizeNs) / std::max(*first, 1.0);
  Result<double> ns = time_calls(static_cast<int>(std::clamp<double>(fit, kFewestCalls, kMostCalls)));
  if (!ns) return ns.status();
  line.us = *ns / 1e3;
  line.algorithm = static_cast<double>(line.bytes) / *ns;
  line.link = line.algorithm * least_share();
  return line;
}

Status Sweep::run(const std::function<void(const SweepLine&)>& tell) {
  const size_t width = size_of(task_.collective.type), ranks = static_cast<size_t>(joined_.group->size());
  for (uint64_t bytes = kLeastBytes; bytes <= task_.collective.bytes; bytes *= 2) {
    Result<SweepLine> line = measure(std::max<size_t>(bytes / width / ranks, 1) * ranks);
    if (!line) return line.status();
    if (joined_.group->rank() == 0) tell(*line);
  }
  return {};
}

}  // namespace

Status sweep_rank(const SweepTask& task, const std::function<void(const SweepLine&)>& tell) {
  Result<std::unique_ptr<Sweep>> sweep = Sweep::open(task);
  return sweep ? (*sweep)->run(tell) : sweep.status();
}

}  // namespace megadp::tool
