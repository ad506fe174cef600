/* SPDX-License-Identifier: Apache-2.0 */
#include "context_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* An element of an array of F32 or BF16, [b, s, h, d]; lse has no d. */
static void* at(const mdp_tensor* a, int64_t b, int64_t s, int64_t h, int64_t d) {
  const int64_t last = a->ndim == 4 ? d * a->strides[3] : 0;
  const int64_t element = b * a->strides[0] + s * a->strides[1] + h * a->strides[2] + last;
  return (char*)a->data + element * (a->dtype == MDP_DTYPE_BF16 ? 2 : 4);
}

static double get(const mdp_tensor* a, int64_t b, int64_t s, int64_t h, int64_t d) {
  float value;
  if (a->dtype == MDP_DTYPE_BF16) {
    uint16_t half;
    memcpy(&half, at(a, b, s, h, d), sizeof half);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
  } else {
    memcpy(&value, at(a, b, s, h, d), sizeof value);
  }
  return value;
}

static void put(const mdp_tensor* a, int64_t b, int64_t s, int64_t h, int64_t d, double value) {
  const float rounded = (float)value;
  memcpy(at(a, b, s, h, d), &rounded, sizeof rounded);
}

static int64_t sequence_of(const int64_t* bounds, uint64_t count, int64_t position) {
  for (uint64_t i = 0; i + 1 < count; ++i) {
    if (position < bounds[i + 1]) return (int64_t)i;
  }
  return 0;
}

static int sees(const mdp_cp_block* block, int64_t i, int64_t j) {
  if (block->mask == MDP_CP_MASK_CAUSAL && block->k_begin + j > block->q_begin + i) return 0;
  if (block->bound_count == 0) return 1;
  return sequence_of(block->q_bounds, block->bound_count, i) == sequence_of(block->k_bounds, block->bound_count, j);
}

/* Of query i, head h: weights of all keys; how they are related to exp(score) is the caller's. */
static double score(const mdp_cp_block* block, int64_t b, int64_t i, int64_t j, int64_t h, int64_t kv) {
  const int64_t features = block->q->shape[3];
  double sum = 0;
  for (int64_t d = 0; d < features; ++d) sum += get(block->q, b, i, h, d) * get(block->k, b, j, kv, d);
  return sum / sqrt((double)features);
}

static void forward_row(const mdp_cp_block* block, int64_t b, int64_t i, int64_t h, int64_t kv, double* scores) {
  const int64_t keys = block->k->shape[1], features = block->q->shape[3];
  double most = -INFINITY, sum = 0;
  for (int64_t j = 0; j < keys; ++j) {
    scores[j] = sees(block, i, j) ? score(block, b, i, j, h, kv) : -INFINITY;
    if (scores[j] > most) most = scores[j];
  }
  for (int64_t j = 0; j < keys && most > -INFINITY; ++j) sum += exp(scores[j] - most);
  put(block->lse, b, i, h, 0, most > -INFINITY ? most + log(sum) : -INFINITY);
  for (int64_t d = 0; d < features; ++d) {
    double value = most > -INFINITY ? 0 : NAN; /* which the library does not use */
    for (int64_t j = 0; j < keys && most > -INFINITY; ++j) value += exp(scores[j] - most) / sum * get(block->v, b, j, kv, d);
    put(block->out, b, i, h, d, value);
  }
}

static void backward_row(const mdp_cp_block* block, int64_t b, int64_t i, int64_t h, int64_t kv, double* grad_k, double* grad_v) {
  const int64_t keys = block->k->shape[1], features = block->q->shape[3];
  const double scale = 1 / sqrt((double)features), lse = get(block->lse, b, i, h, 0);
  double delta = 0;
  double* const grad_q = calloc((size_t)features, sizeof *grad_q);
  for (int64_t d = 0; d < features; ++d) delta += get(block->grad_out, b, i, h, d) * get(block->out, b, i, h, d);
  for (int64_t j = 0; j < keys; ++j) {
    if (!sees(block, i, j)) continue;
    const double weight = exp(score(block, b, i, j, h, kv) - lse);
    double grad_weight = 0;
    for (int64_t d = 0; d < features; ++d) grad_weight += get(block->grad_out, b, i, h, d) * get(block->v, b, j, kv, d);
    const double grad_score = weight * (grad_weight - delta) * scale;
    for (int64_t d = 0; d < features; ++d) {
      grad_q[d] += grad_score * get(block->k, b, j, kv, d);
      grad_k[j * features + d] += grad_score * get(block->q, b, i, h, d);
      grad_v[j * features + d] += weight * get(block->grad_out, b, i, h, d);
    }
  }
  for (int64_t d = 0; d < features; ++d) put(block->grad_q, b, i, h, d, grad_q[d]);
  free(grad_q);
}

