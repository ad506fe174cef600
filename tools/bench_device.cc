// SPDX-License-Identifier: Apache-2.0
// Times are those of the stream's events. The ranks tell each other theirs in the end, over the control plane.
#include "bench_device.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "api/backends.h"
#include "base/deadline.h"
#include "bench_values.h"
#include "control/launch/launch.h"

namespace megadp::tool {
namespace {

constexpr uint64_t kJoinTimeout = 60'000'000'000, kRunTimeout = 120'000'000'000;
constexpr int kWarmUps = 3;
constexpr double kTolerance = 0.01;  // NCCL promises no order of summation, and half-width types have 3 digits

class DeviceBench {
 public:
  explicit DeviceBench(const BenchTask& task) : task_(task) {}
  Status open();
  Status check_results();
  Status run();
  Result<BenchOutcome> outcome();
  void tell_others(const Status& why) {
    if (world_) world_->fail(why);
  }

 private:
  Status library();
  Status barrier() { return group_->barrier(*stream_, {-1, "bench"}); }
  Status wait();
  Result<std::vector<double>> slowest(const std::vector<double>& mine);

  const BenchTask task_;
  std::shared_ptr<World> world_;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<Window> window_;
  std::unique_ptr<Memory> copy_;
  std::vector<int> everyone_;
  size_t count_ = 0;
  std::vector<double> library_ms_, copy_ms_;
};

Status DeviceBench::open() {
  Result<Launch> launch = launch_from_environment();
  if (!launch) return launch.status();
  // Ranks that share a device on purpose: NCCL before 2.30 takes that only from what it thinks are different nodes.
  if (getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr) setenv("NCCL_HOSTID", text("rank", launch->rank).c_str(), 0);
  auto world = World::join(*launch, kJoinTimeout);
  if (!world) return world.status();
  world_ = *std::move(world);
  auto backend = open_backend({.kind = BackendKind::cuda}, world_);
  if (!backend) return backend.status();
  backend_ = *std::move(backend);
  everyone_.resize(static_cast<size_t>(world_->size()));
  std::iota(everyone_.begin(), everyone_.end(), 0);
  auto group = backend_->create_group(everyone_);
  if (!group) return group.status();
  group_ = *std::move(group);
  auto stream = backend_->create_stream("bench");
  if (!stream) return stream.status();
  stream_ = *std::move(stream);
  const size_t unit = everyone_.size() * 64;
  count_ = std::max<size_t>(task_.bytes / size_of(task_.type) / unit, 1) * unit;
  auto window = group_->allocate_window(count_ * size_of(task_.type));
  if (!window) return window.status();
  window_ = *std::move(window);
  auto copy = backend_->allocate(count_ * size_of(task_.type));
  if (!copy) return copy.status();
  copy_ = *std::move(copy);
  return {};
}

Status DeviceBench::library() {
  const WindowOp call = call_of(task_, *window_, count_, group_->size());
  return group_->together(*stream_, {&call, 1});
}

Status DeviceBench::wait() {
  auto event = stream_->record();
  return event ? (*event)->wait(Deadline::after_ns(kRunTimeout)) : event.status();
}

Status DeviceBench::check_results() {
  std::vector<std::byte> values(count_ * size_of(task_.type));
  fill_values(values.data(), task_.type, count_, world_->rank());
  if (Status written = backend_->write(window_->data(), values.data(), values.size()); !written) return written;
  if (Status met = barrier(); !met) return met;
  if (Status submitted = library(); !submitted) return submitted;
  if (Status done = wait(); !done) return done;
  if (Status read = backend_->read(values.data(), window_->data(), values.size()); !read) return read;
  return check_values(values.data(), task_, count_, world_->rank(), group_->size(), kTolerance, "the library");
}

// Each round begins when all ranks have come, and is waited for: ranks that share a device would otherwise take its time from each other.
Status DeviceBench::run() {
  for (int round = -kWarmUps; round < task_.rounds; ++round) {
    if (Status met = barrier(); !met) return met;
    std::shared_ptr<Event> at[3];
    for (int part = 0; part < 3; ++part) {
      auto event = stream_->record();
      if (!event) return event.status();
      at[part] = *std::move(event);
      const Status submitted = part == 0   ? library()
                               : part == 1 ? backend_->cast(*stream_, copy_->data(), task_.type, window_->data(), task_.type, count_)
                                           : Status();
      if (!submitted) return submitted;
    }
    if (Status done = wait(); !done) return done;
    for (const auto& event : at)
      if (Status reached = event->status(); !reached) return reached;
    if (round < 0) continue;
    library_ms_.push_back(static_cast<double>(at[1]->time_ns() - at[0]->time_ns()) / 1e6);
    copy_ms_.push_back(static_cast<double>(at[2]->time_ns() - at[1]->time_ns()) / 1e6);
  }
  return {};
}

// A round counts as its slowest rank. Collective; sorted.
Result<std::vector<double>> DeviceBench::slowest(const std::vector<double>& mine) {
  const size_t bytes = mine.size() * sizeof(double);
  auto all = world_->exchange(everyone_, "bench: times", std::string(reinterpret_cast<const char*>(mine.data()), bytes));
  if (!all) return all.status();
  std::vector<double> most(mine.size(), 0), theirs(mine.size());
  for (const std::string& told : *all) {
    if (told.size() != bytes) return internal_error("a rank told ", told.size(), " bytes of times, not ", bytes);
    std::memcpy(theirs.data(), told.data(), bytes);
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], theirs[i]);
  }
  std::sort(most.begin(), most.end());
  return most;
}

Result<BenchOutcome> DeviceBench::outcome() {
  auto library = slowest(library_ms_);
  if (!library) return library.status();
  auto copied = slowest(copy_ms_);
  if (!copied) return copied.status();
  const auto median = [](const std::vector<double>& sorted) {
    const size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };
  return BenchOutcome{world_->rank(), {count_ * size_of(task_.type), library->front(), median(*library), 0, median(*copied)}};
}

}  // namespace

Result<BenchOutcome> bench_device_rank(const BenchTask& task) {
  DeviceBench bench(task);
  Status done = bench.open();
  if (done) done = bench.check_results();
  if (done) done = bench.run();
  if (done) return bench.outcome();
  bench.tell_others(done);
  return done;
}

}  // namespace megadp::tool
