/* SPDX-License-Identifier: Apache-2.0
 * The attention of a block on one thread of the host, in f32: an mdp_cp_attention_fn in tiles, without the whole matrix of scores. */
#ifndef BENCH_ATTENTION_H
#define BENCH_ATTENTION_H

#include <megadp.h>

enum {
  ATTENTION_TILE = 64,       /* queries and keys come in multiples of it */
  ATTENTION_MOST_DEPTH = 128 /* head_dim, a multiple of 16 */
};

typedef struct { /* memory of the kernel, which takes what it needs; free it in the end */
  float* scratch;
  size_t room;
} attention_memory;

/* user: an attention_memory. As many heads of keys as of queries; elements of a row side by side. */
int32_t attention_block(void* user, const mdp_cp_block* block);

#endif
