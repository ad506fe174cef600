// SPDX-License-Identifier: Apache-2.0
// Attention over a sequence that is cut over ranks.
#include <array>
#include <optional>

#include "api/error.h"
#include "api/intake.h"
#include "api/tp_operands.h"
#include "core/context_attention.h"

using namespace megadp;

namespace {

Result<ContextConfig> take_context(const mdp_cp_config* given) {
  auto config = take_or_default(given, "config");
  if (!config) return config.status();
  if (config->form > MDP_CP_ALL_TO_ALL) {
    return invalid("config.form is ", config->form, "; it must be MDP_CP_AUTO (0), MDP_CP_RING (1) or MDP_CP_ALL_TO_ALL (2)");
  }
  if (Status status = check_flags(config->flags, MDP_CP_CAUSAL, "config.flags", "MDP_CP_CAUSAL (1)"); !status) return status;
  ContextConfig ours;
  ours.form = static_cast<ContextForm>(config->form);
  ours.causal = (config->flags & MDP_CP_CAUSAL) != 0;
  if (config->bounds == nullptr && config->bound_count == 0) return ours;
  if (config->bound_count == 0 || config->bound_count > kMaxArray) {
    return invalid("config.bound_count is ", config->bound_count, "; with config.bounds it must be between 2 and ", kMaxArray);
  }
  if (Status status = check_pointer(config->bounds, "config.bounds", alignof(int64_t)); !status) return status;
  ours.bounds.assign(config->bounds, config->bounds + config->bound_count);
  return ours;
}

// A view of an array, which stays where it is.
mdp_tensor view_of(const StridedArray& array, const Place& place) {
  mdp_tensor view{};
  view.struct_size = sizeof view;
  view.dtype = static_cast<mdp_dtype>(array.type);
  give_place(place, &view);
  view.ndim = static_cast<int32_t>(array.shape.size());
  view.data = array.data;
  view.shape = array.shape.data();
  view.strides = array.strides.data();
  return view;
}

Status call_function(mdp_cp_attention_fn fn, void* user, const AttentionBlock& from, const Place& place) {
  const AttentionArrays& a = from.arrays;
  const std::array<mdp_tensor, 9> views = {view_of(a.q, place),      view_of(a.k, place),      view_of(a.v, place),
                                           view_of(a.out, place),    view_of(a.lse, place),    view_of(a.grad_out, place),
                                           view_of(a.grad_q, place), view_of(a.grad_k, place), view_of(a.grad_v, place)};
  mdp_cp_block block{};
  block.struct_size = sizeof block;
  block.mask = from.causal ? MDP_CP_MASK_CAUSAL : MDP_CP_MASK_NONE;
  block.q_begin = from.q_begin;
  block.k_begin = from.k_begin;
  block.head_begin = from.head_begin;
  block.q = &views[0];
  block.k = &views[1];
  block.v = &views[2];
  block.out = &views[3];
  block.lse = &views[4];
  if (a.backward) {
    block.grad_out = &views[5];
    block.grad_q = &views[6];
    block.grad_k = &views[7];
    block.grad_v = &views[8];
  }
  if (!from.bounds.q.empty()) {
    block.q_bounds = from.bounds.q.data();
    block.k_bounds = from.bounds.k.data();
    block.bound_count = from.bounds.q.size();
  }
  block.stream = from.stream;
  const InUpdate inside;
  const int32_t answer = fn(user, &block);
  if (answer == 0) return {};
  return Status(Code::aborted, text("the attention function returned ", answer, " for the block of queries from ", from.q_begin,
                                    " and keys from ", from.k_begin, " on"));
}

struct Operand {
  const mdp_tensor* given;
  const char* name;
  Access access;
  StridedArray AttentionArrays::*to;
};

Status take_operands(std::span<const Operand> operands, const Place& place, AttentionArrays* out) {
  std::vector<std::optional<Tensor>> taken(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    if (Status status = take_array(operands[i].given, operands[i].name, operands[i].access, place, &taken[i]); !status) return status;
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    for (size_t k = 0; k < operands.size() && operands[i].access == Access::write; ++k) {
      if (i == k || (operands[k].access == Access::write && k < i)) continue;
      if (Status apart = check_apart(taken[i], operands[i].name, taken[k], operands[k].name); !apart) return apart;
    }
  }
  for (size_t i = 0; i < operands.size(); ++i) out->*operands[i].to = *taken[i];
  return {};
}

// What is wrong here the others learn, who would wait otherwise.
Status attend(mdp_comm* comm, const mdp_cp_config* config, mdp_cp_attention_fn fn, void* user, std::span<const Operand> operands,
              bool backward, mdp_stream stream) {
  if (Status status = check_handle(comm, "comm", Need::all_ranks); !status) return status;
  const Place place = place_of(*comm);
  ContextConfig ours;
  AttentionArrays arrays;
  arrays.backward = backward;
  const auto take_all = [&]() -> Status {
    if (Status status = check_stream(stream, "stream", place); !status) return status;
    auto taken = take_context(config);
    if (!taken) return taken.status();
    ours = *std::move(taken);
    if (fn == nullptr) return invalid("fn is NULL; give the function that computes the attention of a block");
    return take_operands(operands, place, &arrays);
  };
  const Status taken = take_all();
  const AttentionFunction function = [&](const AttentionBlock& block) { return call_function(fn, user, block, place); };
  return run_attention(*comm->object, {ours, arrays, function, stream}, taken);
}

}  // namespace

