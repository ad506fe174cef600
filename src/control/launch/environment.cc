// SPDX-License-Identifier: Apache-2.0
// launch_from_environment: which launcher started this process. Taking the wrong one, or none, would train several models side by side and
// call it success, so whatever is unclear is an error that says what was seen.
//
// Launchers are nested in practice, and an inner one's ranks inherit the outer one's variables:
//   - `megadp run` sets everything itself, for exactly its own ranks, and nothing else starts under it as a rule: it wins.
//   - SLURM is the outermost: torchrun, mpirun and mpiexec are started by it, one per node, and their ranks still see SLURM's task number,
//     which is the launcher's, not theirs. So a complete other launcher wins over it.
//   - People derive one launcher's variables from another's (RANK=$OMPI_COMM_WORLD_RANK). Then both say the same, and the one that
//     knows most about nodes is taken.
//   - Anything else contradicts itself, and both are listed.
#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "control/launch/variables.h"

namespace megadp {
namespace {

template <class T>
bool differ(const std::optional<T>& a, const std::optional<T>& b) {
  return a && b && *a != *b;
}

bool contradict(const Claim& a, const Claim& b) {
  return differ(a.rank, b.rank) || differ(a.nranks, b.nranks);
}

std::string list_of(const std::vector<Claim>& claims) {
  std::string all;
  for (const Claim& claim : claims) {
    all += all.empty() ? "" : " and ";
    all += claim.launcher + " (";
    for (size_t i = 0; i < claim.found.size(); ++i) all += (i == 0 ? "" : " ") + claim.found[i];
    all += ")";
  }
  return all;
}

Status contradiction(const std::vector<Claim>& claims) {
  return invalid("the variables of several launchers contradict each other: ", list_of(claims),
                 "; unset those of the launchers that did not start this process");
}

Result<Claim> choose(std::vector<Claim> claims) {
  if (claims.size() == 1 || claims.front().launcher == "megadp run") {
    if (claims.front().complete()) return claims.front();
    if (claims.size() == 1) return claims.front().problem();
    return contradiction(claims);
  }
  // Claims are in the order of what they know: the first complete one is taken if nothing speaks against it.
  const auto taken = std::find_if(claims.begin(), claims.end(), [](const Claim& c) { return c.complete(); });
  if (taken == claims.end()) return contradiction(claims);
  for (const Claim& other : claims) {
    const bool outer = other.launcher == "SLURM" && taken->launcher != "SLURM";
    if (!outer && contradict(*taken, other)) return contradiction(claims);
  }
  return *taken;
}

// Where ranks of several nodes meet. Torchrun and SLURM have said it themselves.
Status find_root(Claim* claim) {
  auto root = root_from_environment();
  if (!root.ok()) return root.status();
  Launch& launch = claim->launch;
  if (root->port != 0) {
    launch.root_host = root->host;
    launch.root_port = root->port;
    return {};
  }
  if (!claim->several_nodes || launch.root_port != 0) return {};
  return invalid(launch.launcher,
                 " started ranks on several nodes; set MEGADP_ROOT=host:port on all of them to an address of rank 0's node ",
                 "and a free port, or let the ranks meet by an id or by config.bootstrap");
}

// Set on purpose, but by nobody that starts ranks: a launcher was forgotten, or its variables got lost.
Status check_alone() {
  std::string found;
  for (const char* name : {"MEGADP_ROOT", "MASTER_ADDR", "MASTER_PORT"}) {
    if (const auto value = variable(name)) found += text(found.empty() ? "" : ", ", name, "=", *value);
  }
  if (!found.empty()) {
    return invalid(
        "found ", found,
        " but no launcher's variables: RANK and WORLD_SIZE, or MEGADP_RANK, MEGADP_NRANKS, MEGADP_JOB and MEGADP_SECRET are missing. ",
        "For a single rank unset them");
  }
  if (variable("SLURM_JOB_ID")) log(LogLevel::info, "a SLURM job, but no step of it: a single rank; start ranks with srun");
  return {};
}

}  // namespace

Result<Launch> launch_from_environment() {
  std::vector<Claim> claims;
  // In the order of how much they know about nodes; SLURM last because it is the outermost.
  for (auto* claim_of : {claim_of_megadp_run, claim_of_open_mpi, claim_of_mpich, claim_of_torch, claim_of_slurm}) {
    Claim claim = claim_of();
    if (claim.seen) claims.push_back(std::move(claim));
  }
  if (claims.empty()) {
    Status status = check_alone();
    if (!status.ok()) return status;
    Launch alone;
    alone.launcher = "alone";
    return alone;
  }
  auto claim = choose(std::move(claims));
  if (!claim.ok()) return claim.status();
  Status status = find_root(&*claim);
  if (!status.ok()) return status;
  return claim->launch;
}

std::vector<std::string> launcher_variables() {
  std::vector<std::string> lines;
  for (const char* name : {"MEGADP_RANK",
                           "MEGADP_NRANKS",
                           "MEGADP_LOCAL_RANK",
                           "MEGADP_LOCAL_SIZE",
                           "MEGADP_JOB",
                           "MEGADP_SECRET",
                           "MEGADP_ROOT",
                           "RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "MASTER_PORT",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "SLURM_PROCID",
                           "SLURM_NTASKS",
                           "SLURM_STEP_NUM_TASKS",
                           "SLURM_JOB_ID",
                           "SLURM_STEP_ID",
                           "SLURM_NNODES",
                           "SLURM_STEP_NUM_NODES",
                           "SLURM_STEP_NODELIST",
                           "SLURM_LOCALID",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK",
                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "PMIX_NAMESPACE",
                           "PMIX_RANK",
                           "PMI_RANK",
                           "PMI_SIZE",
                           "PMI_FD",
                           "PMI_PORT",
                           "MPI_LOCALRANKID",
                           "MPI_LOCALNRANKS"}) {
    const auto value = variable(name);
    if (value) lines.push_back(text(name, "=", std::string_view(name) == "MEGADP_SECRET" ? "..." : *value));
  }
  return lines;
}

}  // namespace megadp
