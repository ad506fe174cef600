// SPDX-License-Identifier: Apache-2.0
// Whether the kernel killed a rank because memory was short: by the counters of the control groups that the launcher and its ranks are in,
// and by the kernel's log where that may be read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>

#include "control/memory_limits.h"
#include "owned_fd.h"

namespace megadp::tool {

class OutOfMemory {
 public:
  // What has been counted so far is older than the job.
  void begin();
  // A rank that has just been started may be in other groups than the launcher.
  void note(pid_t pid);
  // Of a rank that died of a SIGKILL which the launcher did not send: the sentence that says how, "" if the kernel says nothing of it.
  // Every kill that was counted is given to one rank only.
  std::string killed(pid_t pid);

 private:
  struct Seen {
    MemoryCgroup group;
    uint64_t kills;  // that are old, or a rank's already
  };
  void add_groups(const std::string& pid);
  bool in_log(pid_t pid);

  std::map<std::string, Seen> groups_;  // by directory
  OwnedFd log_;
};

}  // namespace megadp::tool
