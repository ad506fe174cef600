// SPDX-License-Identifier: Apache-2.0
// Optimizers.
#include "core/optimizer.h"

#include <array>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/optimizer_config.h"
#include "api/tensor.h"
#include "base/rules.h"

using namespace megadp;

namespace {

// The public numbers. Here, since a test compiles what depends on the list of rules with another one.
static_assert(std::string_view(rule(MDP_RULE_ADAMW).name) == "AdamW" && std::string_view(rule(MDP_RULE_ADAM).name) == "Adam" &&
              std::string_view(rule(MDP_RULE_SGD).name) == "SGD" &&
              std::string_view(rule(MDP_RULE_SGD_MOMENTUM).name) == "SGD with momentum" &&
              std::string_view(rule(MDP_RULE_SGD_NESTEROV).name) == "SGD with Nesterov momentum" &&
              std::string_view(rule(MDP_RULE_LION).name) == "Lion" && kCallerRule == MDP_RULE_CALLER);

Status check_has_scaler(mdp_optimizer* optimizer) {
  if (optimizer->object->scaler().kind != LossScaler::Kind::none) return {};
  return Status(Code::state, "the optimizer has no loss scaler; give it one by mdp_optimizer_set_scaler");
}

}  // namespace

mdp_status mdp_optimizer_create(mdp_buffer* buffer, const mdp_optimizer_config* config, mdp_optimizer** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::alone_in_context); !status) return status;
    auto ours = take_optimizer_config(config, buffer->object->plan().params.size());
    if (!ours) return ours.status();
    auto optimizer = Optimizer::create(buffer->object, *ours);
    if (!optimizer) return optimizer.status();
    auto handle = std::make_unique<mdp_optimizer>(buffer->context, *optimizer);
    handle->buffer = buffer->object;
    *out = handle.release();
    return {};
  });
}

mdp_status mdp_optimizer_set_param_group(mdp_optimizer* optimizer, size_t group, const mdp_param_group* value) {
  return guard([&]() -> Status {
    if (Status status = check_handle(optimizer, "optimizer", Need::usable); !status) return status;
    auto ours = take(value, "value");
    if (!ours) return ours.status();
    auto taken = take_group(*ours, optimizer->object->rule(), "value");
    if (!taken) return taken.status();
    return optimizer->object->set_group(group, *taken);
  });
}

mdp_status mdp_optimizer_set_scaler(mdp_optimizer* optimizer, const mdp_scaler* scaler) {
  return guard([&]() -> Status {
    if (Status status = check_handle(optimizer, "optimizer", Need::all_ranks); !status) return status;
    auto ours = take_scaler(scaler);
    if (!ours) return ours.status();
    return optimizer->object->set_scaler(ours->scaler, ours->scale);
  });
}

mdp_status mdp_optimizer_scaler(mdp_optimizer* optimizer, mdp_scaler* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::one_call); !status) return status;
    if (Status status = check_has_scaler(optimizer); !status) return status;
    auto scale = optimizer->object->loss_scale();
    if (!scale) return scale.status();
    give(scaler_struct({optimizer->object->scaler(), *scale}), out);
    return {};
  });
}

mdp_status mdp_optimizer_scale(mdp_optimizer* optimizer, mdp_tensor* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::one_call); !status) return status;
    if (Status status = check_has_scaler(optimizer); !status) return status;
    static constexpr std::array<int64_t, 2> one{1, 1};
    give_slice(place_of(*optimizer), {optimizer->object->loss_scale_place(), DType::f32, &one}, out);
    return {};
  });
}

mdp_status mdp_optimizer_state(mdp_optimizer* optimizer, size_t param, const char* name, mdp_tensor* out) {
  return guard([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::one_call); !status) return status;
    if (name == nullptr) return invalid("name is NULL; ", optimizer->object->names_of_state());
    constexpr size_t longest = 65;  // one more than a name may have
    auto slice = optimizer->object->state(param, std::string_view(name, strnlen(name, longest)));
    if (!slice) return slice.status();
    give_slice(place_of(*optimizer), *slice, out);
    return {};
  });
}

mdp_status mdp_optimizer_steps(mdp_optimizer* optimizer, size_t param, uint64_t* steps) {
  return guard([&]() -> Status {
    if (Status status = check_out(steps, "steps"); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::one_call); !status) return status;
    auto count = optimizer->object->steps(param);
    if (!count) return count.status();
    *steps = *count;
    return {};
  });
}

mdp_status mdp_optimizer_set_steps(mdp_optimizer* optimizer, uint64_t taken, const uint64_t* steps, size_t count) {
  return guard([&]() -> Status {
    if (Status status = check_handle(optimizer, "optimizer", Need::usable); !status) return status;
    if (taken > INT64_MAX) return invalid("taken is ", taken, "; at most ", INT64_MAX, " steps can be counted");
    if (steps == nullptr && count == 0) return optimizer->object->set_steps(taken, {});
    if (Status status = check_pointer(steps, "steps", alignof(uint64_t)); !status) return status;
    const size_t params = optimizer->buffer->plan().params.size();
    if (count != params) {
      return invalid("count is ", count, "; the optimizer's buffer has ", params,
                     " parameters, frozen ones too. For all alike give NULL and 0");
    }
    return optimizer->object->set_steps(taken, std::span(steps, count));
  });
}

mdp_status mdp_optimizer_info(mdp_optimizer* optimizer, char* json, size_t capacity, size_t* needed) {
  return guard([&]() -> Status {
    if (Status status = check_text_output(json, capacity, needed); !status) return status;
    if (Status status = check_handle(optimizer, "optimizer", Need::one_call); !status) return status;
    auto info = optimizer->object->json();
    if (!info) return info.status();
    return give_text(*info, json, capacity, needed);
  });
}

void mdp_optimizer_destroy(mdp_optimizer* optimizer) {
  destroy_handle(optimizer);
}
