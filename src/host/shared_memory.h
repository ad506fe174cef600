// SPDX-License-Identifier: Apache-2.0
// SharedMemory: memory that all ranks of one node see. Every rank contributes one part, a memfd of its own, and maps everyone's:
//
//   rank 0's memory        rank 1's memory        rank 2's memory       (each allocated and first touched by its owner)
//   ▲     ▲     ▲          ▲     ▲     ▲          ▲     ▲     ▲
//   └─────┴─────┴── mapped shared by every rank, at addresses of its own ──┘
//
// The descriptors are handed round by World::share and closed once mapped (its owner keeps its own, for children that it forks); a part
// lives as long as anyone maps it, so a rank that goes away takes nothing away from the others, and nothing is left when all are gone.
//
// Thread-ranks of one process map everything once per rank too. A thread sanitizer therefore sees no relation between what two ranks do
// to one window: it finds races inside a rank, not between ranks. Those are the business of the conformance suite's comparisons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "control/agreement.h"
#include "control/world.h"
#include "host/memory.h"
#include "host/private_in_child.h"

namespace megadp::host {

class SharedMemory {
 public:
  // Collective, blocking; on failure all ranks fail and nothing is left. touch: take the memory from the system now, on this thread,
  // rather than at the first use.
  static Result<std::shared_ptr<SharedMemory>> create(World& world, const std::vector<int>& members, int rank, const Subject& what,
                                                      bool touch);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(parts_.size()); }
  size_t bytes() const noexcept { return bytes_; }
  std::byte* of(int rank) const noexcept { return parts_[static_cast<size_t>(rank)].data(); }
  std::byte* own() const noexcept { return of(rank_); }

 private:
  SharedMemory() = default;

  std::vector<Mapping> parts_;  // by rank
  std::optional<PrivateInChild> own_in_child_;
  int rank_ = 0;
  size_t bytes_ = 0;
};

}  // namespace megadp::host
