// SPDX-License-Identifier: Apache-2.0
// Collectives in windows, at the speed of memory: every byte is read once from where it is and written once to where it goes. A group over
// several nodes does not see all windows: it goes through staging memory.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/checked.h"
#include "host/collective.h"
#include "host/copy_past.h"
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

// A piece that no cache holds anyway is written past them: a quarter faster than fetching each line to overwrite it.
void copy_piece(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes >= kBeyondCaches) {
    copy_past_caches(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

Status add_up(const Call& call, std::byte* to, const std::vector<const void*>& from, size_t n) {
  const Operation& op = call.operation;
  const auto ways = static_cast<int>(from.size());
  if (call.to_f32) return sum_in_f32(reinterpret_cast<float*>(to), from.data(), ways, n, op.type, op.divisor);
  return reduce(to, from.data(), ways, n, op.type, op.op, op.divisor);
}

Status window_reduce_scatter(const Call& call, const SharedMemory& window) {
  const Operation& op = call.operation;
  const size_t piece = op.count / static_cast<size_t>(call.size());
  const size_t mine = piece * static_cast<size_t>(call.rank());
  std::byte* const to = call.to != nullptr ? call.to : own_at(call, window, mine);
  if (is_staged(call)) return staged_reduce_scatter(call, own_at(call, window, 0), to, piece);
  Status met = call.barrier();
  if (!met.ok()) return met;
  std::vector<const void*> from;
  for (int rank = 0; rank < call.size(); ++rank) from.push_back(at(call, window, rank, mine));
  Status reduced = add_up(call, to, from, piece);
  if (!reduced.ok()) return reduced;
  return call.barrier();
}

// Rank r reduces part r, a block at a time, and writes the block to everyone while it is still in its cache: nothing is read twice, and
// nobody has to wait for the sums before copying them.
Status window_all_reduce(const Call& call, const SharedMemory& window) {
  const Operation& op = call.operation;
  const auto size = static_cast<size_t>(call.size());
  std::byte* const own = own_at(call, window, 0);
  if (is_staged(call)) return staged_all_reduce(call, own, own, op.count);
  Status met = call.barrier();
  if (!met.ok()) return met;
  const size_t part = round_up((op.count + size - 1) / size, kPartElements);
  const size_t begin = std::min<size_t>(op.count, part * static_cast<size_t>(call.rank()));
  const size_t end = std::min<size_t>(op.count, begin + part);
  const size_t block = kBlockBytes / call.width();
  std::vector<const void*> from(size);
  for (size_t element = begin; element < end; element += block) {
    const size_t n = std::min(block, end - element);
    for (int rank = 0; rank < call.size(); ++rank) from[static_cast<size_t>(rank)] = at(call, window, rank, element);
    std::byte* const sum = own_at(call, window, element);
    Status reduced = reduce(sum, from.data(), call.size(), n, op.type, op.op, op.divisor);
    if (!reduced.ok()) return reduced;
    for (int rank = 0; rank < call.size(); ++rank) {
      if (rank != call.rank()) std::memcpy(at(call, window, rank, element), sum, n * call.width());
    }
  }
  return call.barrier();
}

// Every rank writes its piece to all others, starting with its neighbour, so that they do not all write to one window at a time.
Status window_all_gather(const Call& call, const SharedMemory& window) {
  const Operation& op = call.operation;
  const size_t piece = op.count / static_cast<size_t>(call.size());
  const size_t mine = piece * static_cast<size_t>(call.rank());
  const std::byte* const own = own_at(call, window, mine);
  if (is_staged(call)) return staged_all_gather(call, own, own_at(call, window, 0), piece);
  Status met = call.barrier();
  if (!met.ok()) return met;
  for (int step = 1; step < call.size(); ++step) {
    const int rank = (call.rank() + step) % call.size();
    copy_piece(at(call, window, rank, mine), own, piece * call.width());
  }
  return call.barrier();
}

// Everybody fetches: the copies run side by side, where the root would make them one after another.
Status window_broadcast(const Call& call, const SharedMemory& window) {
  const Operation& op = call.operation;
  std::byte* const own = own_at(call, window, 0);
  if (is_staged(call)) return staged_broadcast(call, own, op.count * call.width(), op.root);
  Status met = call.barrier();
  if (!met.ok()) return met;
  if (call.rank() != op.root) std::memcpy(own, at(call, window, op.root, 0), op.count * call.width());
  return call.barrier();
}

}  // namespace megadp::host
