/* SPDX-License-Identifier: Apache-2.0
 * The layers a transformer is made of, forward and backward. All arrays are row-major; a backward function adds to the gradients of
 * parameters and overwrites the gradients of activations, unless it says otherwise. */
#ifndef GPT_LAYERS_H
#define GPT_LAYERS_H

#include <stddef.h>

#include "gemm.h"
#include "real.h"

/* out[n x outs] = in[n x ins] * weight[outs x ins]^T + bias[outs]; no bias if it is NULL */
void linear_forward(real* out, const real* in, const real* weight, const real* bias, size_t n, size_t ins, size_t outs);
void linear_backward(real* d_in, real* d_weight, real* d_bias, const real* d_out, const real* in, const real* weight, size_t n, size_t ins,
                     size_t outs);

/* out = (in - mean) / deviation * gain + bias over each row; keeps mean and 1/deviation of each row for the way back */
void layernorm_forward(real* out, real* mean, real* inverse, const real* in, const real* gain, const real* bias, size_t n, size_t width);
/* adds to d_in: a normalisation always sits beside a residual connection */
void layernorm_backward(real* d_in, real* d_gain, real* d_bias, const real* d_out, const real* in, const real* mean, const real* inverse,
                        const real* gain, size_t n, size_t width);

/* GELU by its tanh approximation; keeps the tanh for the way back, which turns d_out into d_in in place */
void gelu_forward(real* out, real* tanhs, const real* in, size_t n);
void gelu_backward(real* d, const real* tanhs, const real* in, size_t n);

typedef struct { /* to be written: row i begins at data + i * stride */
  real* data;
  size_t stride;
} matrix;

typedef struct {                  /* some queries of one head of one sequence with some keys */
  gemm_operand query, key, value; /* queries x depth; keys x depth, both */
  size_t queries, keys, depth;
  int causal; /* query i sees keys 0 to i */
} attention_head;

typedef struct {
  matrix query, key, value;
} attention_grads;

/* weights[queries x keys] become softmax(query * key^T / sqrt(depth)), out[queries x depth] weights * value. lse, if its data are not NULL:
 * of each query the logarithm of the sum of exp of its scores. */
void attention_head_forward(const attention_head* head, matrix out, matrix lse, real* weights);
/* The weights from lse, which may be of more keys than these. */
void attention_head_weights(const attention_head* head, gemm_operand lse, real* weights);
/* What these keys have to do with the gradients; out and d_out are of all that the queries saw. scratch: queries x keys */
void attention_head_backward(const attention_head* head, gemm_operand out, gemm_operand d_out, const real* weights, real* scratch,
                             const attention_grads* to);

typedef struct {
  size_t sequences, time, width, heads;
} attention_shape;

/* Causal attention. qkv[sequences * time x 3 width] holds query, key and value side by side, each head's columns together; the softmax
 * weights are kept in weights[sequences x heads x time x time]. */
void attention_forward(real* out, real* weights, const real* qkv, attention_shape shape);
/* scratch: time x time */
void attention_backward(real* d_qkv, const real* d_out, const real* out, const real* weights, const real* qkv, real* scratch,
                        attention_shape shape);

/* Turns logits[n x classes] into softmax - onehot(target), times `scale`, in place, and returns the sum of -log softmax[target]. */
double cross_entropy(real* logits, const unsigned char* targets, size_t n, size_t classes, real scale);

#endif
