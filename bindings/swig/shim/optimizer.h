// SPDX-License-Identifier: Apache-2.0
// AdamW over this rank's shard.
#pragma once

#include "buffer.h"

namespace megadp {

/// One of the optimizer's groups of parameters. What is not given is the optimizer's.
struct ParamGroup {
  Given lr = 0.0;
  Given weight_decay = 0.0;
  bool set_lr = false;
  bool set_weight_decay = false;

#ifndef SWIG
  mdp_param_group config() const {
    mdp_param_group group{};
    group.struct_size = sizeof group;
    group.lr = lr;
    group.weight_decay = weight_decay;
    group.flags = (set_lr ? MDP_PARAM_GROUP_SET_LR : 0) | (set_weight_decay ? MDP_PARAM_GROUP_SET_WEIGHT_DECAY : 0);
    return group;
  }
#endif
};

/// Not given: lr 1e-3, beta1 0.9, beta2 0.999. Zero: eps 1e-8, no weight decay, no clipping. norm
/// is what max_grad_norm and the report are of; max_grad_value clips each element, last.
struct OptimizerOptions {
  Given lr = 0.0;
  Given beta1 = 0.0;
  Given beta2 = 0.0;
  double eps = 0.0;
  double weight_decay = 0.0;
  double max_grad_norm = 0.0;
  double max_grad_value = 0.0;
  Norm norm = Norm::L2;
  bool set_lr = false;
  bool set_beta1 = false;
  bool set_beta2 = false;

  void add_param_group(const ParamGroup& group) { groups_.push_back(group); }

#ifndef SWIG
  // `groups` is what the configuration points to.
  mdp_optimizer_config config(std::vector<mdp_param_group>* groups) const {
    for (const ParamGroup& group : groups_) groups->push_back(group.config());
    mdp_optimizer_config config{};
    config.struct_size = sizeof config;
    config.rule = MDP_RULE_ADAMW;
    config.lr = lr;
    config.beta1 = beta1;
    config.beta2 = beta2;
    config.eps = eps;
    config.weight_decay = weight_decay;
    config.max_grad_norm = max_grad_norm;
    config.max_grad_value = max_grad_value;
    config.norm = static_cast<mdp_norm>(norm);
    config.param_groups = groups->empty() ? nullptr : groups->data();
    config.param_group_count = groups->size();
    config.flags =
        (set_lr ? MDP_OPTIMIZER_SET_LR : 0) | (set_beta1 ? MDP_OPTIMIZER_SET_BETA1 : 0) | (set_beta2 ? MDP_OPTIMIZER_SET_BETA2 : 0);
    return config;
  }
#endif

 private:
  std::vector<ParamGroup> groups_;
};

/// lr replaces the optimizer's from this step on, if it is given. Gradients are divided by loss_scale; with one given, a
/// gradient that is not finite makes all ranks skip the step. By grad_divisor, such as the number of microbatches, they are divided too.
/// stream, with CUDA: the address of the cudaStream_t that the step's work goes with; 0, as all other calls here have it: the device's
/// default stream.
struct StepOptions {
  Given lr = 0.0;
  double loss_scale = 0.0;
  double grad_divisor = 0.0;
  long long stream = 0;
  bool set_lr = false;

#ifndef SWIG
  mdp_step_config config() const {
    mdp_step_config config{};
    config.struct_size = sizeof config;
    config.lr = lr;
    config.loss_scale = loss_scale;
    config.grad_divisor = grad_divisor;
    config.stream = reinterpret_cast<mdp_stream>(static_cast<intptr_t>(stream));
    config.flags = set_lr ? MDP_STEP_SET_LR : 0;
    return config;
  }
#endif
};

/// As mdp_step_report: the gradient's norm before clipping, how many steps were taken, and whether this one was skipped or clipped.
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
      return new Optimizer(optimizer, buffer.leases());
    });
  }

  /// Replaces a group's values from the next step on; alike on all ranks. Local.
  void set_param_group(long long number, const ParamGroup& group, Failure& failure) {
    const auto optimizer = optimizer_.use(failure);
    if (!optimizer || !not_negative("number", number, failure)) return;
    const mdp_param_group value = group.config();
    failure.take(mdp_optimizer_set_param_group(optimizer.get(), static_cast<size_t>(number), &value));
  }

  /// Takes a step: syncs where Buffer.sync was not called, and returns when the norm is known. New parameters are gathered meanwhile, and
  /// Buffer.wait or wait_all waits for them. Collective.
  StepReport step(const StepOptions& options, Failure& failure) {
    const mdp_step_config config = options.config();
    mdp_step_report report{};
    report.struct_size = sizeof report;
    mdp_request* request = nullptr;
    const auto optimizer = optimizer_.use(failure);
    if (optimizer) leases_->end_all();
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

  /// The same without a report: waits for the sync alone, if it must sync; the request ends when all parameters are whole. Collective.
  Request* start_step(const StepOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Request* {
      const mdp_step_config config = options.config();
      mdp_request* request = nullptr;
      const auto optimizer = optimizer_.use(failure);
      if (optimizer) leases_->end_all();
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

  /// Goes on as after `taken` steps, from which reports count on, and in all of which every parameter has taken part; to restore what was
  /// saved, with what state() lends. To be called alike on all ranks. Local.
  void set_steps(long long taken, Failure& failure) {
    const auto optimizer = optimizer_.use(failure);
    if (!optimizer || !not_negative("taken", taken, failure)) return;
    failure.take(mdp_optimizer_set_steps(optimizer.get(), static_cast<uint64_t>(taken), nullptr, 0));
  }

  /// The same, and each parameter has taken part in so many of them.
  void set_steps_of(long long taken, const Counts& steps, Failure& failure) {
    const auto optimizer = optimizer_.use(failure);
    if (!optimizer || !not_negative("taken", taken, failure)) return;
    guarded(failure, [&] {
      const std::vector<uint64_t> list = steps.list(leases_->size(), "parameter", "steps", failure);
      if (failure.failed()) return;
      failure.take(mdp_optimizer_set_steps(optimizer.get(), static_cast<uint64_t>(taken), list.data(), list.size()));
    });
  }

  /// Rule, values, groups, steps taken and what state() lends, as JSON. Waits for the last step. Local.
  std::string info(Failure& failure) const {
    const auto optimizer = optimizer_.use(failure);
    if (!optimizer) return std::string();
    return Library::text(
        failure, [&](char* json, size_t capacity, size_t* needed) { return mdp_optimizer_info(optimizer.get(), json, capacity, needed); });
  }

  /// Drops this handle. Any thread.
  void close() { optimizer_.close(); }
  bool closed() const { return optimizer_.closed(); }

#ifndef SWIG
  Optimizer(mdp_optimizer* optimizer, std::shared_ptr<Leases> leases)
      : optimizer_("Optimizer", optimizer, mdp_optimizer_destroy), leases_(std::move(leases)) {}
  const Handle<mdp_optimizer>& handle() const {
    return optimizer_;
  }
#endif

 private:
  Handle<mdp_optimizer> optimizer_;
  std::shared_ptr<Leases> leases_;  // of its buffer: a step syncs
};

}  // namespace megadp
