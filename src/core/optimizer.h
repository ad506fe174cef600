// SPDX-License-Identifier: Apache-2.0
// Optimizer: this rank's shard of fp32 masters and of an update rule's state, and the step. The step is one series of submissions:
//
//   square sums of the owned gradient → all-reduce over the world → norm, clip factor, step counts → bucket by bucket, in forward order:
//   update of the owned ranges, cast into the parameter arena, all-gather
//
// Nothing of it waits for the host; a caller who wants a report, or no request, waits at the end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "core/buffer.h"
#include "files/manifest_json.h"

namespace megadp {

struct ParamGroup {
  std::optional<double> lr, weight_decay;  // none: the optimizer's
};

struct OptimizerConfig {
  uint32_t rule = 0;
  Hyper hyper{};
  double max_grad_norm = 0, max_grad_value = 0;  // 0: no clipping
  Norm norm = Norm::l2;
  std::vector<ParamGroup> groups;  // at least one
};

struct StepReport {
  double grad_norm = 0, clip_factor = 1, loss_scale = 1;
  uint64_t step = 0;
  bool skipped = false, clipped = false;
};

// What is divided by: neither it nor its inverse may vanish among floats.
constexpr double kLeastDivisor = 1e-37, kMostDivisor = 1e37;

struct StepOptions {
  std::optional<double> lr;  // replaces the optimizer's from this step on
  // Given: a non-finite gradient makes the step a skipped one; otherwise it makes it fail with Code::numeric. Either way nothing has
  // changed on any rank.
  std::optional<double> loss_scale;
  double grad_divisor = 1;
  void* caller = nullptr;
};

class Optimizer : public std::enable_shared_from_this<Optimizer> {
 public:
  // Collective over the world: all ranks must give the same configuration.
  static Result<std::shared_ptr<Optimizer>> create(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config);
  ~Optimizer();

  Status set_group(size_t group, const ParamGroup& value);

  // Collective over the world. report: nullptr if none is wanted.
  Result<std::shared_ptr<Request>> step(const StepOptions& options, StepReport* report, bool want_request);

  // Of the "master", or of one of the rule's state arrays.
  Result<Slice> state(size_t param, std::string_view name);
  // "AdamW keeps 'master', 'exp_avg' and 'exp_avg_sq'"
  std::string names_of_state() const;
  // How many steps the parameter has taken part in.
  Result<uint64_t> steps(size_t param);
  // Goes on as after `taken` steps, of which parameter p has taken part in steps[p]. Empty: each in all.
  Status set_steps(uint64_t taken, std::span<const uint64_t> steps);
  // {"rule":"AdamW","steps":7,"lr":0.001,…,"groups":[{"lr":0.001,"weight_decay":0.1}],"state":[{"name":"master","dtype":"f32"},…]}
  Result<std::string> json();

  // ── for checkpoints, between steps ──
  Result<StoredOptimizer> stored();  // what it is
  // Its configuration with the values that another one had.
  Result<OptimizerConfig> config_from(const StoredOptimizer& stored) const;
  void set_config(OptimizerConfig config);
  // Compares what ranks hold alike of the state: those of several instances, or all where it is not sharded. Collective over the world; the
  // same outcome on all ranks. In optimizer_verify.cc.
  Status verify(const char* call);
  // The parameter's values and master have been written: its master stands for them.
  void adopt(size_t param);

 private:
  explicit Optimizer(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config);
  Status compare_configurations();
  Status check_groups() const;
  Status check_room() const;
  Status allocate();
  Status await_last_step();
  Result<StepScalars> read_scalars();  // as the last step has left them
  Status submit_refresh();
  Status submit_counts();
  void count_changes();
  Result<std::shared_ptr<Event>> submit_norm(const StepOptions& options, void* outcome);
  Status submit_updates(double lr);
  Status submit_update(uint32_t bucket, double lr);
  Result<std::shared_ptr<Memory>> outcome_place();
  Status unseen_outcome(std::unique_lock<std::mutex>* lock);
  double divisor_of(const StepOptions& options) const;
  Status await(Event& event, const std::shared_ptr<Memory>& outcome, std::optional<double> loss_scale, StepReport* report);
  // Turns the scalars of a step into a status and a report. look: also search the owned gradients for the first element that is not finite;
  // that is slow, and right only until new gradients arrive.
  Status judge(const std::shared_ptr<Memory>& outcome, std::optional<double> loss_scale, bool look, StepReport* report);
  std::pair<std::string, Blame> find_nonfinite();

  std::shared_ptr<Buffer> buffer_;
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::shared_ptr<Event> last_step_;
  // For the scalars of steps whose outcome may still be asked for. At the end the channel takes them over, as what is KeepAlive.
  std::shared_ptr<std::vector<std::shared_ptr<Memory>>> outcomes_ = std::make_shared<std::vector<std::shared_ptr<Memory>>>();
  struct PendingOutcome {
    std::shared_ptr<Memory> place;
    std::shared_ptr<Event> known;
    std::optional<double> loss_scale;
  };
  PendingOutcome unseen_;  // of a step on a device that nobody waited for
};

}  // namespace megadp
