/* SPDX-License-Identifier: Apache-2.0
 * A vocabulary cut over tensor-parallel ranks: cross-entropy and its gradient against the whole one in double and its finite differences,
 * embeddings against the whole table, on 1 to 4 ranks, with every setting, type and layout; the acceptance vectors; what is refused. */
#include <math.h>
#include <string.h>

#include "tp.h"

enum {
  TOKENS = 3,
  BATCH = 2,
  COLUMNS = 5, /* of each rank */
  MOST = 4,
  FEATURES = 3,
  ROWS = 12
};

typedef struct {
  mdp_dtype dtype;
  tp_layout layout;
  int64_t padding; /* columns */
  int ignores;
  double smoothing, z;
  float offset; /* of all logits */
} way;

static float rounded(const way* w, float x) {
  return w->dtype == MDP_DTYPE_BF16 ? to_bf16(x) : x;
}
static float logit(const way* w, int64_t token, int64_t v) {
  return rounded(w, w->offset + (float)((token * 31 + v * 17) % 23) / 4 - 2);
}
static int64_t target_of(int64_t token, int64_t classes) {
  return (token * 5 + 1) % classes;
}
static int ignored(const way* w, int64_t token) {
  return w->ignores && token % 3 == 1;
}

/* With `moved` of logits raised by `by`. */
static double whole_loss(const way* w, int64_t token, int64_t classes, int64_t moved, double by) {
  if (ignored(w, token)) return 0;
  double x[MOST * COLUMNS], most = -INFINITY, sum = 0, loss = 0;
  for (int64_t v = 0; v < classes; ++v) {
    x[v] = (double)logit(w, token, v) + (v == moved ? by : 0);
    most = fmax(most, x[v]);
  }
  for (int64_t v = 0; v < classes; ++v) sum += exp(x[v] - most);
  const double all = most + log(sum);
  for (int64_t v = 0; v < classes; ++v) {
    const double q = v == target_of(token, classes) ? 1 - w->smoothing : w->smoothing / (double)(classes - 1);
    loss += q * (all - x[v]);
  }
  return loss + w->z * all * all;
}

static void near(double got, double wanted, double most, const char* what, int64_t token) {
  if (fabs(got - wanted) <= most * (1 + fabs(wanted))) return;
  fprintf(stderr, "%s of token %d: %.9g, wanted %.9g\n", what, (int)token, got, wanted);
  CHECK(0);
}

static mdp_tp_cross_entropy_config config_of(const way* w, int64_t classes) {
  SIZED(mdp_tp_cross_entropy_config, config);
  config.classes = w->padding > 0 ? classes : 0;
  config.label_smoothing = w->smoothing;
  config.z_loss = w->z;
  if (w->ignores) {
    config.flags = MDP_TP_CROSS_ENTROPY_IGNORE;
    config.ignore_index = -100;
  }
  return config;
}

static void one_way(tp_rank* r, const way* w) {
  const int64_t classes = COLUMNS * r->size - w->padding;
  const int64_t shape[] = {TOKENS, BATCH, COLUMNS}, tokens[] = {TOKENS, BATCH}, sums[] = {TOKENS, BATCH, 2};
  tp_array x, t, losses, saved, dlosses, dx;
  tp_reset(r);
  tp_take(r, &x, w->dtype, w->layout, 3, shape);
  tp_take(r, &t, MDP_DTYPE_I64, w->layout, 2, tokens);
  tp_take(r, &losses, MDP_DTYPE_F32, w->layout, 2, tokens);
  tp_take(r, &saved, MDP_DTYPE_F32, w->layout, 3, sums);
  tp_take(r, &dlosses, MDP_DTYPE_F32, w->layout, 2, tokens);
  tp_take(r, &dx, w->dtype, w->layout, 3, shape);
  for (int64_t token = 0; token < TOKENS * BATCH; ++token) {
    const int64_t at[] = {token / BATCH, token % BATCH};
    tp_set(&t, at, ignored(w, token) ? -100.0F : (float)target_of(token, classes));
    tp_set(&dlosses, at, 2);
    for (int64_t c = 0; c < COLUMNS; ++c) {
      const int64_t v = r->rank * COLUMNS + c, element[] = {at[0], at[1], c};
      tp_set(&x, element, v < classes ? logit(w, token, v) : 1000.0F); /* what is padding does not count */
    }
  }
  const mdp_tp_cross_entropy_config config = config_of(w, classes);
  OK(mdp_tp_cross_entropy_fwd(r->comm, &config, &x.tensor, &t.tensor, &losses.tensor, &saved.tensor, NULL));
  for (int twice = 0; twice < 2; ++twice) { /* the second time into the logits */
    const tp_array* const to = twice ? &x : &dx;
    OK(mdp_tp_cross_entropy_bwd(r->comm, &config, &x.tensor, &t.tensor, &saved.tensor, &dlosses.tensor, &to->tensor, NULL));
    tp_settle(r);
    for (int64_t token = 0; token < TOKENS * BATCH; ++token) {
      const int64_t at[] = {token / BATCH, token % BATCH};
      near(tp_get(&losses, at), whole_loss(w, token, classes, -1, 0), 1e-6, "the loss", token);
      for (int64_t c = 0; c < COLUMNS; ++c) {
        const int64_t v = r->rank * COLUMNS + c, element[] = {at[0], at[1], c};
        const double step = 1e-5;
        const double slope = (whole_loss(w, token, classes, v, step) - whole_loss(w, token, classes, v, -step)) / (2 * step);
        near(tp_get(to, element), v < classes ? 2 * slope : 0, w->dtype == MDP_DTYPE_BF16 ? 1e-2 : 2e-5, "the gradient", token);
        if (!twice && v < classes) CHECK(tp_get(&x, element) == logit(w, token, v));
      }
    }
  }
}

