// SPDX-License-Identifier: Apache-2.0
#include "api/config.h"

#include <cstring>

#include "api/intake.h"
#include "api/tensor.h"

namespace megadp {

namespace {

constexpr size_t kLongestName = 255;
constexpr size_t kLongestOrder = 63;

// 0 means the default; negative values are errors.
Status take_size(int32_t given, const char* argument, const char* field, int* out) {
  if (given < 0) return invalid(argument, ".", field, " is ", given, "; it must be 1 or more, or 0 for the default");
  if (given > 0) *out = given;
  return {};
}

Result<DType> take_param_dtype(mdp_dtype given, const Argument& argument) {
  switch (given) {
    case MDP_DTYPE_DEFAULT:
    case MDP_DTYPE_F32:
      return DType::f32;
    case MDP_DTYPE_BF16:
      return DType::bf16;
    case MDP_DTYPE_F16:
      return DType::f16;
    default:
      return invalid(argument, ".dtype is ", given, "; a parameter is MDP_DTYPE_F32 (2), MDP_DTYPE_BF16 (3) or MDP_DTYPE_F16 (4)");
  }
}

Status check_param_enums(const mdp_param& param, const Argument& argument) {
  if (param.param_class > MDP_PARAM_CLASS_EXPERT) {
    return invalid(argument, ".param_class is ", param.param_class, "; it must be MDP_PARAM_CLASS_DENSE (0) or MDP_PARAM_CLASS_EXPERT (1)");
  }
  if (param.placement > MDP_PLACEMENT_PARTIAL_MEAN) {
    return invalid(argument, ".placement is ", param.placement,
                   "; it must be MDP_PLACEMENT_UNSET (0), REPLICATED (1), SHARDED (2), PARTIAL_SUM (3) or PARTIAL_MEAN (4)");
  }
  if (param.sharding > MDP_SHARDING_WHOLE) {
    return invalid(argument, ".sharding is ", param.sharding,
                   "; it must be MDP_SHARDING_ZERO_1 (2), MDP_SHARDING_WHOLE (4), or 0, which is the buffer's");
  }
  if (Status status = check_reserved(param.reserved, {argument, ".reserved"}); !status) return status;
  return check_flags(param.flags, MDP_PARAM_FROZEN | MDP_PARAM_OWN_BUCKET, {argument, ".flags"},
                     "MDP_PARAM_FROZEN (1) and MDP_PARAM_OWN_BUCKET (2)");
}

Result<ParamSpec> take_param(const Array<mdp_param>& params, size_t index) {
  const Argument argument = params.name(index);
  auto ours = params.take_at(index);
  if (!ours) return ours.status();
  if (ours->name == nullptr) return invalid(argument, ".name is NULL; every parameter needs a name of its own");
  ParamSpec spec;
  // One byte more than is allowed, so that the core sees that it is too long without our reading on and on.
  spec.name.assign(ours->name, strnlen(ours->name, kLongestName + 1));
  auto type = take_param_dtype(ours->dtype, argument);
  if (!type) return type.status();
  auto shape = take_shape(ours->shape, ours->ndim, argument);
  if (!shape) return shape.status();
  if (Status status = check_param_enums(*ours, argument); !status) return status;
  spec.dtype = *type;
  spec.shape = std::move(shape->sizes);
  spec.numel = shape->numel;
  spec.uses_per_step = ours->uses_per_step == 0 ? 1 : ours->uses_per_step;
  spec.expert = ours->param_class == MDP_PARAM_CLASS_EXPERT;
  spec.placement = static_cast<Placement>(ours->placement);
  spec.shard_dim = ours->shard_dim;
  spec.shard_stride = ours->shard_stride == 0 ? 1 : ours->shard_stride;
  spec.group = ours->param_group;
  spec.use_order = ours->use_order;
  spec.frozen = (ours->flags & MDP_PARAM_FROZEN) != 0;
  spec.own_bucket = (ours->flags & MDP_PARAM_OWN_BUCKET) != 0;
  spec.sharding = static_cast<Sharding>(ours->sharding);
  spec.cost = ours->cost;
  if (ours->tie != nullptr) spec.tie.assign(ours->tie, strnlen(ours->tie, kLongestName + 1));
  return spec;
}

}  // namespace

Result<GridConfig> take_grid_config(const mdp_grid_config* given, const char* argument) {
  auto ours = take_or_default(given, argument);
  if (!ours) return ours.status();
  GridConfig config;
  if (Status status = take_size(ours->tp, argument, "tp", &config.tp); !status) return status;
  if (Status status = take_size(ours->cp, argument, "cp", &config.cp); !status) return status;
  if (Status status = take_size(ours->ep, argument, "ep", &config.ep); !status) return status;
  if (Status status = take_size(ours->pp, argument, "pp", &config.pp); !status) return status;
  if (Status status = take_size(ours->expert_tp, argument, "expert_tp", &config.expert_tp); !status) return status;
  if (Status status = take_size(ours->instances, argument, "instances", &config.instances); !status) return status;
  if (Status status = check_reserved(ours->reserved, {argument, ".reserved"}); !status) return status;
  if (Status status = check_flags(ours->flags, 0, {argument, ".flags"}, "none"); !status) return status;
  if (ours->order != nullptr) {
    const size_t length = strnlen(ours->order, kLongestOrder + 1);
    if (length > kLongestOrder) return invalid(argument, ".order is longer than ", kLongestOrder, " bytes; write it as \"tp-cp-ep-dp-pp\"");
    config.order.assign(ours->order, length);
  }
  return config;
}

Result<BufferConfig> take_buffer_config(const mdp_buffer_config* given, const char* argument) {
  auto ours = take_or_default(given, argument);
  if (!ours) return ours.status();
  if (ours->grad_dtype > MDP_DTYPE_F32) {
    return invalid(argument, ".grad_dtype is ", ours->grad_dtype,
                   "; it must be MDP_DTYPE_F32 (2), MDP_DTYPE_SAME (1, the parameter's) or 0, which is F32");
  }
  if (ours->sharding > MDP_SHARDING_WHOLE) {
    return invalid(argument, ".sharding is ", ours->sharding,
                   "; it must be MDP_SHARDING_ZERO_0 (1), ZERO_1 (2), ZERO_2 (3), WHOLE (4) or 0, which is ZERO_1");
  }
  if (ours->missing > MDP_MISSING_SKIP) {
    return invalid(argument, ".missing is ", ours->missing,
                   "; it must be MDP_MISSING_ERROR (0), MDP_MISSING_ZERO (1) or MDP_MISSING_SKIP (2)");
  }
  if (ours->scaling > MDP_SCALING_TOKENS) {
    return invalid(argument, ".scaling is ", ours->scaling,
                   "; it must be MDP_SCALING_MEAN (0), MDP_SCALING_SUM (1) or MDP_SCALING_TOKENS (2)");
  }
  if (ours->wire_dtype != MDP_DTYPE_DEFAULT && ours->wire_dtype != MDP_DTYPE_F32 && ours->wire_dtype != MDP_DTYPE_BF16) {
    return invalid(argument, ".wire_dtype is ", ours->wire_dtype, "; it must be MDP_DTYPE_F32 (2), MDP_DTYPE_BF16 (3) or 0, which is F32");
  }
  const uint64_t known = MDP_BUFFER_NO_OVERLAP | MDP_BUFFER_HIGH_BANDWIDTH_PADDING | MDP_BUFFER_REFERENCE_BUCKETS |
                         MDP_BUFFER_IGNORE_MEMORY | MDP_BUFFER_ERROR_FEEDBACK | MDP_BUFFER_CHECK_FINITE | MDP_BUFFER_CHECK_LARGE;
  if (Status status = check_flags(ours->flags, known, {argument, ".flags"},
                                  "MDP_BUFFER_NO_OVERLAP (1), HIGH_BANDWIDTH_PADDING (2), REFERENCE_BUCKETS (4), IGNORE_MEMORY (8), "
                                  "ERROR_FEEDBACK (16), CHECK_FINITE (32) and CHECK_LARGE (64)");
      !status) {
    return status;
  }
  BufferConfig config;
  config.grad_same_as_param = ours->grad_dtype == MDP_DTYPE_SAME;
  if (ours->sharding != MDP_SHARDING_DEFAULT) config.sharding = static_cast<Sharding>(ours->sharding);
  config.missing = static_cast<MissingPolicy>(ours->missing);
  config.scaling = static_cast<Scaling>(ours->scaling);
  config.wire_bf16 = ours->wire_dtype == MDP_DTYPE_BF16;
  config.bucket_elements = ours->bucket_elements;
  config.bucket_count = ours->bucket_count;
  config.pool_buckets = ours->pool_buckets;
  config.spill_limit = ours->spill_limit;
  config.no_overlap = (ours->flags & MDP_BUFFER_NO_OVERLAP) != 0;
  config.high_bandwidth_padding = (ours->flags & MDP_BUFFER_HIGH_BANDWIDTH_PADDING) != 0;
  config.reference_buckets = (ours->flags & MDP_BUFFER_REFERENCE_BUCKETS) != 0;
  config.ignore_memory = (ours->flags & MDP_BUFFER_IGNORE_MEMORY) != 0;
  config.error_feedback = (ours->flags & MDP_BUFFER_ERROR_FEEDBACK) != 0;
  config.check_finite = (ours->flags & MDP_BUFFER_CHECK_FINITE) != 0;
  config.check_large = (ours->flags & MDP_BUFFER_CHECK_LARGE) != 0;
  return config;
}

Result<std::vector<ParamSpec>> take_params(const mdp_param* params, size_t count) {
  auto array = Array<mdp_param>::open(params, count, "params");
  if (!array) return array.status();
  std::vector<ParamSpec> specs;
  specs.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    auto spec = take_param(*array, i);
    if (!spec) return spec.status().with_blame(Blame{.param = static_cast<int64_t>(i)});
    specs.push_back(*std::move(spec));
  }
  return specs;
}

}  // namespace megadp
