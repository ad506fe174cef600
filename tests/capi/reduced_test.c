/* SPDX-License-Identifier: Apache-2.0
 * Gradients between mdp_grad_sync and the step: mdp_grad_norm, mdp_grad_scale, mdp_grad_owned, mdp_grad_changed; and mdp_optimizer_steps.
 */
#include <math.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* ── A model on a grid ── */

typedef struct {
  int32_t world, tp, ep;
  mdp_sharding sharding;
  mdp_dtype grads;
  double max_grad_norm;
  uint64_t bucket_elements;
} layout;

enum {
  REPLICATED,
  SHARDED,
  LONG,
  EXPERT,
  FIXED,
  MODEL,
  TRAINED = FIXED,
  LONGEST = 9001
};
static const int64_t lengths[MODEL] = {33, 70, LONGEST, 19, 4};
static const char* const model_names[MODEL] = {"replicated", "sharded", "long", "expert", "fixed"};

typedef struct {
  const layout* grid;
  int32_t rank;
  mdp_comm* comm;
  mdp_grid* mesh;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

static model model_on(mdp_comm* comm, const layout* g) {
  model m = {.grid = g, .rank = mdp_comm_rank(comm), .comm = comm};
  SIZED(mdp_grid_config, mesh);
  mesh.tp = g->tp;
  mesh.ep = g->ep;
  OK(mdp_grid_create(m.comm, &mesh, &m.mesh));
  mdp_param params[MODEL];
  memset(params, 0, sizeof params);
  for (int p = 0; p < MODEL; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = model_names[p];
    params[p].dtype = p == SHARDED ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
    params[p].placement = p == REPLICATED ? MDP_PLACEMENT_REPLICATED : MDP_PLACEMENT_SHARDED;
    params[p].param_class = p == EXPERT ? MDP_PARAM_CLASS_EXPERT : MDP_PARAM_CLASS_DENSE;
    params[p].flags = p == FIXED ? MDP_PARAM_FROZEN : 0;
    params[p].param_group = p == LONG;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = g->sharding;
  config.grad_dtype = g->grads;
  config.bucket_elements = g->bucket_elements;
  OK(mdp_buffer_register(NULL, m.mesh, &config, params, MODEL, &m.buffer));
  mdp_param_group groups[2] = {{.struct_size = sizeof(mdp_param_group)}, {.struct_size = sizeof(mdp_param_group), .weight_decay = 0.125}};
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 0.0625;
  adamw.max_grad_norm = g->max_grad_norm;
  adamw.param_groups = groups;
  adamw.param_group_count = 2;
  OK(mdp_optimizer_create(m.buffer, &adamw, &m.optimizer));
  return m;
}

static model model_open(const layout* g, const mdp_unique_id* id, int32_t rank) {
  return model_on(comm_open(id, rank, g->world, UINT64_C(20000000000)), g);
}

static void model_drop(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->mesh);
}

static void model_close(model* m) {
  model_drop(m);
  mdp_comm_destroy(m->comm);
}

/* Ranks with the same number here share the parameter. */
static int32_t group_of(const layout* g, int p, int32_t rank) {
  return p == EXPERT ? rank % (g->tp * g->ep) : rank % g->tp;
}

/* So small that every sum is exact in every type. Replicas over tensor-parallel ranks have the same. */
static float gradient(const layout* g, int p, int32_t rank, int64_t i, int step) {
  const int32_t seed = p == REPLICATED ? rank / g->tp : rank;
  return (float)((i * 7 + seed * 5 + p * 3 + step * 11) % 13 - 6) / 4;
}

static void put(const model* m, int step) {
  float values[LONGEST];
  for (int p = TRAINED; p-- > 0;) {
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = gradient(m->grid, p, m->rank, i, step);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
  }
}

/* The sum of squares of one parameter's reduced gradients over the world, each element once. */
static double squares(const layout* g, int p, int step) {
  double sum = 0;
  const int32_t groups = p == EXPERT ? g->tp * g->ep : p == REPLICATED ? 1 : g->tp;
  for (int32_t group = 0; group < groups; ++group) {
    for (int64_t i = 0; i < lengths[p]; ++i) {
      double reduced = 0;
      for (int32_t r = 0; r < g->world; ++r) {
        if (group_of(g, p, r) == group) reduced += (double)gradient(g, p, r, i, step);
      }
      reduced /= g->world / g->tp;
      sum += reduced * reduced;
    }
  }
  return sum;
}

static const layout layouts[] = {
    {.world = 1, .tp = 1, .ep = 1, .sharding = MDP_SHARDING_ZERO_0},
    {.world = 1, .tp = 1, .ep = 1},
    {.world = 2, .tp = 1, .ep = 1, .sharding = MDP_SHARDING_ZERO_0},
    {.world = 2, .tp = 1, .ep = 1, .grads = MDP_DTYPE_SAME},
    {.world = 2, .tp = 1, .ep = 2, .bucket_elements = 64},
    {.world = 4, .tp = 2, .ep = 1},
    {.world = 4, .tp = 2, .ep = 1, .sharding = MDP_SHARDING_ZERO_0, .grads = MDP_DTYPE_SAME},
    {.world = 4, .tp = 1, .ep = 2},
    {.world = 4, .tp = 2, .ep = 2, .sharding = MDP_SHARDING_ZERO_0},
    {.world = 1, .tp = 1, .ep = 1, .sharding = MDP_SHARDING_ZERO_2},
    {.world = 2, .tp = 1, .ep = 2, .sharding = MDP_SHARDING_ZERO_2, .bucket_elements = 64},
    {.world = 4, .tp = 2, .ep = 1, .sharding = MDP_SHARDING_ZERO_2, .grads = MDP_DTYPE_SAME},
};

static void on_all_layouts(rank_body body) {
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) run_ranks(layouts[i].world, body, (void*)&layouts[i]);
}

