// SPDX-License-Identifier: Apache-2.0
// One thread, one poll: the ranks' pipes, a signalfd, the ranks' pidfds (in an epoll set, which hands them over in the order in which they
// became ready: so the first failing rank is known), and the launcher's own outputs while bytes wait for them.
#include "run_supervise.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
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
#include <optional>

#include "base/deadline.h"
#include "run_guardian.h"
#include "run_output.h"
#include "run_processes.h"
#include "run_report.h"
#include "run_spawn.h"

namespace megadp::tool {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr double kTermSeconds = 5;    // between SIGTERM and SIGKILL
constexpr double kLingerSeconds = 2;  // for what the ranks left behind to end by itself
constexpr double kKillSeconds = 2;    // for SIGKILL to take effect
// A dying process closes its sockets before it can be waited for: ranks that learn of it there may end sooner than it does.
constexpr uint64_t kDyingNs = 200'000'000;

Deadline in_seconds(double seconds) {
  return Deadline::after_ns(static_cast<uint64_t>(seconds * static_cast<double>(kSecond)));
}

struct Stream {
  OwnedFd fd;
  Sink* sink;
  LineCutter lines;
};

struct Rank {
  Ended end;
  OwnedFd pidfd;
  Stream out, err;
  uint64_t started_ns;
  bool running = true;
  bool group_lives = true;  // some process of its group exists
};

class Supervisor {
 public:
  explicit Supervisor(const RunConfig& config) : config_(config), report_(stderr_, config.json) { ranks_.reserve(config.job.count); }
  int run();

 private:
  enum class Stage {
    well,
    grace,
    terminated,
    killed,
    lingering,
    left_terminated,
    left_killed,
    abandoned
  };

  Status prepare();
  Status start_ranks();
  Status start_rank(int index, const std::vector<int>& cpus);
  int give_up(const Status& why);
  void restore();

  bool finished();
  void wait_for_something();
  void read_output(Stream& stream, size_t most);
  void read_deaths();
  void read_signals();
  void reap();
  void rank_ended(Rank& rank, int wait_status);
  void last_rank_ended();
  void on_signal(int signal);
  void on_alarm();
  void signal_groups(int signal);
  void signal_leftovers(int signal);
  void check_groups();
  std::vector<pid_t> leftovers();
  std::vector<int> running() const;
  std::vector<Ended> ends() const;

  const RunConfig& config_;
  Sink stdout_{STDOUT_FILENO}, stderr_{STDERR_FILENO};
  Report report_;
  Inherited inherited_{};
  OwnedFd signals_, deaths_;
  std::optional<Guardian> guardian_;
  std::vector<pid_t> strangers_;  // children this process had before it became a launcher
  std::vector<Rank> ranks_;
  const Rank* first_failure_ = nullptr;
  uint64_t first_failure_ns_ = 0;
  bool has_signalled_ = false;  // a signal that kills may have come from here
  Stage stage_ = Stage::well;
  Deadline alarm_ = Deadline::never();
  int interrupts_ = 0;
  bool summary_said_ = false;
};

Status Supervisor::prepare() {
  sigset_t mine;
  sigemptyset(&mine);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD}) sigaddset(&mine, signal);
  sigprocmask(SIG_BLOCK, &mine, &inherited_.mask);
  inherited_.on_pipe = signal(SIGPIPE, SIG_IGN);
  inherited_.on_child = signal(SIGCHLD, SIG_DFL);
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
  report_.started(number, rank.end.pid, share);
  return {};
}

// A rank could not be started: nothing may be left of those that were.
int Supervisor::give_up(const Status& why) {
  signal_groups(SIGKILL);
  for (const Rank& rank : ranks_)
    while (waitpid(rank.end.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  restore();
  report_.error(why.text());
  stderr_.flush();
  return why.code() == Code::invalid ? 127 : 1;
}

int Supervisor::run() {
  Status ready = prepare();
  if (ready) ready = start_ranks();
  if (!ready) return give_up(ready);
  while (!finished()) {
    wait_for_something();
    if (alarm_.passed()) on_alarm();
  }
  restore();
  return first_failure_ != nullptr ? first_failure_->end.exit : 0;
}

bool Supervisor::finished() {
  if (!running().empty()) return false;
  if (stage_ == Stage::abandoned) return true;
  reap();  // nothing dead may be left to init either, which in a container may not wait for it
  const bool reading = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.out.fd.open() || r.err.fd.open(); });
  if (reading || !leftovers().empty()) return false;
  if (!summary_said_) {
    summary_said_ = true;
    report_.summary(ends(), first_failure_ != nullptr ? first_failure_->end.exit : 0);
    stdout_.flush();
    stderr_.flush();
  }
  return !stdout_.waiting() && !stderr_.waiting();
}

