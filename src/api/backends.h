// SPDX-License-Identifier: Apache-2.0
// Which backends there are. The one file (with backends.cc) that knows the backends.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "control/world.h"

namespace megadp {

enum class BackendKind : uint32_t {
  automatic = 0,
  host = 1,
  cuda = 2
};  // the values of mdp_backend

struct BackendConfig {
  BackendKind kind = BackendKind::automatic;  // automatic: host
  int32_t device = -1;                        // which of several; -1: this rank's number on its node
  bool exact_sums = false;                    // on a device: in the order of base/sum_order.h, as the host always
  bool sockets = false;                       // between nodes, whatever MEGADP_TRANSPORT says
  int32_t host_threads = 0;                   // see host/backend.h
  bool threads_always = false;                // likewise
};

// Collective over the world where it spans nodes or uses devices.
Result<std::shared_ptr<Backend>> open_backend(const BackendConfig& config, std::shared_ptr<World> world);

struct BackendInfo {
  std::string name;
  bool available;
  std::string detail;  // SIMD target and the like, or why it is not available
};
std::vector<BackendInfo> list_backends();
// What joins ranks on different nodes, in the same form. Loads that library to find out.
BackendInfo transport_between_nodes();

}  // namespace megadp
