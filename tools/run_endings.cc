// SPDX-License-Identifier: Apache-2.0
// What the launcher does when a rank ends, a signal comes or a time has passed: see the stages in run_supervise.h.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "run_processes.h"
#include "run_supervisor.h"

namespace megadp::tool {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr double kTermSeconds = 5;    // between SIGTERM and SIGKILL
constexpr double kLingerSeconds = 2;  // for what the ranks left behind to end by itself
constexpr double kKillSeconds = 2;    // for SIGKILL to take effect on those

Deadline in_seconds(double seconds) {
  return Deadline::after_ns(static_cast<uint64_t>(seconds * static_cast<double>(kSecond)));
}

}  // namespace

void Supervisor::read_deaths() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(deaths_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    Rank& rank = ranks_[events[static_cast<size_t>(i)].data.u32];
    int status = 0;
    if (!rank.running) continue;
    if (waitpid(rank.end.pid, &status, WNOHANG) == rank.end.pid) {
      rank_ended(rank, status);
    } else {
      rank.pidfd.reset();  // a tracer has it yet: SIGCHLD will tell
    }
  }
}

void Supervisor::read_signals() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo != SIGCHLD)
      on_signal(static_cast<int>(info.ssi_signo));
    else
      reap();
  }
}

void Supervisor::reap() {
  read_deaths();  // those come in order
  int status = 0;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [pid](const Rank& r) { return r.running && r.end.pid == pid; });
    if (rank != ranks_.end()) rank_ended(*rank, status);
  }
  check_groups();
  // Their parents being dead, more of them may have come to this process.
  if (stage_ == Stage::left_killed) signal_leftovers(SIGKILL);
}

void Supervisor::note_end(Rank& rank, int wait_status) {
  rank.running = false;
  rank.pidfd.reset();
  rank.end.signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  rank.end.core = WIFSIGNALED(wait_status) && WCOREDUMP(wait_status);
  rank.end.exit = rank.end.signal != 0 ? 128 + rank.end.signal : WEXITSTATUS(wait_status);
  rank.end.seconds = static_cast<double>(now_ns() - rank.started_ns) / static_cast<double>(kSecond);
}

void Supervisor::rank_ended(Rank& rank, int wait_status) {
  note_end(rank, wait_status);
  const bool kills = stage_ != Stage::well && stage_ != Stage::grace && stage_ != Stage::terminated;  // a SIGKILL may be ours
  if (rank.end.signal == SIGKILL && !kills) rank.end.out_of_memory = out_of_memory_.killed(rank.end.pid);
  // What it said comes before what is said of it.
  for (RankOutput* stream : {&rank.out, &rank.err}) read_output(*stream, 16);

  const size_t others = running().size();
  const bool first = rank.end.exit != 0 && first_failure_ == nullptr;
  const bool grace = first && stage_ == Stage::well;  // all may have been killed already
  report_.ended(rank.end, grace ? others : 0, config_.grace_s);
  if (first) {
    first_failure_ = &rank;
    for (Rank& other : ranks_) other.was_ending = other.running && is_ending(other.end.pid);
  } else if (rank.end.signal != 0 && rank.was_ending && first_failure_->end.signal == 0 && !has_signalled_) {
    first_failure_ = &rank;  // it closes its sockets before it can be waited for: ranks that learn of its death there may end sooner
  }
  if (grace) {
    stage_ = Stage::grace;
    alarm_ = in_seconds(config_.grace_s);
  }
  check_groups();
  if (others == 0) last_rank_ended();
}

void Supervisor::last_rank_ended() {
  stage_ = Stage::lingering;
  alarm_ = in_seconds(std::min(config_.grace_s, kLingerSeconds));
}

void Supervisor::on_signal(int signal) {
  const std::vector<int> ranks = running();
  if (ranks.empty()) {  // only output, or what the ranks left behind, is waited for
    if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGTSTP) return;
    signal_leftovers(SIGKILL);
    stage_ = Stage::abandoned;
    return;
  }
  if (signal == SIGINT && ++interrupts_ >= 2) {
    report_.signalled(SIGKILL, ranks, "interrupted_twice", "interrupted twice: SIGKILL to all ranks");
    kill_all();
    return;
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    // Programs give these a meaning of their own; the ranks' children, which may not, would die of them.
    has_signalled_ = true;
    for (const Rank& rank : ranks_)
      if (rank.running) kill(rank.end.pid, signal);
  } else {
    signal_groups(signal);
  }
  report_.signalled(signal, ranks, "user", signal == SIGINT ? "interrupted: SIGINT to all ranks; once more kills them" : "");
  if (signal != SIGTSTP) return;
  stderr_.flush();
  raise(SIGSTOP);
  signal_groups(SIGCONT);
}

void Supervisor::kill_all() {
  signal_groups(SIGKILL);
  stage_ = Stage::killed;
  alarm_ = in_seconds(kDieSeconds);
}

