// SPDX-License-Identifier: Apache-2.0
// `megadp run`: its options, and what they mean together. The launcher is run_supervise.cc.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "control/launch/launch.h"
#include "control/launch/variables.h"
#include "run_environment.h"
#include "run_supervise.h"

namespace megadp::tool {
namespace {

constexpr int kMostRanks = 4096;  // per node: three descriptors and one process each

constexpr const char* kAbout =
    "Each rank finds MEGADP_RANK, MEGADP_NRANKS, MEGADP_LOCAL_RANK, MEGADP_LOCAL_SIZE, MEGADP_JOB, MEGADP_SECRET, MEGADP_LAUNCHER and\n"
    "MEGADP_OUTER_LAUNCHERS in its environment, and OMP_NUM_THREADS and OPENBLAS_NUM_THREADS (processors / ranks, at least 1) where they\n"
    "are not set.\n"
    "Standard input goes to rank 0 unless it is a terminal; the others read from /dev/null.\n"
    "SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGTSTP are passed on to every rank and its children, SIGUSR1 and SIGUSR2 to the ranks alone;\n"
    "a second SIGINT kills.\n"
    "When a rank fails, the others get --grace seconds, then SIGTERM, and 5 seconds later SIGKILL; a rank that the kernel has not ended\n"
    "20 seconds after that is left to it. What the ranks leave behind gets 2 seconds (at most --grace), then the same.\n"
    "If megadp run itself is killed, so are all of its ranks and their children.\n"
    "Exit status: 0; or what the first failing rank returned, 128 + N if signal N killed it; 127 if the command cannot be executed; 2 if\n"
    "this line is wrong; 1 if the machine refused something. A rank killed by a signal within 0.2 seconds of the first failure counts as\n"
    "the first: the others notice its death before it has quite ended.\n\n"
    "Several nodes: run the same line on each with --nranks, --root and --secret-file, and --first-rank counting on:\n"
    "  node a: megadp run -n 2 --nranks 4 --first-rank 0 --root a:2222 --secret-file s.hex ./train\n"
    "  node b: megadp run -n 2 --nranks 4 --first-rank 2 --root a:2222 --secret-file s.hex ./train\n"
    "One secret file for each job: 64 hexadecimal digits, mode 0600. Without --root, MEGADP_ROOT is taken when --nranks needs it.";

constexpr const char* kAboutJson =
    "Say what happens on stderr as one JSON object a line, between the ranks' own lines: "
    "{\"event\":\"started\",\"rank\",\"pid\",\"cpus\"}, "
    "{\"event\":\"ended\",\"rank\",\"pid\",\"exit\",\"signal\",\"seconds\"}, {\"event\":\"signal\",\"signal\",\"ranks\",\"why\"}, "
    "{\"event\":\"leftovers\",\"signal\",\"pids\"}, {\"event\":\"warning\",\"text\"}, {\"event\":\"error\",\"text\"} and, last, "
    "{\"event\":\"summary\",\"ranks\":[{\"rank\",\"pid\",\"exit\",\"signal\"},...],\"exit\"}";

struct Usage : CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: megadp run -n N [OPTIONS] [--] COMMAND [ARGUMENTS...]\n";
  }
};

struct Options {
  int count = 0;
  double grace = 10;
  bool no_prefix = false, json = false;
  std::string bind = "cores";
  int nranks = 0, first_rank = 0;
  std::string root, secret_file;
};

// Fills in the job; a failure is one of the command line.
Status understand(const Options& options, Job* job) {
  if (!std::isfinite(options.grace)) return invalid("--grace is ", options.grace, ": it must be a number of seconds from 0 to 1e9");
  job->count = options.count;
  job->nranks = options.nranks == 0 ? options.count : options.nranks;
  job->first_rank = options.first_rank;
  if (job->nranks < options.first_rank + options.count)
    return invalid("ranks ", options.first_rank, " to ", options.first_rank + options.count - 1,
                   " are to be started here, but --nranks is ", job->nranks, ": it must be at least ", options.first_rank + options.count);
  const bool hosts = job->nranks > options.count;
  job->root = options.root;
  const char* given = std::getenv("MEGADP_ROOT");
  if (job->root.empty() && hosts && given != nullptr) job->root = given;
  if (hosts && job->root.empty())
    return invalid("--nranks ", job->nranks, " with -n ", options.count,
                   " means several nodes: --root HOST:PORT (or MEGADP_ROOT) is missing");
  if (!job->root.empty() && options.secret_file.empty())
    return invalid("several nodes need a shared secret: --secret-file FILE is missing");
  if (job->root.empty() && !options.secret_file.empty()) return invalid("--secret-file is for several nodes: --root HOST:PORT is missing");
  if (!job->root.empty()) {
    Status root = check_root(job->root);
    if (!root) return root;
  }
  return {};
}

