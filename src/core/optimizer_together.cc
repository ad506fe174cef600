// SPDX-License-Identifier: Apache-2.0
// Which optimizers may step together: of one buffer, each trained parameter with exactly one of them, and one way of clipping.
#include <algorithm>

#include "control/agreement.h"
#include "core/optimizer_impl.h"

namespace megadp {
namespace {

constexpr const char* kCall = "mdp_optimizer_step_many";

std::string name_of(size_t number) {
  return text("optimizers[", number, "]");
}

}  // namespace

Status Optimizer::check_together(Together optimizers) const {
  const OptimizerConfig& mine = impl_->config;
  for (size_t i = 1; i < optimizers.size(); ++i) {
    const OptimizerConfig& other = optimizers[i]->impl_->config;
    if (optimizers[i]->buffer_ != buffer_) return invalid(name_of(i), " is of another buffer than ", name_of(0));
    if (optimizers[i]->impl_->scaler.kind != LossScaler::Kind::none) {
      return invalid(name_of(i), " has a loss scaler; a step has one, and it is that of ", name_of(0));
    }
    if (other.max_grad_norm != mine.max_grad_norm || other.max_grad_value != mine.max_grad_value || other.norm != mine.norm) {
      return invalid(name_of(i), " clips otherwise than ", name_of(0),
                     "; a step has one norm, so max_grad_norm, max_grad_value and norm must be equal in all of them");
    }
  }
  for (size_t param = 0; param < buffer_->plan().params.size(); ++param) {
    const ParamSpec& spec = buffer_->plan().params[param];
    if (spec.frozen) continue;
    const auto has = [param](const std::shared_ptr<Optimizer>& each) { return each->covers(param); };
    const auto first = std::find_if(optimizers.begin(), optimizers.end(), has);
    const Blame blame{.param = static_cast<int64_t>(param)};
    if (first == optimizers.end()) {
      return Status(Code::invalid,
                    text(param_label(param, spec.name), " is in parameter group ", spec.group, ", which no optimizer of this step has; ",
                         optimizers.size() == 1
                             ? text("this one has ", impl_->config.names_of_groups(), ". Step it together with the others by ", kCall)
                             : std::string("give all of the buffer's optimizers")),
                    blame);
    }
    const auto second = std::find_if(first + 1, optimizers.end(), has);
    if (second != optimizers.end()) {
      return Status(Code::invalid,
                    text(param_label(param, spec.name), " is in parameter group ", spec.group, ", which both ",
                         name_of(static_cast<size_t>(first - optimizers.begin())), " and ",
                         name_of(static_cast<size_t>(second - optimizers.begin())), " have"),
                    blame);
    }
  }
  return {};
}

// One that has all parameters needs nobody. Otherwise all ranks agree with the first step of these, since a rank of another stage may have
// other parameters.
Status Optimizer::agree_together(Together optimizers, const Status& ready) {
  if (optimizers.size() == 1 && !impl_->config.some_groups && !has_callers_rule()) return {};
  const auto same = [](const std::weak_ptr<Optimizer>& a, const std::shared_ptr<Optimizer>& b) {
    return !a.owner_before(b) && !b.owner_before(a);
  };
  Status mine = check_together(optimizers);
  if (mine.ok() && std::equal(agreed_.begin(), agreed_.end(), optimizers.begin(), optimizers.end(), same)) return {};
  if (mine.ok()) mine = ready;
  // Once a list was agreed on, the others do not come here for it again; a program that gives one rank another list learns of it there.
  if (!mine.ok() && !agreed_.empty()) return mine;
  if (Status agreed = agree(*buffer_->context().world, buffer_->arenas().grid()->world()->group().members(), {"mdp_optimizer_step"}, mine);
      !agreed) {
    return agreed;
  }
  agreed_.assign(optimizers.begin(), optimizers.end());
  return {};
}

}  // namespace megadp
