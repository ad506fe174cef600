/* SPDX-License-Identifier: Apache-2.0
 * What is said of reduced gradients (norms and zeros of sets of parameters: acceptance vector 31), and the ways of clipping: by the L2
 * norm, by the largest magnitude, by value. */
#include <math.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

enum {
  PARTS = 4,
  MOST = 1000
};
typedef struct {
  mdp_sharding sharding;
  mdp_dtype dtype;
  int32_t tp, pp, instances;
  mdp_norm norm;
  double max_grad_norm, max_grad_value, factor; /* clip_factor that is wanted */
} kind;
static const int64_t lengths[PARTS] = {1000, 500, 300, 7};
static const mdp_placement placements[PARTS] = {MDP_PLACEMENT_SHARDED, MDP_PLACEMENT_REPLICATED, MDP_PLACEMENT_REPLICATED,
                                                MDP_PLACEMENT_PARTIAL_SUM};

typedef struct {
  const kind* of;
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

/* The third is tied over stages, if there are several. */
static model model_of(const mdp_unique_id* id, int32_t rank, int32_t n, const kind* k) {
  model m = {.of = k, .comm = comm_open(id, rank, n, UINT64_C(20000000000))};
  SIZED(mdp_grid_config, sizes);
  sizes.tp = k->tp;
  sizes.pp = k->pp;
  sizes.instances = k->instances;
  OK(mdp_grid_create(m.comm, &sizes, &m.grid));
  mdp_param params[PARTS];
  memset(params, 0, sizeof params);
  static const char* const names[PARTS] = {"a", "b", "c", "d"};
  for (int p = 0; p < PARTS; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = k->dtype;
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
    params[p].placement = placements[p];
    params[p].param_group = p % 2;
    params[p].tie = p == 2 ? "c" : NULL;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = k->sharding;
  config.grad_dtype = MDP_DTYPE_SAME;
  OK(mdp_buffer_register(NULL, m.grid, &config, params, PARTS, &m.buffer));
  mdp_param_group groups[2];
  memset(groups, 0, sizeof groups);
  groups[0].struct_size = groups[1].struct_size = sizeof groups[0];
  SIZED(mdp_optimizer_config, rule);
  rule.param_groups = groups;
  rule.param_group_count = 2;
  rule.norm = k->norm;
  rule.max_grad_norm = k->max_grad_norm;
  rule.max_grad_value = k->max_grad_value;
  OK(mdp_optimizer_create(m.buffer, &rule, &m.optimizer));
  return m;
}

static void model_drop(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
  mdp_comm_destroy(m->comm);
}

/* `values` in turn, then zeros. On grids without tensor-parallel ranks or stages the reduced gradient too. */
static void put(const model* m, int p, const float* values, int64_t count) {
  float all[MOST] = {0};
  for (int64_t i = 0; i < lengths[p] && i < count; ++i) all[i] = values[i];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, all, &lengths[p]);
  OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
}

static void put_parts(const model* m) {
  const float a[] = {3, -4, NAN}, b[] = {-12}, d[] = {0.5F, -0.0F};
  put(m, 3, d, 2);
  put(m, 2, NULL, 0);
  put(m, 1, b, 1);
  put(m, 0, a, 2);
}

static int is(const mdp_grad_summary* s, double norm, double largest, uint64_t zeros) {
  return fabs(s->norm - norm) < 1e-9 && s->inf_norm == largest && s->zeros == zeros && s->nonfinite == 0;
}

static void summarize(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const kind* k = argument;
  model m = model_of(id, rank, n, k);
  mdp_grad_summary found[PARTS];
  memset(found, 0, sizeof found);
  found[0].struct_size = sizeof found[0];
  FAILS(MDP_E_STATE, "mdp_grad_summarize: the gradients are not reduced", mdp_grad_summarize(m.buffer, NULL, 1, found));

  /* Nothing but zeros: of each element one, of gaps and padding none. */
  for (int p = PARTS - 1; p >= 0; --p) put(&m, p, NULL, 0);
  sync_and_wait(m.buffer);
  OK(mdp_grad_summarize(m.buffer, NULL, 1, found));
  const uint64_t copies = (uint64_t)k->pp, cut = (uint64_t)k->tp;
  CHECK(is(&found[0], 0, 0, copies * (cut * 1000 + 500 + 7) + 300));
  step_and_wait(m.optimizer);

  put_parts(&m);
  sync_and_wait(m.buffer);
  const size_t each[PARTS] = {0, 1, 2, 3}, groups[PARTS] = {0, 1, 0, 1}, some[PARTS] = {SIZE_MAX, 1, SIZE_MAX, SIZE_MAX};
  OK(mdp_grad_summarize(m.buffer, each, PARTS, found));
  const double root = sqrt((double)copies), tp = (double)k->tp;
  CHECK(is(&found[0], 5 * root * sqrt(tp), 4, copies * cut * 998));
  CHECK(is(&found[1], 12 * root, 12, copies * 499));
  CHECK(is(&found[2], 0, 0, 300));
  CHECK(is(&found[3], 0.5 * root * tp, 0.5 * tp, copies * 6));
  OK(mdp_grad_summarize(m.buffer, groups, 2, found));
  CHECK(is(&found[0], 5 * root * sqrt(tp), 4, copies * cut * 998 + 300));
  CHECK(is(&found[1], sqrt(144 + 0.25 * tp * tp) * root, 12, copies * 505));
  OK(mdp_grad_summarize(m.buffer, some, 2, found));
  CHECK(is(&found[0], 0, 0, 0) && is(&found[1], 12 * root, 12, copies * 499));
  double norm = 0;
  OK(mdp_grad_norm(m.buffer, NULL, 0, &norm));
  OK(mdp_grad_summarize(m.buffer, NULL, 1, found));
  CHECK(fabs(found[0].norm - norm) < 1e-9);

  const size_t wrong[PARTS] = {0, 2, 0, 0};
  FAILS(MDP_E_INVALID, "sets[1] is 2; it must be below count, 2", mdp_grad_summarize(m.buffer, wrong, 2, found));
  FAILS(MDP_E_INVALID, "count is 0", mdp_grad_summarize(m.buffer, NULL, 0, found));
  FAILS(MDP_E_INVALID, "out[0]", mdp_grad_summarize(m.buffer, NULL, 1, NULL));
  step_and_wait(m.optimizer);

  const float bad[] = {INFINITY, NAN, 2};
  for (int p = PARTS - 1; p >= 0; --p) put(&m, p, p == 1 ? bad : NULL, p == 1 ? 3 : 0);
  sync_and_wait(m.buffer);
  OK(mdp_grad_summarize(m.buffer, some, 2, found));
  CHECK(isnan(found[1].norm) && isinf(found[1].inf_norm) && found[1].nonfinite == 2 * copies && found[1].zeros == copies * 497);
  model_drop(&m);
}

static void summaries(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    for (int half = 0; half < 2; ++half) {
      kind k = {.sharding = sharding, .dtype = half ? MDP_DTYPE_BF16 : MDP_DTYPE_F32, .tp = 1, .pp = 1, .instances = 1};
      run_ranks(4, summarize, &k);
      k.instances = 2;
      run_ranks(4, summarize, &k);
      k.instances = 1;
      k.tp = k.pp = 2;
      if (UNDER_SANITIZER && half) continue;
      run_ranks(8, summarize, &k);
    }
  }
}