/* ── The norm ── */

static double norm_of(const model* m, const size_t* params, size_t count) {
  double norm = -1;
  OK(mdp_grad_norm(m->buffer, params, count, &norm));
  return norm;
}

static void norms(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)n;
  const layout* g = argument;
  model m = model_open(g, id, rank);
  for (int step = 0; step < 3; ++step) {
    put(&m, step);
    mdp_request* synced = NULL; /* which the norm waits for */
    OK(mdp_grad_sync(m.buffer, NULL, step == 1 ? &synced : NULL));
    double all = 0;
    for (int p = 0; p < TRAINED; ++p) all += squares(g, p, step);
    const double norm = norm_of(&m, NULL, 0);
    CHECK(norm == sqrt(all));
    CHECK(norm == norm_of(&m, NULL, 0));
    const size_t some[] = {EXPERT, REPLICATED}, none[] = {0};
    CHECK(norm_of(&m, some, 2) == sqrt(squares(g, EXPERT, step) + squares(g, REPLICATED, step)));
    CHECK(norm_of(&m, some, 1) == sqrt(squares(g, EXPERT, step)));
    CHECK(norm_of(&m, none, 0) == 0);
    const size_t every[] = {LONG, SHARDED, EXPERT, REPLICATED};
    CHECK(norm_of(&m, every, TRAINED) == norm);
    SIZED(mdp_step_report, report);
    OK(mdp_optimizer_step(m.optimizer, NULL, &report, NULL));
    CHECK(report.grad_norm == norm);
    mdp_request_free(synced);
  }
  model_close(&m);
}

/* On numbers whose squares do not add up exactly: the same order of summation. */
static void last_bits(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)n;
  model m = model_open(argument, id, rank);
  float values[LONGEST];
  for (int p = TRAINED; p-- > 0;) {
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = sinf((float)(i * 3 + p + 1)) / 3;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m.buffer, (size_t)p, &t, 0, NULL));
  }
  OK(mdp_grad_sync(m.buffer, NULL, NULL));
  const double norm = norm_of(&m, NULL, 0);
  const size_t every[] = {REPLICATED, SHARDED, LONG, EXPERT}; /* which are read once more */
  const double read = norm_of(&m, every, TRAINED);
  CHECK(memcmp(&norm, &read, sizeof norm) == 0);
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(m.optimizer, NULL, &report, NULL));
  CHECK(norm > 1 && memcmp(&norm, &report.grad_norm, sizeof norm) == 0);
  model_close(&m);
}

