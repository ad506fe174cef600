// SPDX-License-Identifier: Apache-2.0
// Works on the inner layers, for two reasons: the windows are the memory that gradients and parameters live in, and the bare loops need
// everyone's window.
#include "bench_rank.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "api/backends.h"
#include "base/deadline.h"
#include "bench_loops.h"
#include "bench_values.h"
#include "control/launch/launch.h"
#include "host/window.h"

namespace megadp::tool {
namespace {

constexpr int kKinds = 3;  // library, bare loop, memcpy

// In everyone's own part of a second window: where this rank has come to, and what it measured.
struct Board {
  alignas(64) std::atomic<uint64_t> arrivals;
  alignas(64) uint64_t first_time;  // kKinds * rounds of them, nanoseconds
};

class Bench {
 public:
  static Result<std::unique_ptr<Bench>> open(const BenchTask& task);
  Status run();
  Status check_results();
  BenchOutcome outcome() const;
  // What went wrong on one rank ends all of them: the others spin in meet().
  void tell_others(const Status& why) { world_->fail(why); }

 private:
  explicit Bench(const BenchTask& task) : task_(task) {}

  Status library();
  void bare();
  Status meet();
  Status fill();
  Status check(const char* who);
  Status measure(int kind, int round, const std::function<Status()>& work);
  Board& board(int rank) const { return *reinterpret_cast<Board*>(static_cast<host::HostWindow&>(*board_window_).parts()->of(rank)); }
  uint64_t& time(int rank, int kind, int round) const { return (&board(rank).first_time)[kind * task_.rounds + round]; }
  double slowest(int kind, int round) const;

