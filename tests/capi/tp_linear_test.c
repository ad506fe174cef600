/* SPDX-License-Identifier: Apache-2.0
 * Linear layers cut over tensor-parallel ranks: every combination of split, sequence, gathered output, whole input, bias, transposed
 * weight, fused blocks, layout and type, forward and backward, against the whole layer computed in double; the acceptance vectors; weights
 * in a buffer; saved inputs; what is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tp.h"

enum {
  MOST = 4,
  BATCH = 2
};
static struct { /* of the whole layers; set while no rank runs */
  int64_t seq, in, out;
} sizes = {12, 24, 12};

/* Small multiples of 1/4: products and sums are exact in f32, and so the same however they are cut. */
static double small(int64_t a, int64_t b, int64_t salt) {
  return (double)((a * 7 + b * 3 + salt * 5) % 9 - 4) / 4;
}

typedef struct {
  mdp_tp_split split;
  uint64_t flags;
  mdp_tp_grad grad;
  int64_t blocks[3];
  uint64_t block_count;
  mdp_dtype dtype;
  tp_layout layout;
} way;

/* Feature `local` of this rank's part, in the whole of the cut dimension. */
static int64_t whole_feature(const way* w, const tp_rank* r, int64_t features, int64_t local) {
  const int64_t one[] = {features};
  const int64_t* blocks = w->block_count > 0 ? w->blocks : one;
  int64_t begin = 0;
  for (;; ++blocks) {
    const int64_t part = *blocks / r->size;
    if (local < part) return begin + r->rank * part + local;
    local -= part;
    begin += *blocks;
  }
}

static int has(const way* w, uint64_t flag) {
  return (w->flags & flag) != 0;
}

typedef struct { /* what one rank sees */
  int64_t x_shape[3], y_shape[3];
  int64_t x_seq, y_seq; /* where its part of the sequence begins */
  int x_cut, y_cut;     /* whether its features are this rank's part */
} view;

static view view_of(const way* w, const tp_rank* r) {
  const int column = w->split == MDP_TP_COLUMN, sequence = has(w, MDP_TP_LINEAR_SEQUENCE);
  view v = {{sizes.seq, BATCH, sizes.in}, {sizes.seq, BATCH, sizes.out}, 0, 0, 0, 0};
  v.x_cut = !column && !has(w, MDP_TP_LINEAR_WHOLE_INPUT);
  v.y_cut = column && !has(w, MDP_TP_LINEAR_GATHER_OUTPUT);
  if (v.x_cut) v.x_shape[2] = sizes.in / r->size;
  if (v.y_cut) v.y_shape[2] = sizes.out / r->size;
  if (sequence && column) {
    v.x_shape[0] = sizes.seq / r->size;
    v.x_seq = r->rank * v.x_shape[0];
  } else if (sequence) {
    v.y_shape[0] = sizes.seq / r->size;
    v.y_seq = r->rank * v.y_shape[0];
  }
  return v;
}

static double x_at(int64_t s, int64_t b, int64_t i) {
  return small(s * BATCH + b, i, 1);
}
static double w_at(int64_t o, int64_t i) {
  return small(o, i, 2);
}
static double b_at(int64_t o) {
  return small(o, 3, 3);
}
/* The gradient of y that comes back, of all ranks together; and the part of it that this rank has, if it is partial: shares of a sum. */
static double dy_at(int64_t s, int64_t b, int64_t o) {
  return small(s * BATCH + b, o, 4);
}
static double dy_share(const way* w, const tp_rank* r, int64_t s, int64_t b, int64_t o) {
  const int replicated = w->split == MDP_TP_ROW ? !has(w, MDP_TP_LINEAR_SEQUENCE) : has(w, MDP_TP_LINEAR_GATHER_OUTPUT);
  if (w->grad != MDP_TP_GRAD_PARTIAL || r->size == 1 || !replicated) return dy_at(s, b, o);
  const double share = small(s + b, o, r->rank + 10);
  if (r->rank + 1 < r->size) return share;
  double rest = dy_at(s, b, o);
  for (int32_t k = 0; k + 1 < r->size; ++k) rest -= small(s + b, o, k + 10);
  return rest;
}

