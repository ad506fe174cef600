// SPDX-License-Identifier: Apache-2.0
// How a step went, and steps whose update is the caller's. No language is called back: such a step is taken by begin, next and finish.
#pragma once

#include "buffer.h"

namespace megadp {

/// As mdp_step_report: the gradient's norm before clipping, how many steps were taken, and whether this one was skipped, clipped or
/// not checked: then the norm is NaN.
struct StepReport {
  double grad_norm = 0.0;
  double clip_factor = 1.0;
  double loss_scale = 0.0;
  long long step = 0;
  bool skipped = false;
  bool clipped = false;
  bool unchecked = false;

#ifndef SWIG
  static StepReport of(const mdp_step_report& report) {
    StepReport found;
    found.grad_norm = report.grad_norm;
    found.clip_factor = report.clip_factor;
    found.loss_scale = report.loss_scale;
    found.step = static_cast<long long>(report.step);
    found.skipped = (report.flags & MDP_STEPPED_SKIPPED) != 0;
    found.clipped = (report.flags & MDP_STEPPED_CLIPPED) != 0;
    found.unchecked = (report.flags & MDP_STEPPED_UNCHECKED) != 0;
    return found;
  }
#endif
};

#ifndef SWIG

// An optimizer, and whether a step of it was dropped that nobody has finished. Finishing is collective, but a garbage collector drops at
// any moment and on any thread: so it only says so, and the next collective call finishes that step, as failed.
class OptimizerHandle {
 public:
  OptimizerHandle(mdp_optimizer* optimizer, const std::shared_ptr<Operations>& operations)
      : handle_("Optimizer", optimizer, mdp_optimizer_destroy, operations) {}

  std::shared_ptr<mdp_optimizer> use(Failure& failure) const { return handle_.use(failure); }
  std::shared_ptr<mdp_optimizer> use_collectively(Failure& failure) {
    auto optimizer = handle_.use_collectively(failure);
    // That it fails is what is wanted; where it has another reason, the call that follows fails for that.
    if (optimizer && dropped_.exchange(false)) mdp_optimizer_step_finish(optimizer.get(), 1, nullptr, nullptr);
    return optimizer;
  }
  void dropped() { dropped_ = true; }
  Operations& operations() { return *handle_.operations(); }
  void close() { handle_.close(); }
  bool closed() const { return handle_.closed(); }

 private:
  Handle<mdp_optimizer> handle_;
  std::atomic<bool> dropped_{false};
};

#endif

/// What this rank owns of a parameter, for the caller's update of it. Values are those of the parameter's group.
class UpdatePiece {
 public:
  long long optimizer = 0;  ///< its number among those of the step
  long long param = 0;
  long long param_begin = 0;  ///< the first of `count` elements of the flattened parameter
  long long count = 0;
  long long step = 0;  ///< that the parameter takes part in, from 1 on
  double lr = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double eps = 0.0;
  double weight_decay = 0.0;
  double momentum = 0.0;

  /// Views of `count` elements each, F32, until the Step's next piece or its end. To be updated: the parameter, and the optimizer's arrays
  /// of state, from 0 on as they were added. The gradient is divided and clipped, for reading. Local.
  View* master(Failure& failure) const { return lent(master_, count, MDP_DTYPE_F32, failure); }
  View* grad(Failure& failure) const { return lent(grad_, count, MDP_DTYPE_F32, failure); }
  View* state(long long index, Failure& failure) const {
    if (index >= 0 && index < states()) return lent(state_[static_cast<size_t>(index)], count, MDP_DTYPE_F32, failure);
    failure.refuse(MDP_E_INVALID, "index must be of one of the %lld arrays of state, not %lld", states(), index);
    return nullptr;
  }
  /// How many arrays of state there are.
  long long states() const { return static_cast<long long>(state_.size()); }

  /// A view of the bytes, U8, that the optimizer keeps of this parameter, in the order of add_param_state, to be updated; of none where it
  /// keeps none. Local.
  View* param_state(long long index, Failure& failure) const {
    if (index < 0 || index >= param_states()) {
      failure.refuse(MDP_E_INVALID, "index must be of one of the %lld param_states, not %lld", param_states(), index);
      return nullptr;
    }
    const auto& [data, bytes] = param_states_[static_cast<size_t>(index)];
    return lent(data, bytes, MDP_DTYPE_U8, failure);
  }
  long long param_states() const { return static_cast<long long>(param_states_.size()); }

#ifndef SWIG
  // keep: what the memory is of.
  UpdatePiece(const mdp_update& update, std::shared_ptr<void> keep, Leases::Lease lease)
      : optimizer(update.optimizer),
        param(static_cast<long long>(update.param)),
        param_begin(static_cast<long long>(update.param_begin)),
        count(static_cast<long long>(update.count)),
        step(static_cast<long long>(update.step)),
        lr(update.lr),
        beta1(update.beta1),
        beta2(update.beta2),
        eps(update.eps),
        weight_decay(update.weight_decay),
        momentum(update.momentum),
        master_(update.master),
        grad_(const_cast<float*>(update.grad)),
        state_(update.state, update.state + update.state_count),
        keep_(std::move(keep)),
        lease_(std::move(lease)) {
    for (uint64_t i = 0; i < update.param_state_count; ++i) {
      param_states_.emplace_back(update.param_states[i], static_cast<long long>(update.param_state_bytes[i]));
    }
  }
#endif

