/* SPDX-License-Identifier: Apache-2.0
 * MDP_STEP_UNCHECKED: steps without a norm, in one pass where buckets were not reduced before; and what it excludes. */
#include <math.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

typedef struct {
  int32_t world, tp, ep;
  mdp_sharding sharding;
  mdp_dtype grads;
  uint64_t bucket_elements, flags; /* of the buffer */
  mdp_rule rule;
  uint64_t optimizer_flags;
  mdp_dtype state, wire;
  int32_t instances, partial; /* partial: `small` is a part of its gradient on each tensor-parallel rank */
  int32_t experts;            /* 1: rank 1 has none */
  int in_one_pass;
  int optimizers; /* two: one for each group */
  double average_decay;
} layout;

enum {
  SMALL,
  HALF,
  LONG,
  OTHER, /* of the second group */
  EXPERT,
  MODEL,
  LONGEST = 40009
};
static const int64_t lengths[MODEL] = {33, 170, LONGEST, 1019, 70};
static const char* const model_names[MODEL] = {"small", "half", "long", "other", "expert"};

typedef struct {
  const layout* of;
  int32_t rank;
  int params;
  mdp_grid* mesh;
  mdp_buffer* buffer;
  mdp_optimizer* optimizers[2];
} model;

static model model_on(mdp_comm* comm, const layout* of) {
  model m = {.of = of, .rank = mdp_comm_rank(comm)};
  m.params = of->experts == 1 && m.rank == 1 ? EXPERT : MODEL;
  SIZED(mdp_grid_config, mesh);
  mesh.tp = of->tp;
  mesh.ep = of->ep;
  mesh.instances = of->instances;
  OK(mdp_grid_create(comm, &mesh, &m.mesh));
  mdp_param params[MODEL];
  for (int p = 0; p < MODEL; ++p) {
    params[p] = vector_param(model_names[p], p == HALF ? MDP_DTYPE_BF16 : MDP_DTYPE_F32, &lengths[p]);
    params[p].placement = p == SMALL && of->partial ? MDP_PLACEMENT_PARTIAL_SUM : MDP_PLACEMENT_SHARDED;
    params[p].param_class = p == EXPERT ? MDP_PARAM_CLASS_EXPERT : MDP_PARAM_CLASS_DENSE;
    params[p].param_group = p == OTHER;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = of->sharding;
  config.grad_dtype = of->grads;
  config.bucket_elements = of->bucket_elements;
  config.flags = of->flags;
  config.wire_dtype = of->wire;
  OK(mdp_buffer_register(NULL, m.mesh, &config, params, (size_t)m.params, &m.buffer));
  const mdp_param_group groups[2] = {{.struct_size = sizeof(mdp_param_group)},
                                     {.struct_size = sizeof(mdp_param_group), .weight_decay = 0.125}};
  const int count = of->optimizers > 0 ? of->optimizers : 1;
  for (int i = 0; i < count; ++i) {
    SIZED(mdp_optimizer_config, rule);
    rule.rule = of->rule;
    rule.lr = 0.0625;
    rule.flags = of->optimizer_flags;
    rule.state_dtype = of->state;
    rule.average_decay = of->average_decay;
    rule.param_groups = &groups[i];
    rule.param_group_count = count == 1 ? 2 : 1;
    if (count > 1) {
      rule.flags |= MDP_OPTIMIZER_SOME_GROUPS;
      rule.first_param_group = (uint32_t)i;
    }
    OK(mdp_optimizer_create(m.buffer, &rule, &m.optimizers[i]));
  }
  return m;
}

static void model_drop(model* m) {
  for (int i = 0; i < 2; ++i) mdp_optimizer_destroy(m->optimizers[i]);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->mesh);
}

static float gradient(const model* m, int p, int64_t i, int step) {
  return sinf((float)(i * 3 + p * 7 + m->rank * 5 + step * 11 + 1)) / 3;
}

/* In step 1 nobody has a gradient of `other`, and `long` is written where it lies. */
static void put(const model* m, int step) {
  static _Thread_local float values[LONGEST];
  for (int p = m->params; p-- > 0;) {
    if (p == OTHER && step == 1) {
      OK(mdp_grad_skip(m->buffer, OTHER));
      continue;
    }
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = gradient(m, p, i, step);
    SIZED(mdp_tensor, place);
    int32_t first = 0;
    if (p == LONG && step == 1 && m->of->grads != MDP_DTYPE_SAME) {
      OK(mdp_grad_acquire(m->buffer, LONG, &place, &first, NULL));
      if (!on_cuda) {
        memcpy(place.data, values, sizeof values);
        OK(mdp_grad_ready(m->buffer, LONG, NULL));
        continue;
      }
      OK(mdp_grad_release(m->buffer, LONG));
    }
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
  }
}