int32_t context_reference(const mdp_cp_block* block) {
  const int64_t batch = block->q->shape[0], queries = block->q->shape[1], heads = block->q->shape[2], features = block->q->shape[3];
  const int64_t keys = block->k->shape[1], kv_heads = block->k->shape[2], shared = heads / kv_heads;
  double* const rows = malloc((size_t)(keys * (2 * features + 1)) * sizeof *rows);
  if (rows == NULL) return -1;
  double *const grad_k = rows, *const grad_v = rows + keys * features;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t kv = 0; kv < kv_heads; ++kv) {
      memset(rows, 0, (size_t)(keys * 2 * features) * sizeof *rows);
      for (int64_t h = kv * shared; h < (kv + 1) * shared; ++h) {
        for (int64_t i = 0; i < queries; ++i) {
          if (block->grad_out == NULL) forward_row(block, b, i, h, kv, rows);
          if (block->grad_out != NULL) backward_row(block, b, i, h, kv, grad_k, grad_v);
        }
      }
      for (int64_t n = 0; n < keys * features && block->grad_out != NULL; ++n) {
        put(block->grad_k, b, n / features, kv, n % features, grad_k[n]);
        put(block->grad_v, b, n / features, kv, n % features, grad_v[n]);
      }
    }
  }
  free(rows);
  return 0;
}

void context_oracle(const context_sizes* z, uint64_t causal, const int64_t* bounds, uint64_t bound_count, const double* q, const double* k,
                    const double* v, double* out, double* lse, const double* grad_out, double* grad_q, double* grad_k, double* grad_v) {
  const int64_t n = z->sequence, features = z->head_dim, shared = z->heads / z->kv_heads;
  const double scale = 1 / sqrt((double)features);
  double* const p = malloc((size_t)n * sizeof *p);
  memset(grad_q, 0, (size_t)(z->batch * n * z->heads * features) * sizeof *grad_q);
  memset(grad_k, 0, (size_t)(z->batch * n * z->kv_heads * features) * sizeof *grad_k);
  memset(grad_v, 0, (size_t)(z->batch * n * z->kv_heads * features) * sizeof *grad_v);
  for (int64_t row = 0; row < z->batch * n * z->heads; ++row) {
    const int64_t h = row % z->heads, i = row / z->heads % n, b = row / z->heads / n;
    const double *const its_q = q + row * features, *const g = grad_out + row * features;
    double sum = 0, delta = 0;
#define KV(j) (((b * n + (j)) * z->kv_heads + h / shared) * features)
    for (int64_t j = 0; j < n; ++j) {
      double s = 0;
      for (int64_t d = 0; d < features; ++d) s += its_q[d] * k[KV(j) + d];
      const int hidden =
          (causal && j > i) || (bound_count > 0 && sequence_of(bounds, bound_count, i) != sequence_of(bounds, bound_count, j));
      p[j] = hidden ? 0 : exp(s * scale);
      sum += p[j];
    }
    lse[row] = log(sum);
    for (int64_t d = 0; d < features; ++d) {
      out[row * features + d] = 0;
      for (int64_t j = 0; j < n; ++j) out[row * features + d] += p[j] / sum * v[KV(j) + d];
      delta += out[row * features + d] * g[d];
    }
    for (int64_t j = 0; j < n; ++j) {
      double grad_p = 0;
      for (int64_t d = 0; d < features; ++d) grad_p += g[d] * v[KV(j) + d];
      const double grad_s = p[j] / sum * (grad_p - delta) * scale;
      for (int64_t d = 0; d < features; ++d) {
        grad_q[row * features + d] += grad_s * k[KV(j) + d];
        grad_k[KV(j) + d] += grad_s * its_q[d];
        grad_v[KV(j) + d] += p[j] / sum * g[d];
      }
    }
#undef KV
  }
  free(p);
}
