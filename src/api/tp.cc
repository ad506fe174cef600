// SPDX-License-Identifier: Apache-2.0
// Tensor and sequence parallelism: regions and linear layers.
#include <optional>

#include "api/error.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"
#include "api/tp_operands.h"
#include "core/tp_region.h"

using namespace megadp;

namespace {

// ── regions ──

Status take_parts(const uint64_t* given, const char* argument, const Comm& comm, Counts* out) {
  if (given == nullptr) return {};
  if (Status status = check_pointer(given, argument, alignof(uint64_t)); !status) return status;
  constexpr uint64_t most = uint64_t{1} << 40;
  for (int rank = 0; rank < comm.size(); ++rank) {
    if (given[rank] > most) return invalid(argument, "[", rank, "] is ", given[rank], "; at most ", most, " is taken");
    out->push_back(given[rank]);
  }
  return {};
}

Result<RegionConfig> take_region(const mdp_tp_region_config* given, const Comm& comm) {
  auto config = take(given, "config");
  if (!config) return config.status();
  if (config->region < MDP_TP_COPY || config->region > MDP_TP_EXCHANGE) {
    return invalid("config.region is ", config->region, "; it must be MDP_TP_COPY (1) to MDP_TP_EXCHANGE (6)");
  }
  if (Status status = check_reserved(config->reserved, "config.reserved"); !status) return status;
  if (Status status = check_flags(config->flags, MDP_TP_REGION_CHECK_REPLICATED, "config.flags", "MDP_TP_REGION_CHECK_REPLICATED (1)");
      !status) {
    return status;
  }
  RegionConfig ours;
  ours.region = static_cast<Region>(config->region);
  auto partial = take_grad(config->grad, gives_replicated(ours.region), "what this region gives");
  if (!partial) return partial.status();
  ours.grad_is_partial = *partial;
  if (config->dim < 0) return invalid("config.dim is ", config->dim, "; dimensions are counted from 0, the outermost");
  if (config->to_dim < 0) return invalid("config.to_dim is ", config->to_dim, "; dimensions are counted from 0, the outermost");
  ours.dim = static_cast<size_t>(config->dim);
  ours.to_dim = static_cast<size_t>(config->to_dim);
  if (Status status = take_parts(config->parts, "config.parts", comm, &ours.parts); !status) return status;
  if (Status status = take_parts(config->to_parts, "config.to_parts", comm, &ours.to_parts); !status) return status;
  ours.checks = (config->flags & MDP_TP_REGION_CHECK_REPLICATED) != 0;
  return ours;
}

mdp_status region(mdp_comm* comm, const mdp_tp_region_config* config, const mdp_tensor* from, const mdp_tensor* to, mdp_stream stream,
                  Direction direction, const char* call = __builtin_FUNCTION()) {
  return guard(
      [&]() -> Status {
        if (Status status = check_call(comm, "comm", stream); !status) return status;
        const Place place = place_of(*comm);
        auto ours = take_region(config, *comm->object);
        if (!ours) return ours.status();
        std::optional<Tensor> given, made;
        if (Status status = take_array(from, "from", Access::read, place, &given); !status) return status;
        if (Status status = take_array(to, "to", Access::write, place, &made); !status) return status;
        return run_region(*comm->object, *std::move(ours), direction, *given, *made, stream);
      },
      call);
}

// ── linear layers ──

Status take_blocks(const mdp_tp_linear_config& config, std::vector<int64_t>* out) {
  if (config.block_count == 0) return {};
  constexpr uint64_t most = 1024;
  if (config.block_count > most) return invalid("config.block_count is ", config.block_count, "; at most ", most, " are taken");
  if (Status status = check_pointer(config.blocks, "config.blocks", alignof(int64_t)); !status) return status;
  for (uint64_t i = 0; i < config.block_count; ++i) {
    if (config.blocks[i] < 1) return invalid("config.blocks[", i, "] is ", config.blocks[i], "; it must be 1 or more");
    if (config.blocks[i] > config.in_features && config.blocks[i] > config.out_features) {
      return invalid("config.blocks[", i, "] is ", config.blocks[i], ", which is more than the layer has features");
    }
    out->push_back(config.blocks[i]);
  }
  return {};
}

Status take_flags(uint64_t flags, TpLinearConfig* out) {
  constexpr uint64_t known = MDP_TP_LINEAR_CHECK_REPLICATED * 2 - 1;
  if (Status status = check_flags(flags, known, "config.flags",
                                  "MDP_TP_LINEAR_BIAS (1), TRANSPOSED (2), SEQUENCE (4), GATHER_OUTPUT (8), WHOLE_INPUT (16) and "
                                  "CHECK_REPLICATED (32)");
      !status) {
    return status;
  }
  out->has_bias = (flags & MDP_TP_LINEAR_BIAS) != 0;
  out->transposed = (flags & MDP_TP_LINEAR_TRANSPOSED) != 0;
  out->sequence = (flags & MDP_TP_LINEAR_SEQUENCE) != 0;
  out->gathers_output = (flags & MDP_TP_LINEAR_GATHER_OUTPUT) != 0;
  out->takes_whole_input = (flags & MDP_TP_LINEAR_WHOLE_INPUT) != 0;
  out->checks = (flags & MDP_TP_LINEAR_CHECK_REPLICATED) != 0;
  return {};
}

Status take_buffer(const mdp_tp_linear_config& config, TpLinearConfig* out) {
  if (config.buffer == nullptr) {
    if (config.weight == 0 && config.bias == 0) return {};
    return invalid("config.buffer is NULL, but config.weight is ", config.weight, " and config.bias ", config.bias,
                   ", numbers of its parameters; without a buffer they are 0");
  }
  if (Status status = check_handle(config.buffer, "config.buffer", Need::usable); !status) return status;
  out->buffer = config.buffer->object;
  out->weight = config.weight;
  if (out->has_bias) out->bias = config.bias;
  return {};
}

Result<TpLinearConfig> take_linear(const mdp_tp_linear_config* given) {
  auto config = take(given, "config");
  if (!config) return config.status();
  if (config->split != MDP_TP_COLUMN && config->split != MDP_TP_ROW) {
    return invalid("config.split is ", config->split, "; it must be MDP_TP_COLUMN (1) or MDP_TP_ROW (2)");
  }
  constexpr int64_t most = int64_t{1} << 31;
  for (const auto& [name, value] : {std::pair{"in_features", config->in_features}, {"out_features", config->out_features}}) {
    if (value < 1 || value > most) return invalid("config.", name, " is ", value, "; it must be between 1 and ", most);
  }
  TpLinearConfig ours;
  ours.split = static_cast<TpSplit>(config->split);
  ours.in = config->in_features;
  ours.out = config->out_features;
  if (config->dtype != MDP_DTYPE_DEFAULT && config->dtype != MDP_DTYPE_F32 && config->dtype != MDP_DTYPE_BF16) {
    return invalid("config.dtype is ", config->dtype, "; it must be MDP_DTYPE_F32 (2; 0 is taken as 2) or MDP_DTYPE_BF16 (3)");
  }
  ours.type = config->dtype == MDP_DTYPE_BF16 ? DType::bf16 : DType::f32;
  if (Status status = take_flags(config->flags, &ours); !status) return status;
  if (Status status = take_blocks(*config, &ours.blocks); !status) return status;
  auto partial = take_grad(config->grad, ours.output_is_replicated(), "the output of this layer");
  if (!partial) return partial.status();
  ours.grad_is_partial = *partial;
  if (Status status = take_buffer(*config, &ours); !status) return status;
  return ours;
}

}  // namespace

