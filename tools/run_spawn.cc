// SPDX-License-Identifier: Apache-2.0
// The launcher has one thread, so the child may do anything after fork; it still does only what cannot fail half way, and tells by a pipe
// that closes on exec which call refused.
#include "run_spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace megadp::tool {
namespace {

enum Step : int {
  kBind,
  kStreams,
  kExecute
};
struct Refusal {
  int step;
  int error;
};

struct Pipe {
  OwnedFd read, write;
};

Result<Pipe> make_pipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return system_error("no pipe for the output of a rank", errno);
  return Pipe{OwnedFd(fds[0]), OwnedFd(fds[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (const std::string& s : strings) out.push_back(const_cast<char*>(s.c_str()));
  out.push_back(nullptr);
  return out;
}

bool bind_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return true;
  const int size = *std::max_element(cpus.begin(), cpus.end()) + 1;
  cpu_set_t* set = CPU_ALLOC(size);
  if (set == nullptr) return false;
  const size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, set);
  for (int cpu : cpus) CPU_SET_S(cpu, bytes, set);
  const bool bound = sched_setaffinity(0, bytes, set) == 0;
  CPU_FREE(set);
  return bound;
}

bool connect_streams(bool gets_stdin, int out, int err) {
  if (!gets_stdin) {
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0) return false;
  }
  return dup2(out, 1) >= 0 && dup2(err, 2) >= 0;
}

[[noreturn]] void be_child(const SpawnRequest& request, char** argv, char** envp, pid_t launcher, int out, int err, int report) {
  const auto refuse = [&](Step step) {
    const Refusal why{step, errno};
    [[maybe_unused]] const ssize_t told = write(report, &why, sizeof why);
    _exit(127);
  };
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);  // it died before the line above
  if (!bind_to(request.cpus)) refuse(kBind);
  if (!connect_streams(request.gets_stdin, out, err)) refuse(kStreams);
  setrlimit(RLIMIT_NOFILE, &request.inherited.files);
  signal(SIGPIPE, request.inherited.on_pipe);
  signal(SIGCHLD, request.inherited.on_child);
  signal(SIGXFSZ, request.inherited.on_size);
  sigprocmask(SIG_SETMASK, &request.inherited.mask, nullptr);
  execvpe(argv[0], argv, envp);
  refuse(kExecute);
  _exit(127);
}

Status explain(const SpawnRequest& request, const Refusal& why) {
  switch (why.step) {
    case kBind:
      return system_error(
          fmt::format("a rank cannot be bound to processors {} to {} (try --bind none)", request.cpus.front(), request.cpus.back()),
          why.error);
    case kStreams:
      return system_error("a rank's standard streams cannot be connected", why.error);
    default:
      break;
  }
  Status cause = system_error(fmt::format("'{}' cannot be executed", request.command.front()), why.error);
  if (why.error == ENOENT && request.command.front().find('/') == std::string::npos) return invalid(cause.text(), " (not found in PATH)");
  return invalid(cause.text());
}

}  // namespace

Result<Spawned> spawn_rank(const SpawnRequest& request) {
  Result<Pipe> out = make_pipe(), err = make_pipe(), report = make_pipe();
  for (const Result<Pipe>* pipe : {&out, &err, &report})
    if (!*pipe) return pipe->status();
  for (const Result<Pipe>* pipe : {&out, &err})  // the launcher's ends only: a rank writes as to any pipe
    if (fcntl((*pipe)->read.get(), F_SETFL, O_NONBLOCK) != 0) return system_error("a rank's output cannot be made non-blocking", errno);
  std::vector<char*> argv = pointers(request.command), envp = pointers(request.environment);

  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) return system_error("a rank's process cannot be created (fork)", errno);
  if (pid == 0) be_child(request, argv.data(), envp.data(), launcher, out->write.get(), err->write.get(), report->write.get());

  setpgid(pid, pid);  // also here, so that the group exists whoever runs first
  report->write.reset();
  Refusal why{};
  ssize_t got;
  do got = read(report->read.get(), &why, sizeof why);
  while (got < 0 && errno == EINTR);
  if (got != 0) return got == sizeof why ? explain(request, why) : system_error("a rank's start cannot be followed", errno);

  return Spawned{pid, std::move(out->read), std::move(err->read)};
}

}  // namespace megadp::tool
