// SPDX-License-Identifier: Apache-2.0
// `megadp bench step`: how fast an optimizer step moves memory, beside a copy of as many bytes in the same run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/thread.h"
#include "bench_commands.h"
#include "bench_step_run.h"
#include "rule_names.h"

namespace megadp::tool {
namespace {

struct Options {
  std::string backend = "host", param_dtype = "f32", grad_dtype = "f32", rule = "adamw";
  uint64_t numel = uint64_t{1} << 24;
  int rounds = 20, threads = 0;
  bool json = false;
};

constexpr const char* kAbout =
    "One rank runs the kernels of an optimizer step through the backend, in turns with a copy of as many bytes as the update moves. Bytes "
    "are\n"
    "what must be read and written, each element once; times are taken by the stream's events; shares of the copy's speed are medians over "
    "the rounds. The first step is compared with the host's\n"
    "kernels, bit by bit, before anything is timed. host_syncs counts how often the host waited for the device while steps were submitted.";

nlohmann::ordered_json json_of(const StepTiming& timing) {
  const auto rounded = [](double ms) { return std::round(ms * 1e5) / 1e5; };
  return {{"bytes", timing.bytes},
          {"min_ms", rounded(timing.min_ms)},
          {"median_ms", rounded(timing.median_ms)},
          {"bytes_per_s", std::round(timing.bytes_per_s())}};
}

void print(const Options& options, const StepFigures& f) {
  if (options.json) {
    const nlohmann::ordered_json line = {{"backend", options.backend},
                                         {"rule", options.rule},
                                         {"numel", options.numel},
                                         {"param_dtype", options.param_dtype},
                                         {"grad_dtype", options.grad_dtype},
                                         {"rounds", options.rounds},
                                         {"threads", options.threads},
                                         {"update", json_of(f.update)},
                                         {"square_sum", json_of(f.square_sum)},
                                         {"copy", json_of(f.copy)},
                                         {"update_to_copy", std::round(f.update_to_copy * 1e4) / 1e4},
                                         {"square_sum_to_copy", std::round(f.square_sum_to_copy * 1e4) / 1e4},
                                         {"host_syncs", f.host_syncs}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print("a step on {} elements, parameters {}, gradients {}, {}, {} rounds; the host waited {} times while they were submitted\n",
             options.numel, options.param_dtype, options.grad_dtype, options.backend, options.rounds, f.host_syncs);
  const auto row = [](const char* name, const StepTiming& timing, double share) {
    fmt::print("  {:<12} median {:10.4f} ms, least {:.4f} ms; {} bytes, {:.1f} GB/s, {:.0f} % of the copy's\n", name, timing.median_ms,
               timing.min_ms, timing.bytes, timing.bytes_per_s() / 1e9, 100 * share);
  };
  row(options.rule.c_str(), f.update, f.update_to_copy);
  row("square sum", f.square_sum, f.square_sum_to_copy);
  row("copy", f.copy, 1);
}

}  // namespace

Command add_bench_step(CLI::App& bench) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = bench.add_subcommand("step", "Time the kernels of an optimizer step against a copy of as many bytes");
  sub->footer(kAbout);
  add_backend_option(*sub, &options->backend);
  sub->add_option("--numel", options->numel, "Elements (default 16777216)")->check(CLI::Range(uint64_t{1}, uint64_t{1} << 40));
  for (const auto& [name, to] : {std::pair("--param-dtype", &options->param_dtype), std::pair("--grad-dtype", &options->grad_dtype)})
    sub->add_option(name, *to, "f32 (default), bf16 or f16")->check(CLI::IsMember({"f32", "bf16", "f16"}));
  sub->add_option("--rule", options->rule, "adamw (default), adam, sgd, sgd_momentum, sgd_nesterov or lion")
      ->check(CLI::IsMember(rule_names()));
  sub->add_option("--rounds", options->rounds, "How many times each is timed, at least 5 (default 20)")->check(CLI::Range(5, 100000));
  sub->add_option("--threads", options->threads,
                  "That work on the host's arrays together (default 0: all that this process may use, at most 16)")
      ->check(CLI::Range(0, usable_processors()));
  sub->add_flag(
      "--json", options->json,
      "One line: "
      "{\"backend\",\"rule\",\"numel\",\"param_dtype\",\"grad_dtype\",\"rounds\",\"threads\",\"update\",\"square_sum\",\"copy\",\n"
      "\"update_to_copy\",\"square_sum_to_copy\",\"host_syncs\"}; of each {\"bytes\",\"min_ms\",\"median_ms\",\"bytes_per_s\"}");
  return [options](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("bench step", "nothing may follow --.");
    const Result<StepFigures> figures =
        bench_step({backend_of(options->backend), options->numel, dtype_of(options->param_dtype), dtype_of(options->grad_dtype),
                    options->rounds, rule_of(options->rule), options->threads});
    if (!figures) return failed("bench step", figures.status().text());
    print(*options, *figures);
    return written("bench step");
  };
}

}  // namespace megadp::tool
