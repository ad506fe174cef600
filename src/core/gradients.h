// SPDX-License-Identifier: Apache-2.0
// Gradients: how they arrive, when their buckets are launched, where they lie until an optimizer has used them. The life of a bucket:
//
//   filling → ready → in flight → reduced → (optimizer) gathering → whole, and filling again with the next step's first gradient
//
// A step begins after the last one, or, after a sync without a step, with microbatch_begin or zero. Its gradients are summed over its
// microbatches and uses. Buckets are launched in Plan::launch_order and in no other: in the last microbatch; with ZeRO-2 in each, as their
// slots are needed again (grad_pool.cc).
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/arenas.h"
#include "core/grad_checks.h"
#include "core/params.h"
#include "core/request.h"
#include "core/spill.h"
#include "core/step_values.h"
#include "core/transfer.h"

namespace megadp {

enum class BucketState : uint32_t {
  filling = 0,
  ready = 1,
  in_flight = 2,
  reduced = 3,
  gathering = 4,
  whole = 5
};
const char* name_of(BucketState state) noexcept;

struct BucketReport {
  BucketState state = BucketState::filling;
  uint64_t ready_ns = 0, reduce_begin_ns = 0, reduce_end_ns = 0, gather_begin_ns = 0, gather_end_ns = 0, sync_ns = 0;
};

struct Stats : Traffic {
  uint64_t buckets = 0, launched_in_backward = 0, syncs = 0, host_syncs = 0, spill_peak = 0, large_gradients = 0;
};

constexpr uint32_t kSyncMissing = 1, kSyncOther = 2, kSyncNonfinite = 3;  // SyncHeader::problem
struct SyncHeader {
  uint32_t problem;  // not 0: this rank has one, told in text
  int32_t bucket;
  int64_t param;
  uint32_t microbatches;  // of this step
  uint32_t reserved;
  // Of the dense part and the expert part the replicated parameters of which this rank has no gradient in this step: how many, and hashes
  // of their names, others for those that were skipped, combined so that what two ranks have in common cancels out.
  uint32_t lacking[2];
  uint64_t lacking_digest[2];
  double tokens;  // of this step; not a number if none were given
  ToldValues told;
  char text[200];

  void set_problem(uint32_t what, const std::string& sentence, int64_t of_param, int32_t of_bucket);
};
static_assert(sizeof(SyncHeader) == kSyncHeaderBytes);

class Gradients : public std::enable_shared_from_this<Gradients> {
 public:
  Gradients(std::shared_ptr<Arenas> arenas, std::shared_ptr<Params> params);
  ~Gradients();
  // The arenas have been allocated. Local.
  // divides_at_once: some rank's reductions divide by the step's tokens.
  Status allocate(bool divides_at_once);

  // ── arrival: any thread ──
  Status microbatch_begin(bool is_last);
  Status put(size_t param, const StridedArray& grad, bool add, bool more, void* producer);
  Status ready(size_t param, void* producer);
  // Lends the place where the gradient goes; first: what is written replaces what is there. Until ready() or release().
  Result<Arenas::View> acquire(size_t param, bool* first, void* producer);
  Status release(size_t param);
  Status skip(size_t param);
  // Of this rank's batch in the step; collective over the world if the sum is needed at once.
  Status tokens(double count);
  Status zero(void* caller);
  // Collective over the world. A null request if none is wanted (then the work is done on return). coming: what the step is told whose sync
  // it is.
  Result<std::shared_ptr<Request>> sync(void* consumer, bool want_request, bool keeps = false,
                                        const std::optional<StepValues>& coming = {});

  // ── reduced: after a finished sync, before the step ──
  using ParamList = std::optional<std::span<const size_t>>;  // none: all
  Result<double> norm(const ParamList& list);                // collective over the world
  // Of the parameters of each set over the whole model, in which every element counts once. set_of: by parameter, no set: none.
  struct Summary {
    double norm, inf_norm;
    uint64_t zeros, nonfinite;
  };
  Result<std::vector<Summary>> summarize(std::span<const size_t> set_of, size_t sets);  // collective over the world
  Status scale(const ParamList& list, float factor, void* caller);
  Status changed(void* producer);
  // A place of reduced gradients was lent for good: they may be written at any time.
  void note_view();
  // Of a reduced gradient.
  Result<Slice> owned(size_t param);
  // In verify.cc: returns when the reduced gradients, if there are any now, are whole; and a digest of what is owned of one.
  Status await_reduced();
  Result<std::optional<uint64_t>> digest_reduced(size_t param);

  // By parameter what its use_order would be if gradients always came as in the last step that was synced. Collective over the world.
  Result<std::vector<int32_t>> use_order();

  Stats stats();  // of parameters too
  Result<BucketReport> bucket(size_t number);

