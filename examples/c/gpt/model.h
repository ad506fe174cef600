/* SPDX-License-Identifier: Apache-2.0
 * A character-level GPT: its shape, its parameters in forward order, its activations, forward and backward.
 *
 *   tokens ─ token embedding + position embedding ─┐
 *     per block:  x ─ layernorm ─ qkv ─ attention ─ proj ─(+ x)─ layernorm ─ fc ─ GELU ─ out ─(+)─┐
 *     end:        layernorm ─ head ─ logits
 *
 * The model owns no parameters: `value` and `grad` point to memory of the caller's. It tells the caller, by two hooks, which parameter it
 * is about to read and which gradient has just become final; that is all that data-parallel training needs to know of a model. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

typedef struct {
  size_t layers, width, heads, context, vocab;
} gpt_shape;

enum { /* index of a parameter: these two, BLOCK_PARAMS for each block, then those of the end */
  GPT_TOKEN_EMBEDDING = 0,
  GPT_POSITION_EMBEDDING = 1,
  GPT_FIRST_BLOCK = 2
};

enum { /* within a block */
  BLOCK_LN1_GAIN,
  BLOCK_LN1_BIAS,
  BLOCK_QKV_WEIGHT,
  BLOCK_QKV_BIAS,
  BLOCK_PROJ_WEIGHT,
  BLOCK_PROJ_BIAS,
  BLOCK_LN2_GAIN,
  BLOCK_LN2_BIAS,
  BLOCK_FC_WEIGHT,
  BLOCK_FC_BIAS,
  BLOCK_OUT_WEIGHT,
  BLOCK_OUT_BIAS,
  BLOCK_PARAMS
};

enum { /* after the last block */
  END_LN_GAIN,
  END_LN_BIAS,
  END_HEAD_WEIGHT,
  END_PARAMS
};

typedef struct {
  char name[40];
  int64_t shape[2];
  int ndim;
  size_t size;
  real fill, deviation; /* at the start: fill + deviation * normal */
  int decays;           /* matrices decay, vectors and embeddings do not */
  real* value;
  real* grad;
} gpt_param;

typedef struct { /* what one block keeps from forward for backward; n = sequences * time rows */
  real* in;      /* n x width                          */
  real* normal1; /* n x width                          */
  real* mean1;
  real* inverse1;
  real* qkv;     /* n x 3 width                        */
  real* weights; /* sequences x heads x time x time    */
  real* attended;
  real* middle;
  real* normal2;
  real* mean2;
  real* inverse2;
  real* inner; /* n x 4 width                        */
  real* tanhs;
  real* active;
} gpt_block;

typedef struct {
  gpt_shape shape;
  gpt_param* params;
  size_t nparams;
  size_t max_sequences;
  real* memory; /* all activations, in one piece     */
  size_t memory_bytes;
  gpt_block* blocks;
  real *end_in, *end_normal, *end_mean, *end_inverse;
  real* logits; /* n x vocab                         */
  real *d_stream, *d_row, *d_wide, *d_scores;
} gpt_model;

typedef struct { /* 0: go on; anything else stops the pass, which returns it */
  int (*need)(void* user, size_t param);
  int (*final)(void* user, size_t param);
  void* user;
} gpt_hooks;

/* Activations for at most `max_sequences` sequences of `context` tokens. 0, or -1 when there is no memory. */
int gpt_create(gpt_model* model, gpt_shape shape, size_t max_sequences);
void gpt_destroy(gpt_model* model);
size_t gpt_block_param(size_t block, size_t which);
size_t gpt_end_param(const gpt_model* model, size_t which);

/* Values to start from: a function of the seed and of the parameter alone. */
void gpt_param_start(const gpt_model* model, size_t param, uint64_t seed, real* out);

/* Leaves the logits in model->logits, row by row. `time` may be shorter than the context. */
int gpt_forward(gpt_model* model, const unsigned char* tokens, size_t sequences, size_t time, const gpt_hooks* hooks);

/* After gpt_forward on the same tokens, with the gradient of the logits in model->logits: adds to every `grad`. */
int gpt_backward(gpt_model* model, const unsigned char* tokens, size_t sequences, size_t time, const gpt_hooks* hooks);

#endif