static void ways_of_a_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 14);
  for (int settings = 0; settings < 32; ++settings) {
    way w = {.padding = settings & 1 ? 7 % (COLUMNS * n) : 0, .ignores = (settings & 2) != 0, .smoothing = settings & 4 ? 0.1 : 0};
    w.z = settings & 8 ? 0.01 : 0;
    w.offset = settings & 16 ? 100 : 0;
    if (COLUMNS * n - w.padding < 2) w.padding = 3;
    for (w.layout = DENSE; w.layout < TP_LAYOUTS; ++w.layout) {
      w.dtype = MDP_DTYPE_F32;
      one_way(&r, &w);
      w.dtype = MDP_DTYPE_BF16;
      one_way(&r, &w);
    }
  }
  tp_close(&r);
}

static void every_way(void** state) {
  (void)state;
  for (int32_t n = 1; n <= MOST; ++n) run_ranks(n, ways_of_a_rank, NULL);
}

/* ── what masks and overflow do ── */

static void extremes_of_a_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 14);
  enum {
    CASES = 5
  };
  const int64_t shape[] = {CASES, COLUMNS}, tokens[] = {CASES}, sums[] = {CASES, 2};
  tp_array x, t, losses, saved, dlosses, dx;
  tp_take(&r, &x, MDP_DTYPE_F32, DENSE, 2, shape);
  tp_take(&r, &t, MDP_DTYPE_I64, DENSE, 1, tokens);
  tp_take(&r, &losses, MDP_DTYPE_F32, DENSE, 1, tokens);
  tp_take(&r, &saved, MDP_DTYPE_F32, DENSE, 2, sums);
  tp_take(&r, &dlosses, MDP_DTYPE_F32, DENSE, 1, tokens);
  tp_take(&r, &dx, MDP_DTYPE_F32, DENSE, 2, shape);
  for (int64_t token = 0; token < CASES; ++token) {
    tp_set(&t, &token, token == 4 ? (float)(COLUMNS * n - 1) : 0);
    tp_set(&dlosses, &token, 1);
    for (int64_t c = 0; c < COLUMNS; ++c) {
      const int64_t at[] = {token, c};
      const int first = rank == 0 && c == 0;
      /* All of the other ranks masked out; far apart; one NaN; all so large that their exponentials overflow; all but one masked out,
       * also the target. */
      const float values[] = {rank == 0 ? 1.0F : -INFINITY, first ? 0 : 30000.0F, first ? NAN : 1.0F, 3e38F, first ? 1.0F : -INFINITY};
      tp_set(&x, at, values[token]);
    }
  }
  const int64_t token[] = {0, 1, 2, 3, 4};
  SIZED(mdp_tp_cross_entropy_config, config);
  config.label_smoothing = 0.1;
  OK(mdp_tp_cross_entropy_fwd(r.comm, &config, &x.tensor, &t.tensor, &losses.tensor, NULL, NULL));
  tp_settle(&r);
  CHECK(tp_get(&losses, &token[4]) == INFINITY); /* as all that has probability and no chance */
  config.label_smoothing = 0;
  OK(mdp_tp_cross_entropy_fwd(r.comm, &config, &x.tensor, &t.tensor, &losses.tensor, &saved.tensor, NULL));
  OK(mdp_tp_cross_entropy_bwd(r.comm, &config, &x.tensor, &t.tensor, &saved.tensor, &dlosses.tensor, &dx.tensor, NULL));
  tp_settle(&r);
  const double others = COLUMNS * n - 1;
  near(tp_get(&losses, &token[0]), log(COLUMNS), 1e-6, "the loss", 0);
  near(tp_get(&losses, &token[1]), 30000 + log(others), 1e-6, "the loss", 1);
  CHECK(isnan(tp_get(&losses, &token[2])));
  near(tp_get(&losses, &token[3]), log(others + 1), 1e-6, "the loss", 3);
  CHECK(tp_get(&losses, &token[4]) == INFINITY);
  for (int64_t c = 0; c < COLUMNS; ++c) {
    const int first = rank == 0 && c == 0, last = rank + 1 == n && c + 1 == COLUMNS;
    const int64_t masked[] = {0, c}, far[] = {1, c}, bad[] = {2, c}, hopeless[] = {4, c};
    near(tp_get(&dx, hopeless), first ? 1 : last ? -1 : 0, 1e-6, "the gradient", 4);
    near(tp_get(&dx, masked), rank != 0 ? 0 : first ? 1.0 / COLUMNS - 1 : 1.0 / COLUMNS, 1e-6, "the gradient", 0);
    near(tp_get(&dx, far), first ? -1 : 1 / others, 1e-6, "the gradient", 1);
    CHECK(isnan(tp_get(&dx, bad)));
  }
  tp_close(&r);
}

