// SPDX-License-Identifier: Apache-2.0
// `megadp bench overlap`: how much of a step's communication is hidden behind computing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_commands.h"
#include "bench_overlap_run.h"
#include "control/launch/launch.h"

namespace megadp::tool {
namespace {

struct Options {
  int64_t numel = int64_t{1} << 24;
  uint64_t bucket_elements = 0;
  double ratio = 2;
  std::string dtype = "f32", sharding = "zero_1";
  int ranks = 2, layers = 16, rounds = 9;
  bool json = false, as_rank = false;
};

const std::map<std::string, mdp_sharding> kShardings = {
    {"zero_0", MDP_SHARDING_ZERO_0}, {"zero_1", MDP_SHARDING_ZERO_1}, {"zero_2", MDP_SHARDING_ZERO_2}};

constexpr const char* kAbout =
    "A model of equal layers takes steps of AdamW. Its computing is arithmetic on what a cache holds, a third of it forward, as much as "
    "takes\n"
    "RATIO times as long as the communication alone (reductions, step, gathers). In turns: the computing alone, the communication alone, "
    "and\n"
    "whole steps. exposed is what the steps take longer than the computing, as a part of the communication. A round counts as its slowest\n"
    "rank; figures are medians. Where all processors compute the communication takes them from the computing, and counts as exposed.\n"
    "Among the ranks of `megadp run`, on one node or several, it measures among these.";

void print(const Options& options, const OverlapOutcome& outcome) {
  const OverlapFigures& f = outcome.figures;
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  if (options.json) {
    const nlohmann::ordered_json line = {{"ranks", outcome.ranks},
                                         {"numel", options.numel / options.layers * options.layers},
                                         {"layers", options.layers},
                                         {"dtype", options.dtype},
                                         {"sharding", options.sharding},
                                         {"buckets", outcome.buckets},
                                         {"ratio", options.ratio},
                                         {"computing_ms", rounded(f.computing_ms)},
                                         {"communicating_ms", rounded(f.communicating_ms)},
                                         {"step_ms", rounded(f.step_ms)},
                                         {"exposed", rounded(f.exposed)}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print("{} layers, {} parameters in {}, {} over {} ranks, {} buckets\n", options.layers,
             options.numel / options.layers * options.layers, options.dtype, options.sharding, outcome.ranks, outcome.buckets);
  fmt::print(
      "  computing      {:10.3f} ms\n  communicating  {:10.3f} ms\n  step           {:10.3f} ms: {:.0f} % of the communication exposed\n",
      f.computing_ms, f.communicating_ms, f.step_ms, 100 * f.exposed);
}

int be_rank(const Options& o) {
  const Result<OverlapOutcome> outcome = bench_overlap({o.numel, o.layers, o.ratio, o.dtype == "bf16" ? MDP_DTYPE_BF16 : MDP_DTYPE_F32,
                                                        kShardings.at(o.sharding), o.bucket_elements, o.rounds});
  if (!outcome) return failed("bench overlap", outcome.status().text());
  if (outcome->rank == 0) print(o, *outcome);
  return written("bench overlap");
}

int start(const Options& o) {
  std::vector<std::string> command{"overlap",    "--as-rank",
                                   "--numel",    std::to_string(o.numel),
                                   "--layers",   std::to_string(o.layers),
                                   "--ratio",    fmt::format("{}", o.ratio),
                                   "--dtype",    o.dtype,
                                   "--sharding", o.sharding,
                                   "--rounds",   std::to_string(o.rounds)};
  if (o.bucket_elements > 0) command.insert(command.end(), {"--bucket-elements", std::to_string(o.bucket_elements)});
  if (o.json) command.push_back("--json");
  return start_ranks(o.ranks, command);
}

}  // namespace

Command add_bench_overlap(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = bench.add_subcommand("overlap", "Time how much of a step's communication is hidden behind computing");
  sub->footer(kAbout);
  sub->add_option("--ranks", options->ranks, "How many processes (default 2)")->check(CLI::Range(1, 256));
  sub->add_option("--numel", options->numel, "Parameters (default 16777216)")->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  sub->add_option("--layers", options->layers, "That they are cut into, evenly (default 16)")->check(CLI::Range(1, 10000));
  sub->add_option("--ratio", options->ratio, "How much longer computing takes than communicating (default 2)")
      ->check(CLI::Range(0.0, 1000.0));
  sub->add_option("--dtype", options->dtype, "Of parameters: f32 (default) or bf16; gradients are f32")
      ->check(CLI::IsMember({"f32", "bf16"}));
  sub->add_option("--sharding", options->sharding, "zero_0, zero_1 (default) or zero_2")->check(CLI::IsMember(kShardings));
  sub->add_option("--bucket-elements", options->bucket_elements, "As mdp_buffer_config has it (default: as the library chooses)")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  sub->add_option("--rounds", options->rounds, "How many times each is timed, at least 5 (default 9)")->check(CLI::Range(5, 100000));
  sub->add_flag("--json", options->json,
                "One line: {\"ranks\",\"numel\",\"layers\",\"dtype\",\"sharding\",\"buckets\",\"ratio\",\"computing_ms\",\n"
                "\"communicating_ms\",\"step_ms\",\"exposed\"}");
  sub->add_flag("--as-rank", options->as_rank)->group("");  // what the ranks themselves are started with
  return [options](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("bench overlap", "nothing may follow --.");
    if (!std::isfinite(options->ratio)) return used_wrongly("bench overlap", "--ratio must be a number.");
    if (options->numel < options->layers) return used_wrongly("bench overlap", "--numel must be at least --layers.");
    const Result<Launch> launch = launch_from_environment();
    return options->as_rank || (launch.ok() && launch->launcher != "alone") ? be_rank(*options) : start(*options);
  };
}

}  // namespace megadp::tool
