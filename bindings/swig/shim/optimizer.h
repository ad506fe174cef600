// SPDX-License-Identifier: Apache-2.0
// AdamW over this rank's shard.
#pragma once

#include "buffer.h"

namespace megadp {

/// One group of parameters. lr 0: the optimizer's, unless set_lr.
struct Group {
  double lr = 0.0;
  double weight_decay = 0.0;
  bool set_lr = false;

#ifndef SWIG
  mdp_param_group describe() const {
    mdp_param_group group{};
    group.struct_size = sizeof group;
    group.lr = lr;
    group.weight_decay = weight_decay;
    group.flags = set_lr ? MDP_PARAM_GROUP_SET_LR : 0;
    return group;
  }
#endif
};

/// Zero: lr 1e-3, betas 0.9 and 0.999 (unless set_betas), eps 1e-8, no clipping. weight_decay counts where no group is added.
struct OptimizerOptions {
  double lr = 0.0;
  double beta1 = 0.0;
  double beta2 = 0.0;
  double eps = 0.0;
  double weight_decay = 0.0;
  double max_grad_norm = 0.0;
  bool set_betas = false;

  void add_group(const Group& group) { groups_.push_back(group); }

#ifndef SWIG
  // `groups` is what the configuration points to.
  mdp_optimizer_config config(std::vector<mdp_param_group>* groups) const {
    for (const Group& group : groups_) groups->push_back(group.describe());
    mdp_optimizer_config config{};
    config.struct_size = sizeof config;
    config.rule = MDP_RULE_ADAMW;
    config.lr = lr;
    config.beta1 = beta1;
    config.beta2 = beta2;
    config.eps = eps;
    config.weight_decay = weight_decay;
    config.max_grad_norm = max_grad_norm;
    config.groups = groups->empty() ? nullptr : groups->data();
    config.param_group_count = groups->size();
    config.flags = set_betas ? MDP_OPTIMIZER_SET_BETAS : 0;
    return config;
  }
#endif

 private:
  std::vector<Group> groups_;
};

/// lr replaces the optimizer's from this step on (0: unchanged, unless set_lr). Gradients are divided by loss_scale; with one given, a
/// gradient that is not finite makes all ranks skip the step. stream, with CUDA: the address of the cudaStream_t that the step's work goes
/// with; 0, as all other calls here have it: the device's default stream.
struct StepOptions {
  double lr = 0.0;
  double loss_scale = 0.0;
  long long stream = 0;
  bool set_lr = false;

#ifndef SWIG
  mdp_step_config config() const {
    mdp_step_config config{};
    config.struct_size = sizeof config;
    config.lr = lr;
    config.loss_scale = loss_scale;
    config.stream = reinterpret_cast<mdp_stream>(static_cast<intptr_t>(stream));
    config.flags = set_lr ? MDP_STEP_SET_LR : 0;
    return config;
  }
#endif
};

/// As mdp_step_report: the gradient's L2 norm before clipping, how many steps were taken, and whether this one was skipped or clipped.
struct StepReport {
  double grad_norm = 0.0;
  double clip_factor = 1.0;
  double loss_scale = 0.0;
  long long step = 0;
  bool skipped = false;
  bool clipped = false;
};

class Optimizer {
 public:
  /// Collective over the buffer's world, with equal options.
  static Optimizer* create(const Buffer& buffer, const OptimizerOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Optimizer* {
      std::vector<mdp_param_group> groups;
      const mdp_optimizer_config config = options.config(&groups);
      const auto registered = buffer.handle().use(failure);
      mdp_optimizer* optimizer = nullptr;
      if (!registered || !failure.take(mdp_optimizer_create(registered.get(), &config, &optimizer))) return nullptr;
      return new Optimizer(optimizer);
    });
  }

  /// Replaces a group's values from the next step on; alike on all ranks. Local.
  void set_group(long long number, const Group& group, Failure& failure) {
    const auto optimizer = optimizer_.use(failure);
    if (!optimizer || !not_negative("number", number, failure)) return;
    const mdp_param_group value = group.describe();
    failure.take(mdp_optimizer_set_param_group(optimizer.get(), static_cast<size_t>(number), &value));
  }

  /// Takes a step with the gradients that sync reduced. Returns when its norm is known: new parameters are gathered meanwhile, and
  /// Buffer.wait or wait_all waits for them. Collective.
  StepReport step(const StepOptions& options, Failure& failure) {
    const mdp_step_config config = options.config();
    mdp_step_report report{};
    report.struct_size = sizeof report;
    mdp_request* request = nullptr;
    const auto optimizer = optimizer_.use(failure);
    if (optimizer && failure.take(mdp_optimizer_step(optimizer.get(), &config, &report, &request))) mdp_request_free(request);
    StepReport found;
    found.grad_norm = report.grad_norm;
    found.clip_factor = report.clip_factor;
    found.loss_scale = report.loss_scale;
    found.step = static_cast<long long>(report.step);
    found.skipped = (report.flags & MDP_STEPPED_SKIPPED) != 0;
    found.clipped = (report.flags & MDP_STEPPED_CLIPPED) != 0;
    return found;
  }

  /// The same without a report, and without waiting: the request ends when all parameters are whole. Collective.
  Request* start_step(const StepOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Request* {
      const mdp_step_config config = options.config();
      mdp_request* request = nullptr;
      const auto optimizer = optimizer_.use(failure);
      return optimizer ? Request::own(mdp_optimizer_step(optimizer.get(), &config, nullptr, &request), request, failure) : nullptr;
    });
  }

  /// A view of the owned piece of a parameter's "master", "exp_avg" or "exp_avg_sq", F32; Range.param_first says where it begins. It keeps
  /// the optimizer's memory, and so its communicator, until it is gone. Waits for the last step. Local.
  View* state(long long param, const std::string& name, Failure& failure) const {
    return guarded(failure, [&]() -> View* {
      const auto optimizer = optimizer_.use(failure);
      mdp_tensor tensor{};
      tensor.struct_size = sizeof tensor;
      if (!optimizer || !not_negative("param", param, failure)) return nullptr;
      if (!failure.take(mdp_optimizer_state(optimizer.get(), static_cast<size_t>(param), name.c_str(), &tensor))) return nullptr;
      return new View(tensor, optimizer);
    });
  }

  /// How many steps the parameter has taken part in: not counted are skipped ones, and those for which all ranks had skipped it. Waits for
  /// the last step. Local.
  long long steps(long long param, Failure& failure) const {
    uint64_t steps = 0;
    const auto optimizer = optimizer_.use(failure);
    if (optimizer && not_negative("param", param, failure)) {
      failure.take(mdp_optimizer_steps(optimizer.get(), static_cast<size_t>(param), &steps));
    }
    return static_cast<long long>(steps);
  }

  /// Drops this handle. Any thread.
  void close() { optimizer_.close(); }
  bool closed() const { return optimizer_.closed(); }

#ifndef SWIG
  explicit Optimizer(mdp_optimizer* optimizer) : optimizer_("Optimizer", optimizer, mdp_optimizer_destroy) {}
#endif

 private:
  Handle<mdp_optimizer> optimizer_;
};

}  // namespace megadp
