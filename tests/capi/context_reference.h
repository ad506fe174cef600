/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, plain and exact: of one block as mdp_cp_attention_fn, and of a whole sequence in double. Scores are q . k / sqrt(head_dim). */
#ifndef MEGADP_TESTS_CAPI_CONTEXT_REFERENCE_H
#define MEGADP_TESTS_CAPI_CONTEXT_REFERENCE_H

#include "megadp.h"

typedef struct {
  int64_t batch, sequence, heads, kv_heads, head_dim;
} context_sizes;

/* Forward or backward. 0: computed. */
int32_t context_reference(const mdp_cp_block* block);

/* Dense arrays of the whole, in double; what comes after v but grad_out is written. */
void context_oracle(const context_sizes* sizes, uint64_t causal, const int64_t* bounds, uint64_t bound_count, const double* q,
                    const double* k, const double* v, double* out, double* lse, const double* grad_out, double* grad_q, double* grad_k,
                    double* grad_v);

#endif