// The kernel does not let them end (a read from a lost disk, a tracer that does not let go), and may never do so.
void Supervisor::give_up_ranks() {
  for (Rank& rank : ranks_) {
    if (!rank.running) continue;
    report_.error(fmt::format("rank {} (pid {}) has not ended {:g} s after SIGKILL: it is left to the kernel", rank.end.rank, rank.end.pid,
                              kDieSeconds));
    note_end(rank, SIGKILL);
    if (first_failure_ == nullptr) first_failure_ = &rank;
  }
  signal_leftovers(SIGKILL);
  stage_ = Stage::left_killed;
  alarm_ = in_seconds(kKillSeconds);
}

void Supervisor::abandon_leftovers() {
  if (!leftovers().empty()) report_.error(fmt::format("processes {} cannot be killed", fmt::join(leftovers(), ", ")));
  for (Rank& rank : ranks_)
    for (RankOutput* stream : {&rank.out, &rank.err}) {
      read_output(*stream, 16);
      stream->lines.finish();
      stream->fd.reset();
    }
  strangers_ = living_children();
  for (Rank& rank : ranks_) rank.group_lives = false;
}

void Supervisor::on_alarm() {
  alarm_ = Deadline::never();
  const auto late = [&](int signal, double since) {
    report_.signalled(signal, running(), "grace",
                      fmt::format("rank{} {} still running {:g} s after rank {} failed: {}", running().size() > 1 ? "s" : "",
                                  fmt::join(running(), ", "), since, first_failure_->end.rank, signal_name(signal)));
  };
  switch (stage_) {
    case Stage::grace:
      late(SIGTERM, config_.grace_s);
      signal_groups(SIGTERM);
      signal_groups(SIGCONT);  // a stopped process cannot end
      stage_ = Stage::terminated;
      alarm_ = in_seconds(kTermSeconds);
      break;
    case Stage::terminated:
      late(SIGKILL, config_.grace_s + kTermSeconds);
      kill_all();
      break;
    case Stage::killed:
      give_up_ranks();
      break;
    case Stage::lingering:
      if (!leftovers().empty()) report_.leftovers(SIGTERM, leftovers());
      signal_leftovers(SIGTERM);
      signal_leftovers(SIGCONT);
      stage_ = Stage::left_terminated;
      alarm_ = in_seconds(std::min(config_.grace_s, kTermSeconds));
      break;
    case Stage::left_terminated:
      if (!leftovers().empty()) report_.leftovers(SIGKILL, leftovers());
      signal_leftovers(SIGKILL);
      stage_ = Stage::left_killed;
      alarm_ = in_seconds(kKillSeconds);
      break;
    case Stage::left_killed:
      // A process that the kernel cannot kill now, or one outside this job that was handed the pipe. While our own reader is slow,
      // bytes of the ranks may still be on their way.
      if (stdout_.waiting() || stderr_.waiting()) {
        alarm_ = in_seconds(kKillSeconds);
      } else {
        abandon_leftovers();
      }
      break;
    default:
      break;
  }
}

void Supervisor::signal_groups(int signal) {
  has_signalled_ = has_signalled_ || (signal != SIGTSTP && signal != SIGCONT);
  for (const Rank& rank : ranks_)
    if (rank.group_lives) kill(-rank.end.pid, signal);
}

void Supervisor::signal_leftovers(int signal) {
  signal_groups(signal);
  for (pid_t pid : leftovers()) kill(pid, signal);
}

// A group that has become empty must be forgotten: its number may be given to others.
void Supervisor::check_groups() {
  for (Rank& rank : ranks_) {
    if (rank.running || !rank.group_lives) continue;
    if (kill(-rank.end.pid, 0) == 0 || errno == EPERM) continue;
    rank.group_lives = false;
    guardian_->forget(rank.end.pid);
  }
}

// Children that are neither ranks, nor the guardian, nor older than this job.
std::vector<pid_t> Supervisor::leftovers() {
  std::vector<pid_t> left;
  for (pid_t pid : living_children()) {
    const bool rank = std::any_of(ranks_.begin(), ranks_.end(), [pid](const Rank& r) { return r.running && r.end.pid == pid; });
    const bool stranger = std::binary_search(strangers_.begin(), strangers_.end(), pid);
    if (!rank && !stranger && (!guardian_ || pid != guardian_->pid())) left.push_back(pid);
  }
  return left;
}

std::vector<int> Supervisor::running() const {
  std::vector<int> out;
  for (const Rank& rank : ranks_)
    if (rank.running) out.push_back(rank.end.rank);
  return out;
}

std::vector<Ended> Supervisor::ends() const {
  std::vector<Ended> out;
  for (const Rank& rank : ranks_) out.push_back(rank.end);
  return out;
}

}  // namespace megadp::tool
