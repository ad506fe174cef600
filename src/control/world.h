// SPDX-License-Identifier: Apache-2.0
// World: the control plane of one context. It knows every rank and which of them share a node, carries small messages while
// things are being set up, passes file descriptors between the ranks of one node, and notices when a rank dies, stops or leaves.
// It carries no training data and is not used on the step path.
//
//   rank 0 (hub)  <── stream socket ── every rank        UNIX within one node, TCP when the world spans nodes
//   node leader   <── UNIX socket ──── every rank of the node   (file descriptors; the hub's own socket where it is the leader)
//
// One monitor thread per World serves these sockets, sends heartbeats, and watches the processes of its node by pidfd. The hub's
// monitor outlives its World until every other rank has left, so destroying rank 0's communicator first does no harm.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.h"
#include "base/fd.h"
#include "base/status.h"

namespace megadp {

struct Launch;  // control/launch/launch.h

// The answer of World::compare.
struct Mismatch {
  int first, other;  // world ranks
  std::string first_bytes, other_bytes;
};

class World {
 public:
  // Collective over all ranks of the launch. Fails with Code::timeout, naming the ranks that did not come, after timeout_ns.
  // timeout_ns is also how long any later wait for another rank may last.
  static Result<std::shared_ptr<World>> join(const Launch& launch, uint64_t timeout_ns);

  virtual ~World() = default;  // says goodbye; local, never waits for another rank

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual uint64_t timeout_ns() const noexcept = 0;
  // Ranks with equal node() can share memory. Nodes are numbered from 0 in order of their lowest rank.
  virtual int node(int rank) const noexcept = 0;
  virtual int process(int rank) const noexcept = 0;  // its pid as seen there
  virtual const std::string& host_name(int rank) const noexcept = 0;
  // This rank's own address, as a number, on its connection of the control plane: that to rank 0, or on rank 0 the first one from another
  // node. Empty if there is none, or where it is a loopback address as at the end of a tunnel, which says nothing about the network.
  virtual const std::string& address() const noexcept = 0;
  // A key that the ranks of this job can compute, and nobody else: a keyed hash of `purpose` under the job's secret (see AuthKey).
  virtual std::array<uint8_t, 32> key_for(std::string_view purpose) const = 0;
  // True in a child of the process that joined: nothing but the destructor (which then does nothing) may be called.
  virtual bool in_forked_child() const noexcept = 0;

  // ── failures: any thread ──
  // One relaxed load: to be looked at in every wait.
  virtual bool failed() const noexcept = 0;
  // The first failure: a dead rank (Code::peer), an abort (Code::aborted), or what another rank gave to fail().
  virtual Status failure() const = 0;
  // Makes `why` the failure here (unless there is one already) and on all other ranks, where its text says which rank reported it.
  virtual void fail(const Status& why) = 0;
  // True once `rank` has said goodbye: it will take part in nothing any more.
  virtual bool has_left(int rank) const noexcept = 0;
  // For the sentence of a timeout: "rank 2 (pid 71 on node a) is alive" / "... has not been heard of for 3.1 s: stopped, or its node is
  // gone".
  virtual std::string describe(int rank) const = 0;

  // ── small collectives among `members` (world ranks, ascending or not, the same list on each); blocking. Exchanges of one `line`, a
  //    number below kLines that the members agree on, have one order and come from one thread at a time; what is on different lines does
  //    not wait for each other. All that has no line of its own is on line 0; on the others a rank that does not come is no timeout ──
  // `what` (a literal of at most 100 bytes) names the call that this is part of: if ranks come for different ones, all of them get
  // Code::desync, which says who called what. That, a rank that has left (Code::peer) and one that does not come (Code::timeout) become
  // the failure() of the World: the ranks do not agree any more on where they are. On a line of its own the caller sees to that, and can
  // say what it was for.
  // All move what they carry through rank 0 (share: through the first rank of the node). Per rank exchange receives the bytes of all
  // members, so that it costs rank 0 the square of their number; compare and broadcast receive what does not grow with it. Each gives bytes
  // (at most 64 MiB) and gets everyone's, in the order of members.
  static constexpr uint64_t kLines = uint64_t{1} << 24;
  static constexpr uint64_t kFilesLine = kLines - 1;  // of the one series that waits for files; the others' are below
  virtual Result<std::vector<std::string>> exchange(const std::vector<int>& members, const char* what, const std::string& mine,
                                                    uint64_t line = 0) = 0;
  // Each gives bytes, and all learn whether they are the same, and otherwise what the first member gave and the first that differs from it.
  virtual Result<std::optional<Mismatch>> compare(const std::vector<int>& members, const char* what, const std::string& mine,
                                                  uint64_t line = 0) = 0;
  // Everyone gets what the first member gives; what others give is dropped.
  virtual Result<std::string> broadcast(const std::vector<int>& members, const char* what, const std::string& mine, uint64_t line = 0) = 0;
  // Local, does not wait: nothing comes on the line from this rank any more, nor is anything kept of it. What it returns becomes true when
  // that holds of all members, or one of them has left; null if nobody can tell.
  using Ended = std::shared_ptr<const std::atomic<bool>>;
  virtual Ended end_line(const std::vector<int>& /*members*/, uint64_t /*line*/) noexcept { return nullptr; }
  // Each gives a descriptor (kept open by the caller) and gets a duplicate of everyone's, its own included. All on one node. If one of them
  // gives an invalid descriptor, all get Code::system; a rank that may not open more descriptors gets it alone.
  virtual Result<std::vector<Fd>> share(const std::vector<int>& members, const char* what, const Fd& mine) = 0;
};

// 0 to count - 1: the ranks of a world of that size.
std::vector<int> all_ranks(int count);
// Every one a rank of the world, none twice, the calling one among them.
Status check_members(const World& world, const std::vector<int>& members);

}  // namespace megadp
