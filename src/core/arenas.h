// SPDX-License-Identifier: Apache-2.0
// Arenas: the memory of a buffer. The parameters of one (parameter type, gradient type, class, sharding) lie in an arena: a window for
// parameters and one for gradients, cut into buckets by the plan, and shared by the ranks that hold replicas. With ZeRO-2 the window of
// gradients is a small pool of slots, which buckets take in turn, and what this rank owns of the sums lies apart. Here are the windows, the
// communicators and the channels that work on them; what a step does with them is not known here.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/shape.h"
#include "core/comm.h"
#include "core/keep_alive.h"
#include "core/plan.h"
#include "core/process_grid.h"
#include "core/ties.h"

namespace megadp {

// The ranks that hold replicas of dense or of expert parameters. With one instance of the optimizer all of them share its state, and the
// first two are the last two.
struct ReplicaComms {
  std::shared_ptr<Comm> grads, params;        // the instance that this rank is in, on the channels of gradients and of gathers
  std::shared_ptr<Comm> across;               // on a channel of its own, one rank of each instance: those that own the same; with instances
  std::shared_ptr<Comm> all, all_for_params;  // on the channels of gradients and of gathers
};

struct Arena {
  const ArenaPlan* plan = nullptr;
  ReplicaComms comms;
  Window *params = nullptr, *grads = nullptr;
  Memory* sums = nullptr;         // with a pool: the reduced gradients of this rank's shard, f32, added up over microbatches
  Memory* wide = nullptr;         // ArenaPlan::wide_slots
  Window* wire = nullptr;         // ArenaPlan::wire_elements
  Memory* residual = nullptr;     // with error feedback: what rounding lost of this rank's gradients, by element of the arena
  std::vector<OwnedRange> owned;  // this rank's, in placement order
  std::vector<Piece> pieces;      // this rank's of each bucket
  std::vector<uint64_t> sums_at;  // with a pool: where they begin in `sums`
  std::vector<std::shared_ptr<const Counts>> counts;  // with whole parameters: by bucket, of every rank's piece
  std::vector<uint32_t> numbers;                      // of its buckets, in launch order

  bool is_sharded() const { return plan->shards > 1; }
  std::byte* param_at(uint64_t element) const { return params->data() + element * size_of(plan->param_type); }
  bool is_pooled() const { return plan->pool_slots > 0; }
  bool has_instances() const { return plan->instances > 1; }
  // The own piece of a bucket.
  uint64_t piece_count(uint32_t bucket) const { return pieces[bucket].count(); }
  std::byte* piece_at(uint32_t bucket) const { return grad_at(bucket, pieces[bucket].begin); }
  std::shared_ptr<const Counts> counts_of(uint32_t bucket) const { return counts.empty() ? nullptr : counts[bucket]; }
  float* wide_at(uint64_t slot) const { return static_cast<float*>(wide->data()) + slot * plan->wide_elements; }
  // Where an element of a bucket goes to be reduced; with a pool while the slot is the bucket's.
  std::byte* grad_at(uint32_t bucket, uint64_t element) const {
    return grads->data() + (plan->grad_begin(bucket) + element - range(bucket).begin) * size_of(plan->grad_type);
  }
  // The reduced gradient of an owned range.
  void* reduced_at(const OwnedRange& range) const {
    return is_pooled() ? static_cast<float*>(sums->data()) + range.at : static_cast<void*>(grad_at(range.bucket, range.begin));
  }
  // With a pool: this rank's sums of a bucket.
  float* sums_of(uint32_t bucket) const { return static_cast<float*>(sums->data()) + sums_at[bucket]; }
  DType reduced_type() const { return is_pooled() ? DType::f32 : plan->grad_type; }
  const BucketRange& range(uint32_t bucket) const { return plan->layout.buckets[bucket]; }
  // All of a bucket, in its window of gradients or of parameters. microbatch: 0 if the step has one reduction of each bucket. With
  // instances the sum is only this one's, and not divided.
  WindowOp reduction(uint32_t bucket, int32_t number, uint32_t microbatch, float divisor) const;
  WindowOp gather(uint32_t bucket, int32_t number) const;
};

// Where a parameter lies; nowhere if it is frozen.
struct ParamPlace {
  uint32_t arena = 0, bucket = 0;  // the bucket's number in launch order
  uint64_t begin = 0;              // element of the arena
  size_t strides = 0;              // where its strides begin among those of all
};

// What this rank owns of a parameter's gradient, master or state, as one dimension; no data if it owns nothing of it.
struct Slice {
  void* data;
  DType type;
  const std::array<int64_t, 2>* shape;  // the count, and the stride 1; it lives as long as the buffer
};

class Arenas {
 public:
  Arenas(std::shared_ptr<ProcessGrid> grid, Plan plan) : grid_(std::move(grid)), plan_(std::move(plan)) {}
  ~Arenas();
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  // Collective over the grid's world. All ranks go through all of it, also one that has failed, so that none waits for it. ties: all of
  // the world's.
  Status allocate(std::vector<Tie> ties);

