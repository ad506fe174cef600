// SPDX-License-Identifier: Apache-2.0
// `megadp bench`: the list of what can be measured.
#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

#include "bench_commands.h"

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

Command add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine and the library on it");
  bench->require_subcommand(1);
  std::vector<std::pair<const CLI::App*, Command>> commands;
  for (auto add : {add_bench_collectives, add_bench_step}) {
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