static double y_whole(int64_t s, int64_t b, int64_t o, int biased) {
  double sum = 0;
  for (int64_t i = 0; i < sizes.in; ++i) sum += x_at(s, b, i) * w_at(o, i);
  return sum + (biased ? b_at(o) : 0);
}
static double dx_whole(int64_t s, int64_t b, int64_t i) {
  double sum = 0;
  for (int64_t o = 0; o < sizes.out; ++o) sum += dy_at(s, b, o) * w_at(o, i);
  return sum;
}
static double dw_whole(int64_t o, int64_t i) {
  double sum = 0;
  for (int64_t s = 0; s < sizes.seq; ++s) {
    for (int64_t b = 0; b < BATCH; ++b) sum += dy_at(s, b, o) * x_at(s, b, i);
  }
  return sum;
}
static double db_whole(int64_t o, int64_t from, int64_t to) {
  double sum = 0;
  for (int64_t s = from; s < to; ++s) {
    for (int64_t b = 0; b < BATCH; ++b) sum += dy_at(s, b, o);
  }
  return sum;
}

/* bf16: partial sums and the sum are rounded, each by at most 2^-8 of the largest number about. */
static int near(double got, double wanted, mdp_dtype dtype) {
  return dtype == MDP_DTYPE_BF16 ? fabs(got - wanted) <= 0.15 : got == wanted;
}

/* The index of a weight of this rank, wherever it lies. */
static const int64_t* weight_index(const way* w, int64_t o, int64_t i, int64_t* at) {
  const int turned = has(w, MDP_TP_LINEAR_TRANSPOSED);
  at[turned ? 1 : 0] = o;
  at[turned ? 0 : 1] = i;
  return at;
}

typedef struct {
  int64_t in, out; /* this rank's part */
} local;

static local local_of(const way* w, const tp_rank* r) {
  const int column = w->split == MDP_TP_COLUMN;
  return (local){column ? sizes.in : sizes.in / r->size, column ? sizes.out / r->size : sizes.out};
}

static int64_t in_whole(const way* w, const tp_rank* r, int64_t i) {
  return w->split == MDP_TP_ROW ? whole_feature(w, r, sizes.in, i) : i;
}
static int64_t out_whole(const way* w, const tp_rank* r, int64_t o) {
  return w->split == MDP_TP_COLUMN ? whole_feature(w, r, sizes.out, o) : o;
}

static void fill_input(const way* w, const tp_rank* r, const view* v, const tp_array* x) {
  int64_t at[3];
  for (at[0] = 0; at[0] < v->x_shape[0]; ++at[0]) {
    for (at[1] = 0; at[1] < BATCH; ++at[1]) {
      for (at[2] = 0; at[2] < v->x_shape[2]; ++at[2]) {
        tp_set(x, at, (float)x_at(v->x_seq + at[0], at[1], v->x_cut ? whole_feature(w, r, sizes.in, at[2]) : at[2]));
      }
    }
  }
}

static void fill_weight(const way* w, const tp_rank* r, const tp_array* weight, const tp_array* bias) {
  const local part = local_of(w, r);
  int64_t at[2];
  for (int64_t o = 0; o < part.out; ++o) {
    for (int64_t i = 0; i < part.in; ++i) {
      tp_set(weight, weight_index(w, o, i, at), (float)w_at(out_whole(w, r, o), in_whole(w, r, i)));
    }
    tp_set(bias, &o, (float)b_at(out_whole(w, r, o)));
  }
}

static int wrong_outputs(const way* w, const tp_rank* r, const view* v, const tp_array* y) {
  int wrong = 0;
  int64_t at[3];
  for (at[0] = 0; at[0] < v->y_shape[0]; ++at[0]) {
    for (at[1] = 0; at[1] < BATCH; ++at[1]) {
      for (at[2] = 0; at[2] < v->y_shape[2]; ++at[2]) {
        const int64_t o = v->y_cut ? whole_feature(w, r, sizes.out, at[2]) : at[2];
        wrong += !near(tp_get(y, at), y_whole(v->y_seq + at[0], at[1], o, has(w, MDP_TP_LINEAR_BIAS)), w->dtype);
      }
    }
  }
  return wrong;
}

