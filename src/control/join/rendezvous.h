// SPDX-License-Identifier: Apache-2.0
// The rendezvous: how the ranks of a job find each other. One rank, the server, listens; the others connect, prove that
// they know the key (handshake.h), say who they are, and wait until all have come.
//
//   rank <── handshake ─────────────────────────────────> server
//   rank ── hello ──────────────────────────────────────> server
//   rank <── welcome, or refused ──────────────────────── server
//   rank <── table of all processes ──────────────────── server      when the last has come; the server stops listening first,
//                                                                  so that the next rendezvous of the job can have the name
//   rank <── broken ──────────────────────────────────── server      when a deadline passes anywhere, or a rank dies; also in place of
//                                                                  a welcome, to those that come up to 2 s later, but not
//                                                                  after the server's own deadline
//
// Whoever does not know the key is a stranger: neither side reads more of it than its proof.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "control/join/job_key.h"
#include "control/join/process.h"
#include "control/net/link.h"
#include "control/net/socket.h"

namespace megadp {

struct JoinRequest {
  Endpoint endpoint;
  AuthKey key;
  int nranks = 1;             // of the world
  std::vector<int> expected;  // world ranks that take part, the server among them
  int server_rank = 0;
  int rank = 0;  // this one
  Process self;
  Deadline deadline = Deadline::never();
  uint64_t timeout_ns = 0;               // for the sentence when the deadline has passed
  std::function<Status()> interrupted;   // a failure that ends the waiting; may be empty
  std::string guard{};                   // what rank 0 of a job without a secret holds (job_guard.h); empty: nothing
  std::vector<Fd>* listeners = nullptr;  // sockets that listen at the endpoint already, for the server to take; null or empty: none
};

struct JoinResult {
  std::vector<Process> table;  // by place in JoinRequest::expected
  std::vector<std::unique_ptr<Link>>
      links;                 // at the server: by place in JoinRequest::expected, null for itself. Elsewhere: one, to the server
  std::vector<Frame> early;  // what that link has received already after the table
};

// Both return when all expected ranks have come, or with a sentence that names those that have not.
Result<JoinResult> join_as_server(const JoinRequest& request);
Result<JoinResult> join_as_client(const JoinRequest& request);

}  // namespace megadp
