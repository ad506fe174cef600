// SPDX-License-Identifier: Apache-2.0
// Embeddings, and the cross-entropy of logits, of a vocabulary that is cut over ranks; what tp.h declares.
#pragma once

#include "tp_calls.h"

namespace megadp {

inline DType f32_unless(DType dtype) {
  return dtype == DType::DEFAULT ? DType::F32 : dtype;
}

// How many elements lie in so many bytes.
inline int64_t count_in(long long bytes, DType dtype) {
  return element_size(dtype) > 0 ? bytes / element_size(dtype) : 0;
}

// This rank's part of a table, [rows, features].
inline std::vector<int64_t> part_of_table(const TpEmbeddingOptions& options, mdp_comm* group) {
  return {options.rows / mdp_comm_size(group), options.features};
}

// The rows that an output has: of `ids` in all, or of this rank's part of them.
inline std::vector<int64_t> shape_of_rows(const TpEmbeddingOptions& options, long long ids_bytes, mdp_comm* group) {
  const int64_t ids = count_in(ids_bytes, DType::I64);
  return {options.sequence ? ids / mdp_comm_size(group) : ids, options.features};
}

inline void TensorParallel::embedding_forward(const Comm& comm, const TpEmbeddingOptions& options, const unsigned char* ids,
                                              long long ids_bytes, const unsigned char* weight, long long weight_bytes,
                                              unsigned char* output, long long output_bytes, Failure& failure) {
  guarded(failure, [&] {
    const auto group = comm.handle().use_collectively(failure);
    if (!group) return;
    const mdp_tp_embedding_config config = options.config();
    const DType dtype = f32_unless(options.dtype);
    const TpOperand rows(ids, DType::I64, ids_bytes, "ids", {count_in(ids_bytes, DType::I64)}, failure);
    const TpOperand table(weight, dtype, weight_bytes, "weight", part_of_table(options, group.get()), failure);
    const TpOperand made(output, dtype, output_bytes, "output", shape_of_rows(options, ids_bytes, group.get()), failure);
    if (!failure.failed()) failure.take(mdp_tp_embedding_fwd(group.get(), &config, rows.get(), table.get(), made.get(), nullptr));
  });
}

inline void TensorParallel::embedding_backward(const Comm& comm, const TpEmbeddingOptions& options, const unsigned char* ids,
                                               long long ids_bytes, const unsigned char* grad_output, long long grad_output_bytes,
                                               unsigned char* grad_weight, long long grad_weight_bytes, bool add, Failure& failure) {
  guarded(failure, [&] {
    const auto group = comm.handle().use_collectively(failure);
    if (!group) return;
    const mdp_tp_embedding_config config = options.config();
    const TpOperand rows(ids, DType::I64, ids_bytes, "ids", {count_in(ids_bytes, DType::I64)}, failure);
    const TpOperand given(grad_output, f32_unless(options.dtype), grad_output_bytes, "grad_output",
                          shape_of_rows(options, ids_bytes, group.get()), failure);
    const TpOperand table(grad_weight, DType::F32, grad_weight_bytes, "grad_weight", part_of_table(options, group.get()), failure);
    if (failure.failed()) return;
    failure.take(mdp_tp_embedding_bwd(group.get(), &config, rows.get(), given.get(), table.get(), add ? MDP_GRAD_ADD : 0, nullptr));
  });
}

// [tokens, columns], as far as the numbers go together; the library says what is wrong with others.
inline std::vector<int64_t> shape_of_logits(const TpCrossEntropyOptions& options, long long logits_bytes, int64_t tokens) {
  return {tokens, tokens > 0 ? count_in(logits_bytes, f32_unless(options.dtype)) / tokens : 1};
}

inline void TensorParallel::cross_entropy_forward(const Comm& comm, const TpCrossEntropyOptions& options, const unsigned char* logits,
                                                  long long logits_bytes, const unsigned char* targets, long long targets_bytes,
                                                  unsigned char* losses, long long losses_bytes, unsigned char* saved,
                                                  long long saved_bytes, Failure& failure) {
  guarded(failure, [&] {
    const auto group = comm.handle().use_collectively(failure);
    if (!group) return;
    const mdp_tp_cross_entropy_config config = options.config();
    const int64_t tokens = count_in(targets_bytes, DType::I64);
    const TpOperand x(logits, f32_unless(options.dtype), logits_bytes, "logits", shape_of_logits(options, logits_bytes, tokens), failure);
    const TpOperand classes(targets, DType::I64, targets_bytes, "targets", {tokens}, failure);
    const TpOperand made(losses, DType::F32, losses_bytes, "losses", {tokens}, failure);
    const TpOperand kept(saved, DType::F32, saved_bytes, "saved", {tokens, 2}, failure);
    if (failure.failed()) return;
    failure.take(mdp_tp_cross_entropy_fwd(group.get(), &config, x.get(), classes.get(), made.get(), kept.get(), nullptr));
  });
}

inline void TensorParallel::cross_entropy_backward(const Comm& comm, const TpCrossEntropyOptions& options, const unsigned char* logits,
                                                   long long logits_bytes, const unsigned char* targets, long long targets_bytes,
                                                   const unsigned char* saved, long long saved_bytes, const unsigned char* grad_losses,
                                                   long long grad_losses_bytes, unsigned char* grad_logits, long long grad_logits_bytes,
                                                   Failure& failure) {
  guarded(failure, [&] {
    const auto group = comm.handle().use_collectively(failure);
    if (!group) return;
    const mdp_tp_cross_entropy_config config = options.config();
    const DType dtype = f32_unless(options.dtype);
    const int64_t tokens = count_in(targets_bytes, DType::I64);
    const std::vector<int64_t> shape = shape_of_logits(options, logits_bytes, tokens);
    const TpOperand x(logits, dtype, logits_bytes, "logits", shape, failure);
    const TpOperand classes(targets, DType::I64, targets_bytes, "targets", {tokens}, failure);
    const TpOperand kept(saved, DType::F32, saved_bytes, "saved", {tokens, 2}, failure);
    const TpOperand given(grad_losses, DType::F32, grad_losses_bytes, "grad_losses", {tokens}, failure);
    const TpOperand made(grad_logits, dtype, grad_logits_bytes, "grad_logits", shape, failure);
    if (failure.failed()) return;
    failure.take(mdp_tp_cross_entropy_bwd(group.get(), &config, x.get(), classes.get(), kept.get(), given.get(), made.get(), nullptr));
  });
}

}  // namespace megadp