static void fill_grad_output(const way* w, const tp_rank* r, const view* v, const tp_array* dy) {
  int64_t at[3];
  for (at[0] = 0; at[0] < v->y_shape[0]; ++at[0]) {
    for (at[1] = 0; at[1] < BATCH; ++at[1]) {
      for (at[2] = 0; at[2] < v->y_shape[2]; ++at[2]) {
        const int64_t o = v->y_cut ? whole_feature(w, r, sizes.out, at[2]) : at[2];
        tp_set(dy, at, (float)dy_share(w, r, v->y_seq + at[0], at[1], o));
      }
    }
  }
}

static int wrong_grad_inputs(const way* w, const tp_rank* r, const view* v, const tp_array* dx) {
  int wrong = 0;
  int64_t at[3];
  for (at[0] = 0; at[0] < v->x_shape[0]; ++at[0]) {
    for (at[1] = 0; at[1] < BATCH; ++at[1]) {
      for (at[2] = 0; at[2] < v->x_shape[2]; ++at[2]) {
        const int64_t i = v->x_cut ? whole_feature(w, r, sizes.in, at[2]) : at[2];
        wrong += !near(tp_get(dx, at), dx_whole(v->x_seq + at[0], at[1], i), w->dtype);
      }
    }
  }
  return wrong;
}

/* times: how often the gradient was added up. */
static int wrong_weights(const way* w, const tp_rank* r, const view* v, const tp_array* dw, const tp_array* db, int times) {
  const local part = local_of(w, r);
  const int cut_bias = w->split == MDP_TP_ROW && has(w, MDP_TP_LINEAR_SEQUENCE);
  int wrong = 0;
  int64_t at[2];
  for (int64_t o = 0; o < part.out; ++o) {
    for (int64_t i = 0; i < part.in; ++i) {
      const double wanted = times * dw_whole(out_whole(w, r, o), in_whole(w, r, i));
      wrong += !near(tp_get(dw, weight_index(w, o, i, at)), wanted, w->dtype);
    }
    if (!has(w, MDP_TP_LINEAR_BIAS)) continue;
    const double wanted = times * (cut_bias ? db_whole(o, v->y_seq, v->y_seq + v->y_shape[0]) : db_whole(out_whole(w, r, o), 0, sizes.seq));
    wrong += !near(tp_get(db, &o), wanted, w->dtype);
  }
  return wrong;
}

static mdp_tp_linear_config config_of(const way* w) {
  SIZED(mdp_tp_linear_config, config);
  config.split = w->split;
  config.in_features = sizes.in;
  config.out_features = sizes.out;
  config.blocks = w->block_count > 0 ? w->blocks : NULL;
  config.block_count = w->block_count;
  config.dtype = w->dtype;
  config.grad = w->grad;
  config.flags = w->flags;
  return config;
}

static void report(int wrong, const char* what, const way* w, const tp_rank* r) {
  if (CHECK(wrong == 0)) return;
  printf("rank %d of %d, split %u flags %u grad %u blocks %u dtype %u layout %u: %d wrong %s\n", r->rank, r->size, w->split,
         (unsigned)w->flags, w->grad, (unsigned)w->block_count, w->dtype, (unsigned)w->layout, wrong, what);
}

