// SPDX-License-Identifier: Apache-2.0
// What calls of tensor parallelism take: arrays in the backend's memory, of any strides.
#pragma once

#include <optional>

#include "api/handle.h"
#include "api/tensor.h"

namespace megadp {

// Of a handle that all ranks call on: whether it can be called, with this stream.
template <class Handle>
Status check_call(Handle* handle, const char* argument, mdp_stream stream) {
  if (Status status = check_handle(handle, argument, Need::all_ranks); !status) return status;
  return check_stream(stream, "stream", place_of(*handle));
}

inline Status take_array(const mdp_tensor* given, const char* argument, Access access, const Place& place, std::optional<Tensor>* out) {
  auto tensor = take_tensor(given, argument, access, place);
  if (!tensor) return tensor.status();
  if (tensor->place.type != place.type) {
    return unsupported(argument, ".device_type is ", static_cast<int32_t>(tensor->place.type),
                       "; this call takes memory of the device only: 2");
  }
  *out = *std::move(tensor);
  return {};
}

// NULL: none.
inline Status take_optional(const mdp_tensor* given, const char* argument, Access access, const Place& place, std::optional<Tensor>* out) {
  return given == nullptr ? Status() : take_array(given, argument, access, place, out);
}

inline const StridedArray* array_of(const std::optional<Tensor>& tensor) {
  return tensor ? &*tensor : nullptr;
}

// An output that is the memory of an input would be overwritten while that is read.
inline Status check_apart(const std::optional<Tensor>& output, const char* output_name, const std::optional<Tensor>& input,
                          const char* input_name) {
  if (!output || !input || output->numel == 0 || output->data != input->data) return {};
  return invalid(output_name, ".data and ", input_name, ".data are the same memory; they must be apart");
}

inline Result<bool> take_grad(mdp_tp_grad grad, bool needed, const char* of) {
  if (grad > MDP_TP_GRAD_REPLICATED) {
    return invalid("config.grad is ", grad, "; it must be MDP_TP_GRAD_PARTIAL (1) or MDP_TP_GRAD_REPLICATED (2)");
  }
  if (needed && grad == MDP_TP_GRAD_UNSET) {
    return invalid("config.grad is MDP_TP_GRAD_UNSET (0), but ", of,
                   " is the same on all ranks: say whether the gradient that comes back of it is MDP_TP_GRAD_PARTIAL (1), a part on each "
                   "rank, or MDP_TP_GRAD_REPLICATED (2)");
  }
  return grad == MDP_TP_GRAD_PARTIAL;
}

}  // namespace megadp
