// SPDX-License-Identifier: Apache-2.0
// Optimizer: this rank's shard of fp32 masters and of an update rule's state, and the step. The step is one series of submissions:
//
//   square sums of the owned gradient → all-reduce over the world → norm, clip factor, step counts → bucket by bucket, in forward order:
//   update of the owned ranges, cast into the parameter arena, all-gather
//
// Nothing of it waits for the host; a caller who wants a report, or no request, waits at the end.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
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
  std::optional<double> lr, beta1, beta2, eps, weight_decay, momentum;  // none: the optimizer's
};
// What a group may have of its own.
struct GroupField {
  HyperValue value;
  std::optional<double> ParamGroup::*of_group;
};
constexpr GroupField kGroupFields[] = {{&Hyper::lr, &ParamGroup::lr},
                                       {&Hyper::beta1, &ParamGroup::beta1},
                                       {&Hyper::beta2, &ParamGroup::beta2},
                                       {&Hyper::eps, &ParamGroup::eps},
                                       {&Hyper::weight_decay, &ParamGroup::weight_decay},
                                       {&Hyper::momentum, &ParamGroup::momentum}};

// Bytes that the owner of a parameter keeps for the caller's update of it.
struct ParamState {
  std::string name;
  std::vector<uint64_t> bytes;  // by parameter
};

struct OptimizerConfig {
  uint32_t rule = 0;
  Hyper hyper{};
  double max_grad_norm = 0, max_grad_value = 0;  // 0: no clipping
  Norm norm = Norm::l2;
  std::vector<ParamGroup> groups;             // at least one
  size_t first_group = 0;                     // the number of the first
  bool some_groups = false;                   // parameters of other groups are other optimizers'
  std::vector<std::string> state;             // of the caller's rule: the names of its arrays, f32
  std::vector<ParamState> param_states = {};  // likewise
  double average_decay = 0;                   // 0: no average
  bool bf16_state = false;                    // what the rule keeps; rounded to nearest, or:
  bool stochastic_state = false;
  bool no_master = false;     // bf16 parameters are their own, rounded stochastically
  uint64_t seed = 0;          // of the random bits that take part in it
  bool check_update = false;  // of the caller's: copies of each piece's halves are handed out too, and must come to the same

  bool draws() const { return stochastic_state || no_master; }
  // Whether the optimizer updates it: not what is frozen, nor what is another optimizer's.
  bool covers(const ParamSpec& spec) const;
  std::string names_of_groups() const;
};

// What is wrong with a configuration for parameters that are laid out like this.
Status check_groups(const OptimizerConfig& config, const Plan& plan);
Status check_masters(const OptimizerConfig& config, const Plan& plan);
Status check_param_states(const OptimizerConfig& config, const Plan& plan);

struct StepReport {
  double grad_norm = 0, clip_factor = 1, loss_scale = 1;
  uint64_t step = 0;
  bool skipped = false, clipped = false, unchecked = false;
};

// What is divided by: neither it nor its inverse may vanish among floats.
constexpr double kLeastDivisor = 1e-37, kMostDivisor = 1e37;
constexpr bool is_within(double value, Range range) {
  if (range == Range::decay) return value >= 0 && value < 1;
  if (range == Range::divisor) return value >= kLeastDivisor && value <= kMostDivisor;
  return value >= 0 && value <= std::numeric_limits<float>::max();
}
static_assert(kMostDivisor == kMostLossScale);

struct StepOptions {
  std::optional<double> lr;  // replaces the optimizer's from this step on
  // Given, or kept by a scaler: a non-finite gradient makes the step a skipped one; otherwise it makes it fail with Code::numeric. Either
  // way nothing has changed on any rank.
  std::optional<double> loss_scale;
  double grad_divisor = 1;
  double divisor() const { return loss_scale.value_or(1) * grad_divisor; }
  bool unchecked = false;  // no norm, and nobody looks whether gradients are finite
  void* caller = nullptr;
};

// What this rank owns of a parameter, for the caller's update of it.
struct UpdatePiece {
  size_t optimizer;  // its number among those that step together
  size_t param;
  uint64_t begin, count;                  // where it lies in the parameter
  float* master;                          // to be updated
  const float* grad;                      // divided and clipped; until a piece of another bucket is asked for
  std::array<float*, kMostStates> state;  // to be updated
  size_t states;
  std::array<void*, kMostStates> param_states;  // to be updated
  std::array<uint64_t, kMostStates> param_state_bytes;
  size_t param_state_count;
  Hyper hyper;    // of its group
  uint64_t step;  // that it takes part in, from 1 on
  void* stream;   // the caller's
};
using UpdateFunction = std::function<Status(const UpdatePiece&)>;