/* The caller's own arrays. */
static void one(tp_rank* r, const way* w) {
  const mdp_tp_linear_config config = config_of(w);
  mdp_tp_linear* layer = NULL;
  OK(mdp_tp_linear_create(r->comm, &config, &layer));
  if (layer == NULL) return;
  const view v = view_of(w, r);
  const local part = local_of(w, r);
  int64_t weight_shape[] = {part.out, part.in};
  if (has(w, MDP_TP_LINEAR_TRANSPOSED)) weight_shape[0] = part.in, weight_shape[1] = part.out;
  const int biased = has(w, MDP_TP_LINEAR_BIAS);
  tp_array x, y, dx, dy, weight, bias, dw, db;
  tp_reset(r);
  tp_take(r, &x, w->dtype, w->layout, 3, v.x_shape);
  tp_take(r, &dx, w->dtype, w->layout, 3, v.x_shape);
  tp_take(r, &y, w->dtype, w->layout, 3, v.y_shape);
  tp_take(r, &dy, w->dtype, w->layout, 3, v.y_shape);
  tp_take(r, &weight, w->dtype, w->layout, 2, weight_shape);
  tp_take(r, &dw, MDP_DTYPE_F32, w->layout, 2, weight_shape);
  tp_take(r, &bias, w->dtype, w->layout, 1, &part.out);
  tp_take(r, &db, MDP_DTYPE_F32, w->layout, 1, &part.out);
  fill_input(w, r, &v, &x);
  fill_weight(w, r, &weight, &bias);
  mdp_tp_saved* saved = NULL;
  OK(mdp_tp_linear_fwd(layer, &x.tensor, &weight.tensor, biased ? &bias.tensor : NULL, &y.tensor, NULL, &saved));
  tp_settle(r);
  report(wrong_outputs(w, r, &v, &y), "outputs", w, r);
  fill_grad_output(w, r, &v, &dy);
  /* Once from what was saved, and again, added, from the caller's input. */
  const mdp_tensor* const grad_bias = biased ? &db.tensor : NULL;
  OK(mdp_tp_linear_bwd(layer, saved, NULL, &weight.tensor, &dy.tensor, &dx.tensor, &dw.tensor, grad_bias, 0, NULL));
  tp_settle(r);
  report(wrong_grad_inputs(w, r, &v, &dx), "gradients of the input", w, r);
  report(wrong_weights(w, r, &v, &dw, &db, 1), "gradients of the weight", w, r);
  OK(mdp_tp_linear_bwd(layer, NULL, &x.tensor, &weight.tensor, &dy.tensor, NULL, &dw.tensor, grad_bias, MDP_GRAD_ADD, NULL));
  tp_settle(r);
  report(wrong_weights(w, r, &v, &dw, &db, 2), "gradients of the weight, added", w, r);
  /* A frozen weight needs no input. */
  OK(mdp_tp_linear_bwd(layer, NULL, NULL, &weight.tensor, &dy.tensor, &dx.tensor, NULL, NULL, 0, NULL));
  tp_settle(r);
  report(wrong_grad_inputs(w, r, &v, &dx), "gradients of the input alone", w, r);
  mdp_tp_saved_free(saved);
  mdp_tp_linear_destroy(layer);
}

static void all_ways(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 17);
  for (int split = 0; split < 2; ++split) {
    for (uint64_t flags = 0; flags < 32; ++flags) {
      const int column = split == 0;
      if (column && (flags & MDP_TP_LINEAR_WHOLE_INPUT) != 0) continue;
      if (!column && (flags & MDP_TP_LINEAR_GATHER_OUTPUT) != 0) continue;
      if ((flags & MDP_TP_LINEAR_WHOLE_INPUT) != 0 && (flags & MDP_TP_LINEAR_SEQUENCE) != 0) continue;
      for (int variant = 0; variant < 6; ++variant) {
        way w = {column ? MDP_TP_COLUMN : MDP_TP_ROW, flags, MDP_TP_GRAD_REPLICATED, {0}, 0, MDP_DTYPE_F32, DENSE};
        w.layout = (tp_layout)(variant % TP_LAYOUTS);
        if (variant % 2 == 1) w.grad = MDP_TP_GRAD_PARTIAL;
        if (variant >= 3 && n != 3) w.dtype = MDP_DTYPE_BF16;
        if (variant >= 2 && n != 4) { /* as q, k and v of grouped-query attention */
          w.block_count = 3;
          w.blocks[0] = column ? 6 : 12;
          w.blocks[1] = w.blocks[2] = column ? 3 : 6;
          if (n == 2) w.blocks[0] = column ? 8 : 12, w.blocks[1] = column ? 2 : 8, w.blocks[2] = column ? 2 : 4;
        }
        one(&r, &w);
      }
    }
  }
  tp_close(&r);
}

