// SPDX-License-Identifier: Apache-2.0
// `megadp bench collectives`: starts its own ranks, which are this program again, by the launcher of `megadp run`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_commands.h"
#include "bench_device.h"
#include "bench_rank.h"
#include "bench_sweep.h"
#include "control/launch/launch.h"

namespace megadp::tool {
namespace {

struct Options {
  std::string op, dtype = "f32", backend = "host";
  int ranks = 2, rounds = 20;
  double mib = 64;
  bool json = false, sweep = false, user_memory = false, as_rank = false;
};

constexpr const char* kAbout =
    "Every round times the collective on the library's own windows, the same work as bare loops over everyone's windows between two\n"
    "barriers, and a memcpy of each rank's buffer; a round counts as its slowest rank. limit_ms is the median of the bare loops.\n"
    "Results are checked before anything is timed. With --backend cuda the windows are on the devices, times are those of the stream's\n"
    "events, and the copy is one on the device; there are no bare loops, and limit_ms is null. Ranks that share a device on purpose want\n"
    "NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment.\n\n"
    "With --sweep all sizes from 8 bytes to --mib are timed, one call after another, and a line is printed for each, as nccl-tests do:\n"
    "the mean time of a call on the slowest rank, the buffer's bytes over that (algbw, in 1e9 bytes a second), that times the share\n"
    "which each rank must send (busbw), and whether the result was right. Among ranks that are there already, on one node or several,\n"
    "it is a program like another: megadp run -n 2 megadp bench collectives --op all_reduce --sweep";

Collective collective_of(const std::string& name) {
  return name == "all_reduce" ? Collective::all_reduce : name == "all_gather" ? Collective::all_gather : Collective::reduce_scatter;
}

void print(const Options& options, const BenchFigures& f) {
  const auto rounded = [](double ms) { return std::round(ms * 1e4) / 1e4; };
  if (options.json) {
    const nlohmann::ordered_json line = {
        {"op", options.op},
        {"backend", options.backend},
        {"ranks", options.ranks},
        {"bytes", f.bytes},
        {"dtype", options.dtype},
        {"min_ms", rounded(f.ours_min)},
        {"median_ms", rounded(f.ours_median)},
        {"limit_ms", f.bare_median > 0 ? nlohmann::ordered_json(rounded(f.bare_median)) : nlohmann::ordered_json()},
        {"memcpy_ms", rounded(f.memcpy_median)}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print("{} of {} bytes of {} over {} ranks, {} rounds\n", options.op, f.bytes, options.dtype, options.ranks, options.rounds);
  fmt::print("  library    median {:10.4f} ms, least {:.4f} ms\n", f.ours_median, f.ours_min);
  if (options.backend == "host")
    fmt::print("  bare loop  median {:10.4f} ms: the library runs at {:.0f} % of its speed\n", f.bare_median,
               100 * f.bare_median / f.ours_median);
  fmt::print("  {:<10} median {:10.4f} ms\n", options.backend == "host" ? "memcpy" : "copy", f.memcpy_median);
}

void print_line(const Options& options, const SweepLine& line) {
  if (options.json) {
    const nlohmann::ordered_json out = {{"op", options.op}, {"dtype", options.dtype},  {"bytes", line.bytes}, {"count", line.count},
                                        {"us", line.us},    {"algbw", line.algorithm}, {"busbw", line.link},  {"right", line.right}};
    fmt::print("{}\n", out.dump());
  } else {
    fmt::print("{:>12} {:>12} {:>8} {:>12.2f} {:>10.3f} {:>10.3f}  {}\n", line.bytes, line.count, options.dtype, line.us, line.algorithm,
               line.link, line.right ? "yes" : "NO");
  }
  std::fflush(stdout);  // one by one: the large ones take a while
}

int sweep(const Options& options, const BenchTask& task) {
  bool all_right = true, begun = false;
  const Status done = sweep_rank({task, options.user_memory}, [&](const SweepLine& line) {
    if (!begun && !options.json) {
      fmt::print("{} on {}\n{:>12} {:>12} {:>8} {:>12} {:>10} {:>10}  {}\n", options.op,
                 options.user_memory ? "memory of the caller's" : "windows", "bytes", "count", "type", "time (us)", "algbw", "busbw",
                 "right");
    }
    begun = true;
    all_right = all_right && line.right;
    print_line(options, line);
  });
  if (!done) return failed("bench", done.text());
  if (!all_right) return failed("bench", "a result was wrong");
  return written("bench");
}

int be_rank(const Options& options) {
  const auto bytes = static_cast<uint64_t>(options.mib * 1048576);
  const BenchTask task{collective_of(options.op), bytes, dtype_of(options.dtype), options.rounds};
  if (options.sweep) return sweep(options, task);
  const Result<BenchOutcome> outcome = options.backend == "cuda" ? bench_device_rank(task) : bench_rank(task);
  if (!outcome) return failed("bench", outcome.status().text());
  if (outcome->rank == 0) print(options, outcome->figures);
  return written("bench");
}

int start(const Options& options) {
  std::vector<std::string> command{"collectives", "--as-rank",
                                   "--op",        options.op,
                                   "--backend",   options.backend,
                                   "--dtype",     options.dtype,
                                   "--ranks",     std::to_string(options.ranks),
                                   "--rounds",    std::to_string(options.rounds),
                                   "--mib",       fmt::format("{}", options.mib)};
  if (options.json) command.push_back("--json");
  if (options.sweep) command.push_back("--sweep");
  if (options.user_memory) command.push_back("--user-memory");
  return start_ranks(options.ranks, command);
}

}  // namespace

Command add_bench_collectives(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = bench.add_subcommand("collectives", "Time a collective against plain loops over the same memory");
  sub->footer(kAbout);
  sub->add_option("--op", options->op, "reduce_scatter, all_reduce or all_gather")
      ->required()
      ->check(CLI::IsMember({"reduce_scatter", "all_reduce", "all_gather"}));
  add_backend_option(*sub, &options->backend);
  sub->add_option("--ranks", options->ranks, "How many processes (default 2)")->check(CLI::Range(1, 256));
  CLI::Option* const mib =
      sub->add_option("--mib", options->mib, "Size of each rank's whole buffer, in MiB (default 64)")->check(CLI::Range(1e-3, 1e6));
  sub->add_option("--dtype", options->dtype, "f32 (default), bf16 or f16")->check(CLI::IsMember({"f32", "bf16", "f16"}));
  sub->add_option("--rounds", options->rounds, "How many times each is timed, at least 20 (default 20)")->check(CLI::Range(20, 100000));
  sub->add_flag("--json", options->json,
                "One line: {\"op\",\"backend\",\"ranks\",\"bytes\",\"dtype\",\"min_ms\",\"median_ms\",\"limit_ms\",\"memcpy_ms\"}");
  CLI::Option* const sweep = sub->add_flag("--sweep", options->sweep, "All sizes from 8 bytes to --mib (default 256), on the host");
  sub->add_flag("--user-memory", options->user_memory, "With --sweep: on memory of the caller's, not on windows")->needs(sweep);
  sub->add_flag("--as-rank", options->as_rank)->group("");  // what the ranks themselves are started with
  return [options, mib](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("bench", "nothing may follow --.");
    if (!std::isfinite(options->mib)) return used_wrongly("bench", "--mib must be a number.");
    if (options->sweep && options->backend != "host") return used_wrongly("bench", "--sweep is for --backend host.");
    if (options->sweep && mib->count() == 0) options->mib = 256;
    // Ranks that are there already measure among themselves.
    const Result<Launch> launch = launch_from_environment();
    const bool is_rank = options->as_rank || (options->sweep && launch.ok() && launch->launcher != "alone");
    return is_rank ? be_rank(*options) : start(*options);
  };
}

}  // namespace megadp::tool