  // ── for an optimizer, whose step holds the lock: meanwhile nothing arrives ──
  std::unique_lock<std::mutex> lock() { return std::unique_lock(mutex_); }
  // Syncs if the caller has not; before the lock is taken. keeps: where the step can add up buckets by itself they are not launched.
  // values: of that step, which is told them if this is what syncs.
  Status sync_for_step(void* caller, const StepValues& values, bool keeps = false);
  // With the lock: a step is taken, or what changes a later one as all ranks' alike. Not where ranks of a stage have parameters of their
  // own.
  void note_values(const StepValues& values) { history_.add(values); }
  void note_change(double change) {
    if (arenas_->plan().grid.config().ep == 1 && !arenas_->plan().tp_ranks_differ) history_.add(change);
  }
  // In grad_kept.cc: buckets that were not launched, for a step in one pass. Where one lies; what the step has submitted of these; they are
  // launched after all: the end of that, null if there are none.
  bool keeps_buckets() const { return kept_; }
  void locate_kept(uint32_t bucket, PieceUpdates* to) const;
  void mark_stepped(std::span<const uint32_t> buckets, const std::shared_ptr<Transfer>& pass);
  Result<std::shared_ptr<Event>> launch_kept();
  Status check_reduced(const char* call, bool kept_too = false) const;
  Status check_between_steps(const char* call);     // without the lock
  Status check_none_accumulated(const char* call);  // likewise: nothing to which the next microbatch would be added
  // How many buckets of the step under way this rank has launched, in all microbatches; kAllLaunched, where it has synced.
  struct Launched {
    uint64_t dense, expert;
  };
  static constexpr uint64_t kAllLaunched = UINT64_MAX;
  Launched launched_of_step();
  // Of all ranks of the world what launched_of_step() says there: whether none waits in a reduction for another.
  Status check_launched_alike(const char* call, const std::vector<Launched>& launched) const;
  // Of the last sync, where gradients are reduced: ok, or that this rank or another has found one that is not finite.
  const Status& sync_status() const { return sync_status_; }
  bool skipped_everywhere(size_t param) const { return states_[param].skipped_everywhere; }
  // The parameters that a call is about.
  struct Chosen {
    bool all = true;
    std::vector<bool> params;  // if not all
    bool has(size_t param) const { return all || params[param]; }
  };
  // What reduced gradients are still to be divided by.
  double step_divisor() const;
  // Leaves the sum of squares and the number of elements that are not finite, over the world, in `scalars`. what: the operation's name.
  Status submit_square_sum(StepScalars* scalars, const Chosen& chosen, const char* what);
  // Keeps the largest magnitude of a reduced gradient, over the world.
  Status submit_largest(StepScalars* scalars);
  // Numbers of buckets that are launched at once, in launch order.
  const std::vector<std::vector<uint32_t>>& launches() const { return launches_; }
  // The update of these buckets has been submitted: an event at its end. Their slots may be written after it.
  Result<std::shared_ptr<Event>> mark_updated(std::span<const uint32_t> buckets);
  bool is_pooled() const { return arenas_->plan().config.sharding == Sharding::zero_2; }
  // Between the norm and the updates of a step, without the lock: until start_step() the gradients are the step's.
  void hold_for_step() { phase_ = Phase::stepping; }
  void start_step();
  // Without the lock: what rounding took from gradients of before a load.
  Status forget_residuals() {
    const std::lock_guard guard(mutex_);
    return zero_residuals();
  }
  bool has_launched() const { return next_launch_ > 0 || (is_pooled() && microbatch_ > 1); }  // anything of this step
  void count_exposed(uint64_t ns);                                                            // without the lock
  // Held while a gradient is written into its slot.
  std::mutex& slot_mutex(size_t param) { return slot_mutexes_[param % slot_mutexes_.size()]; }

 private:
  struct ParamState {
    // In the norm: elements that this rank owns count, unless another rank counts the same; a replica over tensor-parallel ranks that does
    // not count must be finite all the same.
    bool counts = false, checked = false;

    // of the microbatch under way
    int arrivals = 0;
    bool being_put = false;  // a put writes into the slot
    bool lent = false;       // the caller writes into it
    // The last write to it, on the caller's stream, if another one may follow: that one may be on another stream.
    std::shared_ptr<Event> written;

    // of the step under way; with a pool of the microbatch, see next_microbatch()
    bool has_gradient = false;      // the slot holds something that counts
    bool ready = false;             // in the last microbatch; with a pool in this one
    bool skipped = false;           // here: nothing was added to it in this step
    std::shared_ptr<Memory> spill;  // in place of the slot, of this type
    DType spill_type = DType::f32;

