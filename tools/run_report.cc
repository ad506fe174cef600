// SPDX-License-Identifier: Apache-2.0
#include "run_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <string.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace megadp::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string line(const Json& object) {
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json name_or_null(int signal) {
  return signal == 0 ? Json(nullptr) : Json(signal_name(signal));
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

void Report::say(const std::string& sentence) {
  sink_.line("", json_ ? sentence : "megadp run: " + sentence, true, -2);
}

void Report::started(int rank, pid_t pid, const std::vector<int>& cpus) {
  if (json_) say(line({{"event", "started"}, {"rank", rank}, {"pid", pid}, {"cpus", cpus}}));
}

void Report::ended(const Ended& rank, size_t others, double grace) {
  if (json_) {
    Json event = {{"event", "ended"},
                  {"rank", rank.rank},
                  {"pid", rank.pid},
                  {"exit", rank.exit},
                  {"signal", name_or_null(rank.signal)},
                  {"seconds", std::round(rank.seconds * 1e3) / 1e3}};
    if (!rank.out_of_memory.empty()) event["out_of_memory"] = rank.out_of_memory;
    return say(line(event));
  }
  if (rank.exit == 0) return;
  std::string sentence = rank.signal != 0 ? fmt::format("rank {} (pid {}) was killed by signal {} ({}){}", rank.rank, rank.pid, rank.signal,
                                                        signal_name(rank.signal), rank.core ? ", core dumped" : "")
                                          : fmt::format("rank {} (pid {}) exited with code {}", rank.rank, rank.pid, rank.exit);
  if (!rank.out_of_memory.empty()) sentence += "; " + rank.out_of_memory;
  if (others == 1) sentence += fmt::format("; the other one still running has {:g} s to end", grace);
  if (others > 1) sentence += fmt::format("; the {} others still running have {:g} s to end", others, grace);
  say(sentence);
}

void Report::signalled(int signal, const std::vector<int>& ranks, const char* why, const std::string& sentence) {
  if (json_) return say(line({{"event", "signal"}, {"signal", signal_name(signal)}, {"ranks", ranks}, {"why", why}}));
  if (!sentence.empty()) say(sentence);
}

void Report::leftovers(int signal, const std::vector<pid_t>& pids) {
  if (json_) return say(line({{"event", "leftovers"}, {"signal", signal_name(signal)}, {"pids", pids}}));
  say(fmt::format("the ranks have ended but left processes behind ({}): {}", fmt::join(pids, ", "), signal_name(signal)));
}

void Report::warning(const std::string& sentence) {
  say(json_ ? line({{"event", "warning"}, {"text", sentence}}) : "warning: " + sentence);
}

void Report::error(const std::string& sentence) {
  say(json_ ? line({{"event", "error"}, {"text", sentence}}) : sentence);
}

void Report::summary(const std::vector<Ended>& ranks, int exit) {
  if (!json_) return;
  Json list = Json::array();
  for (const Ended& rank : ranks)
    list.push_back({{"rank", rank.rank}, {"pid", rank.pid}, {"exit", rank.exit}, {"signal", name_or_null(rank.signal)}});
  say(line({{"event", "summary"}, {"ranks", list}, {"exit", exit}}));
}

}  // namespace megadp::tool
