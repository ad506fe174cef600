/* SPDX-License-Identifier: Apache-2.0 */
#include "context_parallel.h"

#include <stdlib.h>
#include <string.h>

#include "layers.h"
#include "tensor_parallel.h"

static int check(const context_parallel* c, mdp_status status, const char* call) {
  return check_on(c->comm, status, call);
}

/* ── A block ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Of one head of one sequence, in an array [sequences, positions, heads, depth] or without the last. All come from arrays of this file, or
 * are the library's own; the elements of a row lie side by side. */
static matrix rows_of(const mdp_tensor* array, int64_t sequence, int64_t head) {
  real* data = (real*)array->data + sequence * array->strides[0] + head * array->strides[2];
  const matrix rows = {data, (size_t)array->strides[1]};
  return rows;
}

static gemm_operand operand_of(const mdp_tensor* array, int64_t sequence, int64_t head) {
  const matrix rows = rows_of(array, sequence, head);
  const gemm_operand operand = {rows.data, rows.stride, GEMM_PLAIN};
  return operand;
}

static void attend_head(const mdp_cp_block* block, int64_t s, int64_t h, real* weights, real* scratch) {
  const attention_head head = {.query = operand_of(block->q, s, h),
                               .key = operand_of(block->k, s, h),
                               .value = operand_of(block->v, s, h),
                               .queries = (size_t)block->q->shape[1],
                               .keys = (size_t)block->k->shape[1],
                               .depth = (size_t)block->q->shape[3],
                               .causal = block->mask == MDP_CP_MASK_CAUSAL};
  if (!block->grad_out) {
    attention_head_forward(&head, rows_of(block->out, s, h), rows_of(block->lse, s, h), weights);
    return;
  }
  const attention_grads grads = {rows_of(block->grad_q, s, h), rows_of(block->grad_k, s, h), rows_of(block->grad_v, s, h)};
  attention_head_weights(&head, operand_of(block->lse, s, h), weights);
  attention_head_backward(&head, operand_of(block->out, s, h), operand_of(block->grad_out, s, h), weights, scratch, &grads);
}

/* An mdp_cp_attention_fn. */
static int32_t attend_block(void* user, const mdp_cp_block* block) {
  context_parallel* c = user;
  const size_t weights = (size_t)(block->q->shape[1] * block->k->shape[1]), wanted = 2 * weights;
  if (wanted > c->room) {
    free(c->scratch);
    c->scratch = malloc(wanted * sizeof *c->scratch);
    c->room = c->scratch ? wanted : 0;
    if (!c->scratch) return -1;
  }
  for (int64_t s = 0; s < block->q->shape[0]; s++) {
    for (int64_t h = 0; h < block->q->shape[2]; h++) attend_head(block, s, h, c->scratch, c->scratch + weights);
  }
  return 0;
}

/* ── What the model calls ────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct { /* [sequences, time, heads, depth] */
  int64_t shape[4], of_qkv[4], of_rows[4];
} layout;

static layout layout_of(const gpt_model* model, size_t sequences, size_t time) {
  const int64_t heads = (int64_t)(model->shape.heads / model->cut.parts), depth = (int64_t)(model->shape.width / model->shape.heads);
  const int64_t n = (int64_t)sequences, t = (int64_t)time, width = heads * depth;
  const layout out = {{n, t, heads, depth}, {t * 3 * width, 3 * width, depth, 1}, {t * width, width, depth, 1}};
  return out;
}

static mdp_tensor strided(const layout* l, const int64_t* strides, const real* data) {
  mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, data, 4, l->shape);
  tensor.strides = strides;
  return tensor;
}

typedef struct {
  mdp_tensor q, k, v;
} qkv_tensors;

static qkv_tensors qkv_of(const layout* l, const real* qkv) {
  const int64_t width = l->shape[2] * l->shape[3];
  const qkv_tensors tensors = {strided(l, l->of_qkv, qkv), strided(l, l->of_qkv, qkv + width), strided(l, l->of_qkv, qkv + 2 * width)};
  return tensors;
}

static int forward(void* user, real* out, real* lse, const real* qkv, size_t sequences, size_t time) {
  context_parallel* c = user;
  const layout l = layout_of(c->model, sequences, time);
  const qkv_tensors in = qkv_of(&l, qkv);
  const mdp_tensor to = strided(&l, l.of_rows, out), sums = tensor_of(MDP_DTYPE_F32, lse, 3, l.shape);
  return check(c, mdp_cp_attention_fwd(c->comm, &c->config, attend_block, c, &in.q, &in.k, &in.v, &to, &sums, NULL),
               "mdp_cp_attention_fwd");
}

static int backward(void* user, real* d_qkv, const real* d_out, const real* out, const real* lse, const real* qkv, size_t sequences,
                    size_t time) {
  context_parallel* c = user;
  const layout l = layout_of(c->model, sequences, time);
  const qkv_tensors in = qkv_of(&l, qkv), grads = qkv_of(&l, d_qkv);
  const mdp_tensor attended = strided(&l, l.of_rows, out), grad = strided(&l, l.of_rows, d_out);
  const mdp_tensor sums = tensor_of(MDP_DTYPE_F32, lse, 3, l.shape);
  return check(c,
               mdp_cp_attention_bwd(c->comm, &c->config, attend_block, c, &in.q, &in.k, &in.v, &attended, &sums, &grad, &grads.q, &grads.k,
                                    &grads.v, NULL),
               "mdp_cp_attention_bwd");
}

static int positions(void* user, size_t whole, size_t* out) {
  const context_parallel* c = user;
  int64_t ranges[4];
  if (check(c, mdp_cp_part(&c->config, mdp_comm_size(c->comm), mdp_comm_rank(c->comm), (int64_t)whole, ranges), "mdp_cp_part")) return -1;
  for (int64_t i = ranges[0]; i < ranges[1]; i++) *out++ = (size_t)i;
  for (int64_t i = ranges[2]; i < ranges[3]; i++) *out++ = (size_t)i;
  return 0;
}

static int take_number(void* user, size_t whole, size_t position, int64_t* number) {
  const context_parallel* c = user;
  const int64_t one = 1, at = (int64_t)position;
  const mdp_tensor tensor = tensor_of(MDP_DTYPE_I64, number, 1, &one);
  for (int32_t r = 0; r < mdp_comm_size(c->comm); r++) {
    int64_t ranges[4];
    if (check(c, mdp_cp_part(&c->config, mdp_comm_size(c->comm), r, (int64_t)whole, ranges), "mdp_cp_part")) return -1;
    if ((at < ranges[0] || at >= ranges[1]) && (at < ranges[2] || at >= ranges[3])) continue;
    return check(c, mdp_broadcast(c->comm, &tensor, r, NULL, NULL), "mdp_broadcast");
  }
  return -1; /* beyond the whole */
}

int context_parallel_open(context_parallel* out, mdp_grid* grid, const gpt_model* model, mdp_cp_form form) {
  const mdp_cp_config config = {.struct_size = sizeof config, .form = form, .flags = MDP_CP_CAUSAL};
  const gpt_attention functions = {forward, backward, positions, take_number, out};
  memset(out, 0, sizeof *out);
  out->config = config;
  out->model = model;
  out->functions = functions;
  return check(out, mdp_grid_comm(grid, MDP_AXIS_CP, &out->comm), "mdp_grid_comm");
}

void context_parallel_close(context_parallel* c) {
  mdp_comm_destroy(c->comm);
  free(c->scratch);
  memset(c, 0, sizeof *c);
}
