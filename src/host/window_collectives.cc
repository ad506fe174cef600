// SPDX-License-Identifier: Apache-2.0
// Collectives in windows, at the speed of memory: every byte is read once from where it is and written once to where it goes. A group over
// several nodes does not see all windows: it goes through staging memory.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/checked.h"
#include "host/collective.h"
#include "host/kernels.h"

namespace megadp::host {
namespace {

// Up to here a range is sent through staging memory, which costs one barrier instead of two.
constexpr size_t kSmallBytes = 4 << 10;
// Of every rank's part, at a time: the blocks of all ranks stay in the nearest caches between being read and being written.
constexpr size_t kBlockBytes = 16 << 10;
// Ranges are shared out on borders of this many elements, so that two ranks seldom write to one cache line.
constexpr size_t kPartElements = 64;

std::byte* at(const Call& call, const SharedMemory& window, int rank, size_t element) {
  return window.of(rank) + (call.operation.begin + element) * call.width();
}

std::byte* own_at(const Call& call, const SharedMemory& window, size_t element) {
  return at(call, window, window.rank(), element);
}

bool is_staged(const Call& call) {
  return call.group.spans_nodes() || call.operation.count * call.width() <= kSmallBytes;
}

// Elements of a rank's piece.
uint64_t piece_of(const Call& call, int rank) {
  return call.arguments.counts != nullptr ? (*call.arguments.counts)[static_cast<size_t>(rank)]
                                          : call.operation.count / static_cast<uint64_t>(call.size());
}

// Where this rank's begins.
uint64_t own_begin(const Call& call) {
  if (call.arguments.counts == nullptr) return piece_of(call, 0) * static_cast<uint64_t>(call.rank());
  return std::accumulate(call.arguments.counts->begin(), call.arguments.counts->begin() + call.rank(), uint64_t{0});
}

// This rank's share of the work, if that is shared out evenly whoever it is for.
struct Share {
  uint64_t begin, end;
};
Share even_share(const Call& call) {
  const uint64_t count = call.operation.count, size = static_cast<uint64_t>(call.size());
  const uint64_t share = round_up((count + size - 1) / size, kPartElements);
  const uint64_t begin = std::min(count, share * static_cast<uint64_t>(call.rank()));
  return {begin, std::min(count, begin + share)};
}

// fn(rank, begin, count) for what this rank's share has of each rank's piece.
template <class Fn>
Status for_each_owner(const Call& call, const Fn& fn) {
  const Share share = even_share(call);
  uint64_t piece = 0;
  for (int rank = 0; rank < call.size(); ++rank) {
    const uint64_t begin = std::max(share.begin, piece);
    piece += piece_of(call, rank);
    const uint64_t end = std::min(share.end, piece);
    if (begin >= end) continue;
    if (Status done = fn(rank, begin, end - begin); !done) return done;
  }
  return {};
}

const std::vector<const void*>& everyones(const Call& call, const SharedMemory& window, size_t element) {
  std::vector<const void*>& from = call.group.pointers();
  from.clear();
  for (int rank = 0; rank < call.size(); ++rank) from.push_back(at(call, window, rank, element));
  return from;
}

}  // namespace

Status add_up(const Call& call, std::byte* to, const std::vector<const void*>& from, size_t n) {
  const Operation& op = call.operation;
  const auto ways = static_cast<int>(from.size());
  const Executor on = call.executor();
  if (call.arguments.to_f32) return sum_in_f32(reinterpret_cast<float*>(to), from.data(), ways, n, op.type, op.divisor, on);
  return reduce(to, from.data(), ways, n, op.type, op.op, op.divisor, on);
}

// With pieces of different sizes all share the work: one may have everything. A sum then goes to its owner's window.
Status window_reduce_scatter(const Call& call, const SharedMemory& window) {
  const Operation& op = call.operation;
  const Arguments& asked = call.arguments;
  double* const squares = asked.squares;
  const uint64_t mine = own_begin(call), piece = piece_of(call, call.rank());
  std::byte* const to = asked.to != nullptr ? asked.to : own_at(call, window, mine);
  if (squares != nullptr) squares[0] = squares[1] = 0;
  const auto square = [&](const Status& reduced) {  // the sum, which has been made elsewhere
    if (!reduced || squares == nullptr) return reduced;
    return square_sum(to, op.type, asked.squared, &squares[0], &squares[1], call.executor());
  };
  if (is_staged(call)) {
    return square(asked.counts != nullptr ? staged_reduce_scatter(call, own_at(call, window, 0), to, *asked.counts)
                                          : staged_reduce_scatter(call, own_at(call, window, 0), to, piece));
  }
  if (Status met = call.barrier(); !met) return met;
  const bool shared = asked.counts != nullptr && asked.to == nullptr;
  Status reduced;
  if (shared) {
    reduced = for_each_owner(call, [&](int owner, uint64_t begin, uint64_t count) {
      return add_up(call, at(call, window, owner, begin), everyones(call, window, begin), count);
    });
  } else if (squares != nullptr) {
    reduced = sum_and_square(to, everyones(call, window, mine).data(), call.size(), piece, op.type, op.divisor, asked.squared, &squares[0],
                             &squares[1], call.executor());
  } else if (piece > 0) {
    reduced = add_up(call, to, everyones(call, window, mine), piece);
  }
  if (reduced.ok()) reduced = call.barrier();
  return shared ? square(reduced) : reduced;
}

// Rank r reduces part r, a block at a time, and writes the block to everyone while it is still in its cache: nothing is read twice, and
// nobody has to wait for the sums before copying them.
Status window_all_reduce(const Call& call, const SharedMemory& window) {
  std::byte* const own = own_at(call, window, 0);
  if (is_staged(call)) return staged_all_reduce(call, own, own, call.operation.count);
  Status met = call.barrier();
  if (!met.ok()) return met;
  const Operation& op = call.operation;
  const std::vector<const void*>& from = everyones(call, window, 0);
  if (Status possible = add_up(call, own, from, 0); !possible) return possible;  // pieces cannot fail
  const Share share = even_share(call);
  const size_t block = kBlockBytes / call.width(), moved = 2 * call.width() * static_cast<size_t>(call.size());
  const auto reduce_piece = [&](size_t begin, size_t count) {
    const uint64_t end = share.begin + begin + count;
    for (uint64_t element = share.begin + begin; element < end; element += block) {
      const size_t n = std::min<size_t>(block, end - element);
      reduce_part(own, from.data(), call.size(), element, n, op.type, op.op, op.divisor);
      for (int rank = 0; rank < call.size(); ++rank) {
        if (rank != call.rank()) std::memcpy(at(call, window, rank, element), own_at(call, window, element), n * call.width());
      }
    }
  };
  call.executor().split(share.end - share.begin, moved, reduce_piece);
  return call.barrier();
}

// Every rank writes its piece to all others, starting with its neighbour, so that they do not all write to one window at a time. With
// pieces of different sizes each copies an even part of all.
Status window_all_gather(const Call& call, const SharedMemory& window) {
  const uint64_t mine = own_begin(call), piece = piece_of(call, call.rank());
  const std::byte* const own = own_at(call, window, mine);
  if (is_staged(call)) {
    return call.arguments.counts != nullptr ? staged_all_gather(call, own, own_at(call, window, 0), *call.arguments.counts)
                                            : staged_all_gather(call, own, own_at(call, window, 0), piece);
  }
  if (Status met = call.barrier(); !met) return met;
  const auto copy_to_others = [&](int owner, uint64_t begin, uint64_t count) -> Status {
    for (int step = 0; step < call.size(); ++step) {
      const int rank = (call.rank() + step) % call.size();
      if (rank != owner) copy_bytes(at(call, window, rank, begin), at(call, window, owner, begin), count * call.width(), call.executor());
    }
    return {};
  };
  const Status copied = call.arguments.counts != nullptr ? for_each_owner(call, copy_to_others) : copy_to_others(call.rank(), mine, piece);
  return copied.ok() ? call.barrier() : copied;
}

// Everybody fetches: the copies run side by side, where the root would make them one after another.
Status window_broadcast(const Call& call, const SharedMemory& window) {
  const Operation& op = call.operation;
  std::byte* const own = own_at(call, window, 0);
  if (is_staged(call)) return staged_broadcast(call, own, op.count * call.width(), op.root);
  Status met = call.barrier();
  if (!met.ok()) return met;
  if (call.rank() != op.root) copy_bytes(own, at(call, window, op.root, 0), op.count * call.width(), call.executor());
  return call.barrier();
}

}  // namespace megadp::host
