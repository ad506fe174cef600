// SPDX-License-Identifier: Apache-2.0
#include "run_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

namespace megadp::tool {
namespace {

// The kernel's log has the numbers that processes have outside all containers.
bool outermost_process_numbers() {
  std::array<char, 64> target{};
  const ssize_t got = readlink("/proc/self/ns/pid", target.data(), target.size() - 1);
  return got > 0 && std::string_view(target.data()) == "pid:[4026531836]";
}

}  // namespace

void OutOfMemory::begin() {
  add_groups("self");
  if (!outermost_process_numbers()) return;
  log_ = OwnedFd(open("/dev/kmsg", O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (log_.open()) lseek(log_.get(), 0, SEEK_END);
}

void OutOfMemory::note(pid_t pid) {
  add_groups(std::to_string(pid));
}

void OutOfMemory::add_groups(const std::string& pid) {
  for (const MemoryCgroup& group : memory_cgroups(pid)) {
    if (groups_.count(group.directory) != 0) continue;
    const auto kills = out_of_memory_kills(group);
    if (kills) groups_.insert({group.directory, {group, *kills}});
  }
}

// A record a read; EPIPE: some were lost, the next read has the oldest that is left.
bool OutOfMemory::in_log(pid_t pid) {
  if (!log_.open()) return false;
  const std::string wanted = fmt::format("Killed process {} (", pid);
  bool found = false;
  std::array<char, 8192> record;
  while (true) {
    const ssize_t got = read(log_.get(), record.data(), record.size());
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (got <= 0) return found;
    found = found || std::string_view(record.data(), static_cast<size_t>(got)).find(wanted) != std::string_view::npos;
  }
}

std::string OutOfMemory::killed(pid_t pid) {
  std::string where;
  for (auto& [directory, seen] : groups_) {
    if (out_of_memory_kills(seen.group).value_or(0) <= seen.kills) continue;
    seen.kills += 1;
    // The longest path is the group itself; with version 2 those above count its kills too.
    const auto limit = limit_of(seen.group);
    where = limit ? fmt::format("{} has a limit of {} bytes", directory, *limit) : fmt::format("it is in {}", directory);
  }
  if (!where.empty()) return fmt::format("the kernel had no memory left for it: {}", where);
  return in_log(pid) ? "the kernel had no memory left for it, says its log (dmesg)" : "";
}

}  // namespace megadp::tool
