// SPDX-License-Identifier: Apache-2.0
// The calls of one training step: parameters out and in, gradients in. mdp_grad_* deliver no log messages (see error.h).
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"

using namespace megadp;

namespace {

Status check_call(mdp_buffer* buffer, mdp_stream stream, const char* stream_name, Need need = Need::usable) {
  if (Status status = check_handle(buffer, "buffer", need); !status) return status;
  return check_stream(stream, stream_name, place_of(*buffer));
}

// What can be cast to and from parameters and gradients.
Status check_castable(const Tensor& tensor, const char* argument) {
  if (is_trainable(tensor.type) || tensor.type == DType::f64) return {};
  return invalid(argument, ".dtype is ", name_of(tensor.type), "; it must be f32, bf16, f16 or f64");
}

// params NULL with count 0: none is given, which means all.
Result<Gradients::ParamList> take_list(const size_t* params, size_t count) {
  if (count > kMaxArray) return invalid("count is ", count, "; at most ", kMaxArray, " parameters are taken");
  if (params == nullptr && count > 0) return invalid("params is NULL, but count is ", count, "; for all parameters give NULL and 0");
  if (params == nullptr) return Gradients::ParamList();
  if (Status status = check_pointer(params, "params", alignof(size_t)); !status) return status;
  return Gradients::ParamList(std::in_place, params, count);
}

// sets NULL: all parameters are in set 0.
Result<std::span<const size_t>> take_sets(const size_t* sets, size_t params, size_t count) {
  if (sets == nullptr) return std::span<const size_t>();
  if (Status status = check_pointer(sets, "sets", alignof(size_t)); !status) return status;
  for (size_t i = 0; i < params; ++i) {
    if (sets[i] < count || sets[i] == SIZE_MAX) continue;
    return invalid("sets[", i, "] is ", sets[i], "; it must be below count, ", count, ", or SIZE_MAX, which is in no set");
  }
  return std::span(sets, params);
}

}  // namespace

mdp_status mdp_microbatch_begin(mdp_buffer* buffer, int32_t is_last) {
  return guard([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
    if (is_last != 0 && is_last != 1) return invalid("is_last is ", is_last, "; it must be 0 or 1");
    return buffer->object->gradients().microbatch_begin(is_last == 1);
  });
}

mdp_status mdp_param_wait(mdp_buffer* buffer, size_t param, mdp_stream consumer) {
  return guard([&]() -> Status {
    if (Status status = check_call(buffer, consumer, "consumer", Need::any_thread); !status) return status;
    return buffer->object->params().wait(param, consumer);
  });
}

mdp_status mdp_param_read(mdp_buffer* buffer, size_t param, const mdp_tensor* to, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(buffer, stream, "stream"); !status) return status;
    auto tensor = take_tensor(to, "to", Access::write, place_of(*buffer));
    if (!tensor) return tensor.status();
    if (Status status = check_castable(*tensor, "to"); !status) return status;
    return buffer->object->params().read(param, *tensor, stream);
  });
}

mdp_status mdp_param_write(mdp_buffer* buffer, size_t param, const mdp_tensor* from, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(buffer, stream, "stream"); !status) return status;
    auto tensor = take_tensor(from, "from", Access::read, place_of(*buffer));
    if (!tensor) return tensor.status();
    if (Status status = check_castable(*tensor, "from"); !status) return status;
    if (Status between = buffer->object->gradients().check_between_steps("mdp_param_write"); !between) return between;
    return buffer->object->params().write(param, *tensor, stream);
  });
}

mdp_status mdp_param_changed(mdp_buffer* buffer) {
  return guard([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
    if (Status between = buffer->object->gradients().check_between_steps("mdp_param_changed"); !between) return between;
    return buffer->object->params().changed();
  });
}

mdp_status mdp_grad_put(mdp_buffer* buffer, size_t param, const mdp_tensor* grad, uint64_t flags, mdp_stream producer) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_call(buffer, producer, "producer", Need::any_thread); !status) return status;
    if (Status status = check_flags(flags, MDP_GRAD_ADD | MDP_GRAD_MORE, "flags", "MDP_GRAD_ADD (1) and MDP_GRAD_MORE (2)"); !status) {
      return status;
    }
    auto tensor = take_tensor(grad, "grad", Access::read, place_of(*buffer));
    if (!tensor) return tensor.status();
    if (Status status = check_castable(*tensor, "grad"); !status) return status;
    return buffer->object->gradients().put(param, *tensor, (flags & MDP_GRAD_ADD) != 0, (flags & MDP_GRAD_MORE) != 0, producer);
  });
}