    // of the step
    bool had_gradient = false;        // with a pool: in an earlier microbatch
    bool came = false;                // in an earlier microbatch: was skipped; with a pool also, was ready
    uint32_t turn = 0;                // in which its last gradient came in the last microbatch, from 1 on; 0: none
    uint32_t seen_turn = 0;           // of the last step that was synced
    bool skipped_everywhere = false;  // agreed by the last sync
  };
  struct Bucket {
    uint32_t params = 0, waiting = 0;
    uint64_t ready_ns = 0;
    bool launched = false;
    std::shared_ptr<Transfer> reduction;  // the last; with instances that inside this one
    uint64_t wide_slot = 0;               // where that goes, if it does not stay in place
    std::shared_ptr<Transfer> across;     // with instances: the sum across them, once it is submitted
    const std::shared_ptr<Event>& reduced() const { return across ? across->end : reduction->end; }
    std::shared_ptr<Event> updated;  // the last step has read its gradients and written what this rank owns of it
    uint64_t squared = 0;            // of so many elements of this rank's piece the reduction adds up the squares
    // With a pool: its sum of the step has been begun; an event: its last reduction has left the slot.
    bool summed = false;
    std::shared_ptr<Event> slot_left;
  };
  static constexpr size_t kNotHere = SIZE_MAX;
  // One small all-gather at the end of backward: a SyncHeader from every member and, for a shard group, one bit per parameter: "skipped
  // here".
  struct Agreement {
    std::shared_ptr<Comm> comm;
    std::vector<size_t> params;                  // whose bits follow the header; kNotHere: held by another stage alone
    std::vector<int> ranks;                      // of the grid
    size_t bytes = 0;                            // per rank
    Memory *send = nullptr, *receive = nullptr;  // kept by the arenas
  };
  enum class Phase {
    open,      // gradients may come
    syncing,   // sync was called; its request has not been waited for
    reduced,   // gradients are final: step, or begin anew
    stepping,  // a step has begun whose updates are the caller's: finish it
    failed,    // the sync found a problem: begin anew
  };

  // Waits for a sync that is pending, and says how it ended; without the lock.
  Status await_sync();
  void index();
  void plan_launches();
  Status add_agreement(const std::shared_ptr<Comm>& comm, std::vector<size_t> params);
  Status may_arrive(const char* call, size_t param) const;
  static constexpr const char* kIsStepping = "a step is under way; finish it first, by mdp_optimizer_step_finish";
  // What sentences say of a parameter that is lent, and the first such one.
  static constexpr const char* kIsLent = "is lent by mdp_grad_acquire; call mdp_grad_ready or mdp_grad_release first";
  std::optional<size_t> find_lent() const;
  Status check_none_lent(const char* call) const;
  Status clear_if_empty(size_t param);
  // What the caller then writes to the slot comes after all that has been done with it.
  Status wait_for_slot(size_t param, void* caller);
  // Returns when no put writes: then slots may be cleared, and the step begun anew. Meanwhile the lock is given up.
  Status wait_for_puts(std::unique_lock<std::mutex>& lock);
  struct Put;  // what is under way without the lock
  // The gradient of one use has come. Launches what can be.
  Status arrive(size_t param);
  Status became_ready(Bucket& bucket);
  // In grad_pool.cc: where a gradient goes, and how a bucket's slot is filled, reduced into this rank's sums, and left.
  Result<StridedArray> place_for(size_t param, bool more);
  StridedArray where_it_lies(size_t param) const;  // once it has a place
  bool slot_is_free(uint32_t bucket) const;
  Result<std::shared_ptr<Memory>> take_spill(size_t param, size_t bytes);
  Status fill_slot(uint32_t bucket);
  Status copy_into_slot(const Arena& arena, uint32_t bucket);
  void leave_spills(const Arena& arena, uint32_t bucket) noexcept;
  bool goes_to_sums(uint32_t bucket) const;
  Status add_up(std::span<const uint32_t> buckets);
  Status next_microbatch();
  Status launch(std::span<const uint32_t> buckets);
  Status launch_in_order();
  // In grad_instances.cc: where a sum inside this instance goes, and the sums across instances of the first so many launches.
  Status place_wide(uint32_t bucket, WindowOp* reduction);
  Status sum_across(uint32_t bucket);
  Status sum_across_of(size_t launches);
  Status join_across();
  // In grad_wire.cc: a reduction whose gradients are sent as bf16.
  Result<std::shared_ptr<Transfer>> send_rounded(uint32_t bucket, const WindowOp& reduction);
  Status scatter_rounded(uint32_t bucket, const WindowOp& reduction, const Counts& pieces, uint64_t begin, uint64_t most);
  Status fill_wire(uint32_t bucket, uint64_t begin, uint64_t count, uint64_t at);
  Status zero_residuals();
  // In grad_owned_sums.cc.
  Status find_owned_sums();
  Status sum_owned();
  Status submit_summary(void* memory, std::span<const size_t> set_of, size_t sets);
  // In grad_squares.cc: of which buckets the reduction adds up the squares, and whether what it has found still holds.
  Status find_squared();
  double* squares_of(uint32_t bucket) const { return static_cast<double*>(squares_->data()) + size_t{2} * bucket; }
  bool squares_hold(uint32_t bucket) const { return buckets_[bucket].squared > 0 && !viewed_ && !written_; }
  Status add_squares(StepScalars* scalars, const Chosen& chosen, bool ParamState::*which);
  // In grad_checks.cc.
  Status measure(uint32_t bucket);
  Status fetch_checks();
  Status tell_finding();
  // In grad_tokens.cc.
  float reduction_divisor() const;
  bool lacks_tokens() const { return at_once_ && (!tokens_ || total_tokens_ == 0); }  // that a reduction divides by
  Status add_tokens(const std::vector<double>& given);
  size_t launched() const;  // buckets of this step
  Status end_reduced();
  BucketState state_of(uint32_t bucket) const;
  Result<SyncHeader> settle_missing();
  Status submit_sync(bool keeps, const std::optional<StepValues>& coming);
  bool can_keep() const;
  Status submit_agreements(const SyncHeader& header);
  std::vector<size_t> replicated(bool expert) const;
  void tell_lacking(SyncHeader* header) const;
  Status compare_lacking(std::span<const SyncHeader> of_ranks) const;
  Status compare_values(std::span<const SyncHeader> of_ranks) const;
  struct Told {
    int rank;  // of the world
    const SyncHeader& header;
  };
  Status lacks_gradient(bool expert, const Told& a, const Told& b) const;
  Status evaluate_agreements();
  Status complete_sync();
  // In grad_order.cc.
  void note_order();
  size_t late_buckets() const;
  std::vector<int32_t> seen_order() const;
  Result<Chosen> choose(const ParamList& list) const;
  double weight_of(const Chosen& chosen) const;

