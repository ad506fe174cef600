// SPDX-License-Identifier: Apache-2.0
// What each launcher leaves in the environment of its ranks, one recogniser a launcher. launch_env.cc weighs their claims.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/bootstrap/launch.h"
#include "base/status.h"

namespace megadp {

// One launcher's variables as they are found, with what is wrong about them.
struct Claim {
  std::string launcher;
  bool seen = false;  // at least one variable that only this launcher sets
  Launch launch;      // meaningful when complete
  // As far as they could be read: two launchers contradict each other only where both say something.
  std::optional<int> rank, nranks;
  bool several_hosts = false;  // with launch.root_port 0 the root address is still to be found
  std::vector<std::string> found, missing, wrong;

  bool complete() const { return seen && missing.empty() && wrong.empty(); }
  Status problem() const;  // when not complete: what was found, what is missing, what is wrong
};

Claim claim_of_megadp_run();
Claim claim_of_torch();
Claim claim_of_slurm();
Claim claim_of_open_mpi();
Claim claim_of_mpich();

// Reads variables into a claim's lists. An empty value counts as not set.
class Variables {
 public:
  explicit Variables(Claim* claim) : claim_(claim) {}
  std::optional<std::string> optional_text(const char* name);
  std::optional<std::string> required_text(const char* name);
  // Decimal, low <= value <= high; otherwise it is listed as wrong.
  std::optional<int> optional_number(const char* name, int low, int high);
  std::optional<int> required_number(const char* name, int low, int high);
  // Of several names for one thing the first that is set.
  std::optional<std::string> any_text(const std::vector<const char*>& names, bool required);
  std::optional<int> any_number(const std::vector<const char*>& names, int low, int high);

  // Fills in rank and nranks and checks them against each other; the same for a pair of local rank and size.
  void ranks(const char* rank_name, std::optional<int> rank, const char* size_name, std::optional<int> size);
  void local_ranks(const char* rank_name, std::optional<int> rank, const char* size_name, std::optional<int> size);

 private:
  std::optional<int> parse(const char* name, const std::optional<std::string>& value, int low, int high);
  Claim* claim_;
};

constexpr int kMaxRanks = 1 << 20;

std::optional<std::string> variable(const char* name);  // nothing when unset or empty

struct RootAddress {
  std::string host;
  uint16_t port = 0;
};
// "host:port", "1.2.3.4:port" or "[::1]:port".
Result<RootAddress> parse_root(std::string_view value);
// MEGADP_ROOT; port 0 when it is not set.
Result<RootAddress> root_from_environment();

// The first host of SLURM's compressed list: "node[007-009,12],login" → "node007". Empty when it cannot be read.
std::string first_slurm_host(std::string_view list);

}  // namespace megadp
