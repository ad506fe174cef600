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
  exchange = 1,   // everyone gets what all gave
  share = 2,      // the same with descriptors
  compare = 3,    // everyone learns whether all gave the same bytes
  broadcast = 4,  // everyone gets what the first member gave
};

// Which operation: the sequence number counts the operations of one kind, members and line, on each member by itself.
struct OperationKey {
  OperationKind kind = OperationKind::exchange;
  std::vector<int32_t> members;
  uint64_t sequence = 0;

  bool operator<(const OperationKey& other) const {
    return std::tie(kind, sequence, members) < std::tie(other.kind, other.sequence, other.members);
  }
  bool has(int rank) const;
};

// Lists of members, by a digest of each: a frame carries the digest, and the list itself only if its receiver may not know it yet.
class MemberLists {
 public:
  static uint64_t digest(const std::vector<int32_t>& members) noexcept;
  // False if another list has the same digest.
  bool add(const std::vector<int32_t>& members);
  const std::vector<int32_t>* find(uint64_t digest) const;

 private:
  std::map<uint64_t, std::vector<int32_t>> lists_;
};

void write_key(FrameWriter* writer, const OperationKey& key, bool with_members);
// False unless it is a key that a rank of a world of `nranks` may use. A list that comes with it is added to `lists`.
bool read_key(FrameReader* reader, int nranks, MemberLists* lists, OperationKey* key);

struct Contribution {
  std::string what;   // the call it is part of
  std::string bytes;  // where descriptors are shared: why this rank has none
  std::shared_ptr<Fd> fd;
};

class Relay {
 public:
  struct Answer {
    Status status;  // ok: a result
    // By kind: of all members; of the first; none if all gave the same, otherwise of the first and of the first that differs from it, whose
    // place `other` is.
    std::vector<std::shared_ptr<const Contribution>> parts;
    uint32_t other = 0;
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
    size_t given = 0;                                        // how many parts there are
    std::shared_ptr<const Answer> failure;
  };
  using Operations = std::map<OperationKey, Operation>;
  Operations::iterator find_or_begin(const OperationKey& key);
  void complete(Operations::iterator at);
  static Answer result_of(OperationKind kind, std::vector<std::shared_ptr<const Contribution>> parts);
  void fail(Operations::iterator at, Status why);
  void answer_failure(Operations::iterator at, size_t place);

  Emit emit_;
  Describe describe_;
  Operations operations_;
  std::vector<int> gone_;
};

}  // namespace megadp
