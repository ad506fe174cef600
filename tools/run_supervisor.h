// SPDX-License-Identifier: Apache-2.0
// The launcher's state and moves. One thread, one poll: the ranks' pipes, a signalfd, the ranks' pidfds (in an epoll set, which hands them
// over in the order in which they became ready: so the first failing rank is known), and the launcher's own outputs while bytes wait for
// them. Starting, waiting and output are in run_supervise.cc; what follows from deaths, signals and the clock is in run_endings.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "run_guardian.h"
#include "run_memory.h"
#include "run_output.h"
#include "run_report.h"
#include "run_spawn.h"
#include "run_supervise.h"

namespace megadp::tool {

struct RankOutput {
  OwnedFd fd;
  Sink* sink;
  LineCutter lines;
};

struct Rank {
  Ended end;
  OwnedFd pidfd;
  RankOutput out, err;
  uint64_t started_ns;
  bool running = true;
  bool group_lives = true;  // some process of its group exists
  bool was_ending = false;  // when another one was the first to fail
};

class Supervisor {
 public:
  explicit Supervisor(const RunConfig& config) : config_(config), report_(stderr_, config.json) { ranks_.reserve(config.job.count); }
  int run();

 private:
  static constexpr double kDieSeconds = 20;  // for SIGKILL to take effect on a rank: much memory is not given back in a moment
  enum class Stage {
    well,
    grace,
    terminated,
    killed,
    lingering,
    left_terminated,
    left_killed,
    abandoned
  };

  Status prepare();
  Status start_ranks();
  Status start_rank(int index, const std::vector<int>& cpus);
  int give_up(const Status& why);
  void restore();

  bool finished();
  int exit_code() const;
  void tell_lost_output();
  void say_summary(int exit);
  void wait_for_something();
  void read_output(RankOutput& stream, size_t most);
  void read_deaths();
  void read_signals();
  void reap();
  static void note_end(Rank& rank, int wait_status);
  void rank_ended(Rank& rank, int wait_status);
  void last_rank_ended();
  void on_signal(int signal);
  void on_alarm();
  void kill_all();
  void give_up_ranks();
  void abandon_leftovers();
  void signal_groups(int signal);
  void signal_leftovers(int signal);
  void check_groups();
  std::vector<pid_t> leftovers();
  std::vector<int> running() const;
  std::vector<Ended> ends() const;

  const RunConfig& config_;
  Sink stdout_{STDOUT_FILENO}, stderr_{STDERR_FILENO};
  Report report_;
  Inherited inherited_{};
  OwnedFd signals_, deaths_;
  std::optional<Guardian> guardian_;
  OutOfMemory out_of_memory_;
  std::vector<pid_t> strangers_;  // children this process had before it became a launcher
  std::vector<Rank> ranks_;
  const Rank* first_failure_ = nullptr;
  bool has_signalled_ = false;  // a signal that kills may have come from here
  Stage stage_ = Stage::well;
  Deadline alarm_ = Deadline::never();
  int interrupts_ = 0;
  bool summary_said_ = false;
  bool lost_output_told_ = false;
};

}  // namespace megadp::tool
