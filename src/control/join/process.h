// SPDX-License-Identifier: Apache-2.0
// Who a rank is to the others: its process and its node, and how to be told that the process has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/net/frame.h"
#include "control/world.h"

namespace megadp {

struct Process {
  int32_t pid = 0;
  uint64_t start_time = 0;     // clock ticks since boot; with the pid it names a process for good. 0: not known
  uint64_t pid_namespace = 0;  // inode; a pid means something only within it. 0: not known
  // Equal where abstract UNIX sockets reach each other: same boot of the same machine, same network namespace.
  std::string host_key;
  std::string host_name;
};

Process this_process();

// What the system says of a process, in a file like /proc/71/stat.
struct ProcessStat {
  std::string name;
  int parent = 0;
  uint64_t start_time = 0;
};
std::optional<ProcessStat> read_process_stat(const std::string& path);  // nothing when there is no such process

struct Ancestor {
  int pid = 0;
  ProcessStat stat;
};
std::vector<Ancestor> ancestors();  // of this process, its parent first; as far as /proc shows them

void write_process(FrameWriter* writer, const Process& process);
Process read_process(FrameReader* reader);

struct ProcessWatch {
  Fd pidfd;            // becomes readable when the process ends, whatever children of it still hold its sockets open
  bool ended = false;  // it is gone already
};
// Neither if nothing can be said: another node or pid namespace, a kernel without pidfd, a hidden /proc.
ProcessWatch watch_process(const Process& process);

}  // namespace megadp
