// SPDX-License-Identifier: Apache-2.0
// How a collective on any memory is cut into turns of what fits into a half of everyone's staging memory; see host/collective.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "host/collective.h"
#include "host/kernels.h"

namespace megadp::host {

// Slices begin on borders of this many elements where there is room for it, so that two ranks seldom write to one cache line.
constexpr size_t kPartElements = 64;

inline uint64_t quotient_up(uint64_t a, uint64_t b) {
  return a / b + (a % b == 0 ? 0 : 1);
}

// Pieces, cut into turns: in each a half takes a slice of every piece, as large a part of it as of the others, so that all ranks have
// work in every turn.
class Slices {
 public:
  struct Range {
    uint64_t begin, end;  // elements of the piece
    uint64_t count() const noexcept { return end - begin; }
  };

  // `most`: elements of the rank that has most, in up to `pieces` pieces side by side, of `width` bytes each.
  Slices(size_t width, uint64_t most, size_t pieces) : width_(width), most_(most) {
    const uint64_t room = kStagingHalfBytes / width;
    unit_ = room / kPartElements > 2 * pieces ? kPartElements : 1;
    turns_ = most <= room ? 1 : quotient_up(most, unit_ * (room / unit_ - (pieces > 1 ? pieces : 0)));
  }
  size_t width() const noexcept { return width_; }
  uint64_t turns() const noexcept { return turns_; }
  // Of a half that are used, at most.
  size_t bytes() const noexcept { return turns_ == 1 ? most_ * width_ : kStagingHalfBytes; }
  // Of a piece of `count` elements.
  Range of(uint64_t count, uint64_t turn) const noexcept {
    const uint64_t step = turns_ == 1 ? count : unit_ * quotient_up(count, unit_ * turns_);
    return {std::min(count, step * turn), std::min(count, step * (turn + 1))};
  }
  // In bytes, where the slice of piece `number` begins in a half; `before`: elements in the pieces before it. Rounded up for each piece, so
  // that slices, which are rounded up too, do not overlap.
  size_t place(uint64_t before, size_t number) const noexcept {
    return (turns_ == 1 ? before : unit_ * (quotient_up(before, unit_ * turns_) + number)) * width_;
  }

 private:
  size_t width_;
  uint64_t most_, unit_, turns_;
};

// This rank's part, or a part of it, into its half.
inline void fill(const Call& call, std::byte* half, const std::byte* from, size_t bytes) {
  if (call.group.staging_stores().past_caches()) return copy_past_caches(half, from, bytes, call.executor());
  copy_bytes(half, from, bytes, call.executor());
}

// What is too large for a half of the staging goes in turns: in each this rank puts its part into its half, ranks of other nodes are sent
// theirs, a barrier, and it takes from everyone's half. At least one turn: also an empty collective compares what the ranks came for.
// Between nodes what a turn sends is on its way while the turn before is taken: the barrier of that one says that nobody reads the half of
// the one before it any more.
template <class Put, class Post, class Take>
Status in_turns(const Call& call, const Slices& slices, const Put& put, const Post& post, const Take& take, uint64_t more_turns = 0) {
  const bool between_nodes = call.group.spans_nodes();
  const std::vector<std::byte*>* staging = nullptr;
  StagingStores& stores = call.group.staging_stores();
  const auto begin = [&](uint64_t turn) -> Status {
    staging = &call.group.next_staging(slices.bytes());
    if (!between_nodes) stores.next(call.operation.kind, slices.bytes());
    const StagingStores::Working working(stores);
    put((*staging)[static_cast<size_t>(call.rank())], turn);
    return between_nodes ? post(*staging, turn) : Status();
  };
  const auto end = [&](const std::vector<std::byte*>& come, uint64_t turn) -> Status {
    const StagingStores::Working working(stores);
    return take(come, turn);
  };
  const uint64_t turns = slices.turns() + more_turns;
  if (between_nodes) {
    if (Status same = call.group.compare_with_other_nodes(call.operation, call.stop); !same) return same;
  }
  Status status = begin(0);
  for (uint64_t turn = 0; turn < turns && status.ok(); ++turn) {
    Status met = between_nodes ? call.group.end_exchange(call.operation, call.stop) : call.barrier();
    if (!met.ok()) return met;
    const std::vector<std::byte*>& come = *staging;
    const bool goes_on = turn + 1 < turns;
    if (goes_on && between_nodes) status = begin(turn + 1);
    if (status.ok()) status = end(come, turn);
    if (status.ok() && goes_on && !between_nodes) status = begin(turn + 1);
  }
  if (!status.ok() && between_nodes) call.group.give_up_exchange();  // what was begun is in flight
  return status;
}

}  // namespace megadp::host
