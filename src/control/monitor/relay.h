// SPDX-License-Identifier: Apache-2.0
// Relay: collects what the members of a small collective give and hands everything to each of them. It runs on the hub for bytes and on
// each node's leader for descriptors. Pure bookkeeping: no sockets, no clock, no locks of its own.
//
// An operation ends in one way for all its members: a result once all have given, otherwise the same failure for those that have given
// and, remembered until they ask, for those that come later.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status.h"
#include "control/net/frame.h"
#include "control/world.h"

namespace megadp {

enum class OperationKind : uint32_t {
  exchange = 1,
  share = 2
};

// Which operation: the sequence number counts the operations of one kind among one list of members, on each member by itself.
struct OperationKey {
  OperationKind kind = OperationKind::exchange;
  std::vector<int32_t> members;
  uint64_t sequence = 0;

  bool operator<(const OperationKey& other) const {
    return std::tie(kind, sequence, members) < std::tie(other.kind, other.sequence, other.members);
  }
  bool has(int rank) const;
};

void write_key(FrameWriter* writer, const OperationKey& key);
// False unless it is a key that a rank of a world of `nranks` may use.
bool read_key(FrameReader* reader, int nranks, OperationKey* key);

struct Contribution {
  std::string what;   // the call it is part of
  std::string bytes;  // where descriptors are shared: why this rank has none
  std::shared_ptr<Fd> fd;
};

class Relay {
 public:
  struct Answer {
    Status status;  // ok: a result
    std::vector<std::shared_ptr<const Contribution>> parts;
  };
  using Emit = std::function<void(int rank, const OperationKey& key, const std::shared_ptr<const Answer>& answer)>;
  // "rank 2 (pid 71 on node a) is alive"
  using Describe = std::function<std::string(int rank)>;

  Relay(Emit emit, Describe describe) : emit_(std::move(emit)), describe_(std::move(describe)) {}

  // False when the rank may not give this: it is no member, or has given already.
  bool give(int rank, const OperationKey& key, Contribution part);
  // A member's wait has timed out.
  bool withdraw(int rank, const OperationKey& key, uint64_t waited_ns);
  // A rank takes part in nothing any more.
  void leave(int rank);

 private:
  struct Operation {
    std::string what;                                        // as the first to come called it
    std::vector<std::shared_ptr<const Contribution>> parts;  // by place; null: has not come
    std::vector<bool> answered;                              // by place: knows the failure, or never will
    std::shared_ptr<const Answer> failure;
  };
  using Operations = std::map<OperationKey, Operation>;
  Operations::iterator find_or_begin(const OperationKey& key);
  void complete(Operations::iterator at);
  void fail(Operations::iterator at, Status why);
  void answer_failure(Operations::iterator at, size_t place);

  Emit emit_;
  Describe describe_;
  Operations operations_;
  std::vector<int> gone_;
};

}  // namespace megadp
