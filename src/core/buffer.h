// SPDX-License-Identifier: Apache-2.0
// Buffer: the registered parameters and gradients, where they lie, and the gradient side of a step. The life of a bucket:
//
//   filling → ready → in flight → reduced → (optimizer) gathering → whole, and filling again with the next step's first gradient
//
// A step begins after the last one, or, after a sync without a step, with microbatch_begin or zero_grad. Its gradients are summed over its
// microbatches and uses. Buckets are launched in Plan::launch_order and in no other.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/comm.h"
#include "core/grid.h"
#include "core/plan.h"
#include "core/request.h"

namespace megadp {

// A grid on a communicator; its groups are made when first needed.
class GridComm {
 public:
  // Collective over the world: all ranks must give the same configuration.
  static Result<std::shared_ptr<GridComm>> create(std::shared_ptr<Comm> world, const GridConfig& config);
  const Grid& grid() const noexcept { return grid_; }
  const std::shared_ptr<Comm>& world() const noexcept { return world_; }
  int rank() const noexcept { return world_->rank(); }
  // Collective over the group's members (so: call it on all ranks). The world's own communicator when the group is the whole world.
  Result<std::shared_ptr<Comm>> comm(Axes axes);

 private:
  GridComm(std::shared_ptr<Comm> world, Grid grid) : world_(std::move(world)), grid_(std::move(grid)) {}
  std::shared_ptr<Comm> world_;
  Grid grid_;
  std::vector<std::pair<Axes, std::shared_ptr<Comm>>> made_;
};

enum class BucketState : uint32_t {
  filling = 0,
  ready = 1,
  in_flight = 2,
  reduced = 3,
  gathering = 4,
  whole = 5
};
const char* name_of(BucketState state) noexcept;

struct Stats {
  uint64_t comm_ns = 0, exposed_ns = 0, bytes = 0, buckets = 0, launched_in_backward = 0, syncs = 0, host_syncs = 0;
};

struct BucketReport {
  BucketState state = BucketState::filling;
  uint64_t ready_ns = 0, reduce_begin_ns = 0, reduce_end_ns = 0, gather_begin_ns = 0, gather_end_ns = 0, sync_ns = 0;
};

struct SyncHeader;

class Buffer : public std::enable_shared_from_this<Buffer> {
 public:
  // Collective over the grid's world. Compares the registrations of each shard group; on a difference every rank gets Code::desync with
  // the first one.
  static Result<std::shared_ptr<Buffer>> create(std::shared_ptr<GridComm> grid, const BufferConfig& config, std::vector<ParamSpec> params);
  ~Buffer();

  const Plan& plan() const noexcept { return plan_; }
  Tree& tree() noexcept { return grid_->world()->tree(); }
  const std::shared_ptr<GridComm>& grid() const noexcept { return grid_; }

  // Views of library memory; strides are dense row-major. Frozen parameters have none: Code::state.
  struct View {
    void* data;
    DType type;
    const std::vector<int64_t>* shape;
    const std::vector<int64_t>* strides;
  };
  Result<View> param_view(size_t param);
  Result<View> grad_view(size_t param);
  const std::vector<OwnedRange>& owned(size_t arena) const;  // this rank's
  uint32_t bucket_of(size_t param) const;                    // its number in launch order

  Status broadcast(int root);  // collective over each shard group; root is an index into it
  Status verify();             // collective over the grid's world
  Status zero_grad(void* caller);
  Stats stats();
  Result<BucketReport> bucket(size_t number);

  // ── gradients: any thread ──
  Status microbatch_begin(bool is_last);
  Status grad_put(size_t param, const StridedArray& grad, bool add, bool more, void* producer);
  Status grad_ready(size_t param, void* producer);
  Status grad_skip(size_t param);
  // Collective over the world. A null request where none is wanted (then the work is done on return).
  Result<std::shared_ptr<Request>> grad_sync(void* consumer, bool want_request);

  // ── reduced gradients: after a finished sync, before the step ──
  using ParamList = std::optional<std::span<const size_t>>;  // none: all
  Result<double> grad_norm(const ParamList& list);           // collective over the world
  Status grad_scale(const ParamList& list, float factor, void* caller);
  Status grad_changed(void* producer);

  // ── parameters: any thread ──
  Status param_wait(size_t param, void* consumer);  // SIZE_MAX: all
  Status param_read(size_t param, const StridedArray& to, void* caller);
  Status param_write(size_t param, const StridedArray& from, void* caller);
  Status param_changed();

 private:
  friend class Optimizer;
  struct Arena;
  struct ParamState;
  struct Transfer;
  struct Bucket;
  struct Agreement;
  Buffer(std::shared_ptr<GridComm> grid, Plan plan);
  Status agree_on_registration();
  Result<std::vector<uint64_t>> digest_values(bool expert);
  size_t digested_param(bool expert, size_t position) const;
  Status check_room();
  Status allocate();
  Status duplicate(std::span<const std::shared_ptr<Comm>, 2> comms, std::span<std::shared_ptr<Comm>, 2> grads,
                   std::span<std::shared_ptr<Comm>, 2> params);
  Status allocate_arena(const ArenaPlan& plan, std::shared_ptr<Comm> grads_comm, std::shared_ptr<Comm> params_comm);
  Status allocate_agreements();
  Status allocate_sums();
  void index_params();
  Status check_param(size_t param) const;
  Status may_arrive(const char* call, size_t param) const;
  Status clear_if_empty(size_t param);
  Status wait_until_stepped(uint32_t bucket, void* caller);
  Result<StridedArray> whole_slot(const char* call, size_t param, const std::vector<int64_t>& shape, void* caller);
  Result<SyncHeader> settle_missing();
  Status submit_agreements(const SyncHeader& header);
  Status evaluate_agreements();
  Status complete_sync();
  // Waits for a sync that is pending, and says how it ended.
  Status await_sync();
  struct Chosen;
  Result<Chosen> choose(const ParamList& list) const;
  // Leaves the sum of squares and the number of elements that are not finite, over the world, in `scalars`. what: the operation's name.
  Status submit_square_sum(StepScalars* scalars, const Chosen& chosen, const char* what);

  std::shared_ptr<GridComm> grid_;
  Plan plan_;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace megadp
