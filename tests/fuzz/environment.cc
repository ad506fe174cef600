// SPDX-License-Identifier: Apache-2.0
// What launchers leave in the environment: an input is lines of NAME=value.
#include <cstdlib>

#include "base/text.h"
#include "control/launch/launch.h"
#include "control/launch/launchers.h"
#include "control/launch/variables.h"
#include "fuzz.h"

using namespace megadp;
using namespace megadp::test;

namespace {

void set_environment(std::string_view lines) {
  ::clearenv();
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    ::setenv(std::string(line.substr(0, equals)).c_str(), std::string(line.substr(equals + 1)).c_str(), 1);
  }
}

// Unless another variable has the same value.
void keeps_the_secret(const std::string& input, const std::string& words) {
  const auto secret = variable("MEGADP_SECRET");
  if (!secret || secret->size() < 16 || input.find(*secret) != input.rfind(*secret)) return;
  must(words.find(*secret) == std::string::npos, "a sentence tells the secret");
}

// What was found, without its values.
std::string without_values(std::string words) {
  for (size_t at = words.find('='); at != std::string::npos; at = words.find('=', at + 1)) {
    words.erase(at + 1, words.find_first_of(" ,;)", at) - at - 1);
  }
  return words;
}

std::string run(const std::string& input) {
  const auto root = parse_root(input);
  must(!root.ok() || !root->host.empty(), "an address without a host");
  first_slurm_host(input);
  set_environment(input);
  for (const std::string& line : launcher_variables()) keeps_the_secret(input, line);
  const auto launch = launch_from_environment();
  if (!launch.ok()) {
    const std::string& words = launch.status().text();
    must(launch.status().code() == Code::invalid && !words.empty(), "a bad environment is not Code::invalid, with a sentence");
    keeps_the_secret(input, words);
    return without_values(words);
  }
  must(launch->nranks >= 1 && launch->nranks <= kMaxRanks && launch->rank >= 0 && launch->rank < launch->nranks, "a rank that is none");
  must(launch->launcher == "alone" || !launch->job.empty(), "a job without a name");
  must(launch->launcher != "alone" || launch->nranks == 1, "alone, but one of several");
  must(launch->root_port == 0 || !launch->root_host.empty(), "a port without a host");
  return text("taken: ", launch->launcher, launch->root_port == 0 ? "" : " with a root");
}

// The last of the ranks each: a step further there is none.
const std::string kSecret(64, 'a');
const std::string kMegadp = "MEGADP_RANK=3\nMEGADP_NRANKS=4\nMEGADP_JOB=abc\nMEGADP_SECRET=" + kSecret + "\n";
const std::string kHosts = "MEGADP_LOCAL_RANK=1\nMEGADP_LOCAL_SIZE=2\nMEGADP_ROOT=node7:29400\n";
const std::string kTorch =
    "RANK=3\nWORLD_SIZE=4\nLOCAL_RANK=3\nLOCAL_WORLD_SIZE=4\nMASTER_ADDR=node1\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID=none\n"
    "TORCHELASTIC_RESTART_COUNT=0\n";
const std::string kSlurm =
    "SLURM_PROCID=3\nSLURM_NTASKS=4\nSLURM_STEP_NUM_TASKS=4\nSLURM_JOB_ID=77\nSLURM_STEP_ID=0\nSLURM_NNODES=2\nSLURM_STEP_NUM_NODES=2\n"
    "SLURM_LOCALID=0\nSLURM_STEP_NODELIST=n[01-02],m3\nSLURM_RESTART_COUNT=0\nSLURM_CLUSTER_NAME=c\n";
const std::string kOpenMpi =
    "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0\nOMPI_COMM_WORLD_LOCAL_SIZE=1\nPMIX_NAMESPACE=123\n"
    "PMIX_RANK=1\n";
const std::string kMpich = "PMI_RANK=1\nPMI_SIZE=2\nPMI_FD=6\nMPI_LOCALRANKID=0\nMPI_LOCALNRANKS=2\n";

}  // namespace

int main(int argc, char** argv) {
  return fuzz(
      argc, argv,
      {{"", kMegadp, kMegadp + kHosts, kTorch, kSlurm, kOpenMpi, kMpich, kSlurm + kOpenMpi, kSlurm + kTorch, "MEGADP_ROOT=[::1]:80\n"},
       {"2147483648", "-1",      "+1",      " 1",    "1 ",   "0x1",  "1e3",  "99999999999999999999",
        "1048576",    "1048577", "65535",   "65536", "[",    "]",    ",",    ":",
        "\n",         "=",       "[::1]:7", kMegadp, kHosts, kTorch, kSlurm, kOpenMpi,
        kMpich},
       run});
}
