// SPDX-License-Identifier: Apache-2.0
// Transfer: collectives of one bucket, or of several at once, between two events. Traffic: how much was sent, and how long it took.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "core/comm.h"

namespace megadp {

struct Transfer {
  std::shared_ptr<Event> begin, end;
  bool counted = false;  // in Traffic::comm_ns
};

struct Traffic {
  uint64_t comm_ns = 0, exposed_ns = 0, bytes = 0;

  // What `work` submits to the stream.
  Result<std::shared_ptr<Transfer>> submit(Stream& stream, uint64_t sent, const std::function<Status()>& work);
  // All of the calls, on the communicator's channel.
  Result<std::shared_ptr<Transfer>> submit(Comm& comm, std::span<const WindowOp> calls);
  // Adds the time of one that has ended; once.
  void count(Transfer* transfer);
};

}  // namespace megadp
