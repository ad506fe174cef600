/* SPDX-License-Identifier: Apache-2.0
 * Parameters and activations of the model: names, shapes, starting values, memory. */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

const gpt_linear GPT_LINEARS[BLOCK_LINEARS] = {
    {BLOCK_QKV_WEIGHT, 1, 3, 1, 3},
    {BLOCK_PROJ_WEIGHT, 1, 1, 0, 1},
    {BLOCK_FC_WEIGHT, 1, 4, 1, 1},
    {BLOCK_OUT_WEIGHT, 4, 1, 0, 1},
};

size_t gpt_block_param(size_t block, size_t which) {
  return GPT_FIRST_BLOCK + block * BLOCK_PARAMS + which;
}

size_t gpt_end_param(const gpt_model* model, size_t which) {
  return gpt_block_param(model->shape.layers, which);
}

typedef struct {
  const char* name;
  size_t rows, columns; /* no columns: a vector */
  double fill, deviation;
  int decays;
} param_row;

static void set_param(gpt_param* param, const char* prefix, param_row row) {
  snprintf(param->name, sizeof param->name, "%s%s", prefix, row.name);
  param->ndim = row.columns ? 2 : 1;
  param->shape[0] = (int64_t)row.rows;
  param->shape[1] = row.columns ? (int64_t)row.columns : 1;
  param->size = param->whole_size = row.rows * (row.columns ? row.columns : 1);
  param->cut_dim = -1;
  param->fused = 1;
  param->fill = (real)row.fill;
  param->deviation = (real)row.deviation;
  param->decays = row.decays;
  param->value = NULL;
  param->grad = NULL;
}

static void list_params(gpt_model* model) {
  const size_t c = model->shape.width;
  const double deviation = 0.5 / sqrt((double)c);
  const double residual = deviation / sqrt(2.0 * (double)model->shape.layers); /* keeps the sum over all blocks of unit size */
  const param_row front[] = {
      {"embedding.token", model->shape.table, c, 0, 0.1, 0},
      {"embedding.position", model->shape.context, c, 0, 0.1, 0},
  };
  const param_row block[BLOCK_PARAMS] = {
      {"ln1.gain", c, 0, 1, 0, 0},
      {"ln1.bias", c, 0, 0, 0, 0},
      {"attn.qkv.weight", 3 * c, c, 0, deviation, 1},
      {"attn.qkv.bias", 3 * c, 0, 0, 0, 0},
      {"attn.proj.weight", c, c, 0, residual, 1},
      {"attn.proj.bias", c, 0, 0, 0, 0},
      {"ln2.gain", c, 0, 1, 0, 0},
      {"ln2.bias", c, 0, 0, 0, 0},
      {"mlp.fc.weight", 4 * c, c, 0, deviation, 1},
      {"mlp.fc.bias", 4 * c, 0, 0, 0, 0},
      {"mlp.out.weight", c, 4 * c, 0, residual, 1},
      {"mlp.out.bias", c, 0, 0, 0, 0},
  };
  const param_row end[END_PARAMS] = {
      {"end.ln.gain", c, 0, 1, 0, 0},
      {"end.ln.bias", c, 0, 0, 0, 0},
      {"head.weight", model->shape.table, c, 0, deviation, 1},
  };
  for (size_t i = 0; i < GPT_FIRST_BLOCK; i++) set_param(&model->params[i], "", front[i]);
  for (size_t b = 0; b < model->shape.layers; b++) {
    char prefix[24];
    snprintf(prefix, sizeof prefix, "block%u.", (unsigned)b);
    for (size_t i = 0; i < BLOCK_PARAMS; i++) set_param(&model->params[gpt_block_param(b, i)], prefix, block[i]);
  }
  for (size_t i = 0; i < END_PARAMS; i++) set_param(&model->params[gpt_end_param(model, i)], "", end[i]);
}

static void cut_param(gpt_param* param, int dim, size_t fused, size_t parts) {
  param->cut_dim = dim;
  param->fused = fused;
  param->shape[dim] /= (int64_t)parts;
  param->size /= parts;
}

/* The bias of a layer that is cut along its inputs is added to the sum of the parts, so each has all of it. */
static void cut_params(gpt_model* model) {
  if (model->cut.vocab) {
    cut_param(&model->params[GPT_TOKEN_EMBEDDING], 0, 1, model->cut.parts);
    cut_param(&model->params[gpt_end_param(model, END_HEAD_WEIGHT)], 0, 1, model->cut.parts);
  }
  for (size_t b = 0; b < model->shape.layers && model->cut.parts > 1; b++) {
    for (size_t i = 0; i < BLOCK_LINEARS; i++) {
      const gpt_linear* linear = &GPT_LINEARS[i];
      gpt_param* weight = &model->params[gpt_block_param(b, linear->weight)];
      cut_param(weight, linear->cuts_outs ? 0 : 1, linear->fused, model->cut.parts);
      if (linear->cuts_outs) cut_param(weight + 1, 0, linear->fused, model->cut.parts);
    }
  }
}

