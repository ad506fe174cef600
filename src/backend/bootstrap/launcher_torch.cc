// SPDX-License-Identifier: Apache-2.0
// torchrun, and the variables of its that people set by hand.
#include "backend/bootstrap/job_key.h"
#include "backend/bootstrap/launcher.h"
#include "base/text.h"

namespace megadp {
namespace {

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0;
}

}  // namespace

// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are enough; torchrun itself says more. MASTER_PORT is never bound: the agent of torchrun
// listens there. It only helps to tell jobs apart.
Claim claim_of_torch() {
  Claim claim;
  claim.launcher = claim.launch.launcher = "torchrun";
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

  // Without LOCAL_WORLD_SIZE it is not known whether there are several hosts; meeting at an address works for one as well.
  claim.several_hosts = size.value_or(1) > 1 && !is_loopback(*address);
  variables.local_ranks("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_size);
  if (claim.several_hosts) {
    claim.launch.root_host = *address;
    claim.launch.root_port = derived_port(claim.launch.job, static_cast<uint16_t>(*port));
  }
  const auto root = root_from_environment();
  if (root.ok() && root->port == *port && root->host == *address) {
    claim.wrong.push_back(text("MEGADP_ROOT=", root->host, ":", root->port, " (torchrun itself listens there; give another port)"));
  }
  return claim;
}

}  // namespace megadp