static void take_step(const model* m, uint64_t flags, mdp_step_report* report) {
  SIZED(mdp_step_config, config);
  config.flags = flags;
  const size_t count = m->of->optimizers > 1 ? 2 : 1;
  OK(mdp_optimizer_step_many(m->optimizers, count, &config, report, NULL));
  OK(mdp_param_wait(m->buffer, SIZE_MAX, NULL));
}

static void step_in_three(const model* m, mdp_step_report* report) {
  const mdp_step_config config = {.struct_size = sizeof config, .flags = MDP_STEP_UNCHECKED};
  SIZED(mdp_update, update);
  OK(mdp_optimizer_step_begin(m->optimizers, m->of->optimizers > 1 ? 2 : 1, &config));
  OK(mdp_optimizer_step_next(m->optimizers[0], &update));
  CHECK(update.count == 0); /* only rules of the caller's have pieces */
  OK(mdp_optimizer_step_finish(m->optimizers[0], 0, report, NULL));
  OK(mdp_param_wait(m->buffer, SIZE_MAX, NULL));
}

static int was_in_one_pass(const model* m) {
  size_t params, buckets, in_one = 0;
  OK(mdp_buffer_counts(m->buffer, &params, &buckets));
  for (size_t b = 0; b < buckets; ++b) {
    SIZED(mdp_bucket_report, report);
    OK(mdp_buffer_bucket(m->buffer, b, &report));
    in_one += report.reduce_begin_ns == report.gather_begin_ns && report.reduce_begin_ns > 0;
  }
  CHECK(in_one == 0 || in_one == buckets);
  return in_one > 0;
}

/* All parameters, and what this rank keeps of them, bit by bit. */
static void same_models(const model* a, const model* b) {
  static _Thread_local float left[LONGEST], right[LONGEST];
  for (size_t p = 0; p < (size_t)a->params; ++p) {
    const mdp_tensor to_left = tensor_of(MDP_DTYPE_F32, left, &lengths[p]), to_right = tensor_of(MDP_DTYPE_F32, right, &lengths[p]);
    OK(mdp_param_read(a->buffer, p, &to_left, NULL));
    OK(mdp_param_read(b->buffer, p, &to_right, NULL));
    if (!CHECK(memcmp(left, right, (size_t)lengths[p] * sizeof(float)) == 0)) fprintf(stderr, "parameter %s\n", model_names[p]);
    const int owner = a->of->optimizers > 1 && p == OTHER;
    static const char* const names[] = {"exp_avg", "exp_avg_sq", "average"};
    for (int k = 0; k < (a->of->average_decay > 0 ? 3 : 2) && a->of->rule == MDP_RULE_ADAMW && !on_cuda; ++k) {
      SIZED(mdp_tensor, one);
      SIZED(mdp_tensor, other);
      OK(mdp_optimizer_state(a->optimizers[owner], p, names[k], &one));
      OK(mdp_optimizer_state(b->optimizers[owner], p, names[k], &other));
      const size_t width = one.dtype == MDP_DTYPE_BF16 ? 2 : 4;
      CHECK(one.shape[0] == other.shape[0]);
      if (one.shape[0] > 0) CHECK(memcmp(one.data, other.data, (size_t)one.shape[0] * width) == 0);
    }
  }
}

static void train_twice(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const layout* of = argument;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model checked = model_on(comm, of), unchecked = model_on(comm, of);
  for (int step = 0; step < 4; ++step) {
    put(&checked, step);
    put(&unchecked, step);
    if (step == 2) OK(mdp_grad_sync(unchecked.buffer, NULL, NULL)); /* then in several passes */
    SIZED(mdp_step_report, report);
    take_step(&checked, 0, NULL);
    if (step < 3) take_step(&unchecked, MDP_STEP_UNCHECKED, &report);
    if (step == 3) step_in_three(&unchecked, &report);
    CHECK(isnan(report.grad_norm) && report.flags == MDP_STEPPED_UNCHECKED);
    CHECK(was_in_one_pass(&unchecked) == (of->in_one_pass && step != 2 && !on_cuda));
    CHECK(report.step == (uint64_t)step + 1 && report.clip_factor == 1 && report.loss_scale == 1);
    same_models(&checked, &unchecked);
  }
  put(&unchecked, 0); /* and a checked one follows */
  put(&checked, 0);
  take_step(&checked, 0, NULL);
  SIZED(mdp_step_report, report);
  take_step(&unchecked, 0, &report);
  CHECK(report.flags == 0 && report.grad_norm > 0);
  same_models(&checked, &unchecked);
  model_drop(&checked);
  model_drop(&unchecked);
  mdp_comm_destroy(comm);
}

