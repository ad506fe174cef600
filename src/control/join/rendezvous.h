// SPDX-License-Identifier: Apache-2.0
// The rendezvous: how the ranks of a job find each other. One rank, the host of the meeting, listens; the others connect, prove that
// they know the guard (handshake.h), say who they are, and wait until all have come.
//
//   rank <── handshake ─────────────────────────────────> host
//   rank ── hello ──────────────────────────────────────> host
//   rank <── welcome, or refused ──────────────────────── host
//   rank <── table of all processes ──────────────────── host      when the last has come; the host stops listening first,
//                                                                  so that the next rendezvous of the job can have the name
//   rank <── broken ──────────────────────────────────── host      when a deadline passes anywhere, or a rank dies; also in place of
//                                                                  a welcome, to those that come up to 2 s later, but not
//                                                                  after the host's own deadline
//
// Whoever does not know the guard is a stranger: neither side reads more of it than its proof.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "control/join/job_key.h"
#include "control/join/process.h"
#include "control/net/link.h"
#include "control/net/socket.h"

namespace megadp {

struct Meeting {
  Endpoint endpoint;
  Guard guard;
  int nranks = 1;             // of the world
  std::vector<int> expected;  // world ranks that take part, the host among them
  int host_rank = 0;
  int rank = 0;  // this one
  Process self;
  Deadline deadline = Deadline::never();
  uint64_t timeout_ns = 0;              // for the sentence when the deadline has passed
  std::function<Status()> interrupted;  // a failure that ends the waiting; may be empty
};

struct Party {
  std::vector<Process> table;                // by place in Meeting::expected
  std::vector<std::unique_ptr<Link>> links;  // at the host: by place in Meeting::expected, null for itself. Elsewhere: one, to the host
  std::vector<Frame> early;                  // what that link has received already after the table
};

// Both return when all expected ranks have come, or with a sentence that names those that have not.
Result<Party> host_meeting(const Meeting& meeting);
Result<Party> attend_meeting(const Meeting& meeting);

}  // namespace megadp
