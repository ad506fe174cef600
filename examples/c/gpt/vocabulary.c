/* SPDX-License-Identifier: Apache-2.0
 * The token embedding, the head and the loss of a model whose vocabulary is cut over tensor-parallel ranks. */
#include <stdlib.h>

#include "tensor_parallel.h"

typedef struct {
  int64_t n[1], own[2], table[2], logits[2], pairs[2];
} vocabulary_shapes;

static vocabulary_shapes shapes_of(const gpt_model* model, size_t n) {
  const int64_t width = (int64_t)model->shape.width, part = (int64_t)(model->shape.table / model->cut.parts), all = (int64_t)n;
  const vocabulary_shapes shapes = {{all}, {(int64_t)gpt_own_rows(model, n, NULL), width}, {part, width}, {all, part}, {all, 2}};
  return shapes;
}

static mdp_tensor ids_of(const tensor_parallel* t, const unsigned char* tokens, const vocabulary_shapes* shapes) {
  for (int64_t i = 0; i < shapes->n[0]; i++) t->ids[i] = tokens[i];
  return tensor_of(MDP_DTYPE_I64, t->ids, 1, shapes->n);
}

static mdp_tp_embedding_config embedding_of(const gpt_model* model) {
  const mdp_tp_embedding_config config = {.struct_size = sizeof config,
                                          .grad = MDP_TP_GRAD_REPLICATED, /* what follows is the same on all ranks */
                                          .rows = (int64_t)model->shape.table,
                                          .flags = model->cut.rows ? MDP_TP_EMBEDDING_SEQUENCE : 0};
  return config;
}

static int embed(void* user, real* out, const unsigned char* tokens, size_t n) {
  const tensor_parallel* t = user;
  const vocabulary_shapes shapes = shapes_of(t->model, n);
  const mdp_tp_embedding_config config = embedding_of(t->model);
  const mdp_tensor ids = ids_of(t, tokens, &shapes), output = tensor_of(MDP_DTYPE_F32, out, 2, shapes.own);
  const mdp_tensor table = tensor_of(MDP_DTYPE_F32, t->model->params[GPT_TOKEN_EMBEDDING].value, 2, shapes.table);
  return tensor_parallel_check(t, mdp_tp_embedding_fwd(t->comm, &config, &ids, &table, &output, NULL), "mdp_tp_embedding_fwd");
}

static int embed_backward(void* user, const real* d_out, const unsigned char* tokens, size_t n) {
  const tensor_parallel* t = user;
  const vocabulary_shapes shapes = shapes_of(t->model, n);
  const mdp_tp_embedding_config config = embedding_of(t->model);
  const mdp_tensor ids = ids_of(t, tokens, &shapes), grad = tensor_of(MDP_DTYPE_F32, d_out, 2, shapes.own);
  const mdp_tensor table = tensor_of(MDP_DTYPE_F32, t->model->params[GPT_TOKEN_EMBEDDING].grad, 2, shapes.table);
  return tensor_parallel_check(t, mdp_tp_embedding_bwd(t->comm, &config, &ids, &grad, &table, MDP_GRAD_ADD, NULL), "mdp_tp_embedding_bwd");
}

static layer_shapes head_shapes(const gpt_model* model, size_t n) {
  const vocabulary_shapes shapes = shapes_of(model, n);
  const layer_shapes of_head = {{shapes.own[0], shapes.own[1]}, {shapes.logits[0], shapes.logits[1]}};
  return of_head;
}

static int head(void* user, real* logits, const real* in, size_t n) {
  const tensor_parallel* t = user;
  const layer_shapes shapes = head_shapes(t->model, n);
  return tensor_parallel_forward(t, t->count - 1, &shapes, logits, in);
}

static int head_backward(void* user, real* d_in, const real* d_logits, const real* in, size_t n) {
  const tensor_parallel* t = user;
  const layer_shapes shapes = head_shapes(t->model, n);
  return tensor_parallel_backward(t, t->count - 1, &shapes, d_in, d_logits, in);
}

static int loss(void* user, real* logits, const unsigned char* targets, size_t n, real scale, double* sum) {
  const tensor_parallel* t = user;
  const vocabulary_shapes shapes = shapes_of(t->model, n);
  const mdp_tp_cross_entropy_config config = {.struct_size = sizeof config, .classes = (int64_t)t->model->shape.vocab};
  const mdp_tensor x = tensor_of(MDP_DTYPE_F32, logits, 2, shapes.logits), ids = ids_of(t, targets, &shapes);
  float *losses = t->tokens, *grads = losses + n, *pairs = grads + n;
  const mdp_tensor each = tensor_of(MDP_DTYPE_F32, losses, 1, shapes.n), saved = tensor_of(MDP_DTYPE_F32, pairs, 2, shapes.pairs);
  if (tensor_parallel_check(t, mdp_tp_cross_entropy_fwd(t->comm, &config, &x, &ids, &each, &saved, NULL), "mdp_tp_cross_entropy_fwd"))
    return -1;
  *sum = 0;
  for (size_t i = 0; i < n; i++) *sum += losses[i];
  if (scale == 0) return 0;
  for (size_t i = 0; i < n; i++) grads[i] = (float)scale;
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, grads, 1, shapes.n);
  return tensor_parallel_check(t, mdp_tp_cross_entropy_bwd(t->comm, &config, &x, &ids, &saved, &grad, &x, NULL),
                               "mdp_tp_cross_entropy_bwd");
}

static int whole_row(void* user, real* out, const real* logits) {
  const tensor_parallel* t = user;
  const int64_t part[] = {(int64_t)(t->model->shape.table / t->model->cut.parts)}, all[] = {(int64_t)t->model->shape.table};
  const mdp_tp_region_config config = {.struct_size = sizeof config, .region = MDP_TP_GATHER, .grad = MDP_TP_GRAD_REPLICATED};
  const mdp_tensor from = tensor_of(MDP_DTYPE_F32, logits, 1, part), to = tensor_of(MDP_DTYPE_F32, out, 1, all);
  return tensor_parallel_check(t, mdp_tp_region_fwd(t->comm, &config, &from, &to, NULL), "mdp_tp_region_fwd");
}

int vocabulary_open(tensor_parallel* t, mdp_buffer* buffer) {
  const gpt_model* model = t->model;
  const size_t most = model->max_sequences * (model->shape.context / model->cut.segments);
  t->ids = malloc(most * sizeof *t->ids);
  t->tokens = malloc(4 * most * sizeof *t->tokens);
  if (!t->ids || !t->tokens) return tensor_parallel_check(t, MDP_E_MEMORY, "malloc");
  t->functions.embed = embed;
  t->functions.embed_backward = embed_backward;
  t->functions.head = head;
  t->functions.head_backward = head_backward;
  t->functions.loss = loss;
  t->functions.whole_row = whole_row;
  const mdp_tp_linear_config config = {.struct_size = sizeof config,
                                       .split = MDP_TP_COLUMN,
                                       .in_features = (int64_t)model->shape.width,
                                       .out_features = (int64_t)model->shape.table,
                                       .dtype = t->dtype,
                                       .buffer = buffer,
                                       .weight = gpt_end_param(model, END_HEAD_WEIGHT),
                                       .flags = model->cut.rows ? MDP_TP_LINEAR_SEQUENCE : 0};
  return tensor_parallel_check(t, mdp_tp_linear_create(t->comm, &config, &t->layers[t->count - 1]), "mdp_tp_linear_create");
}
