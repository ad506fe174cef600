// SPDX-License-Identifier: Apache-2.0
// Starts one rank of `megadp run` as a process of its own group that dies with its launcher.
#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "owned_fd.h"

namespace megadp::tool {

// How the launcher found itself; its ranks shall find themselves the same way.
struct Inherited {
  sigset_t mask;
  void (*on_pipe)(int) = SIG_DFL;   // what SIGPIPE did
  void (*on_child)(int) = SIG_DFL;  // what SIGCHLD did
  void (*on_size)(int) = SIG_DFL;   // what SIGXFSZ did
  rlimit files{};                   // how many descriptors
};

struct SpawnRequest {
  const std::vector<std::string>& command;      // looked up in PATH
  const std::vector<std::string>& environment;  // NAME=value
  const std::vector<int>& cpus;                 // to bind to; empty: do not bind
  bool gets_stdin = false;                      // else /dev/null
  const Inherited& inherited;
};

struct Spawned {
  pid_t pid = -1;  // also the number of its process group
  OwnedFd out, err;
};

// Returns once the command runs. Code::invalid, with a sentence, when it cannot be executed; Code::system when the machine lacks something.
Result<Spawned> spawn_rank(const SpawnRequest& request);

}  // namespace megadp::tool
