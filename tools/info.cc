// SPDX-License-Identifier: Apache-2.0
// `megadp info`: what mdp_info answers, as it is (--json) or for a person.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "answer.h"
#include "commands.h"

namespace megadp::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string plain(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_boolean() ? (value.get<bool>() ? "yes" : "no") : value.dump();
}

void row(const std::string& name, const std::string& value) {
  fmt::print("  {:<16} {}\n", name, value.empty() ? "none" : value);
}

// A section whose members have no rendering of their own: whatever the library tells.
void section(const std::string& title, const Json& members) {
  fmt::print("{}\n", title);
  if (!members.is_object()) return row("", plain(members));
  for (const auto& [name, value] : members.items()) row(name, plain(value));
}

void print_backends(const Json& backends) {
  fmt::print("backends\n");
  for (const Json& backend : backends)
    row(plain(backend.at("name")),
        fmt::format("{}; {}", backend.at("available").get<bool>() ? "available" : "not available", plain(backend.at("detail"))));
}

void print_launch(const Json& launch) {
  fmt::print("launch\n");
  if (launch.at("ok").get<bool>()) {
    row("launcher", plain(launch.at("launcher")));
    row("rank", fmt::format("{} of {}", plain(launch.at("rank")), plain(launch.at("size"))));
    row("root", plain(launch.at("root")));
  } else {
    row("error", plain(launch.at("error")));
  }
  if (launch.at("variables").empty()) row("environment", "no variable of a launcher is set");
  for (const Json& variable : launch.at("variables")) row("environment", plain(variable));
}

void print_for_person(const Json& info) {
  for (const auto& [name, value] : info.items()) {
    if (name == "backends")
      print_backends(value);
    else if (name == "launch")
      print_launch(value);
    else if (value.is_object())
      section(name, value);
    else
      fmt::print("{:<18} {}\n", name, plain(value));
  }
}

}  // namespace

Command add_info(CLI::App& app) {
  auto json = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand("info", "What this build is, and what it finds on this machine and in this environment");
  sub->add_flag("--json", *json, "One line: what mdp_info answers");
  return [json](const std::vector<std::string>& rest) {
    if (!rest.empty()) return used_wrongly("info", "nothing may follow --.");
    const Result<std::string> info = answer(mdp_info);
    if (!info) return failed("info", info.status().text());
    if (*json)
      fmt::print("{}\n", *info);
    else
      print_for_person(Json::parse(*info));
    return written("info");
  };
}

}  // namespace megadp::tool