void Supervisor::wait_for_something() {
  std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}, {deaths_.get(), POLLIN, 0}};
  for (const Sink* sink : {&stdout_, &stderr_})
    if (sink->waiting()) fds.push_back({sink->fd(), POLLOUT, 0});
  std::vector<Stream*> streams;
  const size_t first_stream = fds.size();
  for (Rank& rank : ranks_)
    for (Stream* stream : {&rank.out, &rank.err}) {
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
  stderr_.flush();
}

void Supervisor::read_output(Stream& stream, size_t most) {
  std::array<char, 65536> buffer;
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

void Supervisor::read_deaths() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(deaths_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    Rank& rank = ranks_[events[static_cast<size_t>(i)].data.u32];
    int status = 0;
    if (rank.running && waitpid(rank.end.pid, &status, WNOHANG) == rank.end.pid) rank_ended(rank, status);
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

void Supervisor::rank_ended(Rank& rank, int wait_status) {
  rank.running = false;
  rank.pidfd.reset();
  rank.end.signal = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
  rank.end.core = WIFSIGNALED(wait_status) && WCOREDUMP(wait_status);
  rank.end.exit = rank.end.signal != 0 ? 128 + rank.end.signal : WEXITSTATUS(wait_status);
  rank.end.seconds = static_cast<double>(now_ns() - rank.started_ns) / static_cast<double>(kSecond);
  // What it said comes before what is said of it.
  for (Stream* stream : {&rank.out, &rank.err}) read_output(*stream, 16);

  const size_t others = running().size();
  const bool first = rank.end.exit != 0 && first_failure_ == nullptr;
  report_.ended(rank.end, first ? others : 0, config_.grace_s);
  if (first) {
    first_failure_ = &rank;
    first_failure_ns_ = now_ns();
    stage_ = Stage::grace;
    alarm_ = in_seconds(config_.grace_s);
  } else if (rank.end.signal != 0 && first_failure_->end.signal == 0 && !has_signalled_ && now_ns() - first_failure_ns_ < kDyingNs) {
    first_failure_ = &rank;
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
    signal_groups(SIGKILL);
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

void Supervisor::on_alarm() {
  alarm_ = Deadline::never();
  const auto late = [&](int signal, double since) {
    report_.signalled(signal, running(), "grace",
                      fmt::format("rank{} {} still running {:g} s after rank {} failed: {}", running().size() > 1 ? "s" : "",
                                  fmt::join(running(), ", "), since, first_failure_->end.rank, signal_name(signal)));
    signal_groups(signal);
  };
  switch (stage_) {
    case Stage::grace:
      late(SIGTERM, config_.grace_s);
      signal_groups(SIGCONT);  // a stopped process cannot end
      stage_ = Stage::terminated;
      alarm_ = in_seconds(kTermSeconds);
      break;
    case Stage::terminated:
      late(SIGKILL, config_.grace_s + kTermSeconds);
      stage_ = Stage::killed;
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
        break;
      }
      if (!leftovers().empty()) report_.error(fmt::format("processes {} cannot be killed", fmt::join(leftovers(), ", ")));
      for (Rank& rank : ranks_)
        for (Stream* stream : {&rank.out, &rank.err}) {
          read_output(*stream, 16);
          stream->lines.finish();
          stream->fd.reset();
        }
      strangers_ = living_children();
      for (Rank& rank : ranks_) rank.group_lives = false;
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

}  // namespace

int supervise(const RunConfig& config) {
  return Supervisor(config).run();
}

}  // namespace megadp::tool