 private:
  View* lent(void* data, int64_t shape, mdp_dtype dtype, Failure& failure) const {
    return guarded(failure, [&] {
      mdp_tensor tensor{};
      tensor.struct_size = sizeof tensor;
      tensor.dtype = dtype;
      tensor.ndim = 1;
      tensor.data = data;
      tensor.shape = &shape;
      auto view = std::make_unique<View>(tensor, keep_);
      view->lend(tensor, false, lease_, "is of a piece of a Step, which has gone on to the next one or is over");
      return view.release();
    });
  }

  float* master_;
  float* grad_;
  std::vector<float*> state_;
  std::vector<std::pair<void*, long long>> param_states_;  // with their bytes
  std::shared_ptr<void> keep_;
  Leases::Lease lease_;
};

/// A step under way, of one optimizer or several: update every piece that next gives, then finish. If one cannot be updated, fail. A Step
/// that is dropped without either is finished as failed by the next collective call of its (first) optimizer; the other ranks wait until
/// then. For the communicator's thread.
class Step {
 public:
  /// The next piece; null: there is none any more, at once where the step is skipped. Local.
  UpdatePiece* next(Failure& failure) {
    return guarded(failure, [&]() -> UpdatePiece* {
      if (!is_open(failure)) return nullptr;
      end_lease();
      mdp_update update{};
      update.struct_size = sizeof update;
      if (!failure.take(mdp_optimizer_step_next(optimizers_->front().get(), &update)) || update.count == 0) return nullptr;
      lease_ = std::make_shared<std::atomic<bool>>(true);
      return new UpdatePiece(update, optimizers_, lease_);
    });
  }

  /// When all ranks have updated their pieces parameters are rounded and gathered; returns when all are whole. If a rank has
  /// failed, all fail with ABORTED: masters and state may have changed, and steps fail with STATE until a checkpoint is loaded or
  /// Optimizer.set_steps is called. STATE if pieces are left, which is such a failure. Collective.
  StepReport finish(Failure& failure) { return end(0, failure); }

  /// This rank cannot update a piece: finish fails on the others, with ABORTED. Collective.
  void fail(Failure& failure) {
    end(1, failure);
    if (failure.code == MDP_E_ABORTED) failure = Failure();
  }

  /// fail, if the step is not over; otherwise nothing.
  void close(Failure& failure) {
    if (open_) fail(failure);
  }
  bool closed() const { return !open_; }

#ifndef SWIG
  using Used = std::vector<std::shared_ptr<mdp_optimizer>>;

  static Step* begin(Used optimizers, std::shared_ptr<OptimizerHandle> leader, const mdp_step_config& config, Failure& failure) {
    std::vector<mdp_optimizer*> list;
    for (const auto& optimizer : optimizers) list.push_back(optimizer.get());
    std::unique_ptr<Step> step(new Step(std::move(optimizers), std::move(leader)));  // before anything has begun that it must end
    step->open_ = failure.take(mdp_optimizer_step_begin(list.data(), list.size(), &config));
    return step->open_ ? step.release() : nullptr;
  }
  ~Step() {
    end_lease();
    if (open_) leader_->dropped();
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
#endif

 private:
  Step(Used optimizers, std::shared_ptr<OptimizerHandle> leader)
      : optimizers_(std::make_shared<Used>(std::move(optimizers))), leader_(std::move(leader)) {}

  bool is_open(Failure& failure) const {
    if (!open_) failure.refuse(MDP_E_STATE, "this Step is over; Optimizer.begin_step begins another one");
    return open_;
  }
  void end_lease() {
    if (lease_) *lease_ = false;
  }
  StepReport end(int32_t failed, Failure& failure) {
    mdp_step_report report{};
    report.struct_size = sizeof report;
    if (!is_open(failure)) return StepReport();
    open_ = false;
    end_lease();
    ++leader_->operations();
    failure.take(mdp_optimizer_step_finish(optimizers_->front().get(), failed, &report, nullptr));
    optimizers_.reset();
    return StepReport::of(report);
  }

  std::shared_ptr<Used> optimizers_;         // also of a closed Optimizer
  std::shared_ptr<OptimizerHandle> leader_;  // the first one's
  Leases::Lease lease_;                      // of the piece that next gave
  bool open_ = false;
};

}  // namespace megadp
