// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: embeddings and the cross-entropy of a vocabulary that is cut over ranks.
#include <cmath>
#include <optional>

#include "api/error.h"
#include "api/handle.h"
#include "api/intake.h"
#include "api/tensor.h"
#include "api/tp_operands.h"
#include "core/tp_vocabulary.h"

using namespace megadp;

namespace {

Result<EmbeddingShape> take_embedding(const mdp_tp_embedding_config* given) {
  auto config = take(given, "config");
  if (!config) return config.status();
  constexpr int64_t most = int64_t{1} << 40;
  if (config->rows < 1 || config->rows > most) return invalid("config.rows is ", config->rows, "; it must be between 1 and ", most);
  if (Status status = check_flags(config->flags, MDP_TP_EMBEDDING_SEQUENCE | MDP_TP_EMBEDDING_CHECK_REPLICATED, "config.flags",
                                  "MDP_TP_EMBEDDING_SEQUENCE (1) and CHECK_REPLICATED (2)");
      !status) {
    return status;
  }
  EmbeddingShape ours;
  ours.rows = config->rows;
  ours.sequence = (config->flags & MDP_TP_EMBEDDING_SEQUENCE) != 0;
  ours.checks = (config->flags & MDP_TP_EMBEDDING_CHECK_REPLICATED) != 0;
  auto partial = take_grad(config->grad, !ours.sequence, "the output of an embedding");
  if (!partial) return partial.status();
  ours.grad_is_partial = *partial;
  return ours;
}

Result<CrossEntropyConfig> take_cross_entropy(const mdp_tp_cross_entropy_config* given) {
  auto config = take(given, "config");
  if (!config) return config.status();
  if (Status status = check_reserved(config->reserved, "config.reserved"); !status) return status;
  constexpr int64_t most = int64_t{1} << 40;
  if (config->classes < 0 || config->classes > most) {
    return invalid("config.classes is ", config->classes, "; it must be between 0 and ", most);
  }
  if (Status status = check_flags(config->flags, MDP_TP_CROSS_ENTROPY_IGNORE | MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED, "config.flags",
                                  "MDP_TP_CROSS_ENTROPY_IGNORE (1) and CHECK_REPLICATED (2)");
      !status) {
    return status;
  }
  const bool ignores = (config->flags & MDP_TP_CROSS_ENTROPY_IGNORE) != 0;
  if (config->ignore_index != 0 && !ignores) {
    return invalid("config.ignore_index is ", config->ignore_index, "; set MDP_TP_CROSS_ENTROPY_IGNORE (1) in config.flags to mean it");
  }
  if (!(config->label_smoothing >= 0 && config->label_smoothing < 1)) {
    return invalid("config.label_smoothing is ", config->label_smoothing, "; it must be at least 0 and below 1");
  }
  if (!(config->z_loss >= 0 && std::isfinite(config->z_loss))) {
    return invalid("config.z_loss is ", config->z_loss, "; it must be finite and at least 0");
  }
  CrossEntropyConfig ours;
  ours.classes = config->classes;
  ours.ignores = ignores;
  ours.ignored = config->ignore_index;
  ours.smoothing = config->label_smoothing;
  ours.z = config->z_loss;
  ours.checks = (config->flags & MDP_TP_CROSS_ENTROPY_CHECK_REPLICATED) != 0;
  return ours;
}

}  // namespace

mdp_status mdp_tp_embedding_fwd(mdp_comm* comm, const mdp_tp_embedding_config* config, const mdp_tensor* ids, const mdp_tensor* weight,
                                const mdp_tensor* output, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(comm, "comm", stream); !status) return status;
    auto ours = take_embedding(config);
    if (!ours) return ours.status();
    const Place place = place_of(*comm);
    std::optional<Tensor> rows, table, out;
    if (Status status = take_array(ids, "ids", Access::read, place, &rows); !status) return status;
    if (Status status = take_array(weight, "weight", Access::read, place, &table); !status) return status;
    if (Status status = take_array(output, "output", Access::write, place, &out); !status) return status;
    if (table->type != out->type) {
      return invalid("weight.dtype is ", name_of(table->type), " and output.dtype is ", name_of(out->type), "; they must be equal");
    }
    if (Status status = check_apart(out, "output", table, "weight"); !status) return status;
    return embedding_forward(*comm->object, *ours, {*rows, *table, *out, "weight", "output"}, stream);
  });
}

