// SPDX-License-Identifier: Apache-2.0
// Lanes: the messages of a group of ranks with one GPU each. Each direction between two ranks is a lane: a communicator of NCCL of these
// two alone, with a stream and a launcher of its own, made with its first message. So the two halves of an exchange do not wait for each
// other, not even where NCCL's communicators have yet to be made, and each message is a collective of two ranks, which is launched,
// ordered, watched and compared as any other.
//
//   group's stream     ──── ● ────────────────────────────────────► ● ────►
//   lane to rank 1          └─► the k-th message from 0 to 1 ───────┤
//   lane from rank 3        └─► the k-th message from 3 to 0 ───────┘
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "cuda/direction.h"
#include "cuda/member.h"
#include "cuda/stream.h"

namespace megadp::cuda {

class Lanes {
 public:
  // With the group, of which `whole` is this rank's member. The lines of all lanes are taken now: they may be made in any order.
  explicit Lanes(std::shared_ptr<Member> whole);

  // Arguments are right, and no half is with this rank itself. One rank may be -1, as in Group::send_recv.
  Status exchange(CudaStream& stream, const Message& send, const Message& recv);

 private:
  struct Lane {
    uint64_t line = 0;
    std::shared_ptr<Member> member;      // null: no message yet
    std::unique_ptr<CudaStream> stream;  // likewise
  };
  struct Other {  // rank
    Lane to, from;
    std::shared_ptr<Direction::Launched> launched;
  };
  Result<Lane*> lane(const CudaStream& beside, int rank, bool sends);

  const std::shared_ptr<Member> whole_;
  std::vector<Other> others_;  // by rank; that of this one is not used
};

}  // namespace megadp::cuda
