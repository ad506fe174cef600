// SPDX-License-Identifier: Apache-2.0
// What `megadp run` itself says, on stderr: sentences, or with --json one object a line.
//
//   {"event":"started","rank":0,"pid":71,"cpus":[0,1]}
//   {"event":"ended","rank":0,"pid":71,"exit":137,"signal":"SIGKILL","seconds":1.5}        exit: 128 + the signal's number when killed
//       "out_of_memory":"..."   besides, if the kernel killed it for that: how it says so
//   {"event":"signal","signal":"SIGTERM","ranks":[1],"why":"grace"}                        why: user, grace, interrupted_twice
//   {"event":"leftovers","signal":"SIGTERM","pids":[75]}
//   {"event":"warning","text":"..."}
//   {"event":"error","text":"..."}
//   {"event":"summary","ranks":[{"rank":0,"pid":71,"exit":137,"signal":"SIGKILL"},...],"exit":137}
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "run_output.h"

namespace megadp::tool {

struct Ended {
  int rank = 0;
  pid_t pid = -1;
  int exit = 0;    // what the rank returned, or 128 + signal
  int signal = 0;  // 0: it was not killed
  bool core = false;
  std::string out_of_memory = {};  // how the kernel says so, where it killed the rank for that
  double seconds = 0;
};

class Report {
 public:
  Report(Sink& sink, bool json) : sink_(sink), json_(json) {}

  void started(int rank, pid_t pid, const std::vector<int>& cpus);
  // `others` ranks still run and get `grace` seconds; 0 others: nothing is said of them.
  void ended(const Ended& rank, size_t others, double grace);
  void signalled(int signal, const std::vector<int>& ranks, const char* why, const std::string& sentence);
  void leftovers(int signal, const std::vector<pid_t>& pids);
  void warning(const std::string& sentence);
  void error(const std::string& sentence);
  void summary(const std::vector<Ended>& ranks, int exit);

 private:
  void say(const std::string& sentence);

  Sink& sink_;
  bool json_;
};

std::string signal_name(int signal);  // "SIGTERM"

}  // namespace megadp::tool
