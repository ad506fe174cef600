// SPDX-License-Identifier: Apache-2.0
// SLURM: the tasks of a job step, started by srun.
#include "backend/bootstrap/job_key.h"
#include "backend/bootstrap/launcher.h"
#include "base/text.h"

namespace megadp {

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

// A batch script and the shell of salloc see SLURM's variables too, a batch script even SLURM_PROCID=0, but no step: they are not ranks.
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
  claim.several_hosts = nodes.value_or(1) > 1 && size.value_or(1) > 1;
  if (!claim.several_hosts || variable("MEGADP_ROOT")) return claim;
  const auto list = variables.any_text({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}, true);
  if (!list) return claim;
  claim.launch.root_host = first_slurm_host(*list);
  claim.launch.root_port = derived_port(claim.launch.job, 0);
  if (claim.launch.root_host.empty()) claim.wrong.push_back(text("the node list \"", *list, "\" (set MEGADP_ROOT=host:port instead)"));
  return claim;
}

}  // namespace megadp