static void extremes(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) run_ranks(n, extremes_of_a_rank, NULL);
}

/* ── embeddings ── */

static float row_value(int64_t row, int64_t feature) {
  return (float)(row * 4 + feature) / 4;
}
static int64_t id_of(int64_t token) {
  return token % 4 == 3 ? 2 : token * 5 % ROWS;
}
static float grad_value(int64_t token, int64_t feature) {
  return (float)(token % 4 + feature);
}

typedef struct {
  mdp_dtype dtype;
  tp_layout layout;
  int sequence, partial, adds;
} embedding_way;

static void one_embedding(tp_rank* r, const embedding_way* w) {
  const int64_t length = 12, own = w->sequence ? length / r->size : length, begin = w->sequence ? r->rank * own : 0;
  const int64_t ids_shape[] = {length, BATCH}, out_shape[] = {own, BATCH, FEATURES}, table_shape[] = {ROWS / r->size, FEATURES};
  tp_array ids, table, output, grad, dtable;
  tp_reset(r);
  tp_take(r, &ids, MDP_DTYPE_I64, w->layout, 2, ids_shape);
  tp_take(r, &table, w->dtype, w->layout, 2, table_shape);
  tp_take(r, &output, w->dtype, w->layout, 3, out_shape);
  tp_take(r, &grad, w->dtype, w->layout, 3, out_shape);
  tp_take(r, &dtable, w->layout == PADDED ? MDP_DTYPE_F32 : w->dtype, w->layout, 2, table_shape);
  float sums[ROWS][FEATURES] = {{0}};
  for (int64_t token = 0; token < length * BATCH; ++token) {
    const int64_t at[] = {token / BATCH, token % BATCH};
    tp_set(&ids, at, (float)id_of(token));
    for (int64_t f = 0; f < FEATURES; ++f) sums[id_of(token)][f] += grad_value(token, f);
    if (at[0] < begin || at[0] >= begin + own) continue;
    for (int64_t f = 0; f < FEATURES; ++f) {
      const int64_t element[] = {at[0] - begin, at[1], f};
      const int last = r->rank + 1 == r->size;
      const float share = w->partial ? (last ? grad_value(token, f) - (float)(r->size - 1) : 1) : grad_value(token, f);
      tp_set(&grad, element, share);
    }
  }
  for (int64_t row = 0; row < table_shape[0]; ++row) {
    for (int64_t f = 0; f < FEATURES; ++f) {
      const int64_t at[] = {row, f};
      tp_set(&table, at, row_value(r->rank * table_shape[0] + row, f));
      if (w->adds) tp_set(&dtable, at, 1);
    }
  }
  SIZED(mdp_tp_embedding_config, config);
  config.rows = ROWS;
  config.grad = w->partial ? MDP_TP_GRAD_PARTIAL : MDP_TP_GRAD_REPLICATED;
  config.flags = w->sequence ? MDP_TP_EMBEDDING_SEQUENCE : 0;
  OK(mdp_tp_embedding_fwd(r->comm, &config, &ids.tensor, &table.tensor, &output.tensor, NULL));
  OK(mdp_tp_embedding_bwd(r->comm, &config, &ids.tensor, &grad.tensor, &dtable.tensor, w->adds ? MDP_GRAD_ADD : 0, NULL));
  tp_settle(r);
  for (int64_t token = begin * BATCH; token < (begin + own) * BATCH; ++token) {
    for (int64_t f = 0; f < FEATURES; ++f) {
      const int64_t element[] = {token / BATCH - begin, token % BATCH, f};
      CHECK(tp_get(&output, element) == row_value(id_of(token), f));
    }
  }
  for (int64_t row = 0; row < table_shape[0]; ++row) {
    for (int64_t f = 0; f < FEATURES; ++f) {
      const int64_t at[] = {row, f};
      CHECK(tp_get(&dtable, at) == sums[r->rank * table_shape[0] + row][f] + (w->adds ? 1.0F : 0));
    }
  }
}

