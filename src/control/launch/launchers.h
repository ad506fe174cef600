// SPDX-License-Identifier: Apache-2.0
// What each launcher leaves in the environment of its ranks, one recogniser a launcher. environment.cc weighs their claims.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "control/launch/launch.h"

namespace megadp {

// One launcher's variables as they are found, with what is wrong about them.
struct Claim {
  std::string launcher;
  bool seen = false;  // at least one variable that only this launcher sets
  Launch launch;      // meaningful when complete
  // As far as they could be read: two launchers contradict each other only if both say something.
  std::optional<int> rank, nranks;
  bool several_nodes = false;  // with launch.root_port 0 the root address is still to be found
  std::vector<std::string> found, missing, wrong;

  bool complete() const { return seen && missing.empty() && wrong.empty(); }
  Status problem() const;  // when not complete: what was found, what is missing, what is wrong
};

Claim claim_of_megadp_run();
Claim claim_of_torch();
Claim claim_of_slurm();
Claim claim_of_open_mpi();
Claim claim_of_mpich();

// The first node of SLURM's compressed list: "node[007-009,12],login" → "node007". Empty when it cannot be read.
std::string first_slurm_host(std::string_view list);

}  // namespace megadp
