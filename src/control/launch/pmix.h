// SPDX-License-Identifier: Apache-2.0
// PMIx, the service through which mpirun lets its ranks tell each other small things; loaded by name when it is needed: for ranks of Open
// MPI on several nodes that were not given MEGADP_ROOT. Nothing else of the library knows it.
#pragma once

#include "base/deadline.h"
#include "base/status.h"
#include "control/launch/launch.h"

namespace megadp {

// Collective over the ranks of the launch. Rank 0 picks an address of its own, a port and a fresh secret; all get root_host, root_port
// and secret. Done once in a process and remembered: PMIx keeps old values, and may be started and ended only once. Code::timeout at the
// deadline; what was begun goes on, and another call waits for the same.
Status agree_on_root_by_pmix(Launch* launch, Deadline deadline);

}  // namespace megadp
