/* SPDX-License-Identifier: Apache-2.0
 * Tiles of 64 queries with 64 keys, compiled for the processor of the machine that builds it. All products are one kernel: four rows by
 * sixteen columns that stay in registers.
 *
 *   forward    for each tile of queries: scores of tile after tile of keys, with a maximum and a sum that move along
 *   backward   for each tile of keys: weights of tile after tile of queries, from lse; gradients of these keys stay, those of queries are
 * added */
#include "attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum {
  TILE = ATTENTION_TILE,
  ROWS = 4,
  LANES = 8
};
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t whole_lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

typedef struct { /* element (i, j) is data[i * row + j * column] */
  const float* data;
  int64_t row, column;
} left;
typedef struct { /* the elements of a row side by side */
  float* data;
  int64_t row;
} rows;

INLINE lanes at(const float* from) {
  return *(const lanes*)from;
}

INLINE void put(float* to, lanes value) {
  *(lanes*)to = value;
}

/* to[TILE x columns] += a[TILE x depth] * b[depth x columns] */
INLINE void multiply(rows to, left a, rows b, int64_t columns, int64_t depth) {
  for (int64_t j = 0; j < columns; j += 2 * LANES) {
    for (int64_t i = 0; i < TILE; i += ROWS) {
      lanes sum[ROWS][2];
      for (int r = 0; r < ROWS; ++r) {
        for (int l = 0; l < 2; ++l) sum[r][l] = at(to.data + (i + r) * to.row + j + l * LANES);
      }
      for (int64_t p = 0; p < depth; ++p) {
        const float* const from = b.data + p * b.row + j;
        const lanes first = at(from), second = at(from + LANES);
        for (int r = 0; r < ROWS; ++r) {
          const float by = a.data[(i + r) * a.row + p * a.column];
          sum[r][0] += by * first;
          sum[r][1] += by * second;
        }
      }
      for (int r = 0; r < ROWS; ++r) {
        for (int l = 0; l < 2; ++l) put(to.data + (i + r) * to.row + j + l * LANES, sum[r][l]);
      }
    }
  }
}

/* To 2e-7; 0 for what is far below 0. */
INLINE lanes quick_exp(lanes x) {
  const lanes zero = {0};
  const whole_lanes enough = x > zero - 87;
  const lanes whole = (x * 1.44269504F + 12582912.0F) - 12582912.0F; /* to the nearest integer */
  const lanes rest = x - whole * 0.693359375F + whole * 2.12194440e-4F;
  lanes y = rest * 1.9875691500e-4F + 1.3981999507e-3F;
  y = y * rest + 8.3334519073e-3F;
  y = y * rest + 4.1665795894e-2F;
  y = y * rest + 1.6666665459e-1F;
  y = y * rest + 5.0000001201e-1F;
  y = y * rest * rest + rest + 1;
  const whole_lanes power = (__builtin_convertvector(whole, whole_lanes) + 127) << 23;
  return (lanes)((whole_lanes)(y * (lanes)power) & enough);
}

INLINE lanes larger(lanes a, lanes b) {
  const whole_lanes first = a > b;
  return (lanes)(((whole_lanes)a & first) | ((whole_lanes)b & ~first));
}

/* ── One head ────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
  int64_t queries, keys, depth;
  int causal;
  rows q, k, v, out, grad_out, grad_q, grad_k, grad_v;
  float* lse;
  int64_t lse_stride;
  float *scaled, *turned_k, *turned_v, *sums; /* q by the scale; k and v by tiles, each [depth x TILE]; the gradient of scaled */
} head;

static void clear(float* to, int64_t count) {
  memset(to, 0, (size_t)count * sizeof *to);
}

static void pack_queries(const head* h) {
  const float scale = 1 / sqrtf((float)h->depth);
  for (int64_t i = 0; i < h->queries; ++i) {
    for (int64_t d = 0; d < h->depth; ++d) h->scaled[i * h->depth + d] = scale * h->q.data[i * h->q.row + d];
  }
}