class Optimizer : public std::enable_shared_from_this<Optimizer> {
 public:
  // Collective over the world: all ranks must give the same configuration.
  static Result<std::shared_ptr<Optimizer>> create(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config);
  ~Optimizer();

  const UpdateRule& rule() const;
  bool covers(size_t param) const;
  Status set_group(size_t group, const ParamGroup& value);

  // A loss scale that the device keeps. Collective over the world: all ranks must give the same. Kind::none: none from now on.
  Status set_scaler(const LossScaler& scaler, const LossScale& scale);
  const LossScaler& scaler() const;
  // As the last step has left it, which it waits for; and where it lies, for work that is ordered after the step.
  Result<LossScale> loss_scale();
  float* loss_scale_place();

  // One step of optimizers of one buffer, which together cover each trained parameter once. Collective over the world, with as many. The
  // first one's scaler counts. report: nullptr if none is wanted.
  static Result<std::shared_ptr<Request>> step(std::span<const std::shared_ptr<Optimizer>> optimizers, const StepOptions& options,
                                               StepReport* report, bool want_request);

  // Of the caller's rule. A step calls it on its own thread, for each piece. Local.
  Status set_update(UpdateFunction update);
  bool has_callers_rule() const;
  // The same step in three, for a host without functions to be called. What begins it waits for the norm; of a step that is skipped there
  // are no pieces. finish() is collective over the world: mine says whether all pieces are updated; if they are not on some rank, none
  // gathers; those of the caller's rule then take no step until their counts are set, and the others go on. In
  // optimizer_pieces.cc.
  static Status begin(std::span<const std::shared_ptr<Optimizer>> optimizers, const StepOptions& options);
  Result<const UpdatePiece*> next();  // null: there is none any more. Valid until the next call
  Result<std::shared_ptr<Request>> finish(const Status& mine, StepReport* report, bool want_request);

  // Masters follow what was written, and averages begin: a save reads them on the rank that writes them only, so all that have the same are
  // to do this where it does.
  Status settle_owned();
  // Puts the averages in the place of the parameters that it covers, or what was there before back. Collective over the world: all ranks
  // call it at the same moment between steps. A null request if none is wanted. In optimizer_average.cc, as all of averages.
  Result<std::shared_ptr<Request>> swap_average(void* caller, bool want_request);
  bool averages() const;

  // Of the "master", the "average", or of one of the rule's state arrays.
  Result<Slice> state(size_t param, std::string_view name);
  const std::vector<ParamState>& param_states() const;
  Slice param_state(size_t state, size_t param) const;  // what this rank has of it; between steps
  // "AdamW keeps 'master', 'exp_avg' and 'exp_avg_sq'"
  std::string names_of_state() const;
  // How many steps the parameter has taken part in.
  Result<uint64_t> steps(size_t param);
  // By parameter; 0 for those of others. Reads the device once.
  Result<std::vector<uint64_t>> steps_of_all();
  // Goes on as after `taken` steps, of which parameter p has taken part in steps[p]. Empty: each in all.
  Status set_steps(uint64_t taken, std::span<const uint64_t> steps);
  // {"rule":"AdamW","steps":7,"lr":0.001,…,"groups":[{"lr":0.001,"weight_decay":0.1}],"state":[{"name":"master","dtype":"f32"},…]}
  Result<std::string> json();

  // ── for checkpoints, between steps ──
  Result<StoredOptimizer> stored();  // what it is
  // Its configuration with the values that another one had.
  Result<OptimizerConfig> config_from(const StoredOptimizer& stored) const;
  void set_config(OptimizerConfig config);
  // Whether it has the same rule and the same groups.
  bool is_stored_as(const StoredOptimizer& stored) const;
  // What another one's scaler had come to, if both have one.
  Result<std::optional<LossScale>> loss_scale_from(const StoredOptimizer& stored) const;
  Status set_loss_scale(const LossScale& scale);
  // Compares what ranks hold alike of the state: those of several instances, or all where it is not sharded; and tensor-parallel ranks that
  // of parameters which are not. Collective over the world; the same outcome on all ranks. In optimizer_verify.cc.
  Status verify(const char* call);
  // The parameter's values and master have been written: its master stands for them.
  void adopt(size_t param);
  // The parameter's average begins with what its master is at the next step.
  void restart_average(size_t param);

