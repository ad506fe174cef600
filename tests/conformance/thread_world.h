// SPDX-License-Identifier: Apache-2.0
// A World of threads in one process, with nothing but a mutex between them: for testing backends apart from the real World, and for
// failures that can be ordered to the moment. Not a model of the real one: it has no sockets, no heartbeat and no processes.
#pragma once

#include <memory>
#include <vector>

#include "control/world.h"

namespace megadp::test {

class ThreadHub;

// One World per rank. nodes: the host number of each rank; empty: all on one.
std::vector<std::shared_ptr<World>> create_thread_worlds(int size, uint64_t timeout_ns, std::vector<int> hosts = {});

}  // namespace megadp::test
