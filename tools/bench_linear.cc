// SPDX-License-Identifier: Apache-2.0
// `megadp bench linear`: tensor-parallel layers beside nothing but their matrix products. Starts its own ranks as `bench collectives` does.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench_commands.h"
#include "bench_linear_run.h"

namespace megadp::tool {
namespace {

struct Options {
  int64_t features = 4096, hidden = 4096, batch = 512, chunk_rows = 0;
  std::string dtype = "f32";
  int ranks = 1, rounds = 9;
  bool sequence = false, json = false, as_rank = false;
};

constexpr const char* kAbout =
    "A column-parallel layer of features x hidden and a row-parallel one of hidden x features, forward and backward, with all gradients: "
    "six\n"
    "products and two collectives (four with --sequence). In turns with it, each rank computes the same six products by the same library.\n"
    "A round counts as its slowest rank; figures are medians. Results are checked before anything is timed.";

void print(const Options& options, const LinearOutcome& outcome) {
  const LinearFigures& f = outcome.figures;
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  if (options.json) {
    const nlohmann::ordered_json line = {{"ranks", options.ranks},
                                         {"features", options.features},
                                         {"hidden", options.hidden},
                                         {"batch", options.batch},
                                         {"dtype", options.dtype},
                                         {"sequence", options.sequence},
                                         {"library", outcome.gemm_library},
                                         {"layers_ms", rounded(f.layers_ms)},
                                         {"products_ms", rounded(f.products_ms)},
                                         {"products_to_layers", rounded(f.share)}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print("two layers, {} x {} x {}, batch {}, {} over {} ranks{}, {}\n", options.features, options.hidden, options.features,
             options.batch, options.dtype, options.ranks, options.sequence ? ", sequence parallel" : "", outcome.gemm_library);
  fmt::print("  layers    median {:10.3f} ms\n  products  median {:10.3f} ms: {:.0f} % of the layers' time\n", f.layers_ms, f.products_ms,
             100 * f.share);
}

int be_rank(const Options& o) {
  const Result<LinearOutcome> outcome =
      bench_linear({o.features, o.hidden, o.batch, dtype_of(o.dtype), o.sequence, o.chunk_rows, o.rounds});
  if (!outcome) return failed("bench linear", outcome.status().text());
  if (outcome->rank == 0) print(o, *outcome);
  return written("bench linear");
}

int start(const Options& o) {
  std::vector<std::string> command{"linear",     "--as-rank",
                                   "--features", std::to_string(o.features),
                                   "--hidden",   std::to_string(o.hidden),
                                   "--batch",    std::to_string(o.batch),
                                   "--dtype",    o.dtype,
                                   "--ranks",    std::to_string(o.ranks),
                                   "--rounds",   std::to_string(o.rounds)};
  if (o.sequence) command.push_back("--sequence");
  if (o.json) command.push_back("--json");
  if (o.chunk_rows > 0) command.insert(command.end(), {"--chunk-rows", std::to_string(o.chunk_rows)});
  return start_ranks(o.ranks, command);
}

}  // namespace

Command add_bench_linear(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = bench.add_subcommand("linear", "Time tensor-parallel layers against nothing but their matrix products");
  sub->footer(kAbout);
  sub->add_option("--ranks", options->ranks, "How many processes share the layers (default 1)")->check(CLI::Range(1, 256));
  for (const auto& [name, to, what] : {std::tuple("--features", &options->features, "Features in and out (default 4096)"),
                                       std::tuple("--hidden", &options->hidden, "Features between the two, which are cut (default 4096)"),
                                       std::tuple("--batch", &options->batch, "Rows (default 512)")})
    sub->add_option(name, *to, what)->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  sub->add_option(
         "--chunk-rows", options->chunk_rows,
         "Rows whose collective runs under the product of the next ones; with --sequence of each rank (default: as the library chooses)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  sub->add_option("--dtype", options->dtype, "f32 (default) or bf16")->check(CLI::IsMember({"f32", "bf16"}));
  sub->add_option("--rounds", options->rounds, "How many times each is timed, at least 5 (default 9)")->check(CLI::Range(5, 100000));
  sub->add_flag("--sequence", options->sequence, "Sequence parallel: rows are cut outside the layers");
  sub->add_flag("--json", options->json,
                "One line: {\"ranks\",\"features\",\"hidden\",\"batch\",\"dtype\",\"sequence\",\"library\",\"layers_ms\",\"products_ms\",\n"
                "\"products_to_layers\"}");
  sub->add_flag("--as-rank", options->as_rank)->group("");  // what the ranks themselves are started with
  return [options](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("bench linear", "nothing may follow --.");
    return options->as_rank ? be_rank(*options) : start(*options);
  };
}

}  // namespace megadp::tool
