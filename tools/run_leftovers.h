// SPDX-License-Identifier: Apache-2.0
// Which processes descend from this one. The launcher is their subreaper: a process whose parent has gone becomes its child.
#pragma once

#include <sys/types.h>

#include <vector>

namespace megadp::tool {

// Living (not waited-for) children of this process, ascending.
std::vector<pid_t> living_children();

}  // namespace megadp::tool