mdp_status mdp_tp_region_fwd(mdp_comm* comm, const mdp_tp_region_config* config, const mdp_tensor* from, const mdp_tensor* to,
                             mdp_stream stream) {
  return region(comm, config, from, to, stream, Direction::forward);
}

mdp_status mdp_tp_region_bwd(mdp_comm* comm, const mdp_tp_region_config* config, const mdp_tensor* from, const mdp_tensor* to,
                             mdp_stream stream) {
  return region(comm, config, from, to, stream, Direction::backward);
}

mdp_status mdp_tp_linear_create(mdp_comm* comm, const mdp_tp_linear_config* config, mdp_tp_linear** out) {
  return guard([&]() -> Status {
    if (Status status = check_out(out, "out"); !status) return status;
    if (Status status = check_handle(comm, "comm", Need::alone_in_context); !status) return status;
    auto ours = take_linear(config);
    if (!ours) return ours.status();
    auto layer = TpLinear::create(comm->object, *std::move(ours));
    if (!layer) return layer.status();
    *out = new mdp_tp_linear(comm->context, *layer);
    return {};
  });
}

mdp_status mdp_tp_linear_fwd(mdp_tp_linear* linear, const mdp_tensor* input, const mdp_tensor* weight, const mdp_tensor* bias,
                             const mdp_tensor* output, mdp_stream stream, mdp_tp_saved** saved) {
  return guard([&]() -> Status {
    if (saved != nullptr) {
      if (Status status = check_out(saved, "saved"); !status) return status;
    }
    if (Status status = check_call(linear, "linear", stream); !status) return status;
    const Place place = place_of(*linear);
    std::optional<Tensor> x, w, b, y;
    if (Status status = take_array(input, "input", Access::read, place, &x); !status) return status;
    if (Status status = take_optional(weight, "weight", Access::read, place, &w); !status) return status;
    if (Status status = take_optional(bias, "bias", Access::read, place, &b); !status) return status;
    if (Status status = take_array(output, "output", Access::write, place, &y); !status) return status;
    if (Status status = check_apart(y, "output", x, "input"); !status) return status;
    if (Status status = check_apart(y, "output", w, "weight"); !status) return status;
    if (Status status = linear->object->forward({array_of(x), array_of(w), array_of(b), array_of(y)}, stream); !status) return status;
    if (saved == nullptr) return {};
    auto kept = linear->object->save(*x, stream);
    if (!kept) return kept.status();
    auto handle = std::make_unique<mdp_tp_saved>(linear->context, std::shared_ptr<TpSaved>(*std::move(kept)));
    handle->layer = linear->object;
    *saved = handle.release();
    return {};
  });
}

