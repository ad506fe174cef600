// SPDX-License-Identifier: Apache-2.0
#include "run_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "owned_fd.h"

namespace megadp::tool {
namespace {

std::vector<pid_t> all_processes() {
  std::vector<pid_t> all;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return all;
  while (const dirent* entry = readdir(proc))
    if (const pid_t pid = std::atoi(entry->d_name); pid > 0) all.push_back(pid);
  closedir(proc);
  std::sort(all.begin(), all.end());
  return all;
}

// Empty when the process has gone, even half way.
std::string proc_text(pid_t pid, const char* file) {
  const OwnedFd fd(open(("/proc/" + std::to_string(pid) + "/" + file).c_str(), O_RDONLY | O_CLOEXEC));
  std::string all;
  std::array<char, 4096> buffer;
  while (fd.open()) {
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return {};
    if (got == 0) break;
    all.append(buffer.data(), static_cast<size_t>(got));
  }
  return all;
}

// What follows "pid (name)", which may hold anything, also ')': "state ppid pgrp session tty tpgid flags ...".
std::string stat_of(pid_t pid) {
  const std::string stat = proc_text(pid, "stat");
  const size_t after = stat.rfind(')');
  return after == std::string::npos ? std::string() : stat.substr(after + 1);
}

}  // namespace

std::vector<pid_t> living_children() {
  std::vector<pid_t> children;
  for (const pid_t pid : all_processes()) {
    char state = 0;
    int parent = 0;
    if (std::sscanf(stat_of(pid).c_str(), " %c %d", &state, &parent) != 2) continue;
    if (parent == getpid() && state != 'Z' && state != 'X') children.push_back(pid);
  }
  return children;
}

std::vector<pid_t> processes_with(const std::string& mark) {
  std::vector<pid_t> found;
  const std::string whole_entry = '\0' + mark + '\0';
  for (const pid_t pid : all_processes())
    if (pid != getpid() && ('\0' + proc_text(pid, "environ") + '\0').find(whole_entry) != std::string::npos) found.push_back(pid);
  return found;
}

bool is_ending(pid_t pid) {
  constexpr unsigned kExiting = 4;  // PF_EXITING in the kernel's sched.h
  unsigned flags = 0;
  return std::sscanf(stat_of(pid).c_str(), " %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && (flags & kExiting) != 0;
}

}  // namespace megadp::tool
