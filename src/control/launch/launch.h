// SPDX-License-Identifier: Apache-2.0
// How this process learned that it is one of several ranks: from a launcher's environment, or from an id that the caller passed around.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"

namespace megadp {

constexpr int kMaxRanks = 1 << 20;

struct Launch {
  std::string launcher;  // "megadp run", "torchrun", "SLURM", "Open MPI", "MPICH", "id", "alone"
  int rank = 0;
  int nranks = 1;
  // Both the key that keeps jobs apart and the name ranks of one node meet under. Not secret.
  std::string job;
  // Every rank proves that it knows it before a byte of it is believed; it never travels. All zero where the launcher hands round no
  // secret: then `job` alone guards.
  std::array<uint8_t, 32> secret{};
  // Where rank 0 listens when the world spans nodes; port 0: all ranks are on one node.
  std::string root_host;
  uint16_t root_port = 0;
  // On several nodes, and rank 0 has yet to choose where it listens: the ranks agree on that as they join (complete_launch).
  bool root_by_pmix = false;
};

// What the environment says; it asks nobody, and waits for nobody. A single rank only when no launcher is recognised; a partial,
// contradictory or unknown environment is Code::invalid with a sentence that lists what was found and what is missing.
Result<Launch> launch_from_environment();

// Collective over the ranks of the launch where root_by_pmix is set, otherwise nothing: finds root_host, root_port and secret.
// Code::timeout at the deadline.
Status complete_launch(Launch* launch, Deadline deadline);

// The 128 bytes of mdp_unique_id.
struct UniqueId {
  std::array<uint8_t, 128> bytes{};
};
Result<UniqueId> create_unique_id();  // a fresh random secret and name, and MEGADP_ROOT where it is set
Result<Launch> launch_from_id(const UniqueId& id, int rank, int nranks);

// One line per launcher variable that is set ("NAME=value", secrets blanked), for `megadp info` and error sentences.
std::vector<std::string> launcher_variables();

}  // namespace megadp