  const Plan& plan() const noexcept { return plan_; }
  const std::shared_ptr<ProcessGrid>& grid() const noexcept { return grid_; }
  Context& context() const noexcept { return grid_->world()->context(); }
  Backend& backend() const noexcept { return *context().backend; }
  const std::shared_ptr<Context>& shared_context() const noexcept { return grid_->world()->shared_context(); }

  // Gradients are reduced and parameters updated on the one, parameters gathered on the other, so that the next step's gradients need not
  // wait for the last step's gathers.
  Channel& grads() const noexcept { return *grads_; }
  Channel& gathers() const noexcept { return *gathers_; }
  // Sums across instances, beside the next bucket's inside them; null with one instance.
  Channel* across() const noexcept { return across_.get(); }
  const std::shared_ptr<Comm>& world() const noexcept { return world_; }  // on the channel of gradients
  // Likewise: the tensor-parallel ranks, where some of their gradients are partial; the ranks of an agreement.
  const std::shared_ptr<Comm>& tp(bool expert) const noexcept { return tp_[expert ? 1 : 0]; }
  const std::shared_ptr<Comm>& agreement_comm(Axes axes) const;
  std::vector<int> members(Axes axes) const;  // ranks of the world that axes span with this one
  // Parameters that the same stages hold, in the order of their ties; over one rank of each, which own the same of them. On the channel of
  // gradients.
  struct TieGroup {
    std::shared_ptr<Comm> comm;
    std::vector<size_t> params;
  };
  std::span<const TieGroup> tie_groups() const noexcept { return tie_groups_; }  // that this rank is in
  std::span<const Tie> ties() const noexcept { return ties_; }
  // Whether no earlier stage holds a copy.
  bool is_first_copy(size_t param) const;
  // Where a step ends: gathers(), if there is anything to gather.
  Channel& last() const noexcept { return is_sharded_ ? *gathers_ : *grads_; }

  std::span<const Arena> all() const noexcept { return arenas_; }
  const ParamPlace& place(size_t param) const { return places_[param]; }
  const Arena& arena_of(size_t param) const { return arenas_[places_[param].arena]; }
  uint32_t local_bucket(size_t param) const { return plan_.launch_order[places_[param].bucket].bucket; }  // its number in the arena
  const Arena& arena_of(const BucketRef& bucket) const { return arenas_[bucket.arena]; }
  // Whether what is in the arenas is whole: not after the load of a checkpoint has failed midway. Any thread.
  Status check_loaded() const;
  void set_loaded(bool loaded) noexcept { is_loaded_.store(loaded, std::memory_order_release); }
  // Code::invalid or Code::state if it is not the number of a parameter that lies here, or is not loaded.
  Status check_param(size_t param) const;
  const int64_t* strides(size_t param) const { return strides_.data() + places_[param].strides; }  // dense row-major
  StridedArray param_array(size_t param) const;
  StridedArray grad_array(size_t param) const;  // with a pool: while the slot is its bucket's
  // The range of a parameter that this rank owns; nullptr if it owns nothing of it.
  const OwnedRange* owned(size_t param) const;
  Slice slice(size_t param, void* data, DType type) const { return {data, type, &owned_shapes_[param]}; }
  // Views of library memory. Frozen parameters have none: Code::state; nor have gradients in a pool: Code::unsupported.
  struct View {
    void* data;
    DType type;
    const std::vector<int64_t>* shape;
    const int64_t* strides;  // as many
  };
  Result<View> param_view(size_t param) const;
  Result<View> grad_view(size_t param) const;

  // Memory that work on the channels uses, until that has passed.
  KeepAlive& kept() noexcept { return *kept_; }

 private:
  Status create_channels();
  Status make_comms(Axes axes, ReplicaComms* out) const;
  Status make_tp_comms();
  Status make_tie_comms();
  Status add(const ArenaPlan& plan, const ReplicaComms& comms);
  void index();
  StridedArray strided(size_t param, void* data, DType type) const;

  const std::shared_ptr<ProcessGrid> grid_;
  const Plan plan_;
  std::shared_ptr<Channel> grads_, gathers_, across_;
  std::shared_ptr<Comm> world_;
  std::shared_ptr<Comm> tp_[2], with_tp_[2];  // dense, expert; the second with all replicas
  std::vector<Tie> ties_;
  std::vector<TieGroup> tie_groups_;
  std::shared_ptr<KeepAlive> kept_ = std::make_shared<KeepAlive>();
  std::vector<Arena> arenas_;
  std::vector<ParamPlace> places_;                    // by registration index
  std::vector<int64_t> strides_;                      // of all parameters
  std::vector<std::array<int64_t, 2>> owned_shapes_;  // likewise
  bool is_sharded_ = false;
  std::atomic<bool> is_loaded_ = true;
};

}  // namespace megadp
