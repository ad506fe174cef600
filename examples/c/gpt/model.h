/* SPDX-License-Identifier: Apache-2.0
 * A character-level GPT: its shape, its parameters in forward order, its activations, forward and backward.
 *
 *   tokens ─ token embedding + position embedding ─┐
 *     per block:  x ─ layernorm ─ qkv ─ attention ─ proj ─(+ x)─ layernorm ─ fc ─ GELU ─ out ─(+)─┐
 *     end:        layernorm ─ head ─ logits
 *
 * The model owns no parameters: `value` and `grad` point to memory of the caller's. It tells the caller, by two hooks, which parameter it
 * is about to read and which gradient has just become final; that is all that data-parallel training needs to know of a model.
 *
 * A model may also be one of several parts (gpt_cut) that compute together. Each has some of the heads and of the mlp's inner columns; its
 * linear layers are the caller's then, whose functions (gpt_linears) put the parts together.
 *
 * And its sequences may be cut into segments, of which it has one: some positions of every sequence. Then its attention is the caller's
 * (gpt_attention); all else computes on the segment as on a whole. */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

typedef struct {
  size_t layers, width, heads, context, vocab;
  size_t table; /* rows of the token embedding and of the head: at least vocab, which 0 is taken as */
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

enum { /* the linear layers of a block */
  LINEAR_QKV,
  LINEAR_PROJ,
  LINEAR_FC,
  LINEAR_OUT,
  BLOCK_LINEARS
};

typedef struct {    /* of the whole model */
  size_t weight;    /* in the block; the bias comes next */
  size_t ins, outs; /* in widths of the model            */
  int cuts_outs;    /* between parts; or else the ins    */
  size_t fused;     /* what lies side by side in the cut dimension, each to be cut by itself: 3 of query, key and value */
} gpt_linear;

extern const gpt_linear GPT_LINEARS[BLOCK_LINEARS];

typedef struct { /* which part of a model this is */
  size_t parts, index;
  int rows;        /* norms, residuals, embeddings and logits are of own rows alone: an equal share of all sequences * time */
  int vocab;       /* token embedding and head are cut by their rows, and logits are of all rows and this part's columns */
  size_t segments; /* equally long; 1: sequences are whole */
} gpt_cut;

typedef struct {
  char name[40];
  int64_t shape[2]; /* of this part */
  int ndim;
  size_t size, whole_size;
  int cut_dim;          /* cut between the parts along it; -1: not cut               */
  size_t fused;         /* along cut_dim: so many matrices, of which each part has some */
  real fill, deviation; /* at the start: fill + deviation * normal */
  int decays;           /* matrices decay, vectors and embeddings do not */
  real* value;
  real* grad;
} gpt_param;

typedef struct { /* what one block keeps from forward for backward; n = sequences * time rows, own: of these; part: width / parts */
  real* in;      /* own x width                        */
  real* normal1; /* own x width                        */
  real* mean1;
  real* inverse1;
  real* qkv;      /* n x 3 part                         */
  real* weights;  /* sequences x heads of this part x time x time; NULL where sequences are cut */
  real* lse;      /* there: n x heads of this part */
  real* attended; /* n x part                           */
  real* middle;   /* own x width                        */
  real* normal2;
  real* mean2;
  real* inverse2;
  real* inner; /* n x 4 part                         */
  real* tanhs;
  real* active;
} gpt_block;

typedef struct {
  gpt_shape shape; /* of the whole */
  gpt_cut cut;
  gpt_param* params;
  size_t nparams;
  size_t max_sequences;
  size_t* positions; /* in its sequence, of each row of one here */
  real* memory;      /* all activations, in one piece     */
  size_t memory_bytes;
  gpt_block* blocks;
  real *end_in, *end_normal, *end_mean, *end_inverse;
  real* logits; /* own x vocab; with cut.vocab n x table / parts */
  real *d_stream, *d_row, *d_wide, *d_scores;
} gpt_model;

typedef struct { /* of a model in parts; each waits for the other parts. need and final have nothing to do for their parameters */
  /* Linear layer `which` of a block, over n rows in all: of its input and output one has all rows and this part's columns, the other own
   * rows and all columns. */
  int (*forward)(void* user, size_t block, size_t which, real* out, const real* in, size_t n);
  int (*backward)(void* user, size_t block, size_t which, real* d_in, const real* d_out, const real* in, size_t n);
  /* *number becomes that of one part, on all. */
  int (*take)(void* user, size_t part, int64_t* number);
  /* With cut.vocab, over n rows in all: the token embedding of own rows, whose gradient is added up where the parameter's is; the head,
   * from own rows to logits and back, and its parameter's gradient; the sum of losses and, if scale is not 0, logits replaced by their
   * gradient; the logits of one row, of all parts. */
  int (*embed)(void* user, real* out, const unsigned char* tokens, size_t n);
  int (*embed_backward)(void* user, const real* d_out, const unsigned char* tokens, size_t n);
  int (*head)(void* user, real* logits, const real* in, size_t n);
  int (*head_backward)(void* user, real* d_in, const real* d_logits, const real* in, size_t n);
  int (*loss)(void* user, real* logits, const unsigned char* targets, size_t n, real scale, double* loss);
  int (*whole_row)(void* user, real* out, const real* logits);
  void* user;
} gpt_linears;

typedef struct { /* of a model that has segments; each waits for the other segments */
  /* Causal attention of this part's heads: from qkv, n x 3 part, to n x part and, for the way back, lse. */
  int (*forward)(void* user, real* out, real* lse, const real* qkv, size_t sequences, size_t time);
  int (*backward)(void* user, real* d_qkv, const real* d_out, const real* out, const real* lse, const real* qkv, size_t sequences,
                  size_t time);
  /* Which positions of sequences of `whole` in all this segment has; does not wait. */
  int (*positions)(void* user, size_t whole, size_t* positions);
  /* *number becomes that of the segment with this position of a sequence of `whole`, on all. */
  int (*take)(void* user, size_t whole, size_t position, int64_t* number);
  void* user;
} gpt_attention;

typedef struct { /* 0: go on; anything else stops the pass, which returns it */
  int (*need)(void* user, size_t param);
  int (*final)(void* user, size_t param);
  void* user;
  const gpt_linears* linears;     /* NULL: the model is whole */
  const gpt_attention* attention; /* NULL: its sequences are */
} gpt_hooks;

/* Activations for at most `max_sequences` sequences of `context` tokens. `parts` divides the heads and, with cut.rows, the rows. 0, or -1
 * when there is no memory. */
int gpt_create(gpt_model* model, gpt_shape shape, gpt_cut cut, size_t max_sequences);
void gpt_destroy(gpt_model* model);
size_t gpt_block_param(size_t block, size_t which);
size_t gpt_end_param(const gpt_model* model, size_t which);

/* How many of n rows are this part's own, from *first on (if not NULL). All are where rows are not cut. */
size_t gpt_own_rows(const gpt_model* model, size_t n, size_t* first);

/* How long the segments of sequences of `whole` are: the time of what comes next. Notes their positions. */
int gpt_set_segment(gpt_model* model, size_t whole, const gpt_hooks* hooks, size_t* time);
/* A segment of a whole sequence. */
void gpt_take_segment(const gpt_model* model, unsigned char* out, const unsigned char* whole, size_t time);

/* Values to start from: a function of the seed and of the whole parameter alone, of which a part takes its own. */
void gpt_param_start(const gpt_model* model, size_t param, uint64_t seed, real* out);

/* Leaves the logits of own rows in model->logits. `time` may be shorter than the context; tokens and it are of segments. */
int gpt_forward(gpt_model* model, const unsigned char* tokens, size_t sequences, size_t time, const gpt_hooks* hooks);

/* After gpt_forward on the same tokens, with the gradient of the logits in model->logits: adds to every `grad`. */
int gpt_backward(gpt_model* model, const unsigned char* tokens, size_t sequences, size_t time, const gpt_hooks* hooks);

#endif
