// SPDX-License-Identifier: Apache-2.0
// `megadp checkpoint`: looks at a checkpoint, or makes a model of it, without ranks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "answer.h"
#include "commands.h"
#include "megadp.h"

namespace megadp::tool {
namespace {

using Json = nlohmann::ordered_json;

struct Given {
  std::string directory, path;
  uint64_t most_bytes = 0;
  bool json = false;
};

std::string shape_of(const Json& array) {
  std::string out = array.at("dtype").get<std::string>() + "[";
  const char* comma = "";
  for (const Json& size : array.at("shape")) {
    out += comma + size.dump();
    comma = ",";
  }
  return out + "]";
}

void print_contents(const Json& info) {
  const bool is_model = info.at("format") == "safetensors";
  fmt::print("{}\n", info.at("path").get<std::string>());
  if (!is_model) {
    fmt::print("  {:<12} megadp {}, on {}\n", "written by", info.at("written_by").get<std::string>(), info.at("grid").get<std::string>());
  }
  for (const Json& optimizer : info.at("optimizers")) {
    fmt::print("  {:<12} {}, {} steps taken\n", "optimizer", optimizer.at("rule").get<std::string>(), optimizer.at("steps").dump());
  }
  uint64_t bytes = 0;
  for (const Json& file : info.at("files")) bytes += file.at("bytes").get<uint64_t>();
  fmt::print("  {:<12} {}, {:.1f} MiB\n", "files", info.at("files").size(), static_cast<double>(bytes) / (1 << 20));
  fmt::print("  {:<12} {}\n", "arrays", info.at("arrays").size());
  for (const Json& array : info.at("arrays")) {
    std::string more = is_model || array.at("kind") == "parameter" ? "" : "  " + array.at("kind").get<std::string>();
    if (array.contains("cut")) more += fmt::format("  cut along {}", array.at("cut").at("dim").dump());
    for (const Json& alias : array.value("aliases", Json::array())) more += "  = " + alias.get<std::string>();
    fmt::print("    {:<18} {}{}\n", shape_of(array), array.at("name").get<std::string>(), more);
  }
}

Result<std::string> info_of(const Given& given) {
  return answer([&given](char* json, size_t capacity, size_t* needed) {
    return mdp_checkpoint_info(given.directory.c_str(), json, capacity, needed);
  });
}

int show(const Given& given) {
  const Result<std::string> info = info_of(given);
  if (!info) return failed("checkpoint info", info.status().text());
  if (given.json)
    fmt::print("{}", *info);
  else
    print_contents(Json::parse(*info));
  return written("checkpoint info");
}

// Nothing damaged was found: of data without checksums that says little.
int whole(const Given& given) {
  const Result<std::string> info = info_of(given);
  if (!info) return failed("checkpoint verify", info.status().text());
  const Json found = Json::parse(*info);
  bool compared = true;
  for (const Json& file : found.at("files")) compared = compared && file.value("checksums", true);
  fmt::print("{}: {}\n", given.directory,
             compared ? "whole" : "headers and sizes fit; a model has no checksums, so its data was not compared");
  return written("checkpoint verify");
}

int verify(const Given& given) {
  std::string lines(size_t{1} << 20, '\0');
  size_t needed = 0;
  const mdp_status status = mdp_checkpoint_verify(given.directory.c_str(), lines.data(), lines.size(), &needed);
  if (status == MDP_OK) return whole(given);
  lines.resize(lines.find('\0'));
  fmt::print("{}", lines);
  (void)written("checkpoint verify");
  return failed("checkpoint verify", mdp_last_error());
}

int export_model(const Given& given) {
  if (mdp_checkpoint_export(given.directory.c_str(), given.path.c_str(), given.most_bytes) == MDP_OK) return 0;
  return failed("checkpoint export", mdp_last_error());
}

}  // namespace

Command add_checkpoint(CLI::App& app) {
  auto given = std::make_shared<Given>();
  CLI::App* sub = app.add_subcommand("checkpoint", "Looks at a checkpoint, or makes a model of it");
  sub->require_subcommand(1);
  CLI::App* info = sub->add_subcommand("info", "What is in it");
  info->add_flag("--json", given->json, "One line: what mdp_checkpoint_info answers");
  CLI::App* check = sub->add_subcommand("verify", "Reads all of it, and tells every damage");
  CLI::App* model = sub->add_subcommand("export", "Writes its parameters and tensors as ordinary safetensors files");
  for (CLI::App* const each : {info, check, model}) {
    each->add_option("DIR", given->directory, "A folder of checkpoints, one of them, or a safetensors model")->required();
  }
  model->add_option("PATH", given->path, "The file, ....safetensors")->required();
  model->add_option("--most-bytes", given->most_bytes, "Of data in one file; more goes into several, with an index. 0: any")
      ->transform(CLI::AsSizeValue(false));
  return [given, info, check](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("checkpoint", "nothing may follow --.");
    if (info->parsed()) return show(*given);
    return check->parsed() ? verify(*given) : export_model(*given);
  };
}

}  // namespace megadp::tool
