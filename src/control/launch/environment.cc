// SPDX-License-Identifier: Apache-2.0
// launch_from_environment: which launcher started this process. Taking the wrong one, or none, would train several models side by side and
// call it success, so whatever is unclear is an error that says what was seen.
//
// Launchers are nested in practice, and an inner one's ranks inherit the outer one's variables:
//   - `megadp run` sets everything itself, for exactly its own ranks, and notes which launchers' tasks it was itself: it wins over those.
//     What it has not noted was set below it, by a launcher that starts several ranks in the place of one of its own.
//   - SLURM is the outermost: torchrun, mpirun and mpiexec are started by it, one per node, and their ranks still see SLURM's task number,
//     which is the launcher's, not theirs. So a complete other launcher wins over it.
//   - People derive one launcher's variables from another's (RANK=$OMPI_COMM_WORLD_RANK). Then both say the same, and the one that
//     knows most about nodes is taken.
//   - Anything else contradicts itself, and both are listed.
#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "control/join/job_key.h"
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

// In the order of how much they know about nodes; SLURM last because it is the outermost.
std::vector<Claim> claims_found() {
  std::vector<Claim> claims;
  for (auto* claim_of : {claim_of_megadp_run, claim_of_open_mpi, claim_of_mpich, claim_of_torch, claim_of_slurm}) {
    Claim claim = claim_of();
    if (claim.seen) claims.push_back(std::move(claim));
  }
  return claims;
}

// By which a claim is known again, also where a script has chosen another port than torchrun.
std::string mark_of(const Claim& claim) {
  const std::string& job = claim.launch.job;
  const size_t port = claim.launcher == kTorchrun ? job.rfind('/') : std::string::npos;
  const Digest digest = blake2s({}, text(claim.launcher, " ", claim.launch.rank, " ", claim.launch.nranks, " ", job.substr(0, port)));
  return to_hex(digest.data(), 8);
}

// Whether `other` is of a launcher that a rank of `megadp run` has started. One that starts a single process is like any other wrapper, and
// a script may set RANK and WORLD_SIZE for a group of PyTorch's own; a `megadp run` that left no note is left alone.
bool multiplies(const Claim& run, const Claim& other) {
  const auto outer = variable(kOuterLaunchers);
  if (other.launcher == kTorchrun && !variable("TORCHELASTIC_RUN_ID")) return false;
  return outer && other.complete() && other.launch.nranks > 1 && contradict(run, other) && outer->find(mark_of(other)) == std::string::npos;
}

Result<Claim> choose(const std::vector<Claim>& claims) {
  const Claim& first = claims.front();
  if (claims.size() == 1 || first.launcher == kMegadpRun) {
    const bool alone = std::none_of(claims.begin() + 1, claims.end(), [&](const Claim& other) { return multiplies(first, other); });
    if (first.complete() && alone) return first;
    if (claims.size() == 1) return first.problem();
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

// What starts several processes, and tells too little for their ranks to meet: the number of this one, from `first` on, and, where it is
// told, how many there are. With `always`, two of them are never two jobs.
struct UnknownLauncher {
  const char* name;
  const char* number;
  const char* count;
  int first;
  bool always;
};
constexpr UnknownLauncher kUnknownLaunchers[] = {
    {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", 0, true},
    {"PMIx", "PMIX_RANK", "", 0, true},
    {"PALS", "PALS_RANKID", "", 0, true},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", 0, true},
    {"an indexed job of Kubernetes", "JOB_COMPLETION_INDEX", "", 0, false},
    {"PBS", "PBS_TASKNUM", "", 1, false},  // 1: the job's script
};

// The first of several processes may be the only one, and the tasks of an array may be jobs of their own: those are warned.
Status check_unknown(const UnknownLauncher& by) {
  const auto number = variable(by.number), count = variable(by.count);
  if (!number || count == "1") return {};
  const bool later = *number != std::to_string(by.first);
  const std::string seen = text(by.number, "=", *number, count ? text(", ", by.count, "=", *count) : "");
  if (by.always && (later || count)) {
    return invalid("found ", seen, ": ", by.name, " has started several ranks, which cannot meet by what it tells them; start them with ",
                   "`megadp run`, or let them meet by an id or by config.bootstrap. For a single rank unset ", by.number);
  }
  if (later) log(LogLevel::warning, text("found ", seen, ", and no launcher's variables: this process of ", by.name, " is a single rank"));
  return {};
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
  for (const UnknownLauncher& each : kUnknownLaunchers) {
    Status status = check_unknown(each);
    if (!status.ok()) return status;
  }
  if (variable("SLURM_JOB_ID")) log(LogLevel::info, "a SLURM job, but no step of it: a single rank; start ranks with srun");
  return {};
}

}  // namespace

Result<Launch> launch_from_environment() {
  const std::vector<Claim> claims = claims_found();
  if (claims.empty()) {
    Status status = check_alone();
    if (!status.ok()) return status;
    Launch alone;
    alone.launcher = "alone";
    return alone;
  }
  auto claim = choose(claims);
  if (!claim.ok()) return claim.status();
  Status status = find_root(&*claim);
  if (!status.ok()) return status;
  return claim->launch;
}

std::string outer_launchers() {
  std::string marks = "none";
  for (const Claim& claim : claims_found()) {
    if (claim.launcher != kMegadpRun && claim.complete()) marks += " " + mark_of(claim);
  }
  return marks;
}

std::string one_of_several() {
  std::vector<Claim> several;
  for (const Claim& claim : claims_found()) {
    if (claim.launcher != kMegadpRun && claim.rank && claim.nranks.value_or(1) > 1) several.push_back(claim);
  }
  return list_of(several);
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
                           "MV2_COMM_WORLD_RANK",
                           "MV2_COMM_WORLD_SIZE",
                           "PALS_RANKID",
                           "FLUX_TASK_RANK",
                           "FLUX_JOB_SIZE",
                           "JOB_COMPLETION_INDEX",
                           "PBS_TASKNUM",
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
