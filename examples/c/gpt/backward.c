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

/* model->d_stream: in, the gradient at the block's output; out, at its input. The residual connections let it pass unchanged. */
static int backward_mlp(gpt_model* model, size_t number, size_t n, const gpt_hooks* hooks) {
  const size_t c = model->shape.width;
  const gpt_param* p = &model->params[gpt_block_param(number, 0)];
  const gpt_block* b = &model->blocks[number];
  linear_backward(model->d_wide, p[BLOCK_OUT_WEIGHT].grad, p[BLOCK_OUT_BIAS].grad, model->d_stream, b->active, p[BLOCK_OUT_WEIGHT].value, n,
                  4 * c, c);
  gelu_backward(model->d_wide, b->tanhs, b->inner, n * 4 * c);
  linear_backward(model->d_row, p[BLOCK_FC_WEIGHT].grad, p[BLOCK_FC_BIAS].grad, model->d_wide, b->normal2, p[BLOCK_FC_WEIGHT].value, n, c,
                  4 * c);
  layernorm_backward(model->d_stream, p[BLOCK_LN2_GAIN].grad, p[BLOCK_LN2_BIAS].grad, model->d_row, b->middle, b->mean2, b->inverse2,
                     p[BLOCK_LN2_GAIN].value, n, c);
  return final(hooks, gpt_block_param(number, BLOCK_LN2_GAIN), BLOCK_PARAMS - BLOCK_LN2_GAIN);
}

static int backward_attention(gpt_model* model, size_t number, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width, n = sequences * time;
  const gpt_param* p = &model->params[gpt_block_param(number, 0)];
  const gpt_block* b = &model->blocks[number];
  const attention_shape shape = {sequences, time, c, model->shape.heads};
  linear_backward(model->d_row, p[BLOCK_PROJ_WEIGHT].grad, p[BLOCK_PROJ_BIAS].grad, model->d_stream, b->attended,
                  p[BLOCK_PROJ_WEIGHT].value, n, c, c);
  attention_backward(model->d_wide, model->d_row, b->weights, b->qkv, model->d_scores, shape);
  linear_backward(model->d_row, p[BLOCK_QKV_WEIGHT].grad, p[BLOCK_QKV_BIAS].grad, model->d_wide, b->normal1, p[BLOCK_QKV_WEIGHT].value, n,
                  c, 3 * c);
  layernorm_backward(model->d_stream, p[BLOCK_LN1_GAIN].grad, p[BLOCK_LN1_BIAS].grad, model->d_row, b->in, b->mean1, b->inverse1,
                     p[BLOCK_LN1_GAIN].value, n, c);
  return final(hooks, gpt_block_param(number, 0), BLOCK_LN2_GAIN);
}

static void embed_backward(gpt_model* model, const unsigned char* tokens, size_t n, size_t time) {
  const size_t c = model->shape.width;
  real *token = model->params[GPT_TOKEN_EMBEDDING].grad, *position = model->params[GPT_POSITION_EMBEDDING].grad;
  for (size_t i = 0; i < n; i++) {
    for (size_t j = 0; j < c; j++) {
      token[tokens[i] * c + j] += model->d_stream[i * c + j];
      position[i % time * c + j] += model->d_stream[i * c + j];
    }
  }
}

int gpt_backward(gpt_model* model, const unsigned char* tokens, size_t sequences, size_t time, const gpt_hooks* hooks) {
  const size_t c = model->shape.width, n = sequences * time;
  const gpt_param* end = &model->params[gpt_end_param(model, 0)];
  linear_backward(model->d_row, end[END_HEAD_WEIGHT].grad, NULL, model->logits, model->end_normal, end[END_HEAD_WEIGHT].value, n, c,
                  model->shape.vocab);
  memset(model->d_stream, 0, n * c * sizeof(real));
  layernorm_backward(model->d_stream, end[END_LN_GAIN].grad, end[END_LN_BIAS].grad, model->d_row, model->end_in, model->end_mean,
                     model->end_inverse, end[END_LN_GAIN].value, n, c);
  int stop = final(hooks, gpt_end_param(model, 0), END_PARAMS);
  for (size_t i = model->shape.layers; i-- > 0 && !stop;) {
    stop = backward_mlp(model, i, n, hooks);
    if (!stop) stop = backward_attention(model, i, sequences, time, hooks);
  }
  if (stop) return stop;
  embed_backward(model, tokens, n, time);
  return final(hooks, GPT_TOKEN_EMBEDDING, GPT_FIRST_BLOCK);
}
