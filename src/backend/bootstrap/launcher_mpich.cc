// SPDX-License-Identifier: Apache-2.0
// MPICH's mpiexec (hydra), and others that set PMI's variables in its way.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "backend/bootstrap/launcher.h"
#include "backend/bootstrap/process.h"
#include "base/text.h"

namespace megadp {
namespace {

constexpr int kMaxAncestors = 64;

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  return all.str();
}

// The value after "--control-port": where mpiexec itself listens, the same on all hosts of a job.
std::string control_port_of(int pid) {
  std::istringstream arguments(contents_of(text("/proc/", pid, "/cmdline")));
  std::string argument;
  while (std::getline(arguments, argument, '\0')) {
    if (argument == "--control-port" && std::getline(arguments, argument, '\0')) return argument;
  }
  return {};
}

// Hydra gives its ranks no name of the job, except over a protocol that belongs to the MPI library. But the ranks of a host descend from
// one proxy process. Scripts and debuggers may stand in between.
std::string job_of_proxy(bool several_hosts) {
  int pid = ::getppid();
  for (int i = 0; i < kMaxAncestors && pid > 1; ++i) {
    const auto ancestor = read_process_stat(text("/proc/", pid, "/stat"));
    if (!ancestor) break;
    if (ancestor->name.find("pmi_proxy") != std::string::npos) {
      const std::string port = control_port_of(pid);
      if (!several_hosts) return text("MPICH/", port, "/", pid, "/", ancestor->start_time);
      return port.empty() ? std::string() : "MPICH/" + port;
    }
    pid = ancestor->parent;
  }
  return {};
}

}  // namespace

Claim claim_of_mpich() {
  Claim claim;
  claim.launcher = claim.launch.launcher = "MPICH";
  Variables variables(&claim);
  const auto rank = variables.required_number("PMI_RANK", 0, kMaxRanks);
  const auto size = variables.required_number("PMI_SIZE", 1, kMaxRanks);
  variables.ranks("PMI_RANK", rank, "PMI_SIZE", size);
  const auto local_rank = variables.required_number("MPI_LOCALRANKID", 0, kMaxRanks);
  const auto local_size = variables.required_number("MPI_LOCALNRANKS", 1, kMaxRanks);
  variables.local_ranks("MPI_LOCALRANKID", local_rank, "MPI_LOCALNRANKS", local_size);
  claim.seen = !claim.found.empty();
  if (!claim.seen || !claim.missing.empty()) return claim;
  claim.launch.job = job_of_proxy(claim.several_hosts);
  if (claim.launch.job.empty()) {
    claim.wrong.push_back("no process above this one is a proxy of mpiexec (hydra_pmi_proxy), so the job has no name");
  }
  return claim;
}

}  // namespace megadp
