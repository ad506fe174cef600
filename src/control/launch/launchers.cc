// SPDX-License-Identifier: Apache-2.0
// One recogniser for each launcher: megadp run, torchrun, SLURM, Open MPI, MPICH.
#include "control/launch/launchers.h"

#include <fstream>
#include <sstream>

#include "base/text.h"
#include "control/join/job_key.h"
#include "control/join/process.h"
#include "control/launch/variables.h"

namespace megadp {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  return all.str();
}

// The value after "--control-port": where mpiexec itself listens, the same on all nodes of a job.
std::string control_port_of(int pid) {
  std::istringstream arguments(contents_of(text("/proc/", pid, "/cmdline")));
  std::string argument;
  while (std::getline(arguments, argument, '\0')) {
    if (argument == "--control-port" && std::getline(arguments, argument, '\0')) return argument;
  }
  return {};
}

// Hydra gives its ranks no name of the job, except over a protocol that belongs to the MPI library. But the ranks of a node descend from
// one proxy process. Scripts and debuggers may stand in between.
std::string job_of_proxy(bool several_nodes) {
  for (const Ancestor& each : ancestors()) {
    if (each.stat.name.find("pmi_proxy") == std::string::npos) continue;
    const std::string port = control_port_of(each.pid);
    if (!several_nodes) return text("MPICH/", port, "/", each.pid, "/", each.stat.start_time);
    return port.empty() ? std::string() : "MPICH/" + port;
  }
  return {};
}

}  // namespace

Status Claim::problem() const {
  std::string sentence = text("the environment of ", launcher, " is incomplete: found ", join(found));
  if (!missing.empty()) sentence += "; missing " + join(missing);
  if (!wrong.empty()) sentence += "; invalid: " + join(wrong);
  return invalid(sentence);
}

// `megadp run` sets all of these itself, so anything less was tampered with.
Claim claim_of_megadp_run() {
  Claim claim;
  claim.launcher = claim.launch.launcher = kMegadpRun;
  Variables variables(&claim);
  variables.ranks("MEGADP_RANK", "MEGADP_NRANKS");
  const auto job = variables.required_text("MEGADP_JOB");
  if (job) claim.launch.job = "megadp run/" + *job;
  const auto secret = variables.required_text("MEGADP_SECRET");
  if (secret && !from_hex(*secret, claim.launch.secret.data(), claim.launch.secret.size())) {
    claim.wrong.push_back("MEGADP_SECRET (64 hexadecimal digits are expected)");
  } else if (secret && secret->find_first_not_of('0') == std::string::npos) {
    claim.wrong.push_back("MEGADP_SECRET (it is all zero, which is no secret)");
  }
  const auto local_rank = variables.optional_number("MEGADP_LOCAL_RANK", 0, kMaxRanks);
  const auto local_size = variables.optional_number("MEGADP_LOCAL_SIZE", 1, kMaxRanks);
  variables.local_ranks("MEGADP_LOCAL_RANK", local_rank, "MEGADP_LOCAL_SIZE", local_size);
  claim.seen = !claim.found.empty();
  return claim;
}

// torchrun, and the variables of its that people set by hand. RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are enough; torchrun itself
// says more. MASTER_PORT is never bound: the agent of torchrun listens there. It only helps to tell jobs apart.
Claim claim_of_torch() {
  Claim claim;
  claim.launcher = claim.launch.launcher = kTorchrun;
  Variables variables(&claim);
  // MASTER_ADDR and MASTER_PORT alone do not count: job scripts export them for whoever comes.
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"}) {
    claim.seen = claim.seen || variable(name).has_value();
  }
  const auto rank = variables.required_number("RANK", 0, kMaxRanks);
  const auto size = variables.required_number("WORLD_SIZE", 1, kMaxRanks);
  variables.ranks("RANK", rank, "WORLD_SIZE", size);
  const auto run_id = variables.optional_text("TORCHELASTIC_RUN_ID");
  const auto restarts = variables.optional_number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30);
  const auto local_rank =
      run_id ? variables.required_number("LOCAL_RANK", 0, kMaxRanks) : variables.optional_number("LOCAL_RANK", 0, kMaxRanks);
  const auto local_size =
      run_id ? variables.required_number("LOCAL_WORLD_SIZE", 1, kMaxRanks) : variables.optional_number("LOCAL_WORLD_SIZE", 1, kMaxRanks);
  const auto address = variables.required_text("MASTER_ADDR");
  const auto port = variables.required_number("MASTER_PORT", 1, 65535);
  if (!address || !port) return claim;
  claim.launch.job = text("torchrun/", run_id.value_or(""), "/", restarts.value_or(0), "/", *address, ":", *port);

  // Without LOCAL_WORLD_SIZE it is not known whether there are several nodes; meeting at an address works for one as well.
  claim.several_nodes = size.value_or(1) > 1 && !is_loopback(*address);
  variables.local_ranks("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size);
  if (claim.several_nodes) {
    claim.launch.root_host = *address;
    claim.launch.root_port = derived_port(claim.launch.job, static_cast<uint16_t>(*port));
  }
  const auto root = root_from_environment();
  if (root.ok() && root->port == *port && root->host == *address) {
    claim.wrong.push_back(text("MEGADP_ROOT=", root->host, ":", root->port, " (torchrun itself listens there; give another port)"));
  }
  return claim;
}