static void turn_tiles(float* to, rows from, int64_t count, int64_t depth) {
  for (int64_t tile = 0; tile < count; tile += TILE) {
    for (int64_t d = 0; d < depth; ++d) {
      for (int64_t i = 0; i < TILE; ++i) to[(tile * depth) + d * TILE + i] = from.data[(tile + i) * from.row + d];
    }
  }
}

/* Of the tiles of queries and keys that begin there. */
INLINE void scores_of(const head* h, int64_t query, int64_t key, float* scores) {
  clear(scores, TILE * TILE);
  multiply((rows){scores, TILE}, (left){h->scaled + query * h->depth, h->depth, 1}, (rows){h->turned_k + key * h->depth, TILE}, TILE,
           h->depth);
  if (!h->causal || query != key) return;
  for (int i = 0; i < TILE; ++i) {
    for (int j = i + 1; j < TILE; ++j) scores[i * TILE + j] = -1e30F;
  }
}

/* Scores become weights beside the largest score so far; out and sum, which were beside the last one, follow. */
INLINE void soften(float* scores, float* most, float* sum, float* out, int64_t depth) {
  for (int i = 0; i < TILE; ++i) {
    float* const row = scores + i * TILE;
    const lanes zero = {0};
    lanes largest = at(row), added = zero;
    for (int j = LANES; j < TILE; j += LANES) largest = larger(at(row + j), largest);
    float now = most[i];
    for (int l = 0; l < LANES; ++l) now = largest[l] > now ? largest[l] : now;
    for (int j = 0; j < TILE; j += LANES) {
      const lanes weights = quick_exp(at(row + j) - now);
      put(row + j, weights);
      added += weights;
    }
    const float by = expf(most[i] - now);
    sum[i] *= by;
    for (int l = 0; l < LANES; ++l) sum[i] += added[l];
    for (int64_t d = 0; d < depth; d += LANES) put(out + i * depth + d, at(out + i * depth + d) * by);
    most[i] = now;
  }
}

static void forward(const head* h) {
  float scores[TILE * TILE], out[TILE * ATTENTION_MOST_DEPTH], most[TILE], sum[TILE];
  pack_queries(h);
  turn_tiles(h->turned_k, h->k, h->keys, h->depth);
  for (int64_t query = 0; query < h->queries; query += TILE) {
    clear(out, TILE * h->depth);
    clear(sum, TILE);
    for (int i = 0; i < TILE; ++i) most[i] = -1e30F;
    for (int64_t key = 0; key < h->keys && (!h->causal || key <= query); key += TILE) {
      scores_of(h, query, key, scores);
      soften(scores, most, sum, out, h->depth);
      multiply((rows){out, h->depth}, (left){scores, TILE, 1}, (rows){h->v.data + key * h->v.row, h->v.row}, h->depth, TILE);
    }
    for (int i = 0; i < TILE; ++i) {
      h->lse[(query + i) * h->lse_stride] = most[i] + logf(sum[i]);
      for (int64_t d = 0; d < h->depth; ++d) h->out.data[(query + i) * h->out.row + d] = out[i * h->depth + d] / sum[i];
    }
  }
}

/* weights: from scores. grads: of weights, become those of scores. */
INLINE void grads_of_scores(const head* h, int64_t query, float* weights, float* grads) {
  for (int i = 0; i < TILE; ++i) {
    const float *const dy = h->grad_out.data + (query + i) * h->grad_out.row, *const y = h->out.data + (query + i) * h->out.row;
    const float lse = h->lse[(query + i) * h->lse_stride];
    const lanes zero = {0};
    lanes along = zero;
    float delta = 0;
    for (int64_t d = 0; d < h->depth; d += LANES) along += at(dy + d) * at(y + d);
    for (int l = 0; l < LANES; ++l) delta += along[l];
    for (int j = i * TILE; j < (i + 1) * TILE; j += LANES) {
      const lanes weight = quick_exp(at(weights + j) - lse);
      put(weights + j, weight);
      put(grads + j, weight * (at(grads + j) - delta));
    }
  }
}