/* So large that on a device what moves between the ranks is cut into two chunks, the last of them shorter: of 17 MiB. */
static void large_ways(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int row = *(const int*)argument / 2, sequence = *(const int*)argument % 2;
  tp_rank r = tp_open(id, rank, n, (size_t)60 << 20);
  way w = {row ? MDP_TP_ROW : MDP_TP_COLUMN, MDP_TP_LINEAR_BIAS, MDP_TP_GRAD_REPLICATED, {0}, 0, MDP_DTYPE_F32, DENSE};
  if (sequence) w.flags |= MDP_TP_LINEAR_SEQUENCE;
  one(&r, &w);
  w.layout = PADDED;
  if (sequence) one(&r, &w);
  tp_close(&r);
}

static void large(void** state) {
  (void)state;
  for (int which = 0; which < 4; ++which) {
    const int64_t rows = which % 2 == 1 ? 2200 : 1100, many = which % 2 == 1 ? 2048 : 4096;
    sizes.seq = rows / BATCH;
    sizes.in = which / 2 == 1 ? 2 : many;
    sizes.out = which / 2 == 1 ? many : 2;
    run_ranks(2, large_ways, &which);
  }
  sizes.seq = 12, sizes.in = 24, sizes.out = 12;
}

static void every_way(void** state) {
  (void)state;
  for (int32_t n = 1; n <= MOST; ++n) run_ranks(n, all_ways, NULL);
}

static void vector_39(tp_rank* r) {
  const float weights[4][2] = {{1, 2}, {3, 4}, {5, 6}, {7, 8}};
  const int64_t in[] = {1, 2}, out[] = {1, 2}, whole[] = {1, 4}, square[] = {2, 2};
  tp_array x, w, y, all, dx;
  tp_reset(r);
  tp_take(r, &x, MDP_DTYPE_F32, DENSE, 2, in);
  tp_take(r, &w, MDP_DTYPE_F32, DENSE, 2, square);
  tp_take(r, &y, MDP_DTYPE_F32, DENSE, 2, out);
  tp_take(r, &all, MDP_DTYPE_F32, DENSE, 2, whole);
  tp_take(r, &dx, MDP_DTYPE_F32, DENSE, 2, in);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t at[] = {0, i};
    tp_set(&x, at, (float)(i + 1));
    for (int64_t o = 0; o < 2; ++o) {
      const int64_t place[] = {o, i};
      tp_set(&w, place, weights[2 * r->rank + o][i]);
    }
  }
  SIZED(mdp_tp_linear_config, config);
  config.split = MDP_TP_COLUMN;
  config.in_features = 2;
  config.out_features = 4;
  mdp_tp_linear *layer = NULL, *gathers = NULL;
  OK(mdp_tp_linear_create(r->comm, &config, &layer));
  config.flags = MDP_TP_LINEAR_GATHER_OUTPUT;
  config.grad = MDP_TP_GRAD_REPLICATED;
  OK(mdp_tp_linear_create(r->comm, &config, &gathers));
  OK(mdp_tp_linear_fwd(layer, &x.tensor, &w.tensor, NULL, &y.tensor, NULL, NULL));
  OK(mdp_tp_linear_fwd(gathers, &x.tensor, &w.tensor, NULL, &all.tensor, NULL, NULL));
  tp_settle(r);
  const float wanted[] = {5, 11, 17, 23}, gradient[] = {16, 20};
  for (int64_t o = 0; o < 4; ++o) {
    const int64_t at[] = {0, o}, own[] = {0, o % 2};
    CHECK(tp_get(&all, at) == wanted[o]);
    if (o / 2 == r->rank) CHECK(tp_get(&y, own) == wanted[o]);
  }
  for (int64_t o = 0; o < 2; ++o) {
    const int64_t at[] = {0, o};
    tp_set(&y, at, 1); /* dY */
  }
  OK(mdp_tp_linear_bwd(layer, NULL, NULL, &w.tensor, &y.tensor, &dx.tensor, NULL, NULL, 0, NULL));
  tp_settle(r);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t at[] = {0, i};
    CHECK(tp_get(&dx, at) == gradient[i]);
  }
  mdp_tp_linear_destroy(layer);
  mdp_tp_linear_destroy(gathers);
}