mdp_status mdp_tp_embedding_bwd(mdp_comm* comm, const mdp_tp_embedding_config* config, const mdp_tensor* ids, const mdp_tensor* grad_output,
                                const mdp_tensor* grad_weight, uint64_t flags, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(comm, "comm", stream); !status) return status;
    auto ours = take_embedding(config);
    if (!ours) return ours.status();
    if (Status status = check_flags(flags, MDP_GRAD_ADD, "flags", "MDP_GRAD_ADD (1)"); !status) return status;
    const Place place = place_of(*comm);
    std::optional<Tensor> rows, given, table;
    if (Status status = take_array(ids, "ids", Access::read, place, &rows); !status) return status;
    if (Status status = take_array(grad_output, "grad_output", Access::read, place, &given); !status) return status;
    if (Status status = take_array(grad_weight, "grad_weight", Access::write, place, &table); !status) return status;
    if (Status status = check_apart(table, "grad_weight", given, "grad_output"); !status) return status;
    const EmbeddingArrays arrays{*rows, *table, *given, "grad_weight", "grad_output"};
    return embedding_backward(*comm->object, *ours, arrays, (flags & MDP_GRAD_ADD) != 0, stream);
  });
}

mdp_status mdp_tp_cross_entropy_fwd(mdp_comm* comm, const mdp_tp_cross_entropy_config* config, const mdp_tensor* logits,
                                    const mdp_tensor* targets, const mdp_tensor* losses, const mdp_tensor* saved, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(comm, "comm", stream); !status) return status;
    auto ours = take_cross_entropy(config);
    if (!ours) return ours.status();
    const Place place = place_of(*comm);
    std::optional<Tensor> x, t, out, kept;
    if (Status status = take_array(logits, "logits", Access::read, place, &x); !status) return status;
    if (Status status = take_array(targets, "targets", Access::read, place, &t); !status) return status;
    if (Status status = take_array(losses, "losses", Access::write, place, &out); !status) return status;
    if (Status status = take_optional(saved, "saved", Access::write, place, &kept); !status) return status;
    return cross_entropy_forward(*comm->object, *ours, *x, *t, *out, array_of(kept), stream);
  });
}

mdp_status mdp_tp_cross_entropy_bwd(mdp_comm* comm, const mdp_tp_cross_entropy_config* config, const mdp_tensor* logits,
                                    const mdp_tensor* targets, const mdp_tensor* saved, const mdp_tensor* grad_losses,
                                    const mdp_tensor* grad_logits, mdp_stream stream) {
  return guard([&]() -> Status {
    if (Status status = check_call(comm, "comm", stream); !status) return status;
    auto ours = take_cross_entropy(config);
    if (!ours) return ours.status();
    const Place place = place_of(*comm);
    std::optional<Tensor> x, t, kept, given, out;
    if (Status status = take_array(logits, "logits", Access::read, place, &x); !status) return status;
    if (Status status = take_array(targets, "targets", Access::read, place, &t); !status) return status;
    if (Status status = take_array(saved, "saved", Access::read, place, &kept); !status) return status;
    if (Status status = take_array(grad_losses, "grad_losses", Access::read, place, &given); !status) return status;
    if (Status status = take_array(grad_logits, "grad_logits", Access::write, place, &out); !status) return status;
    return cross_entropy_backward(*comm->object, *ours, *x, *t, *kept, *given, *out, stream);
  });
}
