// SPDX-License-Identifier: Apache-2.0
// How this process learned that it is one of several ranks: from a launcher's environment, from an id that the caller passed around, or
// from the caller, who has a way to gather bytes over all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"

namespace megadp {

constexpr int kMaxRanks = 1 << 20;
constexpr const char *kMegadpRun = "megadp run", *kTorchrun = "torchrun";
constexpr const char* kOuterLaunchers = "MEGADP_OUTER_LAUNCHERS";  // outer_launchers() of the `megadp run` that started this process

// The caller's own way to gather bytes over all ranks: see mdp_bootstrap.
struct AllGather {
  void* context = nullptr;
  int32_t (*start)(void* context, const void* mine, size_t bytes, void* all, void** request) = nullptr;
  int32_t (*test)(void* context, void* request) = nullptr;
  void (*free)(void* context, void* request) = nullptr;
};

struct Launch {
  std::string launcher;  // "megadp run", "torchrun", "SLURM", "Open MPI", "MPICH", "id", "bootstrap", "alone"
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
  // If it is set, the ranks agree on job, secret and root as they join (complete_launch).
  std::optional<AllGather> bootstrap;
};

// What the environment says; it asks nobody, and waits for nobody. A single rank only when no launcher is recognised; a partial,
// contradictory or unknown environment is Code::invalid with a sentence that lists what was found and what is missing.
Result<Launch> launch_from_environment();

// Nothing if the launch has no bootstrap. Otherwise collective over its ranks, by two of its all-gathers: fills in job, secret, and,
// if the ranks are on several nodes, the root. Returns the sockets on which rank 0 then listens already; none elsewhere. Ranks that hear
// of another's failure return the same code. Code::timeout at the deadline.
Result<std::vector<Fd>> complete_launch(Launch* launch, Deadline deadline);

// The 128 bytes of mdp_unique_id.
struct UniqueId {
  std::array<uint8_t, 128> bytes{};
};
Result<UniqueId> create_unique_id();  // a fresh random secret and name, and MEGADP_ROOT if it is set
Result<Launch> launch_from_id(const UniqueId& id, int rank, int nranks);

// For `megadp run`: its note of the launchers whose task it is itself, for its ranks' environment; and those of them that started several
// such tasks, in words, or nothing. An outer `megadp run` is none of them: one that is started by its ranks is a job of its own.
std::string outer_launchers();
std::string one_of_several();

// One line per launcher variable that is set ("NAME=value", secrets blanked), for `megadp info` and error sentences.
std::vector<std::string> launcher_variables();

}  // namespace megadp
