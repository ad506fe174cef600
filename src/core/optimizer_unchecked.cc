// SPDX-License-Identifier: Apache-2.0
// A step without a norm. Nothing then has to be known of all gradients before the first parameter is changed. So where buckets have not
// been reduced before the step, on one node, each is reduced, updated and gathered in one pass over memory, on the channel of gathers:
//
//   checked     sum, squares  | norm | update           | gather
//   unchecked                        | sum, update, gather
//
// The bits are those of a step that finds all gradients finite and does not clip.
#include <algorithm>

#include "core/optimizer_impl.h"

namespace megadp {

Status Optimizer::check_unchecked(Together optimizers, const StepOptions& options) const {
  if (!options.unchecked) return {};
  const auto refused = [](const auto& why) { return invalid("config.flags has MDP_STEP_UNCHECKED (2), but ", why); };
  if (options.loss_scale)
    return refused("config.loss_scale is given, which needs to know whether gradients are finite; leave one of them out");
  if (impl_->scaler.kind != LossScaler::Kind::none) {
    return refused("the optimizer has a scaler, which needs to know whether gradients are finite; leave one of them out");
  }
  for (const auto& each : optimizers) {
    const OptimizerConfig& config = each->impl_->config;
    if (config.max_grad_norm > 0 || config.max_grad_value > 0) {
      return refused(text("the optimizer clips: ", config.max_grad_norm > 0 ? "max_grad_norm" : "max_grad_value", " is ",
                          config.max_grad_norm > 0 ? config.max_grad_norm : config.max_grad_value, "; both must be 0"));
    }
    if (each->has_callers_rule()) return refused("the rule is the caller's, which is called between the norm and the gathers");
  }
  return {};
}

Status Optimizer::submit_no_norm() {
  Backend& backend = buffer_->arenas().backend();
  return backend.zero(buffer_->arenas().grads().stream(), &impl_->device_scalars()->square_sum, 2 * sizeof(double));
}

// An average is made from masters in a launch of its own.
bool Optimizer::may_be_in_one_pass(Together optimizers, const StepOptions& options) const {
  return options.unchecked && std::none_of(optimizers.begin(), optimizers.end(), [](const auto& each) { return each->averages(); });
}

Status Optimizer::submit_in_one_pass(Together optimizers, const Step& step) {
  const Arenas& arenas = buffer_->arenas();
  Gradients& gradients = buffer_->gradients();
  const std::vector<std::vector<uint32_t>>& launches = gradients.launches();
  for (size_t number = launches.size(); number-- > 0;) {
    std::vector<std::shared_ptr<const PieceUpdates>> updates;
    for (const uint32_t bucket : launches[number]) {
      const BucketRef ref = arenas.plan().launch_order[bucket];
      const uint64_t begin = arenas.arena_of(ref).pieces[ref.bucket].begin;
      const auto of_bucket = std::make_shared<PieceUpdates>();
      gradients.locate_kept(bucket, of_bucket.get());
      for (const auto& each : optimizers) {
        const Status found = each->for_each_update(bucket, step.options.lr, [&](const OwnedRange& range, const Update& update) {
          of_bucket->updates.push_back({range.begin - begin, update});
          return Status();
        });
        if (!found) return found;
      }
      updates.push_back(of_bucket);
    }
    if (Status submitted = buffer_->params().gather(launches[number], step.normed, updates); !submitted) return submitted;
    gradients.mark_stepped(launches[number], buffer_->params().last_gather(launches[number].front()));
  }
  // What comes next on the channel of gradients may clear them.
  auto end = arenas.gathers().stream().record();
  return end ? arenas.grads().stream().wait_for(*end) : end.status();
}

}  // namespace megadp
