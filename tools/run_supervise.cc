// SPDX-License-Identifier: Apache-2.0
#include "run_supervise.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "run_processes.h"
#include "run_supervisor.h"

namespace megadp::tool {

Status Supervisor::prepare() {
  sigset_t mine;
  sigemptyset(&mine);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD}) sigaddset(&mine, signal);
  sigprocmask(SIG_BLOCK, &mine, &inherited_.mask);
  inherited_.on_pipe = signal(SIGPIPE, SIG_IGN);
  inherited_.on_child = signal(SIGCHLD, SIG_DFL);
  inherited_.on_size = signal(SIGXFSZ, SIG_IGN);  // output that grows too large is told, see tell_lost_output()
  if (getrlimit(RLIMIT_NOFILE, &inherited_.files) != 0) return system_error("the limit of open files is unknown", errno);
  rlimit more = inherited_.files;  // three descriptors a rank
  more.rlim_cur = more.rlim_max;
  setrlimit(RLIMIT_NOFILE, &more);

  strangers_ = living_children();
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) return system_error("this process cannot adopt what its ranks leave behind", errno);
  signals_ = OwnedFd(signalfd(-1, &mine, SFD_CLOEXEC | SFD_NONBLOCK));
  deaths_ = OwnedFd(epoll_create1(EPOLL_CLOEXEC));
  if (!signals_.open() || !deaths_.open()) return system_error("no descriptor for signals (signalfd, epoll)", errno);
  Result<Guardian> guardian = Guardian::start("MEGADP_LAUNCHER=" + config_.job.launcher);
  if (!guardian) return guardian.status();
  guardian_.emplace(*std::move(guardian));
  out_of_memory_.begin();
  return {};
}

void Supervisor::restore() {
  guardian_.reset();
  prctl(PR_SET_CHILD_SUBREAPER, 0);
  if (inherited_.files.rlim_max != 0) setrlimit(RLIMIT_NOFILE, &inherited_.files);
}

Status Supervisor::start_ranks() {
  const std::vector<int> cpus = allowed_cpus();
  for (int index = 0; index < config_.job.count; ++index) {
    Status started = start_rank(index, cpus);
    if (!started) return started;
  }
  return {};
}

Status Supervisor::start_rank(int index, const std::vector<int>& cpus) {
  const Job& job = config_.job;
  const int number = job.first_rank + index;
  const std::vector<std::string> environment = rank_environment(job, index, cpus.size());
  const std::vector<int> share = cpu_share(cpus, config_.binding, index, job.count);
  // A terminal is not lent out: its ranks run in the background, where reading from it would stop them.
  const bool gets_stdin = number == 0 && isatty(STDIN_FILENO) == 0;
  Result<Spawned> spawned = spawn_rank({config_.command, environment, share, gets_stdin, inherited_});
  if (!spawned) return spawned.status();

  const std::string prefix = config_.prefix ? fmt::format("[{}] ", number) : "";
  ranks_.push_back(Rank{{number, spawned->pid},
                        OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, spawned->pid, 0))),
                        {std::move(spawned->out), &stdout_, LineCutter(stdout_, index, prefix)},
                        {std::move(spawned->err), &stderr_, LineCutter(stderr_, index, prefix)},
                        now_ns()});
  const Rank& rank = ranks_.back();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<uint32_t>(index);
  // Without pidfds (an old kernel, a sandbox) SIGCHLD tells of deaths too, only not in their order.
  if (rank.pidfd.open()) epoll_ctl(deaths_.get(), EPOLL_CTL_ADD, rank.pidfd.get(), &event);
  guardian_->watch(rank.end.pid);
  out_of_memory_.note(rank.end.pid);
  report_.started(number, rank.end.pid, share);
  return {};
}

