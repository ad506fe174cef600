// SPDX-License-Identifier: Apache-2.0
// Collectives on any memory of this rank, cut into turns through the group's staging memory (see host/collective.h).
//
// Results may overlap the input in the ways backend/group.h allows: a turn writes results only after its inputs were copied, and only to
// places that hold inputs of this turn or of earlier ones.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/checked.h"
#include "host/collective.h"
#include "host/copy_past.h"
#include "host/kernels.h"

namespace megadp::host {
namespace {

// From here on, and with more than two ranks, the ranks share out the sums of a turn, at the price of a second barrier.
constexpr size_t kSharedSumBytes = 32 << 10;
constexpr size_t kPartElements = 64;
// Between nodes, from here on, a sum crosses the network in two steps, in pieces, and not every rank's array to every other rank.
constexpr size_t kSentWholeBytes = 4 << 10;

// How many elements a turn takes when a half must hold `pieces` of them side by side.
size_t elements_per_turn(const Call& call, size_t pieces) {
  const size_t room = kStagingHalfBytes / call.width() / pieces;
  return room >= kPartElements ? room / kPartElements * kPartElements : room;
}

std::vector<const void*> sources(const std::vector<std::byte*>& staging, size_t offset_bytes) {
  std::vector<const void*> from;
  for (const std::byte* half : staging) from.push_back(half + offset_bytes);
  return from;
}

void copy_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

// After the barrier of a turn: the sums of n elements of everyone's half, in parts, each by one rank, in its own half; then all of them.
Status share_out_sums(const Call& call, const std::vector<std::byte*>& staging, std::byte* to, size_t n) {
  const Operation& op = call.operation;
  const auto size = static_cast<size_t>(call.size());
  const size_t part = round_up((n + size - 1) / size, kPartElements);
  const auto begin_of = [&](size_t rank) { return std::min(n, part * rank); };
  const size_t begin = begin_of(static_cast<size_t>(call.rank()));
  const size_t end = std::min(n, begin + part);
  if (begin < end) {
    std::byte* const sum = staging[static_cast<size_t>(call.rank())] + begin * call.width();
    Status reduced = reduce(sum, sources(staging, begin * call.width()).data(), call.size(), end - begin, op.type, op.op, op.divisor);
    if (!reduced.ok()) return reduced;
  }
  Status met = call.barrier();
  if (!met.ok()) return met;
  for (size_t rank = 0; rank < size; ++rank) {
    const size_t offset = begin_of(rank) * call.width();
    copy_bytes(to + offset, staging[rank] + offset, (begin_of(rank + 1) - begin_of(rank)) * call.width());
  }
  return {};
}

// What is too large for a half of the staging goes in turns: in each this rank puts elements [done, done + n) into its half, a barrier, and
// it takes from everyone's. A half holds `pieces` of n elements.
template <class Put, class Take>
Status in_turns(const Call& call, size_t count, size_t pieces, SendPart part, const Put& put, const Take& take) {
  const size_t turn = elements_per_turn(call, pieces);
  size_t done = 0;
  do {  // at least one turn: also an empty collective compares what the ranks came for
    const size_t n = std::min(turn, count - done);
    const std::vector<std::byte*>& staging = call.member.next_staging();
    put(staging[static_cast<size_t>(call.rank())], done, n);
    if (Status met = call.exchange_and_barrier(staging, part, n * call.width()); !met) return met;
    if (Status taken = take(staging, done, n); !taken) return taken;
    done += n;
  } while (done < count);
  return {};
}

// For each rank its piece of `count` elements.
auto put_pieces(const Call& call, const std::byte* from, size_t count) {
  return [&call, from, count](std::byte* half, size_t done, size_t n) {
    for (size_t rank = 0; rank < static_cast<size_t>(call.size()); ++rank) {
      copy_past_caches(half + rank * n * call.width(), from + (rank * count + done) * call.width(), n * call.width());
    }
  };
}

auto put_all(const Call& call, const std::byte* from) {
  return [&call, from](std::byte* half, size_t done, size_t n) { copy_past_caches(half, from + done * call.width(), n * call.width()); };
}

// Every rank gets every array, which is one step: for what is small, and for what all ranks of one node read in place.
Status all_reduce_whole(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const Operation& op = call.operation;
  const auto take = [&](const std::vector<std::byte*>& staging, size_t done, size_t n) -> Status {
    std::byte* const at = to + done * call.width();
    if (call.size() > 2 && !call.member.spans_nodes() && n * call.width() >= kSharedSumBytes) return share_out_sums(call, staging, at, n);
    return n == 0 ? Status() : reduce(at, sources(staging, 0).data(), call.size(), n, op.type, op.op, op.divisor);
  };
  return in_turns(call, count, 1, SendPart::whole, put_all(call, from), take);
}

}  // namespace

// The sums are those of reduce_scatter, whose order is the same. What the ranks cannot share out evenly, fewer elements than ranks, goes
// the short way.
Status staged_all_reduce(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  if (!call.member.spans_nodes() || count * call.width() <= kSentWholeBytes) return all_reduce_whole(call, from, to, count);
  const auto size = static_cast<size_t>(call.size());
  const size_t piece = count / size, even = piece * size * call.width();
  std::byte* const mine = to + piece * static_cast<size_t>(call.rank()) * call.width();
  Status status = piece == 0 ? Status() : staged_reduce_scatter(call, from, mine, piece);
  if (status.ok() && piece > 0) status = staged_all_gather(call, mine, to, piece);
  if (!status.ok() || count % size == 0) return status;
  return all_reduce_whole(call, from + even, to + even, count % size);
}

Status staged_reduce_scatter(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const Operation& op = call.operation;
  const auto take = [&](const std::vector<std::byte*>& staging, size_t done, size_t n) -> Status {
    if (n == 0) return {};
    const std::vector<const void*> pieces = sources(staging, static_cast<size_t>(call.rank()) * n * call.width());
    return reduce(to + done * call.width(), pieces.data(), call.size(), n, op.type, op.op, op.divisor);
  };
  return in_turns(call, count, static_cast<size_t>(call.size()), SendPart::piece, put_pieces(call, from, count), take);
}

Status staged_all_gather(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const auto take = [&](const std::vector<std::byte*>& staging, size_t done, size_t n) -> Status {
    for (size_t rank = 0; rank < staging.size(); ++rank) {
      copy_bytes(to + (rank * count + done) * call.width(), staging[rank], n * call.width());
    }
    return {};
  };
  return in_turns(call, count, 1, SendPart::whole, put_all(call, from), take);
}

Status staged_all_to_all(const Call& call, const std::byte* from, std::byte* to, size_t count) {
  const auto take = [&](const std::vector<std::byte*>& staging, size_t done, size_t n) -> Status {
    const size_t bytes = n * call.width();
    for (size_t rank = 0; rank < staging.size(); ++rank) {
      copy_bytes(to + (rank * count + done) * call.width(), staging[rank] + static_cast<size_t>(call.rank()) * bytes, bytes);
    }
    return {};
  };
  return in_turns(call, count, static_cast<size_t>(call.size()), SendPart::piece, put_pieces(call, from, count), take);
}

// Once to each other node, into the half of the rank there that its neighbours read.
Status staged_broadcast(const Call& call, std::byte* data, size_t count) {
  const auto source = static_cast<size_t>(call.member.source_of_broadcast(call.operation.root));
  const bool is_root = call.rank() == call.operation.root;
  const auto put = [&](std::byte* half, size_t done, size_t n) {
    if (is_root) copy_past_caches(half, data + done * call.width(), n * call.width());
  };
  const auto take = [&](const std::vector<std::byte*>& staging, size_t done, size_t n) -> Status {
    if (!is_root) copy_bytes(data + done * call.width(), staging[source], n * call.width());
    return {};
  };
  return in_turns(call, count, 1, SendPart::from_root, put, take);
}

}  // namespace megadp::host