mdp_status mdp_tp_linear_bwd(mdp_tp_linear* linear, mdp_tp_saved* saved, const mdp_tensor* input, const mdp_tensor* weight,
                             const mdp_tensor* grad_output, const mdp_tensor* grad_input, const mdp_tensor* grad_weight,
                             const mdp_tensor* grad_bias, uint64_t flags, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(linear, "linear", stream); !status) return status;
    if (saved != nullptr) {
      if (Status status = check_handle(saved, "saved", Need::usable); !status) return status;
    }
    if (Status status = check_flags(flags, MDP_GRAD_ADD, "flags", "MDP_GRAD_ADD (1)"); !status) return status;
    const Place place = place_of(*linear);
    std::optional<Tensor> x, w, dy, dx, dw, db;
    if (Status status = take_optional(input, "input", Access::read, place, &x); !status) return status;
    if (Status status = take_optional(weight, "weight", Access::read, place, &w); !status) return status;
    if (Status status = take_array(grad_output, "grad_output", Access::read, place, &dy); !status) return status;
    if (Status status = take_optional(grad_input, "grad_input", Access::write, place, &dx); !status) return status;
    if (Status status = take_optional(grad_weight, "grad_weight", Access::write, place, &dw); !status) return status;
    if (Status status = take_optional(grad_bias, "grad_bias", Access::write, place, &db); !status) return status;
    if (Status status = check_apart(dx, "grad_input", dy, "grad_output"); !status) return status;
    if (Status status = check_apart(dx, "grad_input", x, "input"); !status) return status;
    TpLinear::Backward given{saved != nullptr ? saved->object.get() : nullptr, array_of(x), array_of(w), array_of(dy)};
    given.grad_input = array_of(dx);
    given.grad_weight = array_of(dw);
    given.grad_bias = array_of(db);
    given.adds = (flags & MDP_GRAD_ADD) != 0;
    return linear->object->backward(given, stream);
  });
}

void mdp_tp_saved_free(mdp_tp_saved* saved) {
  destroy_handle(saved);
}

void mdp_tp_linear_destroy(mdp_tp_linear* linear) {
  destroy_handle(linear);
}