/* Called twice: with at NULL to count, then to hand out. */
static real* take(real** at, size_t* total, size_t count) {
  count = (count + 15) / 16 * 16; /* keeps every array on a cache line */
  *total += count;
  if (!*at) return NULL;
  real* piece = *at;
  *at += count;
  return piece;
}

static size_t place_activations(gpt_model* model, real* at) {
  const size_t c = model->shape.width, t = model->shape.context / model->cut.segments, n = model->max_sequences * t;
  const size_t parts = model->cut.parts, heads = model->shape.heads / parts;
  const int whole = model->cut.segments == 1;
  const size_t own = gpt_own_rows(model, n, NULL), part = c / parts; /* of the rows; of the width */
  size_t total = 0;
  for (size_t b = 0; b < model->shape.layers; b++) {
    gpt_block* block = &model->blocks[b];
    real** const rows[] = {&block->in, &block->normal1, &block->middle, &block->normal2};
    real** const numbers[] = {&block->mean1, &block->inverse1, &block->mean2, &block->inverse2};
    real** const wide[] = {&block->inner, &block->tanhs, &block->active};
    for (size_t i = 0; i < 4; i++) *rows[i] = take(&at, &total, own * c);
    for (size_t i = 0; i < 4; i++) *numbers[i] = take(&at, &total, own);
    for (size_t i = 0; i < 3; i++) *wide[i] = take(&at, &total, n * 4 * part);
    block->attended = take(&at, &total, n * part);
    block->qkv = take(&at, &total, n * 3 * part);
    if (whole) block->weights = take(&at, &total, n * heads * t);
    if (!whole) block->lse = take(&at, &total, n * heads);
  }
  model->end_in = take(&at, &total, own * c);
  model->end_normal = take(&at, &total, own * c);
  model->end_mean = take(&at, &total, own);
  model->end_inverse = take(&at, &total, own);
  model->logits = take(&at, &total, model->cut.vocab ? n * (model->shape.table / parts) : own * model->shape.vocab);
  model->d_stream = take(&at, &total, own * c);
  model->d_row = take(&at, &total, own * c); /* also n rows of a part's width, which are no more */
  model->d_wide = take(&at, &total, n * 4 * part);
  if (whole) model->d_scores = take(&at, &total, t * t);
  return total;
}

size_t gpt_own_rows(const gpt_model* model, size_t n, size_t* first) {
  const size_t own = model->cut.rows ? n / model->cut.parts : n;
  if (first) *first = model->cut.rows ? own * model->cut.index : 0;
  return own;
}

int gpt_set_segment(gpt_model* model, size_t whole, const gpt_hooks* hooks, size_t* time) {
  *time = whole / model->cut.segments;
  if (hooks->attention) return hooks->attention->positions(hooks->attention->user, whole, model->positions);
  return 0;
}

void gpt_take_segment(const gpt_model* model, unsigned char* out, const unsigned char* whole, size_t time) {
  for (size_t i = 0; i < time; i++) out[i] = whole[model->positions[i]];
}

int gpt_create(gpt_model* model, gpt_shape shape, gpt_cut cut, size_t max_sequences) {
  memset(model, 0, sizeof *model);
  model->shape = shape;
  if (shape.table == 0) model->shape.table = shape.vocab;
  model->cut = cut;
  model->max_sequences = max_sequences;
  model->nparams = GPT_FIRST_BLOCK + shape.layers * BLOCK_PARAMS + END_PARAMS;
  model->params = calloc(model->nparams, sizeof *model->params);
  model->blocks = calloc(shape.layers, sizeof *model->blocks);
  model->positions = calloc(shape.context, sizeof *model->positions);
  if (model->params && model->blocks && model->positions) {
    for (size_t i = 0; i < shape.context; i++) model->positions[i] = i;
    list_params(model);
    cut_params(model);
    model->memory_bytes = place_activations(model, NULL) * sizeof(real);
    void* memory = NULL;
    if (posix_memalign(&memory, 64, model->memory_bytes) == 0) {
      model->memory = memory;
      place_activations(model, model->memory);
      return 0;
    }
  }
  gpt_destroy(model);
  return -1;
}

void gpt_destroy(gpt_model* model) {
  free(model->memory);
  free(model->blocks);
  free(model->positions);
  free(model->params);
  memset(model, 0, sizeof *model);
}

/* Element i of this part, in the whole parameter. */
static size_t whole_element(const gpt_model* model, const gpt_param* p, size_t i) {
  if (p->cut_dim < 0) return i;
  const size_t columns = (size_t)p->shape[1], row = i / columns, column = i % columns, parts = model->cut.parts;
  const size_t at = p->cut_dim == 0 ? row : column, piece = (size_t)p->shape[p->cut_dim] / p->fused;
  const size_t whole = (at / piece * parts + model->cut.index) * piece + at % piece;
  return p->cut_dim == 0 ? whole * columns + column : row * columns * parts + whole;
}

void gpt_param_start(const gpt_model* model, size_t param, uint64_t seed, real* out) {
  const gpt_param* p = &model->params[param];
  for (size_t i = 0; i < p->size; i++) {
    const size_t at = whole_element(model, p, i);
    out[i] = p->deviation == 0 ? p->fill : p->fill + p->deviation * (real)random_normal(seed, 1000 + param, at);
  }
}