mdp_status mdp_grad_ready(mdp_buffer* buffer, size_t param, mdp_stream producer) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_call(buffer, producer, "producer", Need::any_thread); !status) return status;
    return buffer->object->gradients().ready(param, producer);
  });
}

mdp_status mdp_grad_acquire(mdp_buffer* buffer, size_t param, mdp_tensor* out, int32_t* first, mdp_stream producer) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_out(first, "first"); !status) return status;
    if (Status status = check_call(buffer, producer, "producer", Need::any_thread); !status) return status;
    bool replaces = false;
    auto view = buffer->object->gradients().acquire(param, &replaces, producer);
    if (!view) return view.status();
    *first = replaces ? 1 : 0;
    give_view(place_of(*buffer), *view, out);
    return {};
  });
}

mdp_status mdp_grad_release(mdp_buffer* buffer, size_t param) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::any_thread); !status) return status;
    return buffer->object->gradients().release(param);
  });
}

mdp_status mdp_grad_skip(mdp_buffer* buffer, size_t param) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::any_thread); !status) return status;
    return buffer->object->gradients().skip(param);
  });
}

mdp_status mdp_grad_tokens(mdp_buffer* buffer, double count) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::all_ranks); !status) return status;
    constexpr double most = 1e15;  // counted exactly, and far from what a step may divide by
    if (!(count >= 0 && count <= most)) return invalid("count is ", count, "; it must be between 0 and ", most);
    return buffer->object->gradients().tokens(count);
  });
}

mdp_status mdp_grad_sync(mdp_buffer* buffer, mdp_stream consumer, mdp_request** out) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_request_out(out); !status) return status;
    if (Status status = check_call(buffer, consumer, "consumer", Need::all_ranks); !status) return status;
    auto request = prepare_request(out, buffer->context, buffer->object);
    auto pending = buffer->object->gradients().sync(consumer, out != nullptr);
    if (!pending) return pending.status();
    return give_request(std::move(request), *std::move(pending), out);
  });
}

mdp_status mdp_grad_norm(mdp_buffer* buffer, const size_t* params, size_t count, double* norm) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_out(norm, "norm"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::all_ranks); !status) return status;
    auto list = take_list(params, count);
    if (!list) return list.status();
    auto found = buffer->object->gradients().norm(*list);
    if (!found) return found.status();
    *norm = *found;
    return {};
  });
}

mdp_status mdp_grad_summarize(mdp_buffer* buffer, const size_t* sets, size_t count, mdp_grad_summary* out) {
  return guard<Delivery::silent>([&]() -> Status {
    if (count == 0 || count > kMaxArray) return invalid("count is ", count, "; it must be between 1 and ", kMaxArray);
    if (Status status = check_output(out, "out[0]"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::all_ranks); !status) return status;
    auto set_of = take_sets(sets, buffer->object->plan().params.size(), count);
    if (!set_of) return set_of.status();
    auto found = buffer->object->gradients().summarize(*set_of, count);
    if (!found) return found.status();
    std::vector<mdp_grad_summary> summaries;
    for (const Gradients::Summary& one : *found) summaries.push_back({0, 0, one.norm, one.inf_norm, one.zeros, one.nonfinite});
    give_array(summaries, out);
    return {};
  });
}

mdp_status mdp_grad_scale(mdp_buffer* buffer, const size_t* params, size_t count, double factor, mdp_stream stream) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_call(buffer, stream, "stream"); !status) return status;
    auto list = take_list(params, count);
    if (!list) return list.status();
    constexpr double most = std::numeric_limits<float>::max();
    if (!(std::fabs(factor) <= most)) return invalid("factor is ", factor, "; it must be finite, as a float too: at most ", most);
    return buffer->object->gradients().scale(*list, static_cast<float>(factor), stream);
  });
}

mdp_status mdp_grad_owned(mdp_buffer* buffer, size_t param, mdp_tensor* out) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_output(out, "out"); !status) return status;
    if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
    auto slice = buffer->object->gradients().owned(param);
    if (!slice) return slice.status();
    give_slice(place_of(*buffer), *slice, out);
    return {};
  });
}

mdp_status mdp_grad_changed(mdp_buffer* buffer, mdp_stream producer) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_call(buffer, producer, "producer"); !status) return status;
    return buffer->object->gradients().changed(producer);
  });
}