 private:
  Status verify_over_replicas(const char* call);
  Status verify_over_tp(const char* call, bool expert);
  std::vector<const char*> own_states(size_t param) const;
  Result<uint64_t> digest_state(size_t param, const char* name);
  explicit Optimizer(std::shared_ptr<Buffer> buffer, const OptimizerConfig& config);
  Status compare_configurations();
  Status compare_param_states();
  Status compare_on_all(const char* call, const char* what, const std::string& mine);
  std::string not_covered(size_t param) const;
  Status check_own(size_t param) const;
  Status check_room() const;
  Status find_sources(const Status& mine);
  void lay_out();
  void lay_out_param_states();
  Status allocate();
  Status allocate_param_states();
  Status await_last_step();
  Result<StepScalars> read_scalars();  // as the last step has left them
  // Those that step together, the first of which this one is.
  using Together = std::span<const std::shared_ptr<Optimizer>>;
  // What a step that is not finite is to its caller, and what the report says where no scaler does.
  struct Scaled {
    bool skips;
    double loss_scale;
    bool checked;  // there is a norm
  };
  struct Step;  // one that is under way
  Result<std::shared_ptr<Request>> lead(Together optimizers, const StepOptions& options, StepReport* report, bool want_request);
  // mine: what this rank lacks for these.
  Status make_ready(Together optimizers, const StepOptions& options, const Status& mine = {});
  StepValues values_of(Together optimizers, const StepOptions& options) const;
  Status check_synced(const Step& step) const;
  Status submit_begin(Together optimizers, std::unique_lock<std::mutex>* lock, Step* step);  // up to the norm
  Result<std::shared_ptr<Event>> submit_end(Together optimizers, const Step& step);          // from the updates on
  Result<std::shared_ptr<Request>> conclude(const Step& step, const std::shared_ptr<Event>& end, StepReport* report, bool want_request);
  Result<std::shared_ptr<Request>> call_updates(Together optimizers, const StepOptions& options, StepReport* report, bool want_request);
  Status begin_pieces(Together optimizers, const StepOptions& options, const Status& mine);
  Status prepare_pieces(uint32_t bucket);
  Result<std::vector<uint64_t>> read_steps() const;
  Status write_steps(uint64_t taken, const std::function<uint64_t(size_t param)>& steps_of);  // of what it covers; in one piece
  static void give_up(Together optimizers, bool skipped);
  std::vector<std::shared_ptr<Optimizer>> together() const;  // of the step under way
  Optimizer& whose_turn();                                   // whose pieces are handed out
  Status check_together(Together optimizers) const;
  Status agree_together(Together optimizers, const Status& ready);
  Status check_whole(const char* call) const;
  Status check_swap(const std::vector<Gradients::Launched>& launched) const;
  std::vector<size_t> covered() const;
  Status submit_first_averages();
  Status submit_average(uint32_t bucket);
  Status submit_swap(uint32_t bucket);
  Status submit_refresh();
  Status submit_counts();
  void note_changes(Together optimizers, const Step& step) const;
  void settle_changes(Together optimizers) const;
  Result<std::shared_ptr<Event>> submit_norm(Together optimizers, const StepOptions& options, void* outcome);
  Status submit_updates(Together optimizers, std::optional<double> lr);
  // What this rank owns of the bucket; what one launch can do goes together.
  Status for_each_update(uint32_t bucket, std::optional<double> lr, const std::function<Status(const OwnedRange&, const Update&)>& take);
  Status submit_update(uint32_t bucket, std::optional<double> lr);
  // In optimizer_unchecked.cc.
  Status check_unchecked(Together optimizers, const StepOptions& options) const;
  Status submit_no_norm();
  bool may_be_in_one_pass(Together optimizers, const StepOptions& options) const;
  Status submit_in_one_pass(Together optimizers, const Step& step);
  Result<std::shared_ptr<Memory>> outcome_place();
  Status unseen_outcome(std::unique_lock<std::mutex>* lock);
  double divisor_of(const StepOptions& options) const;
  Scaled scaled(const StepOptions& options) const;
  Status await(Event& event, const std::shared_ptr<Memory>& outcome, Scaled scaled, StepReport* report);
  // Turns the scalars of a step into a status and a report. look: also search the owned gradients for the first element that is not finite;
  // that is slow, and right only until new gradients arrive.
  Status judge(const std::shared_ptr<Memory>& outcome, Scaled scaled, bool look, StepReport* report);
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
    Scaled scaled;
  };
  PendingOutcome unseen_;                         // of a step on a device that nobody waited for
  std::vector<std::weak_ptr<Optimizer>> agreed_;  // those that this one has led, all ranks alike
  UpdateFunction update_;
  Status await_callers_work();
  struct Pieces;
  std::unique_ptr<Pieces> pieces_;  // of a step that this one leads
};

}  // namespace megadp
