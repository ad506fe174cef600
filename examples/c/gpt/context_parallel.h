/* SPDX-License-Identifier: Apache-2.0
 * Attention over sequences that are cut over context-parallel ranks, by mdp_cp_attention. Each rank has a segment of every sequence,
 * zig-zag: an early chunk and a late one, so that all have as many keys to look at. What the library has moved to a rank, a block of
 * queries and keys, is computed by the functions that compute a whole head (layers.h).
 *
 * Functions return 0, or -1 after they have said on stderr what is wrong and on which rank. */
#ifndef GPT_CONTEXT_PARALLEL_H
#define GPT_CONTEXT_PARALLEL_H

#include <megadp.h>

#include "model.h"

typedef struct {
  mdp_comm* comm; /* of the ranks that share the sequences: rank i has segment i */
  mdp_cp_config config;
  const gpt_model* model;
  real* scratch; /* weights of a block, and their gradient */
  size_t room;   /* in it, elements */
  gpt_attention functions;
} context_parallel;

int context_parallel_open(context_parallel* out, mdp_grid* grid, const gpt_model* model, mdp_cp_form form);
void context_parallel_close(context_parallel* c);

#endif