static void the_bits_are_those_of_a_checked_step(void** state) {
  (void)state;
  enum {
    APART = MDP_BUFFER_NO_OVERLAP
  };
  static const layout layouts[] = {
      {.world = 1, .tp = 1, .ep = 1, .flags = APART},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .in_one_pass = 1},
      {.world = 2, .tp = 1, .ep = 1},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .optimizers = 2, .in_one_pass = 1},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .grads = MDP_DTYPE_SAME, .bucket_elements = 64, .in_one_pass = 1},
      {.world = 2, .tp = 1, .ep = 2, .flags = APART, .rule = MDP_RULE_LION},
      {.world = 2, .tp = 1, .ep = 2, .flags = APART, .experts = 1},
      {.world = 2,
       .tp = 1,
       .ep = 1,
       .flags = APART,
       .optimizer_flags = MDP_OPTIMIZER_STOCHASTIC_STATE,
       .state = MDP_DTYPE_BF16,
       .in_one_pass = 1},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .optimizer_flags = MDP_OPTIMIZER_NO_MASTER, .in_one_pass = 1},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .average_decay = 0.5},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART | MDP_BUFFER_CHECK_LARGE},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .wire = MDP_DTYPE_BF16},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .sharding = MDP_SHARDING_WHOLE},
      {.world = 3, .tp = 1, .ep = 1, .flags = APART, .bucket_elements = 5000, .in_one_pass = 1},
      {.world = 4, .tp = 2, .ep = 1, .flags = APART, .in_one_pass = 1},
      {.world = 4, .tp = 2, .ep = 1, .flags = APART, .partial = 1},
      {.world = 4, .tp = 1, .ep = 1, .flags = APART, .instances = 2},
      {.world = 4, .tp = 1, .ep = 2, .flags = APART},
      {.world = 2, .tp = 1, .ep = 1, .flags = APART, .sharding = MDP_SHARDING_ZERO_0},
      {.world = 2, .tp = 1, .ep = 1, .sharding = MDP_SHARDING_ZERO_2},
  };
  for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) run_ranks(layouts[i].world, train_twice, (void*)&layouts[i]);
}

/* Other ranks still read the gradients. */
static void zero_at_once(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model checked = model_on(comm, argument), unchecked = model_on(comm, argument);
  SIZED(mdp_step_config, config);
  config.flags = MDP_STEP_UNCHECKED;
  for (int step = 0; step < 20; ++step) {
    put(&checked, step);
    put(&unchecked, step);
    take_step(&checked, 0, NULL);
    mdp_request* gathered = NULL;
    OK(mdp_optimizer_step(unchecked.optimizers[0], &config, NULL, &gathered));
    OK(mdp_buffer_zero_grad(unchecked.buffer, NULL));
    OK(mdp_request_wait(gathered, UINT64_MAX));
    mdp_request_free(gathered);
  }
  same_models(&checked, &unchecked);
  model_drop(&checked);
  model_drop(&unchecked);
  mdp_comm_destroy(comm);
}

static void gradients_are_cleared_after_all_have_read_them(void** state) {
  (void)state;
  static const layout of = {.world = 3, .tp = 1, .ep = 1, .flags = MDP_BUFFER_NO_OVERLAP};
  run_ranks(3, zero_at_once, (void*)&of);
}

/* ── What is not finite ── */

static void put_nan(const model* m, int whose) {
  static _Thread_local float values[LONGEST];
  for (int p = m->params; p-- > 0;) {
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = 1;
    if (p == LONG && m->rank == whose) values[5] = NAN;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
  }
}

static void spread(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model m = model_on(comm, argument);
  put_nan(&m, 1);
  SIZED(mdp_step_report, report);
  take_step(&m, MDP_STEP_UNCHECKED, &report);
  CHECK(report.flags == MDP_STEPPED_UNCHECKED && report.step == 1);
  static _Thread_local float values[LONGEST];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[LONG]);
  OK(mdp_param_read(m.buffer, LONG, &t, NULL));
  CHECK(isnan(values[5]) && isfinite(values[4]) && isfinite(values[6]));
  model_drop(&m);
  mdp_comm_destroy(comm);
}