/* Its first moment is a tenth of the gradient that the rule was given. */
static double moment_of(const model* m, size_t param, int64_t element, int* owned) {
  mdp_range ranges[PARTS];
  const size_t count = owned_ranges(m->buffer, ranges, PARTS);
  for (size_t n = 0; n < count; ++n) {
    if ((size_t)ranges[n].param != param || element < ranges[n].param_begin) continue;
    if (element >= ranges[n].param_begin + ranges[n].end - ranges[n].begin) continue;
    SIZED(mdp_tensor, moment);
    OK(mdp_optimizer_state(m->optimizer, param, "exp_avg", &moment));
    *owned = 1;
    return 10 * (double)((const float*)moment.data)[element - ranges[n].param_begin];
  }
  *owned = 0;
  return 0;
}

static void clip(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const kind* k = argument;
  model m = model_of(id, rank, n, k);
  put_parts(&m);
  SIZED(mdp_step_config, config);
  config.grad_divisor = 2;
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(m.optimizer, &config, &report, NULL));
  CHECK(fabs(report.grad_norm - (k->norm == MDP_NORM_INF ? 6 : sqrt(169.25) / 2)) < 1e-9);
  CHECK(fabs(report.clip_factor - k->factor) < 1e-6);
  CHECK(((report.flags & MDP_STEPPED_CLIPPED) != 0) == (k->factor < 1));
  const double put_there[] = {1.5, -2, -6};
  for (int i = 0; i < 3; ++i) {
    double wanted = put_there[i] * k->factor;
    if (k->max_grad_value > 0 && fabs(wanted) > k->max_grad_value) wanted = wanted < 0 ? -k->max_grad_value : k->max_grad_value;
    int owned = 0;
    const double got = moment_of(&m, i < 2 ? 0 : 1, i < 2 ? i : 0, &owned);
    CHECK(!owned || fabs(got - wanted) < 1e-5);
  }

  /* Of what is no number there is no norm, also where the largest is asked for, and nothing is clipped by it. */
  const float bad[] = {100, NAN};
  for (int p = PARTS - 1; p >= 0; --p) put(&m, p, p == 1 ? bad : NULL, p == 1 ? 2 : 0);
  config.loss_scale = 1;
  OK(mdp_optimizer_step(m.optimizer, &config, &report, NULL));
  CHECK(report.flags == MDP_STEPPED_SKIPPED && isnan(report.grad_norm) && report.clip_factor == 1);
  model_drop(&m);
}

