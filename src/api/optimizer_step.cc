// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers, updates that are the caller's, and averages in the place of parameters.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/optimizer_config.h"
#include "core/optimizer.h"

using namespace megadp;

namespace {

using Optimizers = std::vector<std::shared_ptr<Optimizer>>;

void give_step_report(const StepReport& from, mdp_step_report* out) {
  mdp_step_report report{};
  report.grad_norm = from.grad_norm;
  report.clip_factor = from.clip_factor;
  report.loss_scale = from.loss_scale;
  report.step = from.step;
  report.flags =
      (from.skipped ? MDP_STEPPED_SKIPPED : 0) | (from.clipped ? MDP_STEPPED_CLIPPED : 0) | (from.unchecked ? MDP_STEPPED_UNCHECKED : 0);
  give(report, out);
}

Status check_outputs(const mdp_step_report* report, mdp_request** out) {
  if (report != nullptr) {
    if (Status status = check_output(report, "report"); !status) return status;
  }
  return check_request_out(out);
}

Result<Optimizers> take_optimizers(mdp_optimizer* const* given, size_t count) {
  if (count == 0 || count > kMaxArray) return invalid("count is ", count, "; give at least one optimizer, and at most ", kMaxArray);
  if (Status status = check_pointer(given, "optimizers", alignof(mdp_optimizer*)); !status) return status;
  Optimizers optimizers;
  for (size_t i = 0; i < count; ++i) {
    if (Status status = check_handle(given[i], text("optimizers[", i, "]").c_str(), Need::all_ranks); !status) return status;
    optimizers.push_back(given[i]->object);
  }
  return optimizers;
}

// Of a step of `count` optimizers, which `first` leads.
Result<StepOptions> take_options(const mdp_optimizer& first, size_t count, const mdp_step_config* config) {
  auto ours = take_step_config(config, place_of(first));
  if (!ours) return ours.status();
  StepOptions options;
  if (ours->lr != 0 || (ours->flags & MDP_STEP_SET_LR) != 0) options.lr = ours->lr;
  if (options.lr && count > 1) {
    return invalid("config.lr is ", ours->lr, "; each of several optimizers has its own: mdp_optimizer_set_param_group sets it");
  }
  if (ours->loss_scale != 0 && first.object->scaler().kind != LossScaler::Kind::none) {
    return invalid("config.loss_scale is ", ours->loss_scale, ", but the optimizer has a scaler, whose scale divides; leave it 0");
  }
  if (ours->loss_scale != 0) options.loss_scale = ours->loss_scale;
  if (ours->grad_divisor != 0) options.grad_divisor = ours->grad_divisor;
  options.unchecked = (ours->flags & MDP_STEP_UNCHECKED) != 0;
  options.caller = ours->stream;
  return options;
}

// take(report, want_request) takes the step that `first` leads, or ends it.
template <class Take>
Status give_step(mdp_optimizer* first, mdp_step_report* report, mdp_request** out, const Take& take) {
  auto request = prepare_request(out, first->context, first->object);
  StepReport answer;
  auto pending = take(report != nullptr ? &answer : nullptr, out != nullptr);
  if (!pending) return pending.status();
  if (report != nullptr) give_step_report(answer, report);
  return give_request(std::move(request), *std::move(pending), out);
}

// Of optimizers that live in one context.
Status step(mdp_optimizer* first, const Optimizers& optimizers, const mdp_step_config* config, mdp_step_report* report, mdp_request** out) {
  auto options = take_options(*first, optimizers.size(), config);
  if (!options) return options.status();
  return give_step(first, report, out,
                   [&](StepReport* answer, bool want_request) { return Optimizer::step(optimizers, *options, answer, want_request); });
}

// Its arrays are those of the piece, which stays where it is.
mdp_update update_of(const UpdatePiece& piece) {
  mdp_update update{};
  update.struct_size = sizeof update;
  update.optimizer = static_cast<uint32_t>(piece.optimizer);
  update.param = piece.param;
  update.param_begin = piece.begin;
  update.count = piece.count;
  update.master = piece.master;
  update.grad = piece.grad;
  update.state = piece.state.data();
  update.state_count = piece.states;
  update.step = piece.step;
  update.lr = piece.hyper.lr;
  update.beta1 = piece.hyper.beta1;
  update.beta2 = piece.hyper.beta2;
  update.eps = piece.hyper.eps;
  update.weight_decay = piece.hyper.weight_decay;
  update.momentum = piece.hyper.momentum;
  update.stream = piece.stream;
  update.param_states = piece.param_states.data();
  update.param_state_bytes = piece.param_state_bytes.data();
  update.param_state_count = piece.param_state_count;
  return update;
}

}  // namespace

