/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor_parallel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mdp_tensor tensor_of(mdp_dtype dtype, const void* data, int32_t ndim, const int64_t* shape) {
  const mdp_tensor tensor = {.struct_size = sizeof tensor, .dtype = dtype, .ndim = ndim, .data = (void*)(uintptr_t)data, .shape = shape};
  return tensor;
}

int check_on(mdp_comm* comm, mdp_status status, const char* call) {
  if (status >= 0) return 0;
  const int rank = comm ? mdp_comm_world_rank(comm, mdp_comm_rank(comm)) : -1;
  fprintf(stderr, "gpt: rank %d: %s: %s: %s\n", rank, call, mdp_status_name(status), mdp_last_error());
  return -1;
}

int tensor_parallel_check(const tensor_parallel* t, mdp_status status, const char* call) {
  return check_on(t->comm, status, call);
}

void tensor_parallel_place(mdp_param* out, const gpt_model* model, size_t param) {
  const gpt_param* from = &model->params[param];
  /* With own rows only, a rank has a part of the gradient of what is whole. */
  out->placement = model->cut.rows ? MDP_PLACEMENT_PARTIAL_SUM : MDP_PLACEMENT_REPLICATED;
  if (from->cut_dim < 0) return;
  out->placement = MDP_PLACEMENT_SHARDED;
  out->shard_dim = from->cut_dim;
  out->shard_stride = (int32_t)from->fused;
}

int tensor_parallel_has(const gpt_model* model, size_t param) {
  if (model->cut.vocab && param == gpt_end_param(model, END_HEAD_WEIGHT)) return 1;
  if (model->cut.parts == 1 || param < GPT_FIRST_BLOCK || param >= gpt_end_param(model, 0)) return 0;
  const size_t in_block = (param - GPT_FIRST_BLOCK) % BLOCK_PARAMS;
  for (size_t i = 0; i < BLOCK_LINEARS; i++) {
    if (in_block == GPT_LINEARS[i].weight || in_block == GPT_LINEARS[i].weight + 1) return 1;
  }
  return 0;
}

/* ── One layer ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* The upper half of the float that is nearest, of two the one whose last bit is 0. */
static uint16_t narrowed(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40); /* not a number */
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* An array of the model's as the layers take it. */
static mdp_tensor given(const tensor_parallel* t, size_t place, const real* data, const int64_t* shape) {
  if (t->dtype == MDP_DTYPE_F32) return tensor_of(MDP_DTYPE_F32, data, 2, shape);
  const size_t count = (size_t)(shape[0] * shape[1]);
  for (size_t i = 0; i < count; i++) t->narrow[place][i] = narrowed(data[i]);
  return tensor_of(t->dtype, t->narrow[place], 2, shape);
}

/* Where they write one, and how it becomes the model's. */
static mdp_tensor made(const tensor_parallel* t, size_t place, real* data, const int64_t* shape) {
  return tensor_of(t->dtype, t->dtype == MDP_DTYPE_F32 ? (void*)data : (void*)t->narrow[place], 2, shape);
}

static void take_made(const tensor_parallel* t, size_t place, real* data, const int64_t* shape) {
  if (t->dtype == MDP_DTYPE_F32) return;
  const size_t count = (size_t)(shape[0] * shape[1]);
  for (size_t i = 0; i < count; i++) {
    const uint32_t bits = (uint32_t)t->narrow[place][i] << 16;
    memcpy(&data[i], &bits, sizeof bits);
  }
}

int tensor_parallel_forward(const tensor_parallel* t, size_t layer, const layer_shapes* shapes, real* out, const real* in) {
  const mdp_tensor input = given(t, NARROW_IN, in, shapes->in), output = made(t, NARROW_OUT, out, shapes->out);
  /* Nothing is saved: the model keeps its activations. */
  if (tensor_parallel_check(t, mdp_tp_linear_fwd(t->layers[layer], &input, NULL, NULL, &output, NULL, NULL), "mdp_tp_linear_fwd"))
    return -1;
  take_made(t, NARROW_OUT, out, shapes->out);
  return 0;
}

int tensor_parallel_backward(const tensor_parallel* t, size_t layer, const layer_shapes* shapes, real* d_in, const real* d_out,
                             const real* in) {
  const mdp_tensor input = given(t, NARROW_IN, in, shapes->in), grad_output = given(t, NARROW_OUT, d_out, shapes->out),
                   grad_input = made(t, NARROW_GRAD, d_in, shapes->in);
  const mdp_status done = mdp_tp_linear_bwd(t->layers[layer], NULL, &input, NULL, &grad_output, &grad_input, NULL, NULL, 0, NULL);
  if (tensor_parallel_check(t, done, "mdp_tp_linear_bwd")) return -1;
  take_made(t, NARROW_GRAD, d_in, shapes->in);
  return 0;
}

static int make_narrow(tensor_parallel* t) {
  const gpt_model* model = t->model;
  const size_t rows = model->max_sequences * (model->shape.context / model->cut.segments), width = model->shape.width,
               parts = model->cut.parts;
  size_t columns = 4 * width / parts > width ? 4 * width / parts : width;
  if (model->cut.vocab && model->shape.table / parts > columns) columns = model->shape.table / parts;
  for (size_t i = 0; i < NARROW_COUNT && t->dtype != MDP_DTYPE_F32; i++) {
    t->narrow[i] = malloc(rows * columns * sizeof *t->narrow[i]);
    if (!t->narrow[i]) return tensor_parallel_check(t, MDP_E_MEMORY, "malloc");
  }
  return 0;
}

