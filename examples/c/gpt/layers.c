/* SPDX-License-Identifier: Apache-2.0
 * The layers a transformer is made of, forward and backward. */
#include "layers.h"

#include <string.h>

#include "gemm.h"

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

/* Softmax of the first i + 1 entries of row i; the rest, the future, becomes 0. */
static void causal_softmax(real* rows, size_t time) {
  for (size_t i = 0; i < time; i++) {
    real* row = rows + i * time;
    real max = row[0], sum = 0;
    for (size_t j = 1; j <= i; j++) max = row[j] > max ? row[j] : max;
    for (size_t j = 0; j <= i; j++) {
      row[j] = real_exp(row[j] - max);
      sum += row[j];
    }
    const real scale = 1 / sum;
    for (size_t j = 0; j <= i; j++) row[j] *= scale;
    for (size_t j = i + 1; j < time; j++) row[j] = 0;
  }
}

void attention_forward(real* out, real* weights, const real* qkv, attention_shape shape) {
  const size_t time = shape.time, width = shape.width, depth = width / shape.heads;
  const real scale = 1 / real_sqrt((real)depth);
  for (size_t s = 0; s < shape.sequences; s++) {
    for (size_t h = 0; h < shape.heads; h++) {
      const real* query = qkv + s * time * 3 * width + h * depth;
      const real *key = query + width, *value = key + width;
      real* w = weights + (s * shape.heads + h) * time * time;
      gemm(time, time, depth, scale, plain(query, 3 * width), transposed(key, 3 * width), 0, w, time);
      causal_softmax(w, time);
      gemm(time, depth, time, 1, plain(w, time), plain(value, 3 * width), 0, out + s * time * width + h * depth, width);
    }
  }
}

/* From the gradient at the softmax's output, in `d`, to the gradient at its input; rows beyond the diagonal are 0 in w, so stay 0. */
static void softmax_backward(real* d, const real* w, size_t time) {
  for (size_t i = 0; i < time; i++) {
    real along = 0;
    for (size_t j = 0; j < time; j++) along += d[i * time + j] * w[i * time + j];
    for (size_t j = 0; j < time; j++) d[i * time + j] = w[i * time + j] * (d[i * time + j] - along);
  }
}

void attention_backward(real* d_qkv, const real* d_out, const real* weights, const real* qkv, real* scratch, attention_shape shape) {
  const size_t time = shape.time, width = shape.width, depth = width / shape.heads, row = 3 * width;
  const real scale = 1 / real_sqrt((real)depth);
  for (size_t s = 0; s < shape.sequences; s++) {
    for (size_t h = 0; h < shape.heads; h++) {
      const size_t at = s * time * row + h * depth;
      const real *query = qkv + at, *key = query + width, *value = key + width;
      real *d_query = d_qkv + at, *d_key = d_query + width, *d_value = d_key + width;
      const real* w = weights + (s * shape.heads + h) * time * time;
      const real* d = d_out + s * time * width + h * depth;
      gemm(time, time, depth, 1, plain(d, width), transposed(value, row), 0, scratch, time);
      gemm(time, depth, time, 1, transposed(w, time), plain(d, width), 0, d_value, row);
      softmax_backward(scratch, w, time);
      gemm(time, depth, time, scale, plain(scratch, time), plain(key, row), 0, d_query, row);
      gemm(time, depth, time, scale, transposed(scratch, time), plain(query, row), 0, d_key, row);
    }
  }
}

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
