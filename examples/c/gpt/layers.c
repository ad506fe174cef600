/* SPDX-License-Identifier: Apache-2.0
 * The layers a transformer is made of, forward and backward. */
#include "layers.h"

#include <string.h>

static gemm_operand plain(const real* data, size_t stride) {
  const gemm_operand operand = {data, stride, GEMM_PLAIN};
  return operand;
}

static gemm_operand transposed(const real* data, size_t stride) {
  const gemm_operand operand = {data, stride, GEMM_TRANSPOSED};
  return operand;
}

void linear_forward(real* out, const real* in, const real* weight, const real* bias, size_t n, size_t ins, size_t outs) {
  if (bias) {
    for (size_t i = 0; i < n; i++) memcpy(out + i * outs, bias, outs * sizeof(real));
  }
  gemm(n, outs, ins, 1, plain(in, ins), transposed(weight, ins), bias ? 1 : 0, out, outs);
}

void linear_backward(real* d_in, real* d_weight, real* d_bias, const real* d_out, const real* in, const real* weight, size_t n, size_t ins,
                     size_t outs) {
  gemm(n, ins, outs, 1, plain(d_out, outs), plain(weight, ins), 0, d_in, ins);
  gemm(outs, ins, n, 1, transposed(d_out, outs), plain(in, ins), 1, d_weight, ins);
  if (!d_bias) return;
  for (size_t i = 0; i < n; i++) {
    for (size_t j = 0; j < outs; j++) d_bias[j] += d_out[i * outs + j];
  }
}

void layernorm_forward(real* out, real* mean, real* inverse, const real* in, const real* gain, const real* bias, size_t n, size_t width) {
  for (size_t i = 0; i < n; i++) {
    const real* x = in + i * width;
    real* y = out + i * width;
    real sum = 0, squares = 0;
    for (size_t j = 0; j < width; j++) sum += x[j];
    const real m = sum / (real)width;
    for (size_t j = 0; j < width; j++) squares += (x[j] - m) * (x[j] - m);
    const real r = 1 / real_sqrt(squares / (real)width + (real)1e-5);
    for (size_t j = 0; j < width; j++) y[j] = (x[j] - m) * r * gain[j] + bias[j];
    mean[i] = m;
    inverse[i] = r;
  }
}

void layernorm_backward(real* d_in, real* d_gain, real* d_bias, const real* d_out, const real* in, const real* mean, const real* inverse,
                        const real* gain, size_t n, size_t width) {
  for (size_t i = 0; i < n; i++) {
    const real *x = in + i * width, *dy = d_out + i * width;
    real* dx = d_in + i * width;
    const real m = mean[i], r = inverse[i];
    real sum = 0, along = 0; /* of the gradient at the normalised row: its sum, and its product with that row */
    for (size_t j = 0; j < width; j++) {
      const real normal = (x[j] - m) * r, d_normal = dy[j] * gain[j];
      sum += d_normal;
      along += d_normal * normal;
      d_gain[j] += dy[j] * normal;
      d_bias[j] += dy[j];
    }
    sum /= (real)width;
    along /= (real)width;
    for (size_t j = 0; j < width; j++) dx[j] += (dy[j] * gain[j] - sum - (x[j] - m) * r * along) * r;
  }
}

static const real GELU_SCALE = (real)0.7978845608028654; /* sqrt(2 / pi) */
static const real GELU_CUBE = (real)0.044715;

void gelu_forward(real* out, real* tanhs, const real* in, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const real x = in[i];
    /* tanh(u) = 1 - 2 / (exp(2u) + 1): several times faster than tanhf, and right at both ends (exp gives 0 or infinity there). */
    const real t = 1 - 2 / (real_exp(2 * GELU_SCALE * (x + GELU_CUBE * x * x * x)) + 1);
    tanhs[i] = t;
    out[i] = (real)0.5 * x * (1 + t);
  }
}

void gelu_backward(real* d, const real* tanhs, const real* in, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const real x = in[i], t = tanhs[i];
    const real d_inner = GELU_SCALE * (1 + 3 * GELU_CUBE * x * x);
    d[i] *= (real)0.5 * (1 + t) + (real)0.5 * x * (1 - t * t) * d_inner;
  }
}

