// SPDX-License-Identifier: Apache-2.0
// Variables of the environment, read and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "control/launch/launchers.h"

namespace megadp {

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

  // Fills in rank and nranks and checks them against each other; the same for a pair of local rank and size. By their names alone:
  // required.
  void ranks(const char* rank_name, const char* size_name);
  void local_ranks(const char* rank_name, const char* size_name);
  void ranks(const char* rank_name, std::optional<int> rank, const char* size_name, std::optional<int> size);
  void local_ranks(const char* rank_name, std::optional<int> rank, const char* size_name, std::optional<int> size);

 private:
  std::optional<int> parse(const char* name, const std::optional<std::string>& value, int low, int high);
  Claim* claim_;
};

std::optional<std::string> variable(const char* name);  // nothing when unset or empty

struct RootAddress {
  std::string host;
  uint16_t port = 0;
};
// "host:port", "1.2.3.4:port" or "[::1]:port".
Result<RootAddress> parse_root(std::string_view value);
// MEGADP_ROOT; port 0 when it is not set.
Result<RootAddress> root_from_environment();

}  // namespace megadp