static void ways_of_clipping(void** state) {
  (void)state;
  const double norm = sqrt(169.25) / 2;
  const kind ways[] = {
      {.norm = MDP_NORM_INF, .factor = 1},
      {.norm = MDP_NORM_INF, .max_grad_norm = 7, .factor = 1},
      {.norm = MDP_NORM_INF, .max_grad_norm = 3, .factor = 3 / (6 + 1e-6)},
      {.norm = MDP_NORM_L2, .max_grad_norm = 3, .factor = 3 / (norm + 1e-6)},
      {.norm = MDP_NORM_L2, .max_grad_value = 1.75, .factor = 1},
      {.norm = MDP_NORM_INF, .max_grad_norm = 3, .max_grad_value = 0.8, .factor = 3 / (6 + 1e-6)},
  };
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; ++w) {
    for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
      kind k = ways[w];
      k.sharding = sharding;
      k.dtype = w % 2 == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16;
      k.tp = k.pp = k.instances = 1;
      run_ranks(2, clip, &k);
    }
  }
}

static void what_cannot_be_clipped_by(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  mdp_optimizer* none = NULL;
  SIZED(mdp_optimizer_config, rule);
  rule.norm = 2;
  FAILS(MDP_E_INVALID, "config.norm is 2; it must be MDP_NORM_L2 (0) or MDP_NORM_INF (1)", mdp_optimizer_create(j.buffer, &rule, &none));
  rule.norm = 0;
  rule.max_grad_value = -1;
  FAILS(MDP_E_INVALID, "config.max_grad_value is -1", mdp_optimizer_create(j.buffer, &rule, &none));
  rule.max_grad_value = NAN;
  FAILS(MDP_E_INVALID, "config.max_grad_value is nan", mdp_optimizer_create(j.buffer, &rule, &none));
  job_close(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(summaries),
      TEST(ways_of_clipping),
      TEST(what_cannot_be_clipped_by),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