static void backward(const head* h) {
  float weights[TILE * TILE], grads[TILE * TILE], grad_k[TILE * ATTENTION_MOST_DEPTH], grad_v[TILE * ATTENTION_MOST_DEPTH];
  const int64_t depth = h->depth;
  const float scale = 1 / sqrtf((float)depth);
  pack_queries(h);
  turn_tiles(h->turned_k, h->k, h->keys, depth);
  turn_tiles(h->turned_v, h->v, h->keys, depth);
  clear(h->sums, h->queries * depth);
  for (int64_t key = 0; key < h->keys; key += TILE) {
    clear(grad_k, TILE * depth);
    clear(grad_v, TILE * depth);
    for (int64_t query = h->causal ? key : 0; query < h->queries; query += TILE) {
      const rows grad_out = {h->grad_out.data + query * h->grad_out.row, h->grad_out.row};
      scores_of(h, query, key, weights);
      clear(grads, TILE * TILE);
      multiply((rows){grads, TILE}, (left){grad_out.data, grad_out.row, 1}, (rows){h->turned_v + key * depth, TILE}, TILE, depth);
      grads_of_scores(h, query, weights, grads);
      multiply((rows){grad_v, depth}, (left){weights, 1, TILE}, grad_out, depth, TILE);
      multiply((rows){grad_k, depth}, (left){grads, 1, TILE}, (rows){h->scaled + query * depth, depth}, depth, TILE);
      multiply((rows){h->sums + query * depth, depth}, (left){grads, TILE, 1}, (rows){h->k.data + key * h->k.row, h->k.row}, depth, TILE);
    }
    for (int64_t i = 0; i < TILE; ++i) {
      memcpy(h->grad_k.data + (key + i) * h->grad_k.row, grad_k + i * depth, (size_t)depth * sizeof(float));
      memcpy(h->grad_v.data + (key + i) * h->grad_v.row, grad_v + i * depth, (size_t)depth * sizeof(float));
    }
  }
  for (int64_t i = 0; i < h->queries; ++i) {
    for (int64_t d = 0; d < depth; ++d) h->grad_q.data[i * h->grad_q.row + d] = scale * h->sums[i * depth + d];
  }
}

/* ── A block ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static rows rows_of(const mdp_tensor* array, int64_t sequence, int64_t number) {
  if (array == NULL) return (rows){NULL, 0};
  return (rows){(float*)array->data + sequence * array->strides[0] + number * array->strides[2], array->strides[1]};
}

int32_t attention_block(void* user, const mdp_cp_block* block) {
  attention_memory* const memory = user;
  const int64_t queries = block->q->shape[1], keys = block->k->shape[1], depth = block->q->shape[3];
  const size_t wanted = (size_t)(2 * (queries + keys) * depth);
  if (queries % TILE || keys % TILE || depth % (2 * LANES) || depth > ATTENTION_MOST_DEPTH) return -1;
  if (wanted > memory->room) {
    free(memory->scratch);
    memory->scratch = malloc(wanted * sizeof(float));
    memory->room = memory->scratch ? wanted : 0;
    if (memory->scratch == NULL) return -1;
  }
  head h = {.queries = queries, .keys = keys, .depth = depth, .causal = block->mask == MDP_CP_MASK_CAUSAL};
  h.scaled = memory->scratch;
  h.sums = h.scaled + queries * depth;
  h.turned_k = h.sums + queries * depth;
  h.turned_v = h.turned_k + keys * depth;
  for (int64_t s = 0; s < block->q->shape[0]; ++s) {
    for (int64_t n = 0; n < block->q->shape[2]; ++n) {
      const rows lse = rows_of(block->lse, s, n);
      h.q = rows_of(block->q, s, n), h.k = rows_of(block->k, s, n), h.v = rows_of(block->v, s, n);
      h.out = rows_of(block->out, s, n), h.grad_out = rows_of(block->grad_out, s, n);
      h.grad_q = rows_of(block->grad_q, s, n), h.grad_k = rows_of(block->grad_k, s, n), h.grad_v = rows_of(block->grad_v, s, n);
      h.lse = lse.data, h.lse_stride = lse.row;
      if (block->grad_out == NULL) forward(&h);
      if (block->grad_out != NULL) backward(&h);
    }
  }
  return 0;
}