static void vector_40(tp_rank* r) {
  const float weights[] = {1, 10, 100, 1000};
  const int64_t in[] = {1, 2}, out[] = {1, 1}, one_bias = 1, first[] = {0, 0}, zero = 0;
  tp_array x, w, b, y, dx;
  tp_reset(r);
  tp_take(r, &x, MDP_DTYPE_F32, DENSE, 2, in);
  tp_take(r, &w, MDP_DTYPE_F32, DENSE, 2, in);
  tp_take(r, &b, MDP_DTYPE_F32, DENSE, 1, &one_bias);
  tp_take(r, &y, MDP_DTYPE_F32, DENSE, 2, out);
  tp_take(r, &dx, MDP_DTYPE_F32, DENSE, 2, in);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t at[] = {0, i};
    tp_set(&x, at, (float)(2 * r->rank + i + 1));
    tp_set(&w, at, weights[2 * r->rank + i]);
  }
  tp_set(&b, &zero, 5);
  SIZED(mdp_tp_linear_config, config);
  config.split = MDP_TP_ROW;
  config.in_features = 4;
  config.out_features = 1;
  config.flags = MDP_TP_LINEAR_BIAS;
  config.grad = MDP_TP_GRAD_REPLICATED;
  mdp_tp_linear* layer = NULL;
  OK(mdp_tp_linear_create(r->comm, &config, &layer));
  OK(mdp_tp_linear_fwd(layer, &x.tensor, &w.tensor, &b.tensor, &y.tensor, NULL, NULL));
  tp_settle(r);
  CHECK(tp_get(&y, first) == 4326);
  tp_set(&y, first, 1);
  OK(mdp_tp_linear_bwd(layer, NULL, NULL, &w.tensor, &y.tensor, &dx.tensor, NULL, NULL, 0, NULL));
  tp_settle(r);
  for (int64_t i = 0; i < 2; ++i) {
    const int64_t at[] = {0, i};
    CHECK(tp_get(&dx, at) == weights[2 * r->rank + i]);
  }
  mdp_tp_linear_destroy(layer);
}

/* Which rows of the whole a rank's rows are: a bias that tells them, and the output gathered. */
static void rows_of_blocks(tp_rank* r, const int64_t* blocks, uint64_t count, const float* rows) {
  int64_t whole = 0;
  for (uint64_t i = 0; i < count; ++i) whole += blocks[i];
  const int64_t part = whole / r->size, x_shape[] = {1, 1}, y_shape[] = {1, whole}, w_shape[] = {part, 1}, first[] = {0, 0};
  tp_array x, w, b, y;
  tp_reset(r);
  tp_take(r, &x, MDP_DTYPE_F32, DENSE, 2, x_shape);
  tp_take(r, &w, MDP_DTYPE_F32, DENSE, 2, w_shape);
  tp_take(r, &b, MDP_DTYPE_F32, DENSE, 1, &part);
  tp_take(r, &y, MDP_DTYPE_F32, DENSE, 2, y_shape);
  tp_set(&x, first, 1);
  for (int64_t i = 0; i < part; ++i) {
    const int64_t at[] = {i, 0};
    tp_set(&w, at, 0);
    tp_set(&b, &i, rows[r->rank * part + i]);
  }
  SIZED(mdp_tp_linear_config, config);
  config.split = MDP_TP_COLUMN;
  config.in_features = 1;
  config.out_features = whole;
  config.blocks = blocks;
  config.block_count = count;
  config.flags = MDP_TP_LINEAR_BIAS | MDP_TP_LINEAR_GATHER_OUTPUT;
  config.grad = MDP_TP_GRAD_REPLICATED;
  mdp_tp_linear* layer = NULL;
  OK(mdp_tp_linear_create(r->comm, &config, &layer));
  OK(mdp_tp_linear_fwd(layer, &x.tensor, &w.tensor, &b.tensor, &y.tensor, NULL, NULL));
  tp_settle(r);
  for (int64_t i = 0; i < whole; ++i) {
    const int64_t at[] = {0, i};
    CHECK(tp_get(&y, at) == (float)i);
  }
  mdp_tp_linear_destroy(layer);
}

