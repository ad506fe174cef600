// SPDX-License-Identifier: Apache-2.0
// What `megadp run` tells its ranks by their environment, and how it shares out processors and threads.
//
//   MEGADP_RANK, MEGADP_NRANKS               this rank, and how many there are over all nodes
//   MEGADP_LOCAL_RANK, MEGADP_LOCAL_SIZE     the same among those that this `megadp run` started
//   MEGADP_JOB                               a name that no other job has; not secret
//   MEGADP_SECRET                            64 hexadecimal digits that only this job knows
//   MEGADP_LAUNCHER                          a name that no other `megadp run` has, for finding what it started
//   MEGADP_OUTER_LAUNCHERS                   which other launchers' task this `megadp run` is, so that one started below it is noticed
//   MEGADP_ROOT                              host:port where rank 0 listens; only when ranks are spread over nodes
//   OMP_NUM_THREADS, OPENBLAS_NUM_THREADS    processors / local ranks, at least 1; left alone where the user has set them
#pragma once

#include <sched.h>

#include <string>
#include <vector>

#include "base/status.h"

namespace megadp::tool {

enum class Binding {
  none,
  cores
};

// Who the ranks are, and what they share.
struct Job {
  int count = 1;       // ranks started here
  int nranks = 1;      // ranks over all nodes
  int first_rank = 0;  // the first one started here
  std::string name;
  std::string launcher;
  std::string secret;  // 64 hexadecimal digits
  std::string root;    // host:port, or empty
};

// 64 hexadecimal digits from the kernel.
Result<std::string> random_secret();
// The secret in a file that nobody but its owner can read.
Result<std::string> read_secret(const std::string& path);
// A name that nobody else has, and one that all nodes derive from what they share; the secret cannot be worked out from it.
Result<std::string> unique_name();
std::string shared_job_name(const std::string& secret, const std::string& root, int nranks);
// ok when it is HOST:PORT, or [IPv6]:PORT.
Status check_root(const std::string& root);

// The processors this process may run on, ascending.
std::vector<int> allowed_cpus();
// Those of local rank `index` of `count`: a contiguous run of the allowed ones. Empty (not bound) with Binding::none and when there are
// fewer processors than ranks.
std::vector<int> cpu_share(const std::vector<int>& cpus, Binding binding, int index, int count);

// NAME=value of everything a local rank sees: the present environment with the variables above put in.
std::vector<std::string> rank_environment(const Job& job, int index, size_t cpus);

}  // namespace megadp::tool
