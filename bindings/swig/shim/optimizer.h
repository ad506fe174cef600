// SPDX-License-Identifier: Apache-2.0
// Update rules over this rank's shard.
#pragma once

#include "optimizer_options.h"
#include "steps.h"

namespace megadp {

/// A loss scale that follows overflows: as Megatron-LM's dynamic scaler, and with hysteresis 1 torch.amp.GradScaler. Zero: scale 65536,
/// growth_factor 2, backoff_factor 0.5, min_scale 1, growth_interval 2000, hysteresis 1. clean_steps (since the last overflow or growth)
/// and overflows (since the last growth) are how far it has come. A constant one stays.
struct Scaler {
  double scale = 0.0;
  double growth_factor = 0.0;
  double backoff_factor = 0.0;
  double min_scale = 0.0;
  long long growth_interval = 0;
  long long hysteresis = 0;
  long long clean_steps = 0;
  long long overflows = 0;
  bool constant = false;

#ifndef SWIG
  bool fits(Failure& failure) const {
    const auto counts = [&failure](const char* argument, long long value) {
      if (value > UINT32_MAX) failure.refuse(MDP_E_INVALID, "%s is %lld; at most %u can be counted", argument, value, UINT32_MAX);
      return value <= UINT32_MAX && not_negative(argument, value, failure);
    };
    return counts("growth_interval", growth_interval) && counts("hysteresis", hysteresis) && counts("clean_steps", clean_steps) &&
           counts("overflows", overflows);
  }
  mdp_scaler config() const {
    mdp_scaler scaler{};
    scaler.struct_size = sizeof scaler;
    scaler.growth_interval = static_cast<uint32_t>(growth_interval);
    scaler.hysteresis = static_cast<uint32_t>(hysteresis);
    scaler.clean_steps = static_cast<uint32_t>(clean_steps);
    scaler.overflows = static_cast<uint32_t>(overflows);
    scaler.scale = scale;
    scaler.growth_factor = growth_factor;
    scaler.backoff_factor = backoff_factor;
    scaler.min_scale = min_scale;
    scaler.flags = constant ? MDP_SCALER_CONSTANT : 0;
    return scaler;
  }
#endif
};

/// lr replaces the optimizer's from this step on, if it is given. Gradients are divided by loss_scale; with one given, a
/// gradient that is not finite makes all ranks skip the step. By grad_divisor, such as the number of microbatches, they are divided too.
/// unchecked: no norm is computed, and what is not finite spreads; E_INVALID with clipping, a loss_scale or scaler, a rule of the caller's.
/// On one node, without overlap and unless Buffer.sync came before, gradients are then reduced, parameters updated and gathered in one
/// pass. stream, with CUDA: the address of the cudaStream_t that the step's work goes with; 0, as all other calls here have it: the
/// device's default stream.
struct StepOptions {
  Given lr = 0.0;
  double loss_scale = 0.0;
  double grad_divisor = 0.0;
  long long stream = 0;
  bool set_lr = false;
  bool unchecked = false;

#ifndef SWIG
  mdp_step_config config() const {
    mdp_step_config config{};
    config.struct_size = sizeof config;
    config.lr = lr;
    config.loss_scale = loss_scale;
    config.grad_divisor = grad_divisor;
    config.stream = reinterpret_cast<mdp_stream>(static_cast<intptr_t>(stream));
    config.flags = (set_lr ? MDP_STEP_SET_LR : 0) | (unchecked ? MDP_STEP_UNCHECKED : 0);
    return config;
  }
#endif
};

class Optimizer {
 public:
  /// Collective over the buffer's world, with equal options.
  static Optimizer* create(const Buffer& buffer, const OptimizerOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Optimizer* {
      OptimizerOptions::Described described;
      mdp_optimizer_config config;
      if (!options.describe(buffer.leases()->size(), &described, &config, failure)) return nullptr;
      const auto registered = buffer.handle()->use_collectively(failure);
      mdp_optimizer* optimizer = nullptr;
      if (!registered || !failure.take(mdp_optimizer_create(registered.get(), &config, &optimizer))) return nullptr;
      return new Optimizer(optimizer, buffer.handle()->operations(), buffer.leases());
    });
  }