static void embeddings_of_a_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 14);
  for (int settings = 0; settings < 8; ++settings) {
    embedding_way w = {.sequence = (settings & 1) != 0, .partial = (settings & 3) == 2 && n > 1, .adds = (settings & 4) != 0};
    for (w.layout = DENSE; w.layout < TP_LAYOUTS; ++w.layout) {
      w.dtype = MDP_DTYPE_F32;
      one_embedding(&r, &w);
      w.dtype = MDP_DTYPE_BF16;
      one_embedding(&r, &w);
    }
  }
  tp_close(&r);
}

static void embeddings(void** state) {
  (void)state;
  for (int32_t n = 1; n <= MOST; ++n) run_ranks(n, embeddings_of_a_rank, NULL);
}

/* ── acceptance vectors 43 to 45 ── */

static void cross_entropy_vector(tp_rank* r, double smoothing, int64_t target, double loss, const double* grads) {
  const int64_t shape[] = {1, 3}, tokens[] = {1}, sums[] = {1, 2}, zero = 0;
  tp_array x, t, losses, saved, dlosses, dx;
  tp_reset(r);
  tp_take(r, &x, MDP_DTYPE_F32, DENSE, 2, shape);
  tp_take(r, &t, MDP_DTYPE_I64, DENSE, 1, tokens);
  tp_take(r, &losses, MDP_DTYPE_F32, DENSE, 1, tokens);
  tp_take(r, &saved, MDP_DTYPE_F32, DENSE, 2, sums);
  tp_take(r, &dlosses, MDP_DTYPE_F32, DENSE, 1, tokens);
  tp_take(r, &dx, MDP_DTYPE_F32, DENSE, 2, shape);
  tp_set(&t, &zero, (float)target);
  tp_set(&dlosses, &zero, 2);
  for (int64_t c = 0; c < 3; ++c) {
    const int64_t at[] = {0, c};
    tp_set(&x, at, (float)(r->rank * 3 + c + 1));
  }
  SIZED(mdp_tp_cross_entropy_config, config);
  config.label_smoothing = smoothing;
  OK(mdp_tp_cross_entropy_fwd(r->comm, &config, &x.tensor, &t.tensor, &losses.tensor, &saved.tensor, NULL));
  OK(mdp_tp_cross_entropy_bwd(r->comm, &config, &x.tensor, &t.tensor, &saved.tensor, &dlosses.tensor, &dx.tensor, NULL));
  tp_settle(r);
  near(tp_get(&losses, &zero), loss, 5e-8, "the loss", 0);
  for (int64_t c = 0; c < 3 && grads != NULL; ++c) {
    const int64_t at[] = {0, c};
    CHECK(fabs(tp_get(&dx, at) - grads[r->rank * 3 + c]) < 2e-7);
  }
}