  const std::shared_ptr<Arenas> arenas_;
  const std::shared_ptr<Params> params_;

  std::mutex mutex_;                         // everything below, and the order of submissions to the channel
  std::array<std::mutex, 64> slot_mutexes_;  // by index modulo 64
  std::vector<ParamState> states_;           // by registration index; unused for frozen ones
  std::vector<Bucket> buckets_;              // by number, in launch order
  // What is launched at once, in order: with overlap each bucket as soon as it may, without it neighbours that one group reduces.
  std::vector<std::vector<uint32_t>> launches_;
  std::vector<Agreement> agreements_;

  Phase phase_ = Phase::open;
  bool is_last_ = true;
  bool begun_ = false;               // by microbatch_begin
  uint32_t microbatch_ = 1;          // of the step, counted from 1
  bool microbatch_touched_ = false;  // something came in this microbatch
  bool touched_ = false;             // in this step
  std::optional<double> tokens_;     // of this step, which this rank has told
  double total_tokens_ = 1;          // of all ranks, once they have been added up; 0: not yet
  bool at_once_ = false;             // reductions divide by them
  Memory* told_tokens_ = nullptr;    // this rank's, then all of them; kept by the arenas
  uint32_t turns_ = 0;               // how many parameters' last gradients have come
  size_t puts_ = 0;                  // how many write into their slots now
  std::condition_variable puts_over_;
  size_t next_launch_ = 0;  // of launches_
  size_t next_across_ = 0;  // likewise: whose sums across instances are to be submitted next
  struct Wide {             // of an arena
    uint64_t next = 0;      // slot
    std::shared_ptr<Event> left[2];
  };
  std::vector<Wide> wide_;  // by arena
  struct OwnedSum {         // of reduced gradients, over ranks that own the same
    std::shared_ptr<Comm> comm;
    const char* what;
    float divisor = 1;
    std::vector<size_t> params;          // of which this rank owns something
    uint64_t count = 0;                  // of its elements
    std::shared_ptr<Transfer> transfer;  // the last
  };
  std::vector<OwnedSum> owned_sums_;
  Memory* packed_ = nullptr;               // of one of them after another; kept by the arenas
  Memory* squares_ = nullptr;              // of each bucket, as Backend::square_sum() adds them; kept by the arenas
  bool kept_ = false;                      // the last sync has launched nothing
  bool viewed_ = false, written_ = false;  // reduced gradients may be written at any time; were written since the sync
  uint64_t sync_ns_ = 0;
  std::shared_ptr<Request> sync_request_;
  std::shared_ptr<Event> reduced_;  // the end of the last sync's reductions
  std::shared_ptr<Event> zeroed_;   // and of the last zero()
  Status sync_status_;
  StepHistory history_;
  Stats stats_;

  GradChecks checks_;
  Spill spill_;
  bool spill_told_ = false;
  bool saw_order_ = false, order_told_ = false;
  Memory* norm_ = nullptr;  // kept by the arenas: StepScalars, of which norm() uses the sums
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

}  // namespace megadp