/* ── Attention ───────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static gemm_operand turned(gemm_operand operand) {
  operand.form = GEMM_TRANSPOSED;
  return operand;
}

static size_t seen_by(const attention_head* head, size_t query) {
  return head->causal ? query + 1 : head->keys;
}

static void scores_of(const attention_head* h, real* out) {
  const real scale = 1 / real_sqrt((real)h->depth);
  gemm(h->queries, h->keys, h->depth, scale, h->query, turned(h->key), 0, out, h->keys);
}

static void hide_unseen(const attention_head* h, size_t query, real* row) {
  for (size_t j = seen_by(h, query); j < h->keys; j++) row[j] = 0;
}

void attention_head_forward(const attention_head* h, matrix out, matrix lse, real* weights) {
  scores_of(h, weights);
  for (size_t i = 0; i < h->queries; i++) {
    real* row = weights + i * h->keys;
    const size_t seen = seen_by(h, i);
    real max = row[0], sum = 0;
    for (size_t j = 1; j < seen; j++) max = row[j] > max ? row[j] : max;
    for (size_t j = 0; j < seen; j++) {
      row[j] = real_exp(row[j] - max);
      sum += row[j];
    }
    const real scale = 1 / sum;
    for (size_t j = 0; j < seen; j++) row[j] *= scale;
    hide_unseen(h, i, row);
    if (lse.data) lse.data[i * lse.stride] = max + real_log(sum);
  }
  gemm(h->queries, h->depth, h->keys, 1, plain(weights, h->keys), h->value, 0, out.data, out.stride);
}

void attention_head_weights(const attention_head* h, gemm_operand lse, real* weights) {
  scores_of(h, weights);
  for (size_t i = 0; i < h->queries; i++) {
    real* row = weights + i * h->keys;
    for (size_t j = 0; j < seen_by(h, i); j++) row[j] = real_exp(row[j] - lse.data[i * lse.stride]);
    hide_unseen(h, i, row);
  }
}

/* From the gradient at the softmax's output, in `d`, to the gradient at its input. Over all keys the sum of d * w is that of d_out * out,
 * so some of them are enough here; rows beyond the diagonal are 0 in w, so become 0. */
static void softmax_backward(const attention_head* h, real* d, const real* w, gemm_operand out, gemm_operand d_out) {
  for (size_t i = 0; i < h->queries; i++) {
    const real *y = out.data + i * out.stride, *dy = d_out.data + i * d_out.stride;
    real along = 0;
    for (size_t j = 0; j < h->depth; j++) along += dy[j] * y[j];
    for (size_t j = 0; j < h->keys; j++) d[i * h->keys + j] = w[i * h->keys + j] * (d[i * h->keys + j] - along);
  }
}

void attention_head_backward(const attention_head* h, gemm_operand out, gemm_operand d_out, const real* weights, real* scratch,
                             const attention_grads* to) {
  const real scale = 1 / real_sqrt((real)h->depth);
  const gemm_operand w = plain(weights, h->keys), d = plain(scratch, h->keys);
  gemm(h->queries, h->keys, h->depth, 1, d_out, turned(h->value), 0, scratch, h->keys);
  gemm(h->keys, h->depth, h->queries, 1, turned(w), d_out, 0, to->value.data, to->value.stride);
  softmax_backward(h, scratch, weights, out, d_out);
  gemm(h->queries, h->depth, h->keys, scale, d, h->key, 0, to->query.data, to->query.stride);
  gemm(h->keys, h->depth, h->queries, scale, turned(d), h->query, 0, to->key.data, to->key.stride);
}

/* Head `number` of a sequence whose rows of qkv begin here. */
static attention_head head_of(const real* qkv, size_t number, attention_shape shape) {
  const size_t width = shape.width, depth = width / shape.heads;
  const real* query = qkv + number * depth;
  const attention_head head = {.query = plain(query, 3 * width),
                               .key = plain(query + width, 3 * width),
                               .value = plain(query + 2 * width, 3 * width),
                               .queries = shape.time,
                               .keys = shape.time,
                               .depth = depth,
                               .causal = 1};
  return head;
}

void attention_forward(real* out, real* weights, const real* qkv, attention_shape shape) {
  const size_t time = shape.time, width = shape.width, depth = width / shape.heads;
  const matrix no_lse = {NULL, 0};
  for (size_t i = 0; i < shape.sequences * shape.heads; i++) {
    const size_t row = i / shape.heads * time, number = i % shape.heads;
    const attention_head head = head_of(qkv + row * 3 * width, number, shape);
    const matrix to = {out + row * width + number * depth, width};
    attention_head_forward(&head, to, no_lse, weights + i * time * time);
  }
}

void attention_backward(real* d_qkv, const real* d_out, const real* out, const real* weights, const real* qkv, real* scratch,
                        attention_shape shape) {
  const size_t time = shape.time, width = shape.width, depth = width / shape.heads;
  for (size_t i = 0; i < shape.sequences * shape.heads; i++) {
    const size_t row = i / shape.heads * time, number = i % shape.heads, at = row * width + number * depth;
    const attention_head head = head_of(qkv + row * 3 * width, number, shape);
    real* d_query = d_qkv + row * 3 * width + number * depth;
    const attention_grads to = {{d_query, 3 * width}, {d_query + width, 3 * width}, {d_query + 2 * width, 3 * width}};
    attention_head_backward(&head, plain(out + at, width), plain(d_out + at, width), weights + i * time * time, scratch, &to);
  }
}

/* ── The loss ────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

double cross_entropy(real* logits, const unsigned char* targets, size_t n, size_t classes, real scale) {
  double loss = 0;
  for (size_t i = 0; i < n; i++) {
    real* row = logits + i * classes;
    real max = row[0], sum = 0;
    for (size_t j = 1; j < classes; j++) max = row[j] > max ? row[j] : max;
    const real wanted = row[targets[i]] - max;
    for (size_t j = 0; j < classes; j++) {
      row[j] = real_exp(row[j] - max);
      sum += row[j];
    }
    loss += log((double)sum) - (double)wanted;
    const real factor = scale / sum;
    for (size_t j = 0; j < classes; j++) row[j] *= factor;
    row[targets[i]] -= scale;
  }
  return loss;
}