/* A buffer that looks for it finds it all the same, before anything is changed. */
static void find(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  layout of = *(const layout*)argument;
  of.flags |= MDP_BUFFER_CHECK_FINITE;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model m = model_on(comm, &of), other = model_on(comm, argument);
  put_nan(&m, 1);
  SIZED(mdp_step_config, config);
  config.flags = MDP_STEP_UNCHECKED;
  FAILS(MDP_E_NUMERIC, "parameter 2 'long'", mdp_optimizer_step(m.optimizers[0], &config, NULL, NULL));
  SIZED(mdp_tensor, owned); /* they are reduced now */
  OK(mdp_grad_owned(m.buffer, OTHER, &owned));
  for (int64_t i = 0; i < owned.shape[0] && !on_cuda; ++i) CHECK(((const float*)owned.data)[i] == 1);
  double norm = 0;
  OK(mdp_grad_norm(m.buffer, NULL, 0, &norm));
  CHECK(!isfinite(norm));
  config.flags = 0; /* as a step sees that does check */
  config.loss_scale = 1;
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(m.optimizers[0], &config, &report, NULL));
  CHECK(report.flags == MDP_STEPPED_SKIPPED);
  put_nan(&m, 1);
  config = (mdp_step_config){.struct_size = sizeof config, .flags = MDP_STEP_UNCHECKED};
  FAILS(MDP_E_NUMERIC, "parameter 2 'long'", mdp_optimizer_step_begin(m.optimizers, 1, &config));
  FAILS(MDP_E_NUMERIC, "begin anew with mdp_buffer_zero_grad", mdp_optimizer_step(m.optimizers[0], &config, NULL, NULL));
  OK(mdp_grad_norm(m.buffer, NULL, 0, &norm));
  CHECK(!isfinite(norm));
  OK(mdp_buffer_zero_grad(m.buffer, NULL));
  put(&m, 0);
  put(&other, 0);
  take_step(&m, MDP_STEP_UNCHECKED, NULL);
  take_step(&other, 0, NULL);
  same_models(&m, &other);
  model_drop(&m);
  model_drop(&other);
  mdp_comm_destroy(comm);
}

static const layout two_ranks = {.world = 2, .tp = 1, .ep = 1, .flags = MDP_BUFFER_NO_OVERLAP};

static void what_is_not_finite_spreads_unless_it_is_looked_for(void** state) {
  (void)state;
  run_ranks(2, spread, (void*)&two_ranks);
  run_ranks(2, find, (void*)&two_ranks);
}

/* ── Refused steps lose nothing ── */

