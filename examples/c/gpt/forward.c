/* SPDX-License-Identifier: Apache-2.0
 * The forward pass. It asks for each layer's parameters just before it reads them, so that their gathering from the other ranks
 * overlaps the layers before. */
#include <string.h>

#include "layers.h"
#include "model.h"

static int need(const gpt_hooks* hooks, size_t first, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const int stop = hooks->need ? hooks->need(hooks->user, first + i) : 0;
    if (stop) return stop;
  }
  return 0;
}

static int embed(gpt_model* model, real* out, const unsigned char* tokens, size_t n, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width;
  size_t first = 0;
  const size_t own = gpt_own_rows(model, n, &first);
  const real *token = model->params[GPT_TOKEN_EMBEDDING].value, *position = model->params[GPT_POSITION_EMBEDDING].value;
  if (model->cut.vocab) {
    const int stop = hooks->linears->embed(hooks->linears->user, out, tokens, n);
    if (stop) return stop;
  } else {
    for (size_t i = 0; i < own; i++) memcpy(out + i * c, token + tokens[first + i] * c, c * sizeof *out);
  }
  for (size_t i = 0; i < own; i++) {
    for (size_t j = 0; j < c; j++) out[i * c + j] += position[model->positions[(first + i) % time] * c + j];
  }
  return 0;
}

static void add(real* to, const real* from, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] += from[i];
}

static int linear(gpt_model* model, size_t number, size_t which, real* out, const real* in, size_t n, const gpt_hooks* hooks) {
  const gpt_linear* l = &GPT_LINEARS[which];
  const size_t c = model->shape.width;
  const gpt_param* weight = &model->params[gpt_block_param(number, l->weight)];
  if (hooks->linears) return hooks->linears->forward(hooks->linears->user, number, which, out, in, n);
  linear_forward(out, in, weight->value, weight[1].value, n, l->ins * c, l->outs * c);
  return 0;
}

static int attend(gpt_model* model, const gpt_block* b, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t parts = model->cut.parts;
  const attention_shape shape = {sequences, time, model->shape.width / parts, model->shape.heads / parts};
  if (hooks->attention) return hooks->attention->forward(hooks->attention->user, b->attended, b->lse, b->qkv, sequences, time);
  attention_forward(b->attended, b->weights, b->qkv, shape);
  return 0;
}

static int forward_block(gpt_model* model, size_t number, real* out, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width, n = sequences * time, own = gpt_own_rows(model, n, NULL), parts = model->cut.parts;
  const gpt_param* p = &model->params[gpt_block_param(number, 0)];
  const gpt_block* b = &model->blocks[number];
  int stop = need(hooks, gpt_block_param(number, 0), BLOCK_PARAMS);
  if (stop) return stop;

  layernorm_forward(b->normal1, b->mean1, b->inverse1, b->in, p[BLOCK_LN1_GAIN].value, p[BLOCK_LN1_BIAS].value, own, c);
  stop = linear(model, number, LINEAR_QKV, b->qkv, b->normal1, n, hooks);
  if (stop) return stop;
  stop = attend(model, b, sequences, time, hooks);
  if (stop) return stop;
  stop = linear(model, number, LINEAR_PROJ, b->middle, b->attended, n, hooks);
  if (stop) return stop;
  add(b->middle, b->in, own * c);

  layernorm_forward(b->normal2, b->mean2, b->inverse2, b->middle, p[BLOCK_LN2_GAIN].value, p[BLOCK_LN2_BIAS].value, own, c);
  stop = linear(model, number, LINEAR_FC, b->inner, b->normal2, n, hooks);
  if (stop) return stop;
  gelu_forward(b->active, b->tanhs, b->inner, n * 4 * c / parts);
  stop = linear(model, number, LINEAR_OUT, out, b->active, n, hooks);
  if (stop) return stop;
  add(out, b->middle, own * c);
  return 0;
}

int gpt_forward(gpt_model* model, const unsigned char* tokens, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width, n = sequences * time, own = gpt_own_rows(model, n, NULL), layers = model->shape.layers;
  const gpt_param* end = &model->params[gpt_end_param(model, 0)];
  int stop = need(hooks, GPT_TOKEN_EMBEDDING, GPT_FIRST_BLOCK);
  if (stop) return stop;
  stop = embed(model, model->blocks[0].in, tokens, n, time, hooks);
  if (stop) return stop;
  for (size_t i = 0; i < layers; i++) {
    real* out = i + 1 < layers ? model->blocks[i + 1].in : model->end_in;
    stop = forward_block(model, i, out, sequences, time, hooks);
    if (stop) return stop;
  }
  stop = need(hooks, gpt_end_param(model, 0), END_PARAMS);
  if (stop) return stop;
  layernorm_forward(model->end_normal, model->end_mean, model->end_inverse, model->end_in, end[END_LN_GAIN].value, end[END_LN_BIAS].value,
                    own, c);
  if (model->cut.vocab) return hooks->linears->head(hooks->linears->user, model->logits, model->end_normal, n);
  linear_forward(model->logits, model->end_normal, end[END_HEAD_WEIGHT].value, NULL, own, c, model->shape.vocab);
  return 0;
}