static void the_norm_is_the_steps(void** state) {
  (void)state;
  on_all_layouts(norms);
  on_all_layouts(last_bits);
}

/* ── Not finite ── */

static void put_but(const model* m, int param, float value) {
  float values[LONGEST];
  for (int p = TRAINED; p-- > 0;) {
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = 1;
    if (p == param) values[lengths[p] - 1] = value;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
  }
}

/* Of the last rank only: with tensor parallelism it holds a replica that does not count. */
static void not_finite_anywhere(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_open(argument, id, rank);
  for (int round = 0; round < 2; ++round) {
    put_but(&m, REPLICATED, rank == n - 1 ? (round ? NAN : -INFINITY) : 1);
    OK(mdp_grad_sync(m.buffer, NULL, NULL));
    CHECK(!isfinite(norm_of(&m, NULL, 0)));
    const size_t it[] = {REPLICATED}, others[] = {SHARDED, LONG, EXPERT};
    CHECK(!isfinite(norm_of(&m, it, 1)));
    CHECK(isfinite(norm_of(&m, others, 3)));
    OK(mdp_buffer_zero_grad(m.buffer, NULL)); /* begins anew */
    FAILS(MDP_E_STATE, "mdp_grad_norm: the gradients are not reduced", mdp_grad_norm(m.buffer, NULL, 0, &(double){0}));
  }
  model_close(&m);
}

static void a_norm_may_not_be_finite(void** state) {
  (void)state;
  on_all_layouts(not_finite_anywhere);
}

/* ── A factor ── */

/* The owned slices of everything that a step changes are the same, bit by bit. */
static void same_state(const model* a, const model* b) {
  static const char* const names[] = {"master", "exp_avg", "exp_avg_sq"};
  for (size_t p = 0; p < TRAINED; ++p) {
    for (int array = 0; array < 3; ++array) {
      SIZED(mdp_tensor, left);
      SIZED(mdp_tensor, right);
      OK(mdp_optimizer_state(a->optimizer, p, names[array], &left));
      OK(mdp_optimizer_state(b->optimizer, p, names[array], &right));
      CHECK(left.shape[0] == right.shape[0]);
      if (left.shape[0] > 0) CHECK(memcmp(left.data, right.data, (size_t)left.shape[0] * sizeof(float)) == 0);
    }
  }
}

static void clip_in_two_ways(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  layout with = *(const layout*)argument, without = with;
  with.grads = without.grads = MDP_DTYPE_F32;
  with.max_grad_norm = 0.75;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model in_the_step = model_on(comm, &with), before = model_on(comm, &without);
  for (int step = 0; step < 3; ++step) {
    put(&in_the_step, step);
    put(&before, step);
    OK(mdp_grad_sync(in_the_step.buffer, NULL, NULL));
    OK(mdp_grad_sync(before.buffer, NULL, NULL));
    const double factor = with.max_grad_norm / (norm_of(&before, NULL, 0) + 1e-6);
    CHECK(factor < 0.1);
    OK(mdp_grad_scale(before.buffer, NULL, 0, factor, NULL));
    CHECK(fabs(norm_of(&before, NULL, 0) - 0.75) < 1e-4);
    step_and_wait(in_the_step.optimizer);
    step_and_wait(before.optimizer);
    same_state(&in_the_step, &before);
  }
  model_drop(&in_the_step);
  model_close(&before);
}

static void a_factor_by_the_norm_clips(void** state) {
  (void)state;
  on_all_layouts(clip_in_two_ways);
}

