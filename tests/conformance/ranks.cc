// SPDX-License-Identifier: Apache-2.0
// Starting ranks and collecting what they say.
#include "ranks.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "control/launch/launch.h"
#include "thread_world.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace megadp::test {

std::vector<int> Rank::everyone() const {
  std::vector<int> members;
  for (int rank = 0; rank < world_->size(); ++rank) members.push_back(rank);
  return members;
}

void Rank::find(const std::string& what, Place at) {
  const char* const name = std::strrchr(at.file_name(), '/');
  findings_.push_back(text(name == nullptr ? at.file_name() : name + 1, ":", at.line(), ": ", what));
}

bool Rank::check(bool good, const std::string& what, Place at) {
  ++checks_;
  if (!good) find(what, at);
  return good;
}

bool Rank::ok(const Status& status, Place at) {
  ++checks_;
  if (!status.ok()) find(text(code_name(status.code()), ": ", status.text()), at);
  return status.ok();
}

bool Rank::fails(const Status& status, Code code, const std::vector<std::string>& words, Place at) {
  bool good =
      check(status.code() == code, text("status is ", code_name(status.code()), " '", status.text(), "', not ", code_name(code)), at);
  for (const std::string& word : words) {
    good &= check(status.text().find(word) != std::string::npos, text("'", status.text(), "' does not say '", word, "'"), at);
  }
  return good;
}

namespace {

using Body = std::function<void(Rank&)>;

Outcome run_rank(const Setting& setting, int number, Result<std::shared_ptr<World>> world, const Body& body) {
  Outcome outcome;
  const std::string name = text("rank ", number, ": ");
  if (!world.ok()) {
    outcome.findings.push_back(name + "joining the world: " + world.status().text());
    return outcome;
  }
  Result<std::shared_ptr<Backend>> backend = setting.open(*world);
  if (!backend.ok()) {
    outcome.findings.push_back(name + "opening the backend: " + backend.status().text());
    return outcome;
  }
  Rank rank(std::move(*world), std::move(*backend));
  try {
    body(rank);
  } catch (const Rank::Stopped&) {
    // what stopped it is among the findings
  } catch (const std::exception& error) {
    outcome.findings.push_back(name + "exception: " + error.what());
  }
  for (const std::string& finding : rank.findings()) outcome.findings.push_back(name + finding);
  outcome.checks = rank.checks();
  return outcome;
}

Result<std::shared_ptr<World>> join(const UniqueId& id, int rank, int size, uint64_t timeout_ns) {
  Result<Launch> launch = launch_from_id(id, rank, size);
  if (!launch.ok()) return launch.status();
  return World::join(*launch, timeout_ns);
}

void add(Outcome* to, const Outcome& from) {
  to->findings.insert(to->findings.end(), from.findings.begin(), from.findings.end());
  to->checks += from.checks;
}

Outcome run_threads(const Setting& setting, int size, const Body& body) {
  std::vector<std::shared_ptr<World>> worlds;
  UniqueId id;
  const bool by_turns = setting.ranks == Ranks::on_test_hosts, in_pairs = setting.ranks == Ranks::on_test_pairs;
  const bool on_test_world = setting.ranks == Ranks::on_test_world || by_turns || in_pairs;
  if (on_test_world) {
    std::vector<int> hosts;
    for (int rank = 0; rank < size && (by_turns || in_pairs); ++rank) hosts.push_back(by_turns ? rank % 2 : rank / 2);
    worlds = create_thread_worlds(size, setting.timeout_ns, hosts);
  } else {
    Result<UniqueId> created = create_unique_id();
    if (!created.ok()) return {{created.status().text()}, 0};
    id = *created;
  }
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    const auto at = static_cast<size_t>(rank);
    threads.emplace_back([&, rank, at] {
      Result<std::shared_ptr<World>> world =
          on_test_world ? Result<std::shared_ptr<World>>(std::move(worlds[at])) : join(id, rank, size, setting.timeout_ns);
      outcomes[at] = run_rank(setting, rank, std::move(world), body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  Outcome all;
  for (const Outcome& outcome : outcomes) add(&all, outcome);
  return all;
}

// In the child: runs the rank and writes "checks\nfinding\nfinding\n…", one line each.
[[noreturn]] void run_child(const Setting& setting, const UniqueId& id, int rank, int size, const Body& body, int out) {
  // Ranks that share a device are what NCCL before 2.30 refuses, unless it takes them to be on different nodes.
  if (getenv("NCCL_MULTI_RANK_GPU_ENABLE") != nullptr) setenv("NCCL_HOSTID", text("rank", rank).c_str(), 1);
  Outcome outcome = run_rank(setting, rank, join(id, rank, size, setting.timeout_ns), body);
#if defined(__SANITIZE_ADDRESS__)
  if (__lsan_do_recoverable_leak_check() != 0) outcome.findings.push_back(text("rank ", rank, ": leaks memory"));
#endif
  std::string said = text(outcome.checks, "\n");
  for (std::string finding : outcome.findings) {
    for (char& c : finding) c = c == '\n' ? ' ' : c;
    said += finding + "\n";
  }
  const char* at = said.data();
  for (size_t left = said.size(); left > 0;) {
    const ssize_t written = write(out, at, left);
    if (written <= 0) _exit(2);
    at += written;
    left -= static_cast<size_t>(written);
  }
  _exit(0);
}

Outcome hear_child(int rank, pid_t pid, int in, bool killed) {
  std::string said;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(in, buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(got));
  close(in);
  int status = 0;
  waitpid(pid, &status, 0);
  Outcome outcome;
  const bool as_expected = killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 0;
  if (!as_expected) {
    outcome.findings.push_back(text("rank ", rank, ": its process ended with wait status ", status));
  }
  std::istringstream lines(said);
  std::string line;
  if (std::getline(lines, line)) outcome.checks = std::atoi(line.c_str());
  while (std::getline(lines, line)) outcome.findings.push_back(line);
  return outcome;
}

// The test process itself never has another thread: forking one that has is not safe.
Outcome run_processes(const Setting& setting, int size, const Body& body) {
  Result<UniqueId> id = create_unique_id();
  if (!id.ok()) return {{id.status().text()}, 0};
  std::vector<std::pair<pid_t, int>> children;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) return {{"pipe failed"}, 0};
    const pid_t pid = fork();
    if (pid == 0) {
      close(ends[0]);
      for (const auto& [other, in] : children) close(in);
      run_child(setting, *id, rank, size, body, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) return {{"fork failed"}, 0};
    children.emplace_back(pid, ends[0]);
  }
  Outcome all;
  for (int rank = 0; rank < size; ++rank) {
    const auto& [pid, in] = children[static_cast<size_t>(rank)];
    add(&all, hear_child(rank, pid, in, rank == setting.killed));
  }
  return all;
}

}  // namespace

Outcome run_ranks(const Setting& setting, int size, const std::function<void(Rank&)>& body) {
  return setting.ranks == Ranks::processes ? run_processes(setting, size, body) : run_threads(setting, size, body);
}

}  // namespace megadp::test
