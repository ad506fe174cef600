/* SPDX-License-Identifier: Apache-2.0
 * The linear layers of a model that is cut over tensor-parallel ranks, by mdp_tp_linear:
 *
 *   qkv, fc     cut by columns: each rank has some outputs (of qkv the query, key and value of some heads)
 *   proj, out   cut by rows: each rank has some inputs, and outputs are summed over the ranks
 *
 * Between the two lies what needs no other rank: attention, head by head, and GELU. All else is the same on every rank; or, with the rows
 * of the batch cut too (sequence parallelism), each rank's own: rows are gathered before qkv and fc, and scattered after proj and out.
 *
 * With the vocabulary cut too, each rank has some rows of the token embedding and of the head: a token's row comes from the rank that has
 * it, and the loss is computed of logits that are nowhere whole (vocabulary.c).
 *
 * Functions return 0, or -1 after they have said on stderr what is wrong and on which rank. */
#ifndef GPT_TENSOR_PARALLEL_H
#define GPT_TENSOR_PARALLEL_H

#include <megadp.h>

#include "model.h"

enum {
  NARROW_IN,
  NARROW_OUT,
  NARROW_GRAD,
  NARROW_COUNT
};

typedef struct {
  mdp_comm* comm;         /* of the ranks that share the model: rank i has its part i */
  mdp_tp_linear** layers; /* block by block, then the head where the vocabulary is cut */
  size_t count;
  int64_t* ids;  /* tokens of a batch, for the calls that take integers of 64 bits */
  float* tokens; /* 4 numbers of each: its loss, what backward needs of it (2), the gradient of its loss */
  const gpt_model* model;
  mdp_dtype dtype;                /* of the layers */
  uint16_t* narrow[NARROW_COUNT]; /* where that is bf16: what they take and give; the model's own is f32 */
  gpt_linears functions;
} tensor_parallel;

/* Of a parameter of the model, which is in parts. */
void tensor_parallel_place(mdp_param* out, const gpt_model* model, size_t param);
/* Whether it belongs to these layers, which wait for its value, and write its gradient and count it as ready. */
int tensor_parallel_has(const gpt_model* model, size_t param);
/* Of a buffer with all parameters of the model, in its order. */
int tensor_parallel_open(tensor_parallel* out, mdp_grid* grid, mdp_buffer* buffer, const gpt_model* model, mdp_dtype dtype);
void tensor_parallel_close(tensor_parallel* t);

/* A dense array of the library's; the data are written only where a call says so. */
mdp_tensor tensor_of(mdp_dtype dtype, const void* data, int32_t ndim, const int64_t* shape);
/* What a call of megadp's on a communicator (or, before there is one, NULL) has come to. */
int check_on(mdp_comm* comm, mdp_status status, const char* call);
/* For this file and vocabulary.c. */
int tensor_parallel_check(const tensor_parallel* t, mdp_status status, const char* call);
typedef struct {
  int64_t in[2], out[2];
} layer_shapes;
int tensor_parallel_forward(const tensor_parallel* t, size_t layer, const layer_shapes* shapes, real* out, const real* in);
int tensor_parallel_backward(const tensor_parallel* t, size_t layer, const layer_shapes* shapes, real* d_in, const real* d_out,
                             const real* in);
int vocabulary_open(tensor_parallel* t, mdp_buffer* buffer);

#endif