  const BenchTask task_;
  std::shared_ptr<World> world_;
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<Window> window_, board_window_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> copy_;
  BareRange range_{};
  uint64_t meetings_ = 0;
};

Result<std::unique_ptr<Bench>> Bench::open(const BenchTask& task) {
  std::unique_ptr<Bench> bench(new Bench(task));
  Result<HostRank> joined = join_on_host();
  if (!joined) return joined.status();
  bench->world_ = std::move(joined->world);
  bench->backend_ = std::move(joined->backend);
  bench->group_ = std::move(joined->group);
  bench->stream_ = std::move(joined->stream);
  const std::vector<int>& everyone = bench->group_->members();
  for (const int rank : everyone)
    if (bench->world_->node(rank) != bench->world_->node(0)) return invalid("the ranks are on several nodes; bare loops need one");

  const size_t unit = everyone.size() * 64;  // pieces of whole cache lines, whatever the type
  const size_t count = std::max<size_t>(task.bytes / size_of(task.type) / unit, 1) * unit;
  Result<std::unique_ptr<Window>> window = bench->group_->allocate_window(count * size_of(task.type));
  if (!window) return window.status();
  bench->window_ = *std::move(window);
  Result<std::unique_ptr<Window>> board =
      bench->group_->allocate_window(sizeof(Board) + sizeof(uint64_t) * kKinds * static_cast<size_t>(task.rounds));
  if (!board) return board.status();
  bench->board_window_ = *std::move(board);
  bench->copy_.resize(count * size_of(task.type));
  bench->range_ = {{}, bench->world_->rank(), count, task.type};
  for (const int rank : everyone) bench->range_.windows.push_back(static_cast<host::HostWindow&>(*bench->window_).parts()->of(rank));
  return bench;
}

// A barrier of plain loads and stores; the library's own would measure the library. Windows start zeroed, so arrivals start at 0.
Status Bench::meet() {
  board(range_.rank).arrivals.store(++meetings_, std::memory_order_release);
  for (int rank = 0; rank < group_->size(); ++rank)
    for (uint64_t spins = 0; board(rank).arrivals.load(std::memory_order_acquire) < meetings_; ++spins) {
      if (spins % 256 != 255) continue;
      if (world_->failed()) return world_->failure();
      sched_yield();
    }
  return {};
}

Status Bench::library() {
  const WindowOp call = call_of(task_, *window_, range_.count, group_->size());
  if (Status submitted = group_->together(*stream_, {&call, 1}); !submitted) return submitted;
  Result<std::shared_ptr<Event>> done = stream_->record();
  return done ? (*done)->wait(Deadline::never()) : done.status();
}

void Bench::bare() {
  if (task_.collective == Collective::reduce_scatter)
    bare_reduce_scatter(range_);
  else if (task_.collective == Collective::all_reduce)
    bare_all_reduce(range_);
  else
    bare_all_gather(range_);
}

Status Bench::fill() {
  fill_values(window_->data(), task_.type, range_.count, range_.rank);
  return meet();
}

// After one collective on what fill() wrote.
Status Bench::check(const char* who) {
  Status right = check_values(window_->data(), task_, range_.count, range_.rank, group_->size(), 0, who);
  return right.ok() ? meet() : right;
}

// What is measured must also be right.
Status Bench::check_results() {
  if (Status filled = fill(); !filled) return filled;
  if (Status done = library(); !done) return done;
  if (Status right = check("the library"); !right) return right;
  if (Status filled = fill(); !filled) return filled;
  bare();
  if (Status met = meet(); !met) return met;
  return check("the bare loop");
}

Status Bench::measure(int kind, int round, const std::function<Status()>& work) {
  if (Status met = meet(); !met) return met;
  const uint64_t begin = now_ns();
  if (Status done = work(); !done) return done;
  if (round >= 0) time(range_.rank, kind, round) = now_ns() - begin;
  return {};
}

Status Bench::run() {
  const auto bare_between_barriers = [this] {
    if (Status met = meet(); !met) return met;
    bare();
    return meet();
  };
  const auto copy = [this] {
    std::memcpy(copy_.data(), window_->data(), copy_.size());
    return Status();
  };
  for (int round = -kWarmUps; round < task_.rounds; ++round) {
    if (Status done = measure(0, round, [this] { return library(); }); !done) return done;
    if (Status done = measure(1, round, bare_between_barriers); !done) return done;
    if (Status done = measure(2, round, copy); !done) return done;
  }
  return meet();
}

double Bench::slowest(int kind, int round) const {
  uint64_t most = 0;
  for (int rank = 0; rank < group_->size(); ++rank) most = std::max(most, time(rank, kind, round));
  return static_cast<double>(most) / 1e6;
}

BenchOutcome Bench::outcome() const {
  std::vector<std::vector<double>> times(kKinds);
  for (int kind = 0; kind < kKinds; ++kind) {
    std::vector<double>& rounds = times[static_cast<size_t>(kind)];
    for (int round = 0; round < task_.rounds; ++round) rounds.push_back(slowest(kind, round));
    std::sort(rounds.begin(), rounds.end());
  }
  const auto median = [](const std::vector<double>& sorted) {
    const size_t half = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  };
  return {range_.rank, {copy_.size(), times[0].front(), median(times[0]), median(times[1]), median(times[2])}};
}

}  // namespace

Result<HostRank> join_on_host() {
  HostRank joined;
  Result<Launch> launch = launch_from_environment();
  if (!launch) return launch.status();
  Result<std::shared_ptr<World>> world = World::join(*launch, kJoinTimeout);
  if (!world) return world.status();
  joined.world = *std::move(world);
  Result<std::shared_ptr<Backend>> backend = open_backend({.kind = BackendKind::host}, joined.world);
  if (!backend) return backend.status();
  joined.backend = *std::move(backend);
  std::vector<int> everyone(static_cast<size_t>(joined.world->size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  Result<std::shared_ptr<Group>> group = joined.backend->create_group(everyone);
  if (!group) return group.status();
  joined.group = *std::move(group);
  Result<std::unique_ptr<Stream>> stream = joined.backend->create_stream("bench");
  if (!stream) return stream.status();
  joined.stream = *std::move(stream);
  return joined;
}

Result<BenchOutcome> bench_rank(const BenchTask& task) {
  Result<std::unique_ptr<Bench>> bench = Bench::open(task);
  if (!bench) return bench.status();
  Status done = (*bench)->check_results();
  if (done) done = (*bench)->run();
  if (done) return (*bench)->outcome();
  (*bench)->tell_others(done);
  return done;
}

}  // namespace megadp::tool
