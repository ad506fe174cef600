// SPDX-License-Identifier: Apache-2.0
// The launcher: starts the ranks of this node, passes their output and the user's signals on, and sees to it that all of them end when one
// fails and that nothing of theirs is left when it returns.
//
//   all well ──a rank fails──> grace ──grace seconds──> SIGTERM ──5 s──> SIGKILL        until the last rank has ended, or 20 s; then
//   lingering ──min(grace, 2) s──> SIGTERM ──min(grace, 5) s──> SIGKILL                 for what the ranks left behind
#pragma once

#include <string>
#include <vector>

#include "run_environment.h"

namespace megadp::tool {

struct RunConfig {
  std::vector<std::string> command;
  Job job;
  Binding binding = Binding::cores;
  double grace_s = 10;
  bool prefix = true;
  bool json = false;
  std::string warning;  // said before the ranks are started
};

// The exit status of `megadp run`: 0 when every rank returned 0, otherwise what the first failing rank returned (128 + the signal that
// killed it); 127 when the command cannot be executed, 1 when the launcher itself failed.
int supervise(const RunConfig& config);

}  // namespace megadp::tool
