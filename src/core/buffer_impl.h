// SPDX-License-Identifier: Apache-2.0
// The inside of a Buffer, shared by the files that implement it (buffer.cc memory and views, grad.cc arrival and launch, grad_sync.cc the
// end of backward, param_access.cc) and by the optimizer, which moves its buckets through the second half of a step.
#pragma once

#include <array>
#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/kept.h"

namespace megadp {

struct Buffer::Arena {
  const ArenaPlan* plan = nullptr;
  std::shared_ptr<Comm> grads_comm, params_comm;  // the ranks that hold replicas of these parameters, on either channel
  Window *params = nullptr, *grads = nullptr;     // in Impl::kept
  float divisor = 1;                              // of the reduced sum: dp x cp, for experts too
  std::vector<OwnedRange> owned;                  // this rank's, in placement order

  std::byte* param_at(uint64_t element) const { return params->data() + element * size_of(plan->param_type); }
  std::byte* grad_at(uint64_t element) const { return grads->data() + element * size_of(plan->grad_type); }
  const BucketRange& range(uint32_t bucket) const { return plan->layout.buckets[bucket]; }
};

struct Buffer::ParamState {
  uint32_t arena = 0;
  uint32_t bucket = 0;  // number in launch order
  uint64_t begin = 0;   // element of the arena
  std::vector<int64_t> strides;
  // In the norm: elements that this rank owns count, unless another rank counts the same; a replica over tensor-parallel ranks that does
  // not count must be finite all the same.
  bool counts = false, checked = false;
  uint64_t version = 1;  // grows with every change of its values: an optimizer that has not made it has a stale master

  // of the step under way
  int arrivals = 0;                 // in this microbatch
  bool being_put = false;           // a grad_put writes into the slot
  bool has_gradient = false;        // the slot holds something of this step
  bool ready = false;               // in the last microbatch
  bool skipped = false;             // here: nothing was added to it in this step
  bool skipped_everywhere = false;  // agreed by the last sync
};

// A reduction or a gather of one bucket, or of several at once.
struct Buffer::Transfer {
  std::shared_ptr<Event> begin, end;
  bool counted = false;  // in Stats::comm_ns
};

struct Buffer::Bucket {
  uint32_t arena = 0, index = 0;  // index within the arena
  uint32_t params = 0, waiting = 0;
  uint64_t ready_ns = 0;
  bool launched = false;
  std::shared_ptr<Transfer> reduction, gather;  // the last of each
  std::shared_ptr<Event> updated;               // the last step has read its gradients and written what this rank owns of it
};

// One small all-gather at the end of backward: a SyncHeader from every member and, for a shard group, one bit per parameter: "skipped
// here".
struct Buffer::Agreement {
  std::shared_ptr<Comm> comm;
  std::vector<size_t> params;                  // whose bits follow the header
  size_t bytes = 0;                            // per rank
  Memory *send = nullptr, *receive = nullptr;  // in Impl::kept
};

// The parameters that a call is about.
struct Buffer::Chosen {
  bool all = true;
  std::vector<bool> params;  // where not all
  bool has(size_t param) const { return all || params[param]; }
};

// Neighbouring ranges of a bucket that `take` accepts and that `go_together` are handed to `submit` as one: a call for each would be many
// small ones. Only alignment gaps lie between them, which hold zeros in gradient, master and moments and so stay zero.
template <class Range, class Take, class Together, class Submit>
Status submit_merged(const std::vector<Range>& ranges, const Take& take, const Together& go_together, const Submit& submit) {
  for (size_t i = 0; i < ranges.size();) {
    Range merged = ranges[i++];
    if (!take(merged)) continue;
    for (; i < ranges.size() && ranges[i].bucket == merged.bucket && go_together(merged, ranges[i]) && take(ranges[i]); ++i)
      merged.end = ranges[i].end;
    if (Status submitted = submit(merged); !submitted) return submitted;
  }
  return {};
}

struct SyncHeader {
  uint32_t problem;  // 1: this rank has one, told in text
  int32_t bucket;
  int64_t param;
  char text[240];
};
static_assert(sizeof(SyncHeader) == kSyncHeaderBytes);

enum class Phase {
  open,     // gradients may come
  syncing,  // mdp_grad_sync was called; its request has not been waited for
  reduced,  // gradients are final: step, or begin anew
  failed,   // the sync found a problem: begin anew
};

struct Buffer::Impl {
  std::mutex mutex;                          // everything below, and the order of submissions to the channels
  std::array<std::mutex, 64> param_mutexes;  // by index modulo 64: held while a gradient is written into its slot

  std::shared_ptr<Kept> kept = std::make_shared<Kept>();
  // Gradients are reduced and parameters updated on the one, parameters gathered on the other, so that the next step's gradients need not
  // wait for the last step's gathers.
  std::shared_ptr<Channel> grads, gathers;
  std::shared_ptr<Comm> world;  // on the channel of gradients
  // The last gather, or broadcast, of parameters: who writes them again comes after it.
  std::shared_ptr<Event> gathered;
  std::vector<Arena> arenas;
  std::vector<ParamState> params;  // by registration index; unused for frozen ones
  std::vector<Bucket> buckets;     // by number, in launch order
  // What is launched at once, in order: with overlap each bucket as soon as it may, without it neighbours that one group reduces.
  std::vector<std::span<Bucket>> launches;
  std::vector<Agreement> agreements;

  Phase phase = Phase::open;
  bool is_last = true;
  bool microbatch_touched = false;  // something came in this microbatch
  size_t puts = 0;                  // how many write into their slots now
  std::condition_variable puts_over;
  size_t next_launch = 0;  // of launches
  uint64_t sync_ns = 0;
  std::shared_ptr<Request> sync_request;
  std::shared_ptr<Event> reduced;  // the end of the last sync's reductions
  Status sync_status;
  Stats stats;

  Memory* sums = nullptr;  // in `kept`: StepScalars, of which grad_norm() uses the sums

  void start_step();
  Status check_reduced(const char* call) const;  // gradients are reduced and no step was taken since
  void all_params_changed();
  // Returns when no grad_put writes: then slots may be cleared, and the step begun anew. Meanwhile the lock is given up.
  void wait_for_puts(std::unique_lock<std::mutex>& lock);
  // The gradient of one use has come. Launches what can be.
  Status arrive(Buffer& buffer, size_t param);
  Status became_ready(Buffer& buffer, Bucket& bucket);
  void plan_launches(bool overlap);
  size_t launched() const;  // buckets of this step
  int32_t number_of(const Bucket& bucket) const { return static_cast<int32_t>(&bucket - buckets.data()); }
  Status launch(std::span<Bucket> those);
  Status launch_in_order();
  // All of the calls, of buckets that are launched at once.
  Result<std::shared_ptr<Transfer>> transfer(Comm& comm, std::span<const Bucket> those, std::span<const WindowCall> calls);
  bool is_sharded() const;  // somewhere: then steps gather
  // What comes next on the channel of gradients may write parameters: it follows the caller's work, and what still reads them.
  Status order_writes(void* caller);
  void count_times(const Bucket& bucket);
  BucketState state_of(const Bucket& bucket) const;
};

}  // namespace megadp