/* What this rank owns of a gradient, as f32; where there are views, it is a part of one. */
static int64_t owned_gradient(const model* m, size_t param, float* values) {
  SIZED(mdp_tensor, owned);
  OK(mdp_grad_owned(m->buffer, param, &owned));
  CHECK(owned.ndim == 1 && owned.strides[0] == 1);
  for (int64_t i = 0; i < owned.shape[0]; ++i) {
    const uint32_t wide =
        owned.dtype == MDP_DTYPE_F32 ? ((const uint32_t*)owned.data)[i] : (uint32_t)((const uint16_t*)owned.data)[i] << 16;
    memcpy(&values[i], &wide, sizeof wide);
  }
  mdp_range ranges[4 * MODEL];
  const size_t count = owned_ranges(m->buffer, ranges, 4 * MODEL);
  int64_t length = 0;
  for (size_t r = 0; r < count; ++r) {
    if (ranges[r].param != (int64_t)param) continue;
    length = ranges[r].end - ranges[r].begin;
    if (m->grid->sharding == MDP_SHARDING_ZERO_2) continue;
    SIZED(mdp_tensor, view);
    OK(mdp_buffer_grad_view(m->buffer, param, &view));
    CHECK(owned.dtype == view.dtype);
    CHECK(owned.data == (char*)view.data + ranges[r].param_begin * (view.dtype == MDP_DTYPE_F32 ? 4 : 2));
  }
  CHECK(owned.shape[0] == length);
  return length;
}

/* The views show the product, rounded to the gradient's type; what is not listed stays. */
static void scale_some(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)n;
  const layout* g = argument;
  model m = model_open(g, id, rank);
  put(&m, 1);
  sync_and_wait(m.buffer);
  const float factor = (float)(-1.0 / 3);
  const size_t listed[] = {LONG, SHARDED}, none[] = {0};
  for (size_t p = 0; p < TRAINED; ++p) {
    static _Thread_local float before[LONGEST], after[LONGEST];
    const int64_t count = owned_gradient(&m, p, before);
    if (p == 0) {
      OK(mdp_grad_scale(m.buffer, none, 0, 7, NULL));
      OK(mdp_grad_scale(m.buffer, NULL, 0, 1, NULL));
    }
    const int scaled = p == LONG || p == SHARDED;
    if (scaled) OK(mdp_grad_scale(m.buffer, p == LONG ? &listed[0] : &listed[1], 1, -1.0 / 3, NULL));
    norm_of(&m, NULL, 0); /* waits for the device */
    CHECK(owned_gradient(&m, p, after) == count);
    const int rounds = p == SHARDED && g->grads == MDP_DTYPE_SAME && g->sharding != MDP_SHARDING_ZERO_2;
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float product = scaled ? before[i] * factor : before[i];
      wrong += after[i] != (rounds ? to_bf16(product) : product);
    }
    CHECK(wrong == 0);
  }
  model_close(&m);
}

static void views_show_the_product(void** state) {
  (void)state;
  on_all_layouts(scale_some);
}

/* ── Written through views ── */

/* Norm and step take what was written, also if another stream of the device wrote it. */
static void write_gradients(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)n;
  const layout* g = argument;
  if (g->grads == MDP_DTYPE_SAME) return;
  model m = model_open(g, id, rank);
  for (size_t p = 0; p < TRAINED; ++p) OK(mdp_grad_skip(m.buffer, p)); /* nobody has a gradient: all are zero */
  sync_and_wait(m.buffer);
  CHECK(norm_of(&m, NULL, 0) == 0);
  SIZED(mdp_tensor, owned);
  OK(mdp_grad_owned(m.buffer, LONG, &owned));
  for (int64_t i = 0; i < owned.shape[0]; ++i) ((float*)owned.data)[i] = 2;
  OK(mdp_grad_changed(m.buffer, NULL));
  CHECK(norm_of(&m, NULL, 0) == sqrt(4.0 * LONGEST * g->tp));
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(m.optimizer, NULL, &report, NULL));
  CHECK(report.grad_norm == sqrt(4.0 * LONGEST * g->tp));
  model_close(&m);
}

static void gradients_may_be_written(void** state) {
  (void)state;
  on_all_layouts(write_gradients);
}

