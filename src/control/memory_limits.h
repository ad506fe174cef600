// SPDX-License-Identifier: Apache-2.0
// How much memory this process may still take, as the system tells in files: the limits of its control groups (cgroup v1 and v2, and of all
// groups above, as far as they are seen from here), and what the machine has left. Where a file is missing or cannot be read, there is no
// such limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace megadp {

// A memory control group that a process is in.
struct MemoryCgroup {
  std::string directory;  // as this process finds it
  bool unified = false;   // of version 2
};

struct MemoryLimit {
  std::string file;    // that says so: ".../memory.max", ".../memory.limit_in_bytes" or "/proc/meminfo"
  uint64_t bytes = 0;  // the limit; of the machine: its memory
  // Of that, what is not in use. Page cache that the kernel takes back when memory is short counts as left; swap does not count.
  uint64_t left = 0;
  // Which group it is, under whatever path another process, in a container of its own, sees it; 0 and 0: the machine.
  uint64_t device = 0, inode = 0;
};

// The group of process `pid` ("self", "71") first, then those above it; of both versions, if a system has both.
std::vector<MemoryCgroup> memory_cgroups(const std::string& pid);

// Of this process, the machine last.
std::vector<MemoryLimit> memory_limits();

// How many processes of the group the kernel has killed because memory was short. With version 2, of groups below too.
std::optional<uint64_t> out_of_memory_kills(const MemoryCgroup& group);
// Its limit; none if it has none.
std::optional<uint64_t> limit_of(const MemoryCgroup& group);

// For tests: /proc and /sys are looked for below this folder. Not while another thread reads.
void set_memory_root(std::string folder);

}  // namespace megadp