Status name_job(const Options& options, Job* job) {
  Result<std::string> launcher = unique_name();
  Result<std::string> secret = options.secret_file.empty() ? random_secret() : read_secret(options.secret_file);
  if (!launcher) return launcher.status();
  if (!secret) return secret.status();
  job->launcher = *launcher;
  job->secret = *secret;
  job->name = job->root.empty() ? *launcher : shared_job_name(*secret, job->root, job->nranks);
  return {};
}

int run(const Options& options, std::vector<std::string> command) {
  if (command.empty()) return used_wrongly("run", "the command to run is missing.");
  if (command.front().empty()) return used_wrongly("run", "the command to run is an empty word.");
  RunConfig config;
  Status understood = understand(options, &config.job);
  if (understood) understood = name_job(options, &config.job);
  if (!understood) {
    const std::string sentence = understood.text() + ".";
    return understood.code() == Code::invalid ? used_wrongly("run", sentence) : failed("run", sentence);
  }
  config.command = std::move(command);
  config.binding = options.bind == "none" ? Binding::none : Binding::cores;
  config.grace_s = options.grace;
  config.prefix = !options.no_prefix;
  config.json = options.json;
  const std::string several = options.nranks == 0 ? one_of_several() : "";
  if (!several.empty()) {
    config.warning =
        "without --nranks, the ranks started here are a job of their own, and train a model of their own; this `megadp run` is one "
        "of several: " +
        several;
  }
  return supervise(config);
}

}  // namespace

Command add_run(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("run", "Start a command as several ranks, and see to it that all of them end");
  sub->formatter(std::make_shared<Usage>());
  sub->footer(kAbout);
  sub->prefix_command();  // what follows the first word that is no option is the command's
  sub->add_option("-n,--ranks", options->count, "How many ranks to start here")->required()->check(CLI::Range(1, kMostRanks));
  sub->add_option("--grace", options->grace, "Seconds that the others get to end when a rank has failed (default 10)")
      ->check(CLI::Range(0.0, 1e9));
  sub->add_flag("--no-prefix", options->no_prefix,
                "Do not put \"[rank] \" before each line of output; lines still stay whole (up to 1 MiB)");
  sub->add_flag("--json", options->json, kAboutJson);
  sub->add_option(
         "--bind", options->bind,
         "cores (default): each rank gets an equal, contiguous share of the processors, unless there are more ranks than these; none")
      ->check(CLI::IsMember({"none", "cores"}));
  sub->add_option("--nranks", options->nranks, "Ranks over all nodes (default: those started here)")->check(CLI::Range(1, kMaxRanks));
  sub->add_option("--first-rank", options->first_rank, "The first rank started here (default 0)")->check(CLI::Range(0, kMaxRanks - 1));
  sub->add_option("--root", options->root, "HOST:PORT where rank 0 shall listen for the other nodes");
  sub->add_option("--secret-file", options->secret_file, "File with the 64 hexadecimal digits that all nodes share");
  return [sub, options](const std::vector<std::string>& rest) {
    std::vector<std::string> command = sub->remaining();
    if (!command.empty() && command.front().size() > 1 && command.front()[0] == '-')
      return used_wrongly("run", fmt::format("there is no option '{}' (a command of that name goes after --).", command.front()));
    // The first -- belongs to this line only if the command has not begun before it.
    const size_t skip = command.empty() && !rest.empty() ? 1 : 0;
    command.insert(command.end(), rest.begin() + static_cast<std::ptrdiff_t>(skip), rest.end());
    return run(*options, std::move(command));
  };
}

}  // namespace megadp::tool