  /// Replaces a group's values from the next step on; alike on all ranks. Local.
  void set_param_group(long long number, const ParamGroup& group, Failure& failure) {
    const auto optimizer = optimizer_->use(failure);
    if (!optimizer || !not_negative("number", number, failure)) return;
    const mdp_param_group value = group.config();
    failure.take(mdp_optimizer_set_param_group(optimizer.get(), static_cast<size_t>(number), &value));
  }

  /// Gives the optimizer a loss scaler: steps divide gradients by its scale, skip those that are not finite, and take no loss_scale. Waits
  /// for the last step. Collective over the world, with equal values.
  void set_scaler(const Scaler& scaler, Failure& failure) {
    const auto optimizer = optimizer_->use_collectively(failure);
    if (!optimizer || !scaler.fits(failure)) return;
    const mdp_scaler given = scaler.config();
    failure.take(mdp_optimizer_set_scaler(optimizer.get(), &given));
  }

  /// Takes it away again. Collective over the world.
  void remove_scaler(Failure& failure) {
    const auto optimizer = optimizer_->use_collectively(failure);
    if (optimizer) failure.take(mdp_optimizer_set_scaler(optimizer.get(), nullptr));
  }

  /// The scaler as the last step has left it, which is waited for. Fails with STATE if there is none. Local.
  Scaler scaler(Failure& failure) const {
    mdp_scaler found{};
    found.struct_size = sizeof found;
    const auto optimizer = optimizer_->use(failure);
    Scaler scaler;
    if (!optimizer || !failure.take(mdp_optimizer_scaler(optimizer.get(), &found))) return scaler;
    scaler.scale = found.scale;
    scaler.growth_factor = found.growth_factor;
    scaler.backoff_factor = found.backoff_factor;
    scaler.min_scale = found.min_scale;
    scaler.growth_interval = found.growth_interval;
    scaler.hysteresis = found.hysteresis;
    scaler.clean_steps = found.clean_steps;
    scaler.overflows = found.overflows;
    scaler.constant = (found.flags & MDP_SCALER_CONSTANT) != 0;
    return scaler;
  }

  /// A view of what the loss is to be multiplied by, where steps keep it: one F32, not to be written. Fails with STATE if there is no
  /// scaler. Local.
  View* scale(Failure& failure) const {
    return guarded(failure, [&]() -> View* {
      const auto optimizer = optimizer_->use(failure);
      mdp_tensor tensor{};
      tensor.struct_size = sizeof tensor;
      return optimizer && failure.take(mdp_optimizer_scale(optimizer.get(), &tensor)) ? new View(tensor, optimizer) : nullptr;
    });
  }

  /// Takes a step: syncs where Buffer.sync was not called, and returns when all parameters are whole. Collective.
  StepReport step(const StepOptions& options, Failure& failure) {
    const mdp_step_config config = options.config();
    mdp_step_report report{};
    report.struct_size = sizeof report;
    const auto optimizer = optimizer_->use_collectively(failure);
    if (optimizer) leases_->end_all();
    if (optimizer) failure.take(mdp_optimizer_step(optimizer.get(), &config, &report, nullptr));
    return StepReport::of(report);
  }

