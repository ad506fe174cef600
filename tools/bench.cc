// SPDX-License-Identifier: Apache-2.0
// `megadp bench`: the list of what can be measured.
#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

#include "bench_commands.h"
#include "run_environment.h"
#include "run_supervise.h"

namespace megadp::tool {

void add_backend_option(CLI::App& sub, std::string* to) {
  sub.add_option("--backend", *to, "host (default) or cuda")->check(CLI::IsMember({"host", "cuda"}));
}

BackendKind backend_of(const std::string& name) {
  return name == "cuda" ? BackendKind::cuda : BackendKind::host;
}

DType dtype_of(const std::string& name) {
  return name == "bf16" ? DType::bf16 : name == "f16" ? DType::f16 : DType::f32;
}

int start_ranks(int ranks, const std::vector<std::string>& arguments) {
  RunConfig config;
  Result<std::string> name = unique_name();
  Result<std::string> secret = random_secret();
  if (!name || !secret) return failed("bench", (name ? secret.status() : name.status()).text());
  config.job = {ranks, ranks, 0, *name, *name, *secret, ""};
  config.prefix = false;
  config.command = {"/proc/self/exe", "bench"};
  config.command.insert(config.command.end(), arguments.begin(), arguments.end());
  return supervise(config);
}

Command add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine and the library on it");
  bench->require_subcommand(1);
  std::vector<std::pair<const CLI::App*, Command>> commands;
  for (auto add : {add_bench_collectives, add_bench_step, add_bench_linear, add_bench_overlap}) {
    Command command = add(*bench);
    commands.emplace_back(bench->get_subcommands([](CLI::App*) { return true; }).back(), std::move(command));
  }
  return [commands](const std::vector<std::string>& rest) {
    for (const auto& [sub, command] : commands)
      if (sub->parsed()) return command(rest);
    return 2;
  };
}

}  // namespace megadp::tool
