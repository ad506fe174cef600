// SPDX-License-Identifier: Apache-2.0
// Arenas: the memory of a buffer. The parameters of one (parameter type, gradient type, class) lie in an arena: a window for parameters and
// one for gradients, cut into buckets by the plan, and shared by the ranks that hold replicas. Here are the windows, the communicators
// and the two channels that work on them; what a step does with them is not known here.
#pragma once

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

namespace megadp {

struct Arena {
  const ArenaPlan* plan = nullptr;
  std::shared_ptr<Comm> grads_comm, params_comm;  // the ranks that hold replicas of these parameters, on either channel
  Window *params = nullptr, *grads = nullptr;
  float divisor = 1;              // of the reduced sum: dp x cp, for experts too
  std::vector<OwnedRange> owned;  // this rank's, in placement order

  bool is_sharded() const { return plan->shards > 1; }
  std::byte* param_at(uint64_t element) const { return params->data() + element * size_of(plan->param_type); }
  std::byte* grad_at(uint64_t element) const { return grads->data() + element * size_of(plan->grad_type); }
  const BucketRange& range(uint32_t bucket) const { return plan->layout.buckets[bucket]; }
  // All of a bucket, in its window of gradients or of parameters.
  WindowOp reduction(uint32_t bucket, int32_t number) const;
  WindowOp gather(uint32_t bucket, int32_t number) const;
};

// Where a parameter lies; nowhere if it is frozen.
struct ParamPlace {
  uint32_t arena = 0, bucket = 0;  // the bucket's number in launch order
  uint64_t begin = 0;              // element of the arena
  std::vector<int64_t> strides;    // dense row-major
};

class Arenas {
 public:
  Arenas(std::shared_ptr<ProcessGrid> grid, Plan plan) : grid_(std::move(grid)), plan_(std::move(plan)) {}
  ~Arenas();
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  // Collective over the grid's world. All ranks go through all of it, also one that has failed, so that none waits for it.
  Status allocate();

  const Plan& plan() const noexcept { return plan_; }
  const std::shared_ptr<ProcessGrid>& grid() const noexcept { return grid_; }
  Context& context() const noexcept { return grid_->world()->context(); }
  Backend& backend() const noexcept { return *context().backend; }
  const std::shared_ptr<Context>& shared_context() const noexcept { return grid_->world()->shared_context(); }

  // Gradients are reduced and parameters updated on the one, parameters gathered on the other, so that the next step's gradients need not
  // wait for the last step's gathers.
  Channel& grads() const noexcept { return *grads_; }
  Channel& gathers() const noexcept { return *gathers_; }
  const std::shared_ptr<Comm>& world() const noexcept { return world_; }  // on the channel of gradients
  // Where a step ends: gathers(), if there is anything to gather.
  Channel& last() const noexcept { return is_sharded_ ? *gathers_ : *grads_; }

  std::span<const Arena> all() const noexcept { return arenas_; }
  const ParamPlace& place(size_t param) const { return places_[param]; }
  const Arena& arena_of(size_t param) const { return arenas_[places_[param].arena]; }
  const Arena& arena_of(const BucketRef& bucket) const { return arenas_[bucket.arena]; }
  // Code::invalid or Code::state if it is not the number of a parameter that lies here.
  Status check_param(size_t param) const;
  StridedArray param_array(size_t param) const;
  StridedArray grad_array(size_t param) const;
  // Views of library memory. Frozen parameters have none: Code::state.
  struct View {
    void* data;
    DType type;
    const std::vector<int64_t>*shape, *strides;
  };
  Result<View> param_view(size_t param) const;
  Result<View> grad_view(size_t param) const;

  // Memory that work on the channels uses, until that has passed.
  KeepAlive& kept() noexcept { return *kept_; }

 private:
  Status duplicate(std::span<const std::shared_ptr<Comm>, 2> comms, std::span<std::shared_ptr<Comm>, 2> grads,
                   std::span<std::shared_ptr<Comm>, 2> params);
  Status add(const ArenaPlan& plan, std::shared_ptr<Comm> grads_comm, std::shared_ptr<Comm> params_comm);
  void index();

  const std::shared_ptr<ProcessGrid> grid_;
  const Plan plan_;
  std::shared_ptr<Channel> grads_, gathers_;
  std::shared_ptr<Comm> world_;
  std::shared_ptr<KeepAlive> kept_ = std::make_shared<KeepAlive>();
  std::vector<Arena> arenas_;
  std::vector<ParamPlace> places_;  // by registration index
  bool is_sharded_ = false;
};

}  // namespace megadp
