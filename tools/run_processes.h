// SPDX-License-Identifier: Apache-2.0
// Which processes belong to a launcher, as /proc tells. A process that ends while the list is read is simply not in it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace megadp::tool {

// Children of this process that have not ended, ascending. The launcher is the subreaper of its ranks: what they leave becomes its child.
std::vector<pid_t> living_children();

// Other processes of this machine that were started with `mark`, a NAME=value, in their environment. Those of other users are not seen.
std::vector<pid_t> processes_with(const std::string& mark);

// Whether it has begun to end, and closes what it has open, though it may not be waited for yet.
bool is_ending(pid_t pid);

}  // namespace megadp::tool