/* Where a shard_stride of 2 or 3 puts rows: equal blocks, each cut by itself. */
static void vector_42(tp_rank* r) {
  const int64_t two[] = {4, 4}, three[] = {4, 4, 4}, seven[] = {7};
  const float of_two[] = {0, 1, 4, 5, 2, 3, 6, 7}, of_three[] = {0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11};
  rows_of_blocks(r, two, 2, of_two);
  rows_of_blocks(r, three, 3, of_three);
  SIZED(mdp_tp_linear_config, config);
  config.split = MDP_TP_COLUMN;
  config.in_features = 1;
  config.out_features = 7;
  config.blocks = seven;
  config.block_count = 1;
  mdp_tp_linear* layer = NULL;
  FAILS(MDP_E_INVALID, "is 7, which 2 ranks cannot share evenly; 6 or 8 would do", mdp_tp_linear_create(r->comm, &config, &layer));
}

/* ── what a saved input takes, as the system counts it ── */

/* Of this process, which all ranks are threads of, while none of them goes on. */
static long resident_kb(const tp_rank* r) {
  OK(mdp_barrier(r->comm, NULL));
  FILE* const file = fopen("/proc/self/smaps_rollup", "r");
  char line[128];
  long kb = -1;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "Anonymous: %ld kB", &kb) == 1) break;
  }
  if (file != NULL) (void)fclose(file);
  OK(mdp_barrier(r->comm, NULL));
  return kb;
}

/* 32 inputs of 1 MiB, with sequence parallelism of so much less. */
static void memory_of_saved(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  (void)rank;
  tp_rank r = tp_open(id, rank, n, 4 << 20);
  const int64_t features = 512, part = features / n, rows = 512;
  for (int sequence = 0; sequence < 2; ++sequence) {
    const int64_t own = sequence ? rows / n : rows, x_shape[] = {own, features}, w_shape[] = {part, features}, y_shape[] = {rows, part};
    tp_array x, w, y;
    tp_reset(&r);
    tp_take(&r, &x, MDP_DTYPE_F32, DENSE, 2, x_shape);
    tp_take(&r, &w, MDP_DTYPE_F32, DENSE, 2, w_shape);
    tp_take(&r, &y, MDP_DTYPE_F32, DENSE, 2, y_shape);
    memset(x.tensor.data, 0, (size_t)(own * features) * sizeof(float));
    memset(w.tensor.data, 0, (size_t)(part * features) * sizeof(float));
    SIZED(mdp_tp_linear_config, config);
    config.split = MDP_TP_COLUMN;
    config.in_features = config.out_features = features;
    config.flags = sequence ? MDP_TP_LINEAR_SEQUENCE : 0;
    mdp_tp_linear* layer = NULL;
    mdp_tp_saved* saved[33];
    OK(mdp_tp_linear_create(r.comm, &config, &layer));
    long before = 0;
    for (int i = 0; i < 33; ++i) {
      OK(mdp_tp_linear_fwd(layer, &x.tensor, &w.tensor, NULL, &y.tensor, NULL, &saved[i]));
      if (i == 0) before = resident_kb(&r); /* with all that the layer and the library for products keep */
    }
    const double taken = (double)(resident_kb(&r) - before), formula = 32.0 * (double)(n * own * features) * sizeof(float) / 1024;
    if (before < 0 || taken < 0.95 * formula || taken > 1.05 * formula) {
      fprintf(stderr, "rank %d of %d, sequence %d: 32 saved inputs take %.0f kB, and %.0f are meant\n", rank, n, sequence, taken, formula);
      CHECK(0);
    }
    for (int i = 0; i < 33; ++i) mdp_tp_saved_free(saved[i]);
    mdp_tp_linear_destroy(layer);
  }
  tp_close(&r);
}

static void saved_memory(void** state) {
  (void)state;
  if (on_cuda) SKIP("a device's memory is not the system's");
  if (UNDER_SANITIZER) SKIP("a sanitizer keeps memory that was freed");
  for (int32_t n = 1; n <= MOST; n *= 2) run_ranks(n, memory_of_saved, NULL);
}

static void two_ranks(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  vector_39(&r);
  vector_40(&r);
  vector_42(&r);
  tp_close(&r);
}

static void vectors(void** state) {
  (void)state;
  run_ranks(2, two_ranks, NULL);
}

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_way), TEST(large), TEST(vectors), TEST(saved_memory)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
