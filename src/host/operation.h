// SPDX-License-Identifier: Apache-2.0
// Operation: one collective of a group, in a form that ranks can compare and a person can read. Every rank leaves a copy in shared memory
// as it comes to a collective; if two ranks came to different ones, both say so instead of overwriting each other's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "backend/group.h"
#include "base/dtype.h"

namespace megadp::host {

struct Operation {      // plain bytes without gaps: it is copied between processes
  uint64_t number = 0;  // running number within the group, from 1; of a message among those from one rank to the other
  uint64_t window = 0;  // number of the window within the group, from 1; 0: on plain memory
  uint64_t begin = 0;   // elements; in windows only
  uint64_t count = 0;   // elements: the whole range in windows; per rank for reduce_scatter, all_gather and all_to_all on plain memory; 0
                        // where each rank has its own
  Collective kind = Collective::barrier;
  DType type = DType::u8;
  Op op = Op::sum;
  int32_t root = -1;  // of a broadcast; of a message the rank at its other end
  float divisor = 1;
  uint32_t microbatch = 0;  // 0: of none
  uint64_t pieces = 0;      // in windows: a digest of WindowOp::counts, odd if there is a WindowOp::to; 0: equal pieces
  char what[48] = {};       // Tag::what, cut
  int32_t bucket = -1;      // for people only: each rank has its own numbers, if ranks that share dense parameters have different experts
  int32_t unused = 0;
};

Operation make_operation(Collective kind, DType type, uint64_t count, const Tag& tag) noexcept;

// Of all but the bucket: what ranks that came for the same have in common.
uint64_t digest_of(const Operation& operation) noexcept;
inline bool same(const Operation& a, const Operation& b) noexcept {
  return digest_of(a) == digest_of(b);
}

// What is under way, for the sentence of a failure.
using Describe = std::function<std::string()>;

// "all_reduce of 1000 f32 from element 64 of window 2 (gradients, operation 17 of the group, bucket 3)"
std::string describe(const Operation& operation);

Operation make_operation(const Message& message, bool sends) noexcept;
// "send of 5 f32 to rank 1 with recv of 3 f32 from rank 2", or one of them.
std::string describe(const Message& send, const Message& recv);

}  // namespace megadp::host