  /// The same without a report: waits for the sync alone, if it must sync, and returns while the step is at work on parameters and
  /// gradients. Buffer.wait waits for one parameter, Buffer.wait_all for all, and the request ends when all are whole. Collective.
  Request* start_step(const StepOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Request* {
      const mdp_step_config config = options.config();
      mdp_request* request = nullptr;
      const auto optimizer = optimizer_->use_collectively(failure);
      if (optimizer) leases_->end_all();
      return optimizer ? Request::own(mdp_optimizer_step(optimizer.get(), &config, nullptr, &request), request, failure) : nullptr;
    });
  }

  /// Begins a step whose update is the caller's: syncs where Buffer.sync was not called, and returns when the norm is known. The gradients
  /// are the Step's until its end. Other rules have no pieces in it. Collective.
  Step* begin_step(const StepOptions& options, Failure& failure) {
    return guarded(failure, [&]() -> Step* {
      const auto optimizer = optimizer_->use_collectively(failure);
      if (!optimizer) return nullptr;
      leases_->end_all();
      return Step::begin({optimizer}, optimizer_, options.config(), failure);
    });
  }

  /// Puts the averages in the place of this optimizer's parameters, rounded, on all ranks, for evaluation; or, called again, what was there
  /// before, bit for bit. Meanwhile gradients, steps, checkpoints and writes of parameters fail with STATE in all of the buffer.
  /// Collective; returns when all parameters are whole.
  void swap_average(Failure& failure) {
    const auto optimizer = optimizer_->use_collectively(failure);
    if (optimizer) failure.take(mdp_optimizer_swap_average(optimizer.get(), nullptr, nullptr));
  }

  /// A view of the owned piece of a parameter's "master", of its "average" with average_decay, or of what the rule keeps ("exp_avg" and
  /// "exp_avg_sq"; SGD_MOMENTUM and SGD_NESTEROV "momentum_buffer"; LION "exp_avg"; CALLER what add_state names), F32, or of what
  /// add_param_state names, U8; Range.param_first says where it begins. It keeps the optimizer's memory, and so its communicator, until it
  /// is gone. Waits for the last step. Local.
  View* state(long long param, const std::string& name, Failure& failure) const {
    return guarded(failure, [&]() -> View* {
      const auto optimizer = optimizer_->use(failure);
      mdp_tensor tensor{};
      tensor.struct_size = sizeof tensor;
      if (!optimizer || !not_negative("param", param, failure) || !without_nul("name", name, failure)) return nullptr;
      if (!failure.take(mdp_optimizer_state(optimizer.get(), static_cast<size_t>(param), name.c_str(), &tensor))) return nullptr;
      return new View(tensor, optimizer);
    });
  }

  /// How many steps the parameter has taken part in: not counted are skipped ones, and those for which all ranks had skipped it. Waits for
  /// the last step. Local.
  long long steps(long long param, Failure& failure) const {
    uint64_t steps = 0;
    const auto optimizer = optimizer_->use(failure);
    if (optimizer && not_negative("param", param, failure)) {
      failure.take(mdp_optimizer_steps(optimizer.get(), static_cast<size_t>(param), &steps));
    }
    return static_cast<long long>(steps);
  }

  /// Goes on as after `taken` steps, from which reports count on, and in all of which every parameter has taken part; to restore what was
  /// saved, with what state() lends. To be called alike on all ranks. Local.
  void set_steps(long long taken, Failure& failure) {
    const auto optimizer = optimizer_->use_collectively(failure);
    if (!optimizer || !not_negative("taken", taken, failure)) return;
    failure.take(mdp_optimizer_set_steps(optimizer.get(), static_cast<uint64_t>(taken), nullptr, 0));
  }

  /// The same, and each parameter has taken part in so many of them.
  void set_steps_of(long long taken, const Counts& steps, Failure& failure) {
    const auto optimizer = optimizer_->use_collectively(failure);
    if (!optimizer || !not_negative("taken", taken, failure)) return;
    guarded(failure, [&] {
      const std::vector<uint64_t> list = steps.list(leases_->size(), "parameter", "steps", failure);
      if (failure.failed()) return;
      failure.take(mdp_optimizer_set_steps(optimizer.get(), static_cast<uint64_t>(taken), list.data(), list.size()));
    });
  }

  /// Rule, values, groups, steps taken and what state() lends, as JSON. Waits for the last step. Local.
  std::string info(Failure& failure) const {
    const auto optimizer = optimizer_->use(failure);
    if (!optimizer) return std::string();
    return Library::text(
        failure, [&](char* json, size_t capacity, size_t* needed) { return mdp_optimizer_info(optimizer.get(), json, capacity, needed); });
  }

  /// Drops this handle. Any thread.
  void close() { optimizer_->close(); }
  bool closed() const { return optimizer_->closed(); }

#ifndef SWIG
  Optimizer(mdp_optimizer* optimizer, const std::shared_ptr<Operations>& operations, std::shared_ptr<Leases> leases)
      : optimizer_(std::make_shared<OptimizerHandle>(optimizer, operations)), leases_(std::move(leases)) {}
  const std::shared_ptr<OptimizerHandle>& handle() const {
    return optimizer_;
  }
  const std::shared_ptr<Leases>& leases() const {
    return leases_;
  }
#endif

 private:
  std::shared_ptr<OptimizerHandle> optimizer_;  // lists of optimizers have it too
  std::shared_ptr<Leases> leases_;              // of its buffer: a step syncs
};

}  // namespace megadp
