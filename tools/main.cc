// SPDX-License-Identifier: Apache-2.0
// The megadp program: reads the command line and hands over to the subcommand. What each does is in its own file.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "commands.h"
#include "megadp.h"

namespace megadp::tool {

int used_wrongly(const char* command, const std::string& sentence) {
  fmt::print(stderr, "megadp {}: {}\nSee: megadp {} --help\n", command, sentence, command);
  return 2;
}

int failed(const char* command, const std::string& sentence) {
  fmt::print(stderr, "megadp{}{}: {}\n", *command == '\0' ? "" : " ", command, sentence);
  return 1;
}

int written(const char* command) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  return failed(command, "the output could not be written completely");
}

namespace {

// A closed standard stream would give its number to the next file opened, and output would land there.
void open_standard_streams() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    const int opened = open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
    if (opened >= 0 && opened != fd) close(opened);
  }
}

// The parser misses a command and does not say what it found in its place.
std::string about_command(const CLI::App& app) {
  std::string known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    known += (known.empty() ? "" : ", ") + command->get_name();
  const std::vector<std::string> found = app.remaining();
  const auto word = std::find_if(found.begin(), found.end(), [](const std::string& one) { return one.rfind("-", 0) != 0; });
  const std::string what = word == found.end() ? "the command is missing" : fmt::format("there is no command '{}'", *word);
  return fmt::format("{}; there are: {}", what, known);
}

// A wrong command line, or its wish for help or the version.
int answer_parser(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    app.exit(error);  // prints
    return written("");
  }
  std::string name = "megadp";
  const CLI::App* deepest = &app;
  for (std::vector<CLI::App*> subs = app.get_subcommands(); !subs.empty(); subs = subs.front()->get_subcommands()) {
    name += " " + subs.front()->get_name();
    deepest = subs.front();
  }
  const bool no_command = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && deepest->get_require_subcommand_min() > 0;
  std::string sentence = no_command ? about_command(*deepest) : error.what();
  if (!sentence.empty() && sentence.back() != '.') sentence += '.';
  fmt::print(stderr, "{}: {}\nSee: {} --help\n", name, sentence, name);
  return 2;
}

int run_program(int argc, char** argv) {
  CLI::App app{"Data-parallel training for every language: launcher, planner and measurements.", "megadp"};
  const uint32_t version = mdp_version();
  app.set_version_flag("--version", fmt::format("megadp {}.{}.{}", version >> 16, version >> 8 & 255, version & 255));
  app.require_subcommand(1);

  std::vector<std::pair<const CLI::App*, Command>> commands;
  for (auto add : {add_run, add_info, add_plan, add_checkpoint, add_bench}) {
    Command command = add(app);
    commands.emplace_back(app.get_subcommands([](CLI::App*) { return true; }).back(), std::move(command));
  }
  // What follows -- is for the command that is run; the parser would take its options for ours.
  char** const end = argv + argc;
  char** const dashes = std::find_if(argv + 1, end, [](const char* word) { return std::string_view(word) == "--"; });
  const std::vector<std::string> rest(dashes, end);
  try {
    app.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::ParseError& error) {
    return answer_parser(app, error);
  }
  for (const auto& [sub, command] : commands)
    if (sub->parsed()) return command(rest);
  return 2;
}

}  // namespace
}  // namespace megadp::tool

int main(int argc, char** argv) {
  megadp::tool::open_standard_streams();
  try {
    return megadp::tool::run_program(argc, argv);
  } catch (const std::system_error& error) {  // from fmt::print, when its buffer is full and stdout takes no more
    return megadp::tool::failed("", std::string("the output could not be written completely: ") + error.what());
  } catch (const std::exception& error) {
    fmt::print(stderr, "megadp: {}\n", error.what());
    return 1;
  }
}
