// SPDX-License-Identifier: Apache-2.0
#include "run_guardian.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "run_processes.h"

namespace megadp::tool {
namespace {

constexpr char kWatch = 'w', kForget = 'f', kDone = 'd';

struct Note {
  pid_t group;
  char what;
  char unused[3];
};

// Kernels before 5.9 have no close_range(), and a container's filter may refuse it.
void close_all_but(int kept) {
  const auto number = static_cast<unsigned>(kept);
  const bool below = kept == 0 || close_range(0, number - 1, 0) == 0;
  if (below && close_range(number + 1, ~0u, 0) == 0) return;
  std::vector<int> open;  // the list itself is open while it is read
  if (DIR* const list = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(list)) open.push_back(std::atoi(entry->d_name));
    closedir(list);
  }
  for (const int fd : open)
    if (fd != kept) close(fd);
}

[[noreturn]] void guard(int pipe, const std::string& mark) {
  setsid();  // signals meant for the launcher's group or terminal do not come here
  prctl(PR_SET_NAME, "mdp-guardian");
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Whoever waits for the launcher's output to end must not wait for this process.
  close_all_but(pipe);

  std::vector<pid_t> groups;
  for (Note note;;) {
    const ssize_t got = read(pipe, &note, sizeof note);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof note) break;  // the launcher is gone
    if (note.what == kDone) _exit(0);
    if (note.what == kWatch) groups.push_back(note.group);
    if (note.what == kForget) groups.erase(std::remove(groups.begin(), groups.end(), note.group), groups.end());
  }
  for (pid_t group : groups) kill(-group, SIGKILL);
  // Those that left their rank's group are known by their environment. One may start another while the list is read, so until none is left.
  for (int round = 0; round < 10; ++round) {
    const std::vector<pid_t> left = processes_with(mark);
    if (left.empty()) break;
    for (pid_t pid : left) kill(pid, SIGKILL);
    usleep(1000);
  }
  _exit(0);
}

}  // namespace

Result<Guardian> Guardian::start(const std::string& mark) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return system_error("no pipe for the guardian process", errno);
  OwnedFd read_end(fds[0]), write_end(fds[1]);
  const pid_t pid = fork();
  if (pid < 0) return system_error("the guardian process cannot be created (fork)", errno);
  if (pid == 0) {
    write_end.reset();  // or the end of the launcher would not be seen
    guard(read_end.get(), mark);
  }
  return Guardian(pid, std::move(write_end));
}

Guardian::~Guardian() {
  if (!pipe_.open()) return;
  tell(kDone, 0);
  pipe_.reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::watch(pid_t group) {
  tell(kWatch, group);
}

void Guardian::forget(pid_t group) {
  tell(kForget, group);
}

void Guardian::tell(char what, pid_t group) {
  const Note note{group, what, {}};
  [[maybe_unused]] const ssize_t wrote =
      write(pipe_.get(), &note, sizeof note);  // it fits into any pipe; without a reader nothing can be done
}

}  // namespace megadp::tool
