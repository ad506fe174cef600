// SPDX-License-Identifier: Apache-2.0
// Open MPI's mpirun.
#include "backend/bootstrap/launcher.h"
#include "base/text.h"

namespace megadp {

Claim claim_of_open_mpi() {
  Claim claim;
  claim.launcher = claim.launch.launcher = "Open MPI";
  Variables variables(&claim);
  const auto rank = variables.required_number("OMPI_COMM_WORLD_RANK", 0, kMaxRanks);
  const auto size = variables.required_number("OMPI_COMM_WORLD_SIZE", 1, kMaxRanks);
  variables.ranks("OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_SIZE", size);
  const auto local_rank = variables.required_number("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMaxRanks);
  const auto local_size = variables.required_number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMaxRanks);
  variables.local_ranks("OMPI_COMM_WORLD_LOCAL_RANK", local_rank, "OMPI_COMM_WORLD_LOCAL_SIZE", local_size);
  claim.seen = !claim.found.empty();
  // Other launchers that speak PMIx set this too, so it is no sign of Open MPI by itself.
  const auto job = variables.any_text({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, true);
  if (job) claim.launch.job = "Open MPI/" + *job;
  return claim;
}

}  // namespace megadp
