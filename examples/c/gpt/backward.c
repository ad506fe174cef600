/* SPDX-License-Identifier: Apache-2.0
 * The backward pass, last layer first. It announces each gradient as soon as nothing will be added to it any more, so that its
 * reduction over the ranks overlaps the layers still to come. */
#include <string.h>

#include "layers.h"
#include "model.h"

static int final(const gpt_hooks* hooks, size_t first, size_t count) {
  for (size_t i = count; i-- > 0;) { /* in reverse of forward order, as everything here */
    const int stop = hooks->final ? hooks->final(hooks->user, first + i) : 0;
    if (stop) return stop;
  }
  return 0;
}

static int linear(gpt_model* model, size_t number, size_t which, real* d_in, const real* d_out, const real* in, size_t n,
                  const gpt_hooks* hooks) {
  const gpt_linear* l = &GPT_LINEARS[which];
  const size_t c = model->shape.width;
  const gpt_param* weight = &model->params[gpt_block_param(number, l->weight)];
  if (hooks->linears) return hooks->linears->backward(hooks->linears->user, number, which, d_in, d_out, in, n);
  linear_backward(d_in, weight->grad, weight[1].grad, d_out, in, weight->value, n, l->ins * c, l->outs * c);
  return 0;
}

/* model->d_stream: in, the gradient at the block's output; out, at its input. The residual connections let it pass unchanged. */
static int backward_mlp(gpt_model* model, size_t number, size_t n, const gpt_hooks* hooks) {
  const size_t c = model->shape.width;
  const gpt_param* p = &model->params[gpt_block_param(number, 0)];
  const gpt_block* b = &model->blocks[number];
  int stop = linear(model, number, LINEAR_OUT, model->d_wide, model->d_stream, b->active, n, hooks);
  if (stop) return stop;
  gelu_backward(model->d_wide, b->tanhs, b->inner, n * 4 * c / model->cut.parts);
  stop = linear(model, number, LINEAR_FC, model->d_row, model->d_wide, b->normal2, n, hooks);
  if (stop) return stop;
  layernorm_backward(model->d_stream, p[BLOCK_LN2_GAIN].grad, p[BLOCK_LN2_BIAS].grad, model->d_row, b->middle, b->mean2, b->inverse2,
                     p[BLOCK_LN2_GAIN].value, gpt_own_rows(model, n, NULL), c);
  return final(hooks, gpt_block_param(number, BLOCK_LN2_GAIN), BLOCK_PARAMS - BLOCK_LN2_GAIN);
}

/* From d_row to d_wide. */
static int attend(gpt_model* model, const gpt_block* b, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t parts = model->cut.parts;
  const attention_shape shape = {sequences, time, model->shape.width / parts, model->shape.heads / parts};
  const gpt_attention* cut = hooks->attention;
  if (cut) return cut->backward(cut->user, model->d_wide, model->d_row, b->attended, b->lse, b->qkv, sequences, time);
  attention_backward(model->d_wide, model->d_row, b->attended, b->weights, b->qkv, model->d_scores, shape);
  return 0;
}

static int backward_attention(gpt_model* model, size_t number, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width, n = sequences * time;
  const gpt_param* p = &model->params[gpt_block_param(number, 0)];
  const gpt_block* b = &model->blocks[number];
  int stop = linear(model, number, LINEAR_PROJ, model->d_row, model->d_stream, b->attended, n, hooks);
  if (stop) return stop;
  stop = attend(model, b, sequences, time, hooks);
  if (stop) return stop;
  stop = linear(model, number, LINEAR_QKV, model->d_row, model->d_wide, b->normal1, n, hooks);
  if (stop) return stop;
  layernorm_backward(model->d_stream, p[BLOCK_LN1_GAIN].grad, p[BLOCK_LN1_BIAS].grad, model->d_row, b->in, b->mean1, b->inverse1,
                     p[BLOCK_LN1_GAIN].value, gpt_own_rows(model, n, NULL), c);
  return final(hooks, gpt_block_param(number, 0), BLOCK_LN2_GAIN);
}

static int embed_backward(gpt_model* model, const unsigned char* tokens, size_t n, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width;
  size_t first = 0;
  const size_t own = gpt_own_rows(model, n, &first);
  real *token = model->params[GPT_TOKEN_EMBEDDING].grad, *position = model->params[GPT_POSITION_EMBEDDING].grad;
  for (size_t i = first; i < first + own; i++) {
    const real* d = model->d_stream + (i - first) * c;
    for (size_t j = 0; j < c; j++) position[model->positions[i % time] * c + j] += d[j];
    for (size_t j = 0; j < c && !model->cut.vocab; j++) token[tokens[i] * c + j] += d[j];
  }
  return model->cut.vocab ? hooks->linears->embed_backward(hooks->linears->user, model->d_stream, tokens, n) : 0;
}

int gpt_backward(gpt_model* model, const unsigned char* tokens, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width, n = sequences * time, own = gpt_own_rows(model, n, NULL);
  const gpt_param* end = &model->params[gpt_end_param(model, 0)];
  int stop = 0;
  if (model->cut.vocab) {
    stop = hooks->linears->head_backward(hooks->linears->user, model->d_row, model->logits, model->end_normal, n);
    if (stop) return stop;
  } else {
    linear_backward(model->d_row, end[END_HEAD_WEIGHT].grad, NULL, model->logits, model->end_normal, end[END_HEAD_WEIGHT].value, own, c,
                    model->shape.vocab);
  }
  memset(model->d_stream, 0, own * c * sizeof(real));
  layernorm_backward(model->d_stream, end[END_LN_GAIN].grad, end[END_LN_BIAS].grad, model->d_row, model->end_in, model->end_mean,
                     model->end_inverse, end[END_LN_GAIN].value, own, c);
  stop = final(hooks, gpt_end_param(model, 0), END_PARAMS);
  for (size_t i = model->shape.layers; i-- > 0 && !stop;) {
    stop = backward_mlp(model, i, n, hooks);
    if (!stop) stop = backward_attention(model, i, sequences, time, hooks);
  }
  if (stop) return stop;
  stop = embed_backward(model, tokens, n, time, hooks);
  if (stop) return stop;
  return final(hooks, GPT_TOKEN_EMBEDDING, GPT_FIRST_BLOCK);
}
