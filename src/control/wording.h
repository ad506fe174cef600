// SPDX-License-Identifier: Apache-2.0
// How sentences of the control plane write lists of ranks, and times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace megadp {

// "rank 3", "ranks 1, 2 and 5", "ranks 0 to 5".
std::string list_ranks(const std::vector<int>& ranks);
// "0.7 s".
std::string seconds(uint64_t ns);

}  // namespace megadp