/* On the host also who forgets mdp_grad_changed is heard, in this step and the next ones. */
static void write_silently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)n;
  const layout* g = argument;
  if (on_cuda || g->grads == MDP_DTYPE_SAME) return;
  const double expected = sqrt(4.0 * LONGEST * g->tp);
  for (int viewed = 0; viewed < (g->sharding == MDP_SHARDING_ZERO_2 ? 1 : 2); ++viewed) {
    model m = model_open(g, id, rank);
    SIZED(mdp_tensor, view);
    if (viewed) OK(mdp_buffer_grad_view(m.buffer, LONG, &view));
    for (int step = 0; step < 3; ++step) {
      for (size_t p = 0; p < TRAINED; ++p) OK(mdp_grad_skip(m.buffer, p));
      sync_and_wait(m.buffer);
      if (step == 1) {
        step_and_wait(m.optimizer);
        continue;
      }
      CHECK(norm_of(&m, NULL, 0) == 0);
      SIZED(mdp_tensor, owned);
      if (!viewed) OK(mdp_grad_owned(m.buffer, LONG, &owned));
      for (int64_t i = 0; i < (viewed ? view : owned).shape[0]; ++i) ((float*)(viewed ? view : owned).data)[i] = 2;
      SIZED(mdp_step_report, report);
      OK(mdp_optimizer_step(m.optimizer, NULL, &report, NULL));
      CHECK(report.grad_norm == expected);
    }
    model_close(&m);
  }
}

static void gradients_may_be_written_silently(void** state) {
  (void)state;
  on_all_layouts(write_silently);
}

/* ── Bad calls ── */