static void embedding_vector(tp_rank* r) {
  const int64_t ids_shape[] = {3}, out_shape[] = {3, 1}, table_shape[] = {3, 1}, wanted[] = {0, 3, 5};
  tp_array ids, table, output;
  tp_reset(r);
  tp_take(r, &ids, MDP_DTYPE_I64, DENSE, 1, ids_shape);
  tp_take(r, &table, MDP_DTYPE_F32, DENSE, 2, table_shape);
  tp_take(r, &output, MDP_DTYPE_F32, DENSE, 2, out_shape);
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t at[] = {i, 0};
    tp_set(&ids, &i, (float)wanted[i]);
    tp_set(&table, at, (float)(10 + r->rank * 3 + i));
  }
  SIZED(mdp_tp_embedding_config, config);
  config.rows = 6;
  config.grad = MDP_TP_GRAD_REPLICATED;
  OK(mdp_tp_embedding_fwd(r->comm, &config, &ids.tensor, &table.tensor, &output.tensor, NULL));
  OK(mdp_tp_embedding_bwd(r->comm, &config, &ids.tensor, &output.tensor, &table.tensor, 0, NULL));
  tp_settle(r);
  const float grads[] = {10, 0, 0, 13, 0, 15};
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t at[] = {i, 0};
    CHECK(tp_get(&output, at) == (float)(10 + wanted[i]) && tp_get(&table, at) == grads[r->rank * 3 + i]);
  }
  config.rows = 7;
  FAILS(MDP_E_INVALID, "config.rows is 7, which 2 ranks cannot share evenly; 8 would do",
        mdp_tp_embedding_fwd(r->comm, &config, &ids.tensor, &table.tensor, &output.tensor, NULL));
}

static void two_ranks(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  const double plain[] = {.0085396, .0232129, .0630993, .1715216, -1.5337560, 1.2673826};
  const double smooth[] = {-.0157302, -.0083935, .0115496, .0657608, -.6668780, .6136913};
  cross_entropy_vector(&r, 0, 4, 1.4561933, plain);
  cross_entropy_vector(&r, 0, 0, 5.4561933, NULL);
  double twice[6]; /* they are of a loss that counts once */
  for (int i = 0; i < 6; ++i) twice[i] = 2 * smooth[i];
  cross_entropy_vector(&r, 0.1, 4, 1.6361933, twice);
  embedding_vector(&r);
  tp_close(&r);
}

static void seeds_of_a_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* const world = comm_open(id, rank, n, UINT64_C(60000000000));
  SIZED(mdp_grid_config, config);
  config.tp = 2;
  config.ep = 2;
  config.expert_tp = 1;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(world, &config, &grid));
  int32_t tp = 0, ep = 0, size = 0;
  uint64_t seed = 0;
  OK(mdp_grid_coords(grid, MDP_AXIS_TP, &tp, &size));
  OK(mdp_grid_coords(grid, MDP_AXIS_EP | MDP_AXIS_EXPERT_GRID, &ep, &size));
  OK(mdp_grid_seed(grid, 1234, MDP_RANDOM_REPLICATED, &seed));
  CHECK(seed == 1234);
  OK(mdp_grid_seed(grid, 1234, MDP_RANDOM_TENSOR, &seed));
  CHECK(seed == 3952 + (uint64_t)tp);
  OK(mdp_grid_seed(grid, 1234, MDP_RANDOM_EXPERT, &seed));
  CHECK(seed == 2258 + 100 * (uint64_t)ep);
  FAILS(MDP_E_INVALID, "random is 0; it must be MDP_RANDOM_REPLICATED (1)", mdp_grid_seed(grid, 1234, MDP_RANDOM_UNSET, &seed));
  FAILS(MDP_E_INVALID, "out is NULL", mdp_grid_seed(grid, 1234, MDP_RANDOM_TENSOR, NULL));
  FAILS(MDP_E_INVALID, "grid is NULL", mdp_grid_seed(NULL, 1234, MDP_RANDOM_TENSOR, &seed));
  mdp_grid_destroy(grid);
  mdp_comm_destroy(world);
}

static void vectors(void** state) {
  (void)state;
  run_ranks(2, two_ranks, NULL);
  run_ranks(4, seeds_of_a_rank, NULL);
}

/* ── what is refused ── */

