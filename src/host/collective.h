// SPDX-License-Identifier: Apache-2.0
// The collectives as they run on a stream's worker: over windows, and over any memory by way of the group's staging memory. HostGroup
// checks the arguments and submits; these compute.
//
//   control memory, one part per rank:   [ ControlPage, 1 page | staging half 0 | staging half 1 ]
//
// A staged collective is cut into turns; turn t uses half t & 1 of everyone's staging memory:
//   copy my input into my half ── barrier ── read what I need from everyone's half
// One barrier per turn is enough: a rank writes to a half again two turns later, after a barrier to which everyone came having read it.
//
// A group over several nodes does everything by turns. The halves of ranks on other nodes are private memory here, filled by the transport
// with what this rank needs of them before the barrier; the algorithms, and so the order of every sum, are the same.
//
// A message between two ranks of a node goes through the half of its sender that the next turn uses: nobody reads it any more, as all have
// come to the barrier of the last turn since.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "host/group.h"
#include "host/operation.h"
#include "host/shared_memory.h"

namespace megadp::host {

constexpr size_t kControlBytes = 4096;
constexpr size_t kStagingHalfBytes = 512 << 10;
static_assert(kControlBytes + 2 * kStagingHalfBytes == kGroupBytes);

// What a collective was asked for, as it lies in the stream's queue.
struct Arguments {
  Arguments(Collective kind, DType type, uint64_t count, const Tag& tag, const void* on_from = nullptr, void* on_to = nullptr) noexcept
      : operation(make_operation(kind, type, count, tag)),
        from(static_cast<const std::byte*>(on_from)),
        to(static_cast<std::byte*>(on_to)) {}
  Operation operation;
  const std::byte* from;      // on any memory
  std::byte* to;              // there, or WindowOp::to
  bool to_f32 = false;        // WindowOp::to_f32
  double* squares = nullptr;  // WindowOp::squares, likewise
  uint64_t squared = 0;
  std::shared_ptr<const PieceUpdates> updates = {};  // WindowOp::updates
  std::shared_ptr<const SharedMemory> grads = {};    // and the window that they read
  std::shared_ptr<const SharedMemory> window = {};   // in windows
  std::shared_ptr<const Counts> counts = {};         // of pieces of different sizes; for all_to_all_v those that go out
  std::shared_ptr<const Counts> counts_in = {};      // and those that come in
};

// One while it runs.
struct Call {
  HostGroup& group;
  const Arguments& arguments;
  const Operation& operation;  // of the arguments
  const Stop& stop;

  int rank() const noexcept { return group.rank(); }
  int size() const noexcept { return group.size(); }
  size_t width() const noexcept { return size_of(operation.type); }
  size_t sum_width() const noexcept { return arguments.to_f32 ? sizeof(float) : width(); }
  Executor executor() const noexcept { return group.executor(); }
  Status barrier() const { return group.barrier(operation, stop); }
};

// What the operation makes of n elements of everyone's, into `to`.
Status add_up(const Call& call, std::byte* to, const std::vector<const void*>& from, size_t n);

// In windows; see backend/group.h.
Status window_reduce_scatter(const Call& call, const SharedMemory& window);
Status window_all_reduce(const Call& call, const SharedMemory& window);
Status window_all_gather(const Call& call, const SharedMemory& window);
Status window_broadcast(const Call& call, const SharedMemory& window);
Status update_and_gather(const Call& call, const SharedMemory& window);

// On any memory. `count`: elements per rank for reduce_scatter, all_gather and all_to_all, of the whole for all_reduce.
Status staged_reduce_scatter(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_all_reduce(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_all_gather(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_all_to_all(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status staged_broadcast(const Call& call, std::byte* data, size_t bytes, int root);

// With pieces of different sizes.
Status staged_reduce_scatter(const Call& call, const std::byte* from, std::byte* to, const Counts& counts);
Status staged_all_gather(const Call& call, const std::byte* from, std::byte* to, const Counts& counts);
Status staged_all_to_all(const Call& call, const std::byte* from, const Counts& from_counts, std::byte* to, const Counts& to_counts);
// Comes before the first two: whether all ranks gave the same.
Status compare_counts(const Call& call, const Counts& counts);

// Between nodes of several ranks each (HostGroup::ranks_of_node()): every element crosses to a node once, and not once for each of its
// ranks. The bits are those of the others.
bool can_add_by_node(const Call& call) noexcept;  // what is a sum of floating-point numbers
Status reduce_scatter_by_node(const Call& call, const std::byte* from, std::byte* to, size_t count);
Status all_gather_by_node(const Call& call, const std::byte* from, std::byte* to, size_t count);
// Over more than two nodes, for what takes many turns: each node sends on what it has received.
Status broadcast_along_nodes(const Call& call, std::byte* data, size_t bytes, int root);

}  // namespace megadp::host
