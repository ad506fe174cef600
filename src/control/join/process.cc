// SPDX-License-Identifier: Apache-2.0
// Reading /proc, and pidfd.
#include "control/join/process.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/text.h"

namespace megadp {
namespace {

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t inode_of(const char* path) {
  struct stat info;
  return ::stat(path, &info) == 0 ? info.st_ino : 0;
}

std::string own_host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0 || name[0] == 0) return "an unnamed node";
  return name;
}

std::string own_host_key(const std::string& host_name) {
  std::string machine = first_line_of("/proc/sys/kernel/random/boot_id");
  if (machine.empty()) machine = host_name;
  return text(machine, "/", inode_of("/proc/self/ns/net"));
}

uint64_t start_time_of(const std::string& path) {
  const auto stat = read_process_stat(path);
  return stat ? stat->start_time : 0;
}

}  // namespace

// "pid (name) state ppid ...": fields are counted after the name, which may itself contain blanks and brackets.
std::optional<ProcessStat> read_process_stat(const std::string& path) {
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  const std::string line = all.str();
  const size_t open = line.find('(');
  const size_t close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return std::nullopt;
  ProcessStat stat;
  stat.name = line.substr(open + 1, close - open - 1);
  std::istringstream fields(line.substr(close + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    if (!(fields >> field)) return std::nullopt;
    if (i == 4) stat.parent = std::atoi(field.c_str());
  }
  stat.start_time = std::strtoull(field.c_str(), nullptr, 10);
  return stat;
}

std::vector<Ancestor> ancestors() {
  constexpr size_t kMost = 64;
  std::vector<Ancestor> all;
  for (int pid = ::getppid(); pid > 1 && all.size() < kMost; pid = all.back().stat.parent) {
    auto stat = read_process_stat(text("/proc/", pid, "/stat"));
    if (!stat) break;
    all.push_back({pid, *std::move(stat)});
  }
  return all;
}

Process this_process() {
  Process self;
  self.pid = ::getpid();
  self.start_time = start_time_of("/proc/self/stat");
  self.pid_namespace = inode_of("/proc/self/ns/pid");
  self.host_name = own_host_name();
  self.host_key = own_host_key(self.host_name);
  return self;
}

void write_process(FrameWriter* writer, const Process& process) {
  writer->i32(process.pid);
  writer->u64(process.start_time);
  writer->u64(process.pid_namespace);
  writer->bytes(process.host_key);
  writer->bytes(process.host_name);
}

Process read_process(FrameReader* reader) {
  Process process;
  process.pid = reader->i32();
  process.start_time = reader->u64();
  process.pid_namespace = reader->u64();
  process.host_key = reader->bytes();
  process.host_name = reader->bytes();
  return process;
}

ProcessWatch watch_process(const Process& process) {
  ProcessWatch watch;
  if (process.pid <= 0 || process.start_time == 0 || process.pid_namespace == 0) return watch;
  if (process.pid_namespace != inode_of("/proc/self/ns/pid")) return watch;
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));  // close-on-exec by itself
  if (!pidfd.valid()) {
    watch.ended = errno == ESRCH;
    return watch;
  }
  // Asked after opening: if the number had been given to another process in between, the start times differ.
  const uint64_t start_time = start_time_of(text("/proc/", process.pid, "/stat"));
  if (start_time == process.start_time) {
    watch.pidfd = std::move(pidfd);
  } else {
    watch.ended = start_time != 0;
  }
  return watch;
}

}  // namespace megadp
