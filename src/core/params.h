// SPDX-License-Identifier: Apache-2.0
// Params: the parameters of a buffer. Views of them, copies in and out, rank 0's for all, the comparison of replicas; and the last part of
// a step, in which buckets that an optimizer has updated are gathered.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/arenas.h"
#include "core/step_changes.h"
#include "core/transfer.h"

namespace megadp {

// Of memory of the backend's, once nothing writes it.
Result<uint64_t> digest_memory(const Arenas& arenas, const std::byte* values, size_t bytes);

class Params {
 public:
  explicit Params(std::shared_ptr<Arenas> arenas);

  // ── any thread ──
  Status wait(size_t param, void* consumer);  // SIZE_MAX: all
  Status read(size_t param, const StridedArray& to, void* caller);
  Status write(size_t param, const StridedArray& from, void* caller);
  Status changed();

  // Collective over each group of replicas; root is an index into it. A null request if none is wanted (then the work is done on return).
  Result<std::shared_ptr<Request>> broadcast(int root, bool want_request);
  // Waits until parameters, masters and state hold what the last step and the last writes gave them. Not for gradients under way: their
  // reductions may be waiting for a rank that has none, and says so at mdp_grad_sync only.
  // What the caller has put on the default stream counts as written: calls that are given no stream come after it.
  Status settle();
  Status verify();                              // replicas; collective over the grid's world
  Result<uint64_t> digest_value(size_t param);  // once nothing writes it

  // ── for optimizers ──
  // What comes next on the channel of gradients may write parameters: it follows the caller's work, and what still reads them.
  Status order_writes(void* caller);
  // Gathers the buckets of these numbers, which one group shares, once `updated` has come.
  // updates: of each bucket, made on the way; or none.
  Status gather(std::span<const uint32_t> buckets, const std::shared_ptr<Event>& updated,
                std::span<const std::shared_ptr<const PieceUpdates>> updates = {});
  // An event at the end of what has been submitted here.
  Result<std::shared_ptr<Event>> record();
  // For work on masters and averages that must not wait for gradients under way: the channel of gathers, after the last write; and the
  // end of that work, which the next update follows.
  Result<Stream*> apart();
  Result<std::shared_ptr<Event>> record_apart();
  // Grows with every change of the parameter's values: an optimizer that has not made it has a stale master.
  uint64_t version(size_t param);
  StepChanges& step_changes() noexcept { return step_changes_; }
  uint64_t count_change(size_t param);  // the new version
  // As a change that masters follow with all their digits: they are to be the same wherever the parameter is.
  uint64_t count_replacement(size_t param);
  uint64_t last_replacement(size_t param);  // its version

  // While an optimizer's averages are in the place of parameters, nothing else may write those. Any thread.
  Status check_swapped_back(const char* call) const;
  Status check_none_swapped(std::span<const size_t> params);  // of these
  void set_swapped(std::span<const size_t> params, bool swapped);

  std::shared_ptr<Transfer> last_gather(uint32_t bucket);
  Traffic traffic();

 private:
  Result<StridedArray> whole(const char* call, size_t param, const std::vector<int64_t>& shape, void* caller);
  Result<std::vector<uint64_t>> digest_values(bool expert);
  size_t digested_param(bool expert, size_t position) const;
  Status follow_write(void* caller);
  Status broadcast_ties();
  void count_broadcast();

  const std::shared_ptr<Arenas> arenas_;
  std::mutex mutex_;                                // everything below, and the order of submissions to the channel of gathers
  std::vector<uint64_t> versions_;                  // by parameter, from 1
  std::vector<uint64_t> replacements_;              // of each parameter the version of the last one
  std::vector<std::shared_ptr<Transfer>> gathers_;  // of each bucket the last
  std::shared_ptr<Event> updated_;                  // the end of the last update on the channel of gradients
  std::shared_ptr<Event> passed_;                   // the end of the last gather or broadcast, or of what was done apart
  std::shared_ptr<Event> written_;                  // the last write from outside, on the caller's stream
  Traffic traffic_;
  std::vector<bool> swapped_;     // by parameter
  std::atomic<size_t> swaps_{0};  // of optimizers
  StepChanges step_changes_{*this};
};

}  // namespace megadp