/* Each rank with another one. */
static void refused_of_settings(tp_rank* r, tp_array* x, tp_array* t, tp_array* losses) {
  SIZED(mdp_tp_cross_entropy_config, config);
  config.flags = MDP_TP_CROSS_ENTROPY_IGNORE;
  config.ignore_index = r->rank == 0 ? -100 : -99;
  FAILS(MDP_E_DESYNC, "or another ignore_index",
        mdp_tp_cross_entropy_fwd(r->comm, &config, &x->tensor, &t->tensor, &losses->tensor, NULL, NULL));
  config.ignore_index = -100;
  config.label_smoothing = r->rank == 0 ? 0 : 0.1;
  FAILS(MDP_E_DESYNC, "another label_smoothing or z_loss",
        mdp_tp_cross_entropy_fwd(r->comm, &config, &x->tensor, &t->tensor, &losses->tensor, NULL, NULL));
}

static void refused_of_losses(tp_rank* r) {
  const int64_t shape[] = {4, 3}, tokens[] = {4}, sums[] = {4, 2}, last = 3;
  tp_array x, t, losses, saved, integers;
  tp_take(r, &x, MDP_DTYPE_F32, DENSE, 2, shape);
  tp_take(r, &t, MDP_DTYPE_I64, DENSE, 1, tokens);
  tp_take(r, &losses, MDP_DTYPE_F32, DENSE, 1, tokens);
  tp_take(r, &saved, MDP_DTYPE_F32, DENSE, 2, sums);
  tp_take(r, &integers, MDP_DTYPE_I64, DENSE, 2, shape);
  for (int64_t i = 0; i < 12; ++i) {
    const int64_t at[] = {i / 3, i % 3};
    tp_set(&x, at, 1);
    tp_set(&t, &at[0], 0);
  }
  SIZED(mdp_tp_cross_entropy_config, config);
#define FWD(x, t, losses, saved) mdp_tp_cross_entropy_fwd(r->comm, &config, x, t, losses, saved, NULL)
  FAILS(MDP_E_INVALID, "comm is NULL", mdp_tp_cross_entropy_fwd(NULL, &config, &x.tensor, &t.tensor, &losses.tensor, NULL, NULL));
  FAILS(MDP_E_INVALID, "config is NULL", mdp_tp_cross_entropy_fwd(r->comm, NULL, &x.tensor, &t.tensor, &losses.tensor, NULL, NULL));
  FAILS(MDP_E_INVALID, "logits is NULL", FWD(NULL, &t.tensor, &losses.tensor, NULL));
  FAILS(MDP_E_INVALID, "logits.dtype is i64; it must be f32, bf16 or f16", FWD(&integers.tensor, &t.tensor, &losses.tensor, NULL));
  FAILS(MDP_E_INVALID, "targets.dtype is f32; it must be i64", FWD(&x.tensor, &losses.tensor, &losses.tensor, NULL));
  FAILS(MDP_E_INVALID, "losses.dtype is i64; it must be f32", FWD(&x.tensor, &t.tensor, &t.tensor, NULL));
  FAILS(MDP_E_INVALID, "saved has shape [4]; it goes with targets, so it must be [4,2]",
        FWD(&x.tensor, &t.tensor, &losses.tensor, &losses.tensor));
  FAILS(MDP_E_INVALID, "logits has shape [4,2]; it goes with targets, so it must be [4,3,2]",
        FWD(&saved.tensor, &integers.tensor, &losses.tensor, NULL));
  config.classes = 3 * r->size + 1;
  FAILS(MDP_E_INVALID, "config.classes is 7; the ranks have 6 columns, 3 each", FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
  config.classes = 1;
  config.label_smoothing = 0.5;
  FAILS(MDP_E_INVALID, "with 1 class it must be 0", FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
  config.classes = 0;
  config.label_smoothing = 1;
  FAILS(MDP_E_INVALID, "config.label_smoothing is 1; it must be at least 0 and below 1", FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
  config.label_smoothing = 0;
  config.z_loss = NAN;
  FAILS(MDP_E_INVALID, "config.z_loss is", FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
  config.z_loss = 0;
  config.ignore_index = -100;
  FAILS(MDP_E_INVALID, "set MDP_TP_CROSS_ENTROPY_IGNORE (1)", FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
  config.flags = 4;
  FAILS(MDP_E_INVALID, "config.flags", FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
  config.flags = MDP_TP_CROSS_ENTROPY_IGNORE;
  FAILS(MDP_E_INVALID, "grad_logits has shape [4,2] of f32; logits has [4,3] of f32",
        mdp_tp_cross_entropy_bwd(r->comm, &config, &x.tensor, &t.tensor, &saved.tensor, &losses.tensor, &saved.tensor, NULL));
  OK(FWD(&x.tensor, &t.tensor, &losses.tensor, &saved.tensor));
  tp_settle(r);
  tp_set(&t, &last, 6);
  if (on_cuda) { /* where nobody has looked at it */
    OK(FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
    tp_settle(r);
    CHECK(isnan(tp_get(&losses, &last)));
    return;
  }
  FAILS(MDP_E_INVALID, "targets[3] is 6; it must be between 0 and 5", FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
  tp_set(&t, &last, -100);
  OK(FWD(&x.tensor, &t.tensor, &losses.tensor, NULL));
#undef FWD
  tp_set(&t, &last, 0);
  refused_of_settings(r, &x, &t, &losses);
}

static void refused_of_embeddings(tp_rank* r) {
  const int64_t table_shape[] = {3, 2}, ids_shape[] = {3}, out_shape[] = {3, 2};
  tp_array ids, table, output, halves;
  tp_take(r, &ids, MDP_DTYPE_I64, DENSE, 1, ids_shape);
  tp_take(r, &table, MDP_DTYPE_F32, DENSE, 2, table_shape);
  tp_take(r, &output, MDP_DTYPE_F32, DENSE, 2, out_shape);
  tp_take(r, &halves, MDP_DTYPE_BF16, DENSE, 2, out_shape);
  SIZED(mdp_tp_embedding_config, config);
#define FWD(ids, table, output) mdp_tp_embedding_fwd(r->comm, &config, ids, table, output, NULL)
  FAILS(MDP_E_INVALID, "config.rows is 0; it must be between 1 and", FWD(&ids.tensor, &table.tensor, &output.tensor));
  config.rows = 6;
  FAILS(MDP_E_INVALID, "config.grad is MDP_TP_GRAD_UNSET (0), but the output of an embedding is the same on all ranks",
        FWD(&ids.tensor, &table.tensor, &output.tensor));
  config.flags = MDP_TP_EMBEDDING_SEQUENCE;
  FAILS(MDP_E_INVALID, "ids has shape [3]; its first dimension is cut over 2 ranks, which cannot share it evenly",
        FWD(&ids.tensor, &table.tensor, &output.tensor));
  config.flags = 0;
  config.grad = MDP_TP_GRAD_REPLICATED;
  FAILS(MDP_E_INVALID, "ids.dtype is f32; it must be i64", FWD(&table.tensor, &table.tensor, &output.tensor));
  FAILS(MDP_E_INVALID, "weight.dtype is f32 and output.dtype is bf16; they must be equal", FWD(&ids.tensor, &table.tensor, &halves.tensor));
  FAILS(MDP_E_INVALID, "output.data and weight.data are the same memory", FWD(&ids.tensor, &table.tensor, &table.tensor));
  FAILS(MDP_E_INVALID, "flags", mdp_tp_embedding_bwd(r->comm, &config, &ids.tensor, &output.tensor, &table.tensor, 2, NULL));
  config.rows = 8;
  FAILS(MDP_E_INVALID, "weight has shape [3,2]; this rank's part of 8 rows is [4, features]",
        FWD(&ids.tensor, &table.tensor, &output.tensor));
  config.rows = 6;
  for (int64_t i = 0; i < 3; ++i) tp_set(&ids, &i, i == 1 ? -1 : 0);
  const int64_t first[] = {1, 0};
  if (on_cuda) {
    OK(FWD(&ids.tensor, &table.tensor, &output.tensor));
    tp_settle(r);
    CHECK(isnan(tp_get(&output, first)));
  } else {
    FAILS(MDP_E_INVALID, "ids[1] is -1; it must be between 0 and 5", FWD(&ids.tensor, &table.tensor, &output.tensor));
  }
  config.flags = MDP_TP_EMBEDDING_CHECK_REPLICATED;
  const int64_t zero = 0;
  for (int64_t i = 0; i < 3; ++i) tp_set(&ids, &i, 0);
  tp_set(&ids, &zero, (float)r->rank);
  FAILS(MDP_E_INVALID, "ids is not the same on ranks 0 and 1", FWD(&ids.tensor, &table.tensor, &output.tensor));
#undef FWD
}

static void refused_of_a_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  refused_of_embeddings(&r);
  tp_reset(&r);
  refused_of_losses(&r);
  tp_close(&r);
}

static void refused(void** state) {
  (void)state;
  run_ranks(2, refused_of_a_rank, NULL);
}

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(vectors), TEST(every_way), TEST(extremes), TEST(embeddings), TEST(refused)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