static void bad_arguments(void** state) {
  (void)state;
  model m = model_open(&layouts[0], NULL, 0);
  mdp_buffer* const buffer = m.buffer;
  put(&m, 0);
  sync_and_wait(buffer);
  double norm = -1;
  static const struct {
    size_t params[2], count;
    const char* part;
  } bad[] = {
      {{MODEL}, 1, "params[0] is 5; this buffer has 5 parameters, counted from 0"},
      {{0, SIZE_MAX}, 2, "params[1] is 18446744073709551615; this buffer has 5"},
      {{LONG, FIXED}, 2, "params[1] is 4: parameter 4 'fixed' is frozen"},
      {{LONG, LONG}, 2, "params[1] is 2: parameter 2 'long' is listed already"},
      {{0}, SIZE_MAX, "count is 18446744073709551615"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    FAILS(MDP_E_INVALID, bad[i].part, mdp_grad_norm(buffer, bad[i].params, bad[i].count, &norm));
    FAILS(MDP_E_INVALID, bad[i].part, mdp_grad_scale(buffer, bad[i].params, bad[i].count, 2, NULL));
  }
  FAILS(MDP_E_INVALID, "params is NULL, but count is 3", mdp_grad_norm(buffer, NULL, 3, &norm));
  FAILS(MDP_E_INVALID, "params is NULL, but count is 3", mdp_grad_scale(buffer, NULL, 3, 2, NULL));
  const size_t* const crooked = (const size_t*)((const char*)bad[0].params + 4);
  FAILS(MDP_E_INVALID, "params is", mdp_grad_norm(buffer, crooked, 1, &norm));
  FAILS(MDP_E_INVALID, "params is", mdp_grad_scale(buffer, crooked, 1, 2, NULL));
  FAILS(MDP_E_INVALID, "norm is NULL", mdp_grad_norm(buffer, NULL, 0, NULL));
  FAILS(MDP_E_INVALID, "factor is nan", mdp_grad_scale(buffer, NULL, 0, NAN, NULL));
  FAILS(MDP_E_INVALID, "factor is -inf", mdp_grad_scale(buffer, NULL, 0, -INFINITY, NULL));
  FAILS(MDP_E_INVALID, "factor is 3.5e+38; it must be finite, as a float too", mdp_grad_scale(buffer, NULL, 0, 3.5e38, NULL));
  FAILS(MDP_E_INVALID, "buffer is NULL", mdp_grad_norm(NULL, NULL, 0, &norm));
  FAILS(MDP_E_INVALID, "buffer is NULL", mdp_grad_scale(NULL, NULL, 0, 2, NULL));
  FAILS(MDP_E_INVALID, "buffer is NULL", mdp_grad_changed(NULL, NULL));
  if (!on_cuda) {
    FAILS(MDP_E_INVALID, "stream is", mdp_grad_scale(buffer, NULL, 0, 2, &norm));
    FAILS(MDP_E_INVALID, "producer is", mdp_grad_changed(buffer, &norm));
  }
  uint64_t steps = 7;
  FAILS(MDP_E_INVALID, "steps is NULL", mdp_optimizer_steps(m.optimizer, 0, NULL));
  FAILS(MDP_E_INVALID, "optimizer is NULL", mdp_optimizer_steps(NULL, 0, &steps));
  FAILS(MDP_E_INVALID, "param is 5; this buffer has 5", mdp_optimizer_steps(m.optimizer, MODEL, &steps));
  FAILS(MDP_E_STATE, "parameter 4 'fixed' is frozen", mdp_optimizer_steps(m.optimizer, FIXED, &steps));
  CHECK(norm == -1 && steps == 7);
  CHECK(norm_of(&m, NULL, 0) > 0);
  model_close(&m);
}

static void wrong_moments(void** state) {
  (void)state;
  model m = model_open(&layouts[0], NULL, 0);
  mdp_buffer* const buffer = m.buffer;
  double norm = -1;
  for (int step = 0; step < 2; ++step) { /* before the first sync, after a step */
    FAILS(MDP_E_STATE, "mdp_grad_norm: the gradients are not reduced; call mdp_grad_sync first", mdp_grad_norm(buffer, NULL, 0, &norm));
    FAILS(MDP_E_STATE, "mdp_grad_scale: the gradients are not reduced", mdp_grad_scale(buffer, NULL, 0, 1, NULL));
    FAILS(MDP_E_STATE, "mdp_grad_changed: the gradients are not reduced", mdp_grad_changed(buffer, NULL));
    put(&m, step);
    mdp_request* synced = NULL;
    OK(mdp_grad_sync(buffer, NULL, &synced));
    FAILS(MDP_E_STATE, "mdp_grad_scale: mdp_grad_sync is pending; wait for its request first", mdp_grad_scale(buffer, NULL, 0, 2, NULL));
    FAILS(MDP_E_STATE, "mdp_grad_changed: mdp_grad_sync is pending", mdp_grad_changed(buffer, NULL));
    OK(mdp_request_wait(synced, UINT64_MAX));
    mdp_request_free(synced);
    OK(mdp_grad_scale(buffer, NULL, 0, 2, NULL));
    OK(mdp_grad_changed(buffer, NULL));
    step_and_wait(m.optimizer);
  }
  /* One parameter is missing. */
  OK(mdp_grad_skip(buffer, LONG));
  FAILS(MDP_E_STATE, "never became ready", mdp_grad_sync(buffer, NULL, NULL));
  FAILS(MDP_E_STATE, "mdp_grad_norm: the gradients are not whole", mdp_grad_norm(buffer, NULL, 0, &norm));
  FAILS(MDP_E_STATE, "mdp_grad_scale: the gradients are not whole", mdp_grad_scale(buffer, NULL, 0, 2, NULL));
  FAILS(MDP_E_STATE, "mdp_grad_changed: the gradients are not whole", mdp_grad_changed(buffer, NULL));
  CHECK(norm == -1);
  model_close(&m);
}

/* ── Steps of a parameter ── */

static void count_steps(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)n;
  model m = model_open(argument, id, rank);
  for (uint64_t step = 0; step < 3; ++step) {
    for (size_t p = 0; p < TRAINED; ++p) {
      uint64_t steps = 99;
      OK(mdp_optimizer_steps(m.optimizer, p, &steps));
      CHECK(steps == step);
    }
    put(&m, (int)step);
    OK(mdp_grad_sync(m.buffer, NULL, NULL));
    step_and_wait(m.optimizer);
  }
  model_close(&m);
}

static void steps_are_counted(void** state) {
  (void)state;
  on_all_layouts(count_steps);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_norm_is_the_steps),
      TEST(a_norm_may_not_be_finite),
      TEST(a_factor_by_the_norm_clips),
      TEST(views_show_the_product),
      TEST(gradients_may_be_written),
      TEST(gradients_may_be_written_silently),
      TEST(bad_arguments),
      TEST(wrong_moments),
      TEST(steps_are_counted),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