static void refused(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model m = model_on(comm, argument), other = model_on(comm, argument);
  put(&m, 0);
  put(&other, 0);
  SIZED(mdp_step_config, config);
  config.flags = MDP_STEP_UNCHECKED;
  config.loss_scale = 8;
  FAILS(MDP_E_INVALID, "config.flags has MDP_STEP_UNCHECKED (2), but config.loss_scale is given",
        mdp_optimizer_step(m.optimizers[0], &config, NULL, NULL));
  config.loss_scale = 0;
  config.flags = 4;
  FAILS(MDP_E_INVALID, "Allowed: MDP_STEP_SET_LR (1) and MDP_STEP_UNCHECKED (2)", mdp_optimizer_step(m.optimizers[0], &config, NULL, NULL));
  config.flags = MDP_STEP_UNCHECKED;
  config.lr = NAN;
  FAILS(MDP_E_INVALID, "config.lr is nan", mdp_optimizer_step(m.optimizers[0], &config, NULL, NULL));
  take_step(&m, MDP_STEP_UNCHECKED, NULL);
  take_step(&other, 0, NULL);
  same_models(&m, &other);
  model_drop(&m);
  model_drop(&other);

  static const struct {
    double norm, value;
    mdp_rule rule;
    int scaler;
    const char* part;
  } bad[] = {{.norm = 1, .part = "but the optimizer clips: max_grad_norm is 1; both must be 0"},
             {.value = 0.5, .part = "but the optimizer clips: max_grad_value is 0.5"},
             {.rule = MDP_RULE_CALLER, .part = "but the rule is the caller's"},
             {.scaler = 1, .part = "but the optimizer has a scaler"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    model one = model_on(comm, argument);
    mdp_optimizer_destroy(one.optimizers[0]);
    const mdp_param_group groups[2] = {{.struct_size = sizeof(mdp_param_group)}, {.struct_size = sizeof(mdp_param_group)}};
    SIZED(mdp_optimizer_config, rule);
    rule.lr = 0.1;
    rule.param_groups = groups;
    rule.param_group_count = 2;
    rule.max_grad_norm = bad[i].norm;
    rule.max_grad_value = bad[i].value;
    rule.rule = bad[i].rule;
    OK(mdp_optimizer_create(one.buffer, &rule, &one.optimizers[0]));
    SIZED(mdp_scaler, scaler);
    if (bad[i].scaler) OK(mdp_optimizer_set_scaler(one.optimizers[0], &scaler));
    put(&one, 0);
    config = (mdp_step_config){.struct_size = sizeof config, .flags = MDP_STEP_UNCHECKED};
    FAILS(MDP_E_INVALID, bad[i].part, mdp_optimizer_step(one.optimizers[0], &config, NULL, NULL));
    FAILS(MDP_E_INVALID, bad[i].part, mdp_optimizer_step_begin(one.optimizers, 1, &config));
    model_drop(&one);
  }
  mdp_comm_destroy(comm);
}

/* By what is known only after the sync, which has kept the buckets back. */
static void refused_late(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  mdp_buffer* buffers[2];
  mdp_optimizer* optimizers[2];
  static _Thread_local float values[LONGEST], found[2][LONGEST];
  for (int64_t i = 0; i < LONGEST; ++i) values[i] = (float)(i % 7) - 3;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[LONG]);
  const mdp_param param = vector_param("long", MDP_DTYPE_F32, &lengths[LONG]);
  for (int i = 0; i < 2; ++i) {
    SIZED(mdp_buffer_config, config);
    config.flags = MDP_BUFFER_NO_OVERLAP;
    config.scaling = MDP_SCALING_TOKENS;
    OK(mdp_buffer_register(comm, NULL, &config, &param, 1, &buffers[i]));
    SIZED(mdp_optimizer_config, rule);
    rule.lr = 0.1;
    OK(mdp_optimizer_create(buffers[i], &rule, &optimizers[i]));
    OK(mdp_grad_tokens(buffers[i], 50));
    OK(mdp_grad_put(buffers[i], 0, &t, 0, NULL));
  }
  SIZED(mdp_step_config, config);
  config.flags = MDP_STEP_UNCHECKED;
  config.grad_divisor = 1e36;
  FAILS(MDP_E_INVALID, "times the step's tokens is 1e+38", mdp_optimizer_step(optimizers[0], &config, NULL, NULL));
  double norm[2];
  OK(mdp_grad_norm(buffers[0], NULL, 0, &norm[0]));
  OK(mdp_grad_sync(buffers[1], NULL, NULL));
  OK(mdp_grad_norm(buffers[1], NULL, 0, &norm[1]));
  CHECK(norm[0] == norm[1] && norm[0] > 0);
  config.grad_divisor = 0;
  for (int i = 0; i < 2; ++i) {
    OK(mdp_optimizer_step(optimizers[i], &config, NULL, NULL));
    const mdp_tensor to = tensor_of(MDP_DTYPE_F32, found[i], &lengths[LONG]);
    OK(mdp_param_read(buffers[i], 0, &to, NULL));
  }
  CHECK(memcmp(found[0], found[1], sizeof found[0]) == 0);
  for (int i = 0; i < 2; ++i) {
    mdp_optimizer_destroy(optimizers[i]);
    mdp_buffer_destroy(buffers[i]);
  }
  mdp_comm_destroy(comm);
}

static void a_refused_step_loses_nothing(void** state) {
  (void)state;
  run_ranks(2, refused, (void*)&two_ranks);
  run_ranks(2, refused_late, NULL);
}

/* Whoever syncs first on one rank alone is told. On a device buckets are reduced before all steps. */
static void sync_on_one(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model m = model_on(comm, argument);
  put(&m, 0);
  SIZED(mdp_step_config, config);
  config.flags = MDP_STEP_UNCHECKED;
  mdp_status status = rank == 0 ? mdp_grad_sync(m.buffer, NULL, NULL) : MDP_OK;
  if (status == MDP_OK) status = mdp_optimizer_step(m.optimizers[0], &config, NULL, NULL);
  CHECK(status == (on_cuda ? MDP_OK : MDP_E_DESYNC));
  model_drop(&m);
  mdp_comm_destroy(comm);
}

static void a_sync_on_one_rank_alone_is_told(void** state) {
  (void)state;
  run_ranks(2, sync_on_one, (void*)&two_ranks);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(the_bits_are_those_of_a_checked_step), TEST(gradients_are_cleared_after_all_have_read_them),
                                     TEST(what_is_not_finite_spreads_unless_it_is_looked_for), TEST(a_refused_step_loses_nothing),
                                     TEST(a_sync_on_one_rank_alone_is_told)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