mdp_status mdp_optimizer_step(mdp_optimizer* optimizer, const mdp_step_config* config, mdp_step_report* report, mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_outputs(report, out); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::all_ranks); !status) return status;
    return step(optimizer, {optimizer->object}, config, report, out);
  });
}

mdp_status mdp_optimizer_step_many(mdp_optimizer* const* optimizers, size_t count, const mdp_step_config* config, mdp_step_report* report,
                                   mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_outputs(report, out); !status) return status;
    auto objects = take_optimizers(optimizers, count);
    if (!objects) return objects.status();
    return step(optimizers[0], *objects, config, report, out);
  });
}

mdp_status mdp_optimizer_set_update(mdp_optimizer* optimizer, mdp_update_fn fn, void* user) {
  return guard([&]() -> Status {
    if (Status status = check_handle(optimizer, "optimizer", Need::usable); !status) return status;
    if (fn == nullptr) return invalid("fn is NULL; give the function that updates a piece");
    return optimizer->object->set_update([fn, user](const UpdatePiece& piece) -> Status {
      const mdp_update update = update_of(piece);
      const InUpdate inside;
      const int32_t answer = fn(user, &update);
      if (answer == 0) return {};
      return Status(Code::aborted, text("its update function returned ", answer), Blame{.param = static_cast<int64_t>(piece.param)});
    });
  });
}

mdp_status mdp_optimizer_step_begin(mdp_optimizer* const* optimizers, size_t count, const mdp_step_config* config) {
  return guard([&]() -> Status {
    auto objects = take_optimizers(optimizers, count);
    if (!objects) return objects.status();
    auto options = take_options(*optimizers[0], count, config);
    if (!options) return options.status();
    return Optimizer::begin(*objects, *options);
  });
}

mdp_status mdp_optimizer_step_next(mdp_optimizer* optimizer, mdp_update* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::usable); !status) return status;
    auto piece = optimizer->object->next();
    if (!piece) return piece.status();
    give(*piece != nullptr ? update_of(**piece) : mdp_update{}, out);
    return {};
  });
}

mdp_status mdp_optimizer_step_finish(mdp_optimizer* optimizer, int32_t failed, mdp_step_report* report, mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_outputs(report, out); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::all_ranks); !status) return status;
    const Status updated = failed == 0 ? Status() : Status(Code::aborted, text("mdp_optimizer_step_finish: failed is ", failed));
    return give_step(optimizer, report, out,
                     [&](StepReport* answer, bool want_request) { return optimizer->object->finish(updated, answer, want_request); });
  });
}

mdp_status mdp_optimizer_swap_average(mdp_optimizer* optimizer, mdp_stream stream, mdp_request** out) {
  return guard([&]() -> Status {
    if (Status status = check_request_out(out); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::all_ranks); !status) return status;
    if (Status status = check_stream(stream, "stream", place_of(*optimizer)); !status) return status;
    auto request = prepare_request(out, optimizer->context, optimizer->object);
    auto pending = optimizer->object->swap_average(stream, out != nullptr);
    return pending ? give_request(std::move(request), *std::move(pending), out) : pending.status();
  });
}