mdp_status mdp_cp_part(const mdp_cp_config* config, int32_t size, int32_t rank, int64_t sequence, int64_t* ranges) {
  return guard([&]() -> Status {
    auto ours = take_context(config);
    if (!ours) return ours.status();
    if (size < 1) return invalid("size is ", size, "; it must be at least 1");
    if (rank < 0 || rank >= size) return invalid("rank is ", rank, "; it must be between 0 and ", size - 1);
    if (Status status = check_out(ranges, "ranges"); !status) return status;
    if (Status status = check_whole(ours->causal, size, sequence, "sequence"); !status) return status;
    const std::vector<Chunk> chunks = chunks_of(ours->causal, size, rank, sequence);
    for (size_t i = 0; i < 2; ++i) {
      const Chunk& chunk = chunks[std::min(i, chunks.size() - 1)];
      const int64_t end = chunk.begin + chunk.length;
      ranges[2 * i] = i < chunks.size() ? chunk.begin : end;
      ranges[2 * i + 1] = end;
    }
    return {};
  });
}

mdp_status mdp_cp_attention_fwd(mdp_comm* comm, const mdp_cp_config* config, mdp_cp_attention_fn fn, void* user, const mdp_tensor* q,
                                const mdp_tensor* k, const mdp_tensor* v, const mdp_tensor* out, const mdp_tensor* lse, mdp_stream stream) {
  return guard([&]() -> Status {
    const std::array<Operand, 5> operands = {{{q, "q", Access::read, &AttentionArrays::q},
                                              {k, "k", Access::read, &AttentionArrays::k},
                                              {v, "v", Access::read, &AttentionArrays::v},
                                              {out, "out", Access::write, &AttentionArrays::out},
                                              {lse, "lse", Access::write, &AttentionArrays::lse}}};
    return attend(comm, config, fn, user, operands, false, stream);
  });
}

mdp_status mdp_cp_attention_bwd(mdp_comm* comm, const mdp_cp_config* config, mdp_cp_attention_fn fn, void* user, const mdp_tensor* q,
                                const mdp_tensor* k, const mdp_tensor* v, const mdp_tensor* out, const mdp_tensor* lse,
                                const mdp_tensor* grad_out, const mdp_tensor* grad_q, const mdp_tensor* grad_k, const mdp_tensor* grad_v,
                                mdp_stream stream) {
  return guard([&]() -> Status {
    const std::array<Operand, 9> operands = {{{q, "q", Access::read, &AttentionArrays::q},
                                              {k, "k", Access::read, &AttentionArrays::k},
                                              {v, "v", Access::read, &AttentionArrays::v},
                                              {out, "out", Access::read, &AttentionArrays::out},
                                              {lse, "lse", Access::read, &AttentionArrays::lse},
                                              {grad_out, "grad_out", Access::read, &AttentionArrays::grad_out},
                                              {grad_q, "grad_q", Access::write, &AttentionArrays::grad_q},
                                              {grad_k, "grad_k", Access::write, &AttentionArrays::grad_k},
                                              {grad_v, "grad_v", Access::write, &AttentionArrays::grad_v}}};
    return attend(comm, config, fn, user, operands, true, stream);
  });
}