/* ── What the model calls ────────────────────────────────────────────────────────────────────────────────────────────────────── */

static layer_shapes shapes_of(const gpt_model* model, size_t which, size_t n) {
  const gpt_linear* l = &GPT_LINEARS[which];
  const size_t own = gpt_own_rows(model, n, NULL), ins = l->ins * model->shape.width, outs = l->outs * model->shape.width;
  const size_t parts = model->cut.parts;
  const layer_shapes columns = {{(int64_t)own, (int64_t)ins}, {(int64_t)n, (int64_t)(outs / parts)}};
  const layer_shapes rows = {{(int64_t)n, (int64_t)(ins / parts)}, {(int64_t)own, (int64_t)outs}};
  return l->cuts_outs ? columns : rows;
}

static int forward(void* user, size_t block, size_t which, real* out, const real* in, size_t n) {
  const tensor_parallel* t = user;
  const layer_shapes shapes = shapes_of(t->model, which, n);
  return tensor_parallel_forward(t, block * BLOCK_LINEARS + which, &shapes, out, in);
}

static int backward(void* user, size_t block, size_t which, real* d_in, const real* d_out, const real* in, size_t n) {
  const tensor_parallel* t = user;
  const layer_shapes shapes = shapes_of(t->model, which, n);
  return tensor_parallel_backward(t, block * BLOCK_LINEARS + which, &shapes, d_in, d_out, in);
}

static int take_number(void* user, size_t part, int64_t* number) {
  const tensor_parallel* t = user;
  const int64_t one = 1;
  const mdp_tensor tensor = tensor_of(MDP_DTYPE_I64, number, 1, &one);
  return tensor_parallel_check(t, mdp_broadcast(t->comm, &tensor, (int32_t)part, NULL, NULL), "mdp_broadcast");
}

/* ── The layers ──────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int make_layer(tensor_parallel* t, mdp_buffer* buffer, size_t block, size_t which) {
  const gpt_linear* l = &GPT_LINEARS[which];
  const int64_t width = (int64_t)t->model->shape.width, ins = (int64_t)l->ins * width, outs = (int64_t)l->outs * width;
  const int64_t fused = (l->cuts_outs ? outs : ins) / (int64_t)l->fused, blocks[] = {fused, fused, fused};
  const size_t weight = gpt_block_param(block, l->weight);
  const mdp_tp_linear_config config = {.struct_size = sizeof config,
                                       .split = l->cuts_outs ? MDP_TP_COLUMN : MDP_TP_ROW,
                                       .in_features = ins,
                                       .out_features = outs,
                                       .blocks = blocks,
                                       .block_count = l->fused,
                                       .dtype = t->dtype,
                                       .buffer = buffer,
                                       .weight = weight,
                                       .bias = weight + 1,
                                       /* what follows a layer that is summed is the same on all ranks, and so is its gradient */
                                       .grad = MDP_TP_GRAD_REPLICATED,
                                       .flags = MDP_TP_LINEAR_BIAS | (t->model->cut.rows ? MDP_TP_LINEAR_SEQUENCE : 0)};
  return tensor_parallel_check(t, mdp_tp_linear_create(t->comm, &config, &t->layers[block * BLOCK_LINEARS + which]),
                               "mdp_tp_linear_create");
}

int tensor_parallel_open(tensor_parallel* out, mdp_grid* grid, mdp_buffer* buffer, const gpt_model* model, mdp_dtype dtype) {
  const gpt_linears functions = {.forward = forward, .backward = backward, .take = take_number, .user = out};
  memset(out, 0, sizeof *out);
  out->model = model;
  out->dtype = dtype;
  const size_t in_blocks = model->shape.layers * BLOCK_LINEARS;
  out->count = in_blocks + (model->cut.vocab ? 1 : 0);
  out->functions = functions;
  if (tensor_parallel_check(out, mdp_grid_comm(grid, MDP_AXIS_TP, &out->comm), "mdp_grid_comm")) return -1;
  out->layers = calloc(out->count, sizeof *out->layers);
  if (!out->layers) return tensor_parallel_check(out, MDP_E_MEMORY, "calloc");
  if (make_narrow(out)) return -1;
  int failed = 0;
  for (size_t i = 0; i < in_blocks && !failed; i++) failed = make_layer(out, buffer, i / BLOCK_LINEARS, i % BLOCK_LINEARS);
  return failed || (model->cut.vocab && vocabulary_open(out, buffer)) ? -1 : 0;
}

void tensor_parallel_close(tensor_parallel* t) {
  for (size_t i = 0; t->layers && i < t->count; i++) mdp_tp_linear_destroy(t->layers[i]);
  free(t->layers);
  for (size_t i = 0; i < NARROW_COUNT; i++) free(t->narrow[i]);
  free(t->ids);
  free(t->tokens);
  mdp_comm_destroy(t->comm);
  memset(t, 0, sizeof *t);
}