// A rank could not be started: nothing may be left of those that were.
int Supervisor::give_up(const Status& why) {
  signal_groups(SIGKILL);
  const Deadline limit = Deadline::after_ns(static_cast<uint64_t>(kDieSeconds * 1e9));
  for (Rank& rank : ranks_) {
    int status = SIGKILL;
    while (waitpid(rank.end.pid, &status, WNOHANG) == 0 && !limit.passed()) usleep(1000);
    note_end(rank, status);
  }
  restore();
  report_.error(why.text());
  const int exit = why.code() == Code::invalid ? 127 : 1;
  say_summary(exit);
  return exit;
}

int Supervisor::run() {
  if (!config_.warning.empty()) report_.warning(config_.warning);
  Status ready = prepare();
  if (ready) ready = start_ranks();
  if (!ready) return give_up(ready);
  while (!finished()) {
    wait_for_something();
    if (alarm_.passed()) on_alarm();
  }
  restore();
  return exit_code();
}

bool Supervisor::finished() {
  if (!running().empty()) return false;
  if (stage_ == Stage::abandoned) {
    say_summary(exit_code());
    return true;
  }
  reap();  // nothing dead may be left to init either, which in a container may not wait for it
  const bool reading = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.out.fd.open() || r.err.fd.open(); });
  if (reading || !leftovers().empty()) return false;
  stdout_.flush();
  if (stdout_.waiting()) return false;  // the summary's exit status depends on whether it can be written
  tell_lost_output();
  say_summary(exit_code());
  return !stdout_.waiting() && !stderr_.waiting();
}

// A reader that has gone is nobody's mistake as long as no rank had more to say to it.
void Supervisor::tell_lost_output() {
  if (stdout_.error() == 0 || lost_output_told_) return;
  lost_output_told_ = true;
  report_.error(system_error("standard output could not be written", stdout_.error()).text() + "; what the ranks print is lost");
}

int Supervisor::exit_code() const {
  if (first_failure_ != nullptr) return first_failure_->end.exit;
  return stdout_.error() != 0 || stderr_.error() != 0 ? 1 : 0;
}

// The last word, however the job ended.
void Supervisor::say_summary(int exit) {
  if (summary_said_) return;
  summary_said_ = true;
  report_.summary(ends(), exit);
  stdout_.flush();
  stderr_.flush();
}

void Supervisor::wait_for_something() {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}, {deaths_.get(), POLLIN, 0}};
  for (const Sink* sink : {&stdout_, &stderr_})
    if (sink->waiting()) fds.push_back({sink->fd(), POLLOUT, 0});
  std::vector<RankOutput*> streams;
  const size_t first_stream = fds.size();
  for (Rank& rank : ranks_)
    for (RankOutput* stream : {&rank.out, &rank.err}) {
      // The reader has gone: the rank shall find out as it would without us.
      if (stream->sink->broken()) stream->fd.reset();
      if (!stream->fd.open() || stream->sink->full()) continue;
      streams.push_back(stream);
      fds.push_back({stream->fd.get(), POLLIN, 0});
    }
  const uint64_t left = alarm_.left_ns();
  const int timeout = left == UINT64_MAX ? -1 : static_cast<int>(std::min<uint64_t>((left + 999'999) / 1'000'000, 1'000'000));
  if (poll(fds.data(), fds.size(), timeout) < 0) return;

  for (size_t i = 0; i < streams.size(); ++i)
    if (fds[first_stream + i].revents != 0) read_output(*streams[i], 1);
  if (fds[1].revents != 0) read_deaths();
  if (fds[0].revents != 0) read_signals();
  stdout_.flush();
  tell_lost_output();
  stderr_.flush();
}

void Supervisor::read_output(RankOutput& stream, size_t most) {
  std::array<char, 16384> buffer;
  for (size_t i = 0; i < most && stream.fd.open(); ++i) {
    const ssize_t got = read(stream.fd.get(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got > 0) {
      stream.lines.add({buffer.data(), static_cast<size_t>(got)});
      continue;
    }
    stream.lines.finish();
    stream.fd.reset();
  }
}

int supervise(const RunConfig& config) {
  return Supervisor(config).run();
}

}  // namespace megadp::tool
