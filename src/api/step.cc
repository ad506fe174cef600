// SPDX-License-Identifier: Apache-2.0
// The calls of one training step: parameters out and in, gradients in. mdp_grad_* deliver no log messages (see error.h).
#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"

using namespace megadp;

namespace {

Status check_call(mdp_buffer* buffer, mdp_stream stream, const char* stream_name) {
  if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
  return check_stream(stream, stream_name, place_of(*buffer));
}

// What can be cast to and from parameters and gradients.
Status check_castable(const Tensor& tensor, const char* argument) {
  if (is_trainable(tensor.type) || tensor.type == DType::f64) return {};
  return invalid(argument, ".dtype is ", name_of(tensor.type), "; it must be f32, bf16, f16 or f64");
}

}  // namespace

mdp_status mdp_microbatch_begin(mdp_buffer* buffer, int32_t is_last) {
  return guard([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
    if (is_last != 0 && is_last != 1) return invalid("is_last is ", is_last, "; it must be 0 or 1");
    return buffer->object->microbatch_begin(is_last == 1);
  });
}

mdp_status mdp_param_wait(mdp_buffer* buffer, size_t param, mdp_stream consumer) {
  return guard([&]() -> Status {
    if (Status status = check_call(buffer, consumer, "consumer"); !status) return status;
    return buffer->object->param_wait(param, consumer);
  });
}

mdp_status mdp_param_read(mdp_buffer* buffer, size_t param, const mdp_tensor* to, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(buffer, stream, "stream"); !status) return status;
    auto tensor = take_tensor(to, "to", Access::write, place_of(*buffer));
    if (!tensor) return tensor.status();
    if (Status status = check_castable(*tensor, "to"); !status) return status;
    return buffer->object->param_read(param, *tensor, stream);
  });
}

mdp_status mdp_param_write(mdp_buffer* buffer, size_t param, const mdp_tensor* from, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(buffer, stream, "stream"); !status) return status;
    auto tensor = take_tensor(from, "from", Access::read, place_of(*buffer));
    if (!tensor) return tensor.status();
    if (Status status = check_castable(*tensor, "from"); !status) return status;
    return buffer->object->param_write(param, *tensor, stream);
  });
}

mdp_status mdp_param_changed(mdp_buffer* buffer) {
  return guard([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
    return buffer->object->param_changed();
  });
}

mdp_status mdp_grad_put(mdp_buffer* buffer, size_t param, const mdp_tensor* grad, uint64_t flags, mdp_stream producer) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_call(buffer, producer, "producer"); !status) return status;
    if (Status status = check_flags(flags, MDP_GRAD_ADD | MDP_GRAD_MORE, "flags", "MDP_GRAD_ADD (1) and MDP_GRAD_MORE (2)"); !status) {
      return status;
    }
    auto tensor = take_tensor(grad, "grad", Access::read, place_of(*buffer));
    if (!tensor) return tensor.status();
    if (Status status = check_castable(*tensor, "grad"); !status) return status;
    return buffer->object->grad_put(param, *tensor, (flags & MDP_GRAD_ADD) != 0, (flags & MDP_GRAD_MORE) != 0, producer);
  });
}

mdp_status mdp_grad_ready(mdp_buffer* buffer, size_t param, mdp_stream producer) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_call(buffer, producer, "producer"); !status) return status;
    return buffer->object->grad_ready(param, producer);
  });
}

mdp_status mdp_grad_skip(mdp_buffer* buffer, size_t param) {
  return guard<Delivery::silent>([&]() -> Status {
    if (Status status = check_handle(buffer, "buffer", Need::usable); !status) return status;
    return buffer->object->grad_skip(param);
  });
}

mdp_status mdp_grad_sync(mdp_buffer* buffer, mdp_stream consumer, mdp_request** out) {
  return guard<Delivery::silent>([&]() -> Status {
    if (out != nullptr) {
      if (Status status = check_out(out, "out"); !status) return status;
    }
    if (Status status = check_call(buffer, consumer, "consumer"); !status) return status;
    auto request = prepare_request(out, buffer->tree, buffer->object);
    auto pending = buffer->object->grad_sync(consumer, out != nullptr);
    if (!pending) return pending.status();
    return give_request(std::move(request), *std::move(pending), out);
  });
}
