// SPDX-License-Identifier: Apache-2.0
// A small process beside `megadp run` that outlives it for a moment when it is killed, and then kills what it left: the kernel ends the
// ranks themselves (PR_SET_PDEATHSIG), but not the processes that they started.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/status.h"
#include "owned_fd.h"

namespace megadp::tool {

class Guardian {
 public:
  // `mark` is a NAME=value in the environment of everything that this launcher started, and of nothing else.
  static Result<Guardian> start(const std::string& mark);
  Guardian(Guardian&&) = default;
  ~Guardian();  // all is well: it ends without killing

  pid_t pid() const noexcept { return pid_; }
  // A process group to kill, and one that is empty and whose number may be given to others.
  void watch(pid_t group);
  void forget(pid_t group);

 private:
  Guardian(pid_t pid, OwnedFd pipe) : pid_(pid), pipe_(std::move(pipe)) {}
  void tell(char what, pid_t group);

  pid_t pid_;
  OwnedFd pipe_;
};

}  // namespace megadp::tool