std::string first_slurm_host(std::string_view list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host.push_back(list[i]);
      continue;
    }
    const size_t end = list.find(']', i);
    if (end == std::string_view::npos) return {};
    const std::string_view ranges = list.substr(i + 1, end - i - 1);
    const std::string_view first = ranges.substr(0, ranges.find_first_of("-,"));
    if (first.empty()) return {};
    host += first;
    i = end;
  }
  return host.find(']') == std::string::npos ? host : std::string();
}

// SLURM: the tasks of a job step, started by srun. A batch script and the shell of salloc see SLURM's variables too, a batch script even
// SLURM_PROCID=0, but no step: they are not ranks.
Claim claim_of_slurm() {
  Claim claim;
  claim.launcher = claim.launch.launcher = "SLURM";
  Variables variables(&claim);
  const bool step_seen = variable("SLURM_STEP_ID") || variable("SLURM_STEPID");
  const auto task = variable("SLURM_PROCID");
  claim.seen = step_seen || (task && *task != "0");
  const auto rank = variables.required_number("SLURM_PROCID", 0, kMaxRanks);
  // The step's own numbers first: a step may be smaller than its job.
  const auto size = variables.any_number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, 1, kMaxRanks);
  variables.ranks("SLURM_PROCID", rank, "the number of tasks", size);
  const auto job = variables.any_text({"SLURM_JOB_ID", "SLURM_JOBID"}, true);
  const auto step = variables.any_text({"SLURM_STEP_ID", "SLURM_STEPID"}, true);
  const auto nodes = variables.any_number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"}, 1, kMaxRanks);
  const auto local = variables.optional_number("SLURM_LOCALID", 0, kMaxRanks);
  variables.local_ranks("SLURM_LOCALID", local, "", std::nullopt);
  const auto cluster = variables.optional_text("SLURM_CLUSTER_NAME");
  const auto restarts = variables.optional_number("SLURM_RESTART_COUNT", 0, 1 << 30);
  if (job && step) {
    claim.launch.job = text("SLURM/", cluster.value_or(""), "/", *job, ".", *step, "/", restarts.value_or(0));
  }
  claim.several_nodes = nodes.value_or(1) > 1 && size.value_or(1) > 1;
  if (!claim.several_nodes || variable("MEGADP_ROOT")) return claim;
  const auto list = variables.any_text({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}, true);
  if (!list) return claim;
  claim.launch.root_host = first_slurm_host(*list);
  claim.launch.root_port = derived_port(claim.launch.job, 0);
  if (claim.launch.root_host.empty()) claim.wrong.push_back(text("the node list \"", *list, "\" (set MEGADP_ROOT=host:port instead)"));
  return claim;
}

// Open MPI's mpirun.
Claim claim_of_open_mpi() {
  Claim claim;
  claim.launcher = claim.launch.launcher = "Open MPI";
  Variables variables(&claim);
  variables.ranks("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  variables.local_ranks("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  claim.seen = !claim.found.empty();
  // Other launchers that speak PMIx set this too, so it is no sign of Open MPI by itself.
  const auto job = variables.any_text({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, true);
  if (job) claim.launch.job = "Open MPI/" + *job;
  return claim;
}

// MPICH's mpiexec (hydra), and others that set PMI's variables in its way.
Claim claim_of_mpich() {
  Claim claim;
  claim.launcher = claim.launch.launcher = "MPICH";
  Variables variables(&claim);
  variables.ranks("PMI_RANK", "PMI_SIZE");
  variables.local_ranks("MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  claim.seen = !claim.found.empty();
  if (!claim.seen || !claim.missing.empty()) return claim;
  claim.launch.job = job_of_proxy(claim.several_nodes);
  if (claim.launch.job.empty()) {
    claim.wrong.push_back("no process above this one is a proxy of mpiexec (hydra_pmi_proxy), so the job has no name");
  }
  return claim;
}

}  // namespace megadp
