/* SPDX-License-Identifier: Apache-2.0
 * A model of every kind of parameter (sharded, replicated and partial over tensor-parallel ranks, dense and expert, tied between pipeline
 * stages, used twice, unused, frozen, of two element types) on every kind of grid: the reduced gradients and their norm are those of an
 * oracle that sees what all ranks have put; and what tensor-parallel ranks must agree on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

enum {
  MOST = 150
};
typedef struct {
  const char* name;
  int64_t length;
  mdp_dtype dtype;
  mdp_placement placement;
  int expert, uses, unused, frozen;
  const char* tie; /* of the first and the last stage, which alone hold it */
} part;
static const part parts[] = {
    {"sharded", 130, MDP_DTYPE_BF16, MDP_PLACEMENT_SHARDED, 0, 2, 0, 0, NULL},
    {"norm", 40, MDP_DTYPE_F32, MDP_PLACEMENT_PARTIAL_SUM, 0, 1, 0, 0, NULL},
    {"frozen", 10, MDP_DTYPE_F32, MDP_PLACEMENT_REPLICATED, 0, 1, 0, 1, NULL},
    {"gate", 33, MDP_DTYPE_BF16, MDP_PLACEMENT_PARTIAL_MEAN, 0, 1, 0, 0, NULL},
    {"expert", 150, MDP_DTYPE_F32, MDP_PLACEMENT_SHARDED, 1, 1, 0, 0, NULL},
    {"unused", 77, MDP_DTYPE_F32, MDP_PLACEMENT_PARTIAL_SUM, 0, 1, 1, 0, NULL},
    {"replicated", 64, MDP_DTYPE_BF16, MDP_PLACEMENT_REPLICATED, 0, 1, 0, 0, NULL},
    {"expert_bias", 9, MDP_DTYPE_BF16, MDP_PLACEMENT_PARTIAL_SUM, 1, 2, 0, 0, NULL},
    {"bias", 1, MDP_DTYPE_F32, MDP_PLACEMENT_PARTIAL_SUM, 0, 1, 0, 0, NULL},
    {"embedding", 120, MDP_DTYPE_BF16, MDP_PLACEMENT_SHARDED, 0, 1, 0, 0, "words"},
    {"scale", 31, MDP_DTYPE_F32, MDP_PLACEMENT_PARTIAL_MEAN, 0, 2, 0, 0, "scales"},
    {"tied_expert", 50, MDP_DTYPE_F32, MDP_PLACEMENT_SHARDED, 1, 1, 0, 0, "experts"},
    {"silent", 12, MDP_DTYPE_F32, MDP_PLACEMENT_REPLICATED, 0, 1, 1, 0, "silence"},
};
enum {
  PARTS = sizeof parts / sizeof parts[0]
};

typedef struct {
  int32_t world, tp, ep, pp, expert_tp, instances; /* no 0 */
} cut;
typedef struct {
  const cut* of;
  mdp_sharding sharding;
  mdp_dtype grads;
  uint64_t bucket_elements, flags;
} way;

/* Where a rank is on the dense and on the expert grid: tp fastest, pp slowest. */
typedef struct {
  int32_t tp, dp, pp, expert_tp, ep, expert_dp;
} place;
static place place_of(const cut* c, int32_t rank) {
  const int32_t stage = c->world / c->pp;
  return (place){.tp = rank % c->tp,
                 .dp = rank % stage / c->tp,
                 .pp = rank / stage,
                 .expert_tp = rank % c->expert_tp,
                 .ep = rank / c->expert_tp % c->ep,
                 .expert_dp = rank % stage / (c->expert_tp * c->ep)};
}

/* The divisor, so that every average is exact, times a small whole number. Replicas over tensor-parallel ranks have the same. */
static float gradient(const cut* c, int32_t rank, int p, int64_t i, int step, int use) {
  const place at = place_of(c, rank);
  const int32_t who = parts[p].placement == MDP_PLACEMENT_REPLICATED ? at.dp * 7 + at.pp : rank;
  return (float)(c->world * ((who * 3 + (int32_t)i + p * 5 + step + use * 2) % 5 - 2));
}

/* Which parts a stage has. */
static int holds(const cut* c, int32_t stage, int p) {
  return parts[p].tie == NULL || stage == 0 || stage == c->pp - 1;
}

static int is_partial(int p) {
  return parts[p].placement == MDP_PLACEMENT_PARTIAL_SUM || parts[p].placement == MDP_PLACEMENT_PARTIAL_MEAN;
}

/* In odd steps the first of tensor-parallel ranks have no "norm", and the last of several stages nothing that is tied. */
static int skips(const cut* c, int32_t rank, int p, int step) {
  const place at = place_of(c, rank);
  const int is_odd = step % 2 == 1;
  return parts[p].unused || (p == 1 && is_odd && c->tp > 1 && at.tp == 0) ||
         (parts[p].tie != NULL && is_odd && c->pp > 1 && at.pp == c->pp - 1);
}

static double reduced(const cut* c, int32_t rank, int p, int64_t i, int step) {
  const place here = place_of(c, rank);
  double sum = 0;
  for (int32_t r = 0; r < c->world; ++r) {
    const place there = place_of(c, r);
    const int same_tp = parts[p].expert ? there.expert_tp == here.expert_tp : there.tp == here.tp;
    const int same_stage = there.pp == here.pp || (parts[p].tie != NULL && holds(c, there.pp, p));
    if (!same_stage || (parts[p].expert && there.ep != here.ep) || (!same_tp && !is_partial(p))) continue;
    if (skips(c, r, p, step)) continue;
    for (int use = 0; use < 2 * parts[p].uses; ++use) sum += gradient(c, r, p, i, step, use); /* of two microbatches */
  }
  const double tp = parts[p].expert ? c->expert_tp : c->tp;
  return sum / ((double)c->world / c->tp / c->pp) / (parts[p].placement == MDP_PLACEMENT_PARTIAL_MEAN ? tp : 1);
}

static double norm_of(const cut* c, int step) {
  double squares = 0;
  for (int32_t r = 0; r < c->world; ++r) {
    const place at = place_of(c, r);
    for (int p = 0; p < PARTS; ++p) {
      if (parts[p].frozen || (parts[p].expert ? at.expert_dp : at.dp) != 0 || (parts[p].tie != NULL && at.pp != 0)) continue;
      if (parts[p].placement != MDP_PLACEMENT_SHARDED && (parts[p].expert ? at.expert_tp : at.tp) != 0) continue;
      for (int64_t i = 0; i < parts[p].length; ++i) squares += pow(reduced(c, r, p, i, step), 2);
    }
  }
  return sqrt(squares);
}

typedef struct {
  int32_t rank;
  const way* of;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
  size_t count;
  int part_of[PARTS];     /* by parameter */
  size_t param_of[PARTS]; /* by part; PARTS: it has none */
} model;

static model model_on(mdp_comm* comm, const way* w) {
  model m = {.rank = mdp_comm_rank(comm), .of = w};
  SIZED(mdp_grid_config, sizes);
  sizes.tp = w->of->tp;
  sizes.ep = w->of->ep;
  sizes.pp = w->of->pp;
  sizes.expert_tp = w->of->expert_tp;
  sizes.instances = w->of->instances;
  OK(mdp_grid_create(comm, &sizes, &m.grid));
  mdp_param params[PARTS];
  memset(params, 0, sizeof params);
  const int32_t stage = place_of(w->of, m.rank).pp;
  for (int n = 0; n < PARTS; ++n) {
    const int p = stage % 2 == 0 ? n : PARTS - 1 - n; /* stages have them at different places */
    m.param_of[p] = PARTS;
    if (!holds(w->of, stage, p)) continue;
    mdp_param* const one = &params[m.count];
    one->struct_size = sizeof *one;
    one->name = parts[p].name;
    one->dtype = parts[p].dtype;
    one->ndim = 1;
    one->shape = &parts[p].length;
    one->placement = parts[p].placement;
    one->param_class = parts[p].expert ? MDP_PARAM_CLASS_EXPERT : MDP_PARAM_CLASS_DENSE;
    one->uses_per_step = parts[p].uses;
    one->use_order = (stage + (int32_t)w->sharding) % 2 == 0 ? 0 : p * 5 % 7; /* and are used in other orders */
    one->flags = parts[p].frozen ? MDP_PARAM_FROZEN : 0;
    one->tie = parts[p].tie;
    m.part_of[m.count] = p;
    m.param_of[p] = m.count++;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = w->sharding;
  config.grad_dtype = w->grads;
  config.bucket_elements = w->bucket_elements;
  config.flags = w->flags;
  OK(mdp_buffer_register(NULL, m.grid, &config, params, m.count, &m.buffer));
  OK(mdp_optimizer_create(m.buffer, NULL, &m.optimizer));
  return m;
}

static void model_drop(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
}

static void backward(const model* m, int step) {
  for (int b = 0; b < 2; ++b) {
    OK(mdp_microbatch_begin(m->buffer, b));
    for (size_t param = m->count; param-- > 0;) {
      const int p = m->part_of[param];
      if (parts[p].frozen) continue;
      if (skips(m->of->of, m->rank, p, step)) {
        OK(mdp_grad_skip(m->buffer, param));
        continue;
      }
      for (int use = 0; use < parts[p].uses; ++use) {
        float values[MOST];
        for (int64_t i = 0; i < parts[p].length; ++i) {
          values[i] = gradient(m->of->of, m->rank, p, i, step, use + b * parts[p].uses);
        }
        const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &parts[p].length);
        OK(mdp_grad_put(m->buffer, param, &t, 0, NULL));
      }
    }
  }
}

static float element(const mdp_tensor* t, int64_t i) {
  if (t->dtype == MDP_DTYPE_F32) return ((const float*)t->data)[i];
  const uint32_t bits = (uint32_t)((const uint16_t*)t->data)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static void check_reduced(const model* m, int step) {
  mdp_range ranges[PARTS];
  const size_t count = owned_ranges(m->buffer, ranges, PARTS);
  for (size_t n = 0; n < count; ++n) {
    const int p = m->part_of[ranges[n].param];
    SIZED(mdp_tensor, sum);
    OK(mdp_grad_owned(m->buffer, (size_t)ranges[n].param, &sum));
    int wrong = 0;
    for (int64_t i = 0; i < sum.shape[0]; ++i) {
      wrong += (double)element(&sum, i) != reduced(m->of->of, m->rank, p, ranges[n].param_begin + i, step);
    }
    if (!CHECK(wrong == 0)) printf("%s of rank %d: %d elements of %d\n", parts[p].name, m->rank, wrong, (int)sum.shape[0]);
  }
}

static float last_of(const model* m, int p) {
  float values[MOST];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &parts[p].length);
  OK(mdp_param_read(m->buffer, m->param_of[p], &t, NULL));
  return values[parts[p].length - 1];
}

static void train(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model m = model_on(comm, argument);
  for (int step = 0; step < 3; ++step) {
    backward(&m, step);
    sync_and_wait(m.buffer);
    check_reduced(&m, step);
    double norm = 0;
    OK(mdp_grad_norm(m.buffer, NULL, 0, &norm));
    CHECK(fabs(norm - norm_of(m.of->of, step)) <= 1e-12 * norm);
    step_and_wait(m.optimizer);
  }
  OK(mdp_buffer_verify(m.buffer));
  for (int p = 0; p < PARTS; ++p) {
    if (parts[p].frozen || m.param_of[p] == PARTS) continue;
    uint64_t steps = 9;
    OK(mdp_optimizer_steps(m.optimizer, m.param_of[p], &steps));
    CHECK(steps == (parts[p].unused ? 0 : 3)); /* unused on all; the others have some where a few tensor-parallel ranks or a stage skip */
    CHECK(!parts[p].unused || last_of(&m, p) == 0);
  }
  model_drop(&m);
  mdp_comm_destroy(comm);
}

static const cut cuts[] = {
    {4, 1, 1, 1, 1, 1}, /* dp 4 */
    {4, 2, 1, 1, 2, 1}, /* tp 2 x dp 2 */
    {4, 1, 2, 1, 1, 1}, /* ep 2 x dp 2 */
    {4, 1, 1, 2, 1, 1}, /* pp 2 x dp 2 */
    {4, 1, 1, 1, 1, 2}, /* dp 4, two instances */
    {8, 2, 2, 1, 2, 1}, /* tp 2 x dp 4, experts tp 2 x ep 2 x dp 2 */
    {8, 2, 2, 1, 1, 2}, /* tp 2 x dp 4, experts ep 2 x dp 4, two instances */
    {8, 4, 1, 1, 2, 1}, /* tp 4 x dp 2, experts tp 2 x dp 4 */
    {8, 2, 1, 2, 2, 2}, /* tp 2 x dp 2 x pp 2, two instances */
    {8, 2, 2, 2, 1, 1}, /* tp 2 x dp 2 x pp 2, experts ep 2 x dp 2 */
    {6, 1, 1, 3, 1, 1}, /* dp 2 x pp 3 */
    {6, 2, 1, 3, 2, 1}, /* tp 2 x pp 3 */
};

static void gradients_are_those_of_an_oracle(void** state) {
  (void)state;
  for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; ++c) {
    for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
      for (int which = 0; which < 4; ++which) {
        if (UNDER_SANITIZER && cuts[c].world > 4 && which != 1) continue;
        if (UNDER_THREAD_SANITIZER && (cuts[c].world > 4 || which % 2 == 0)) continue;
        way w = {.of = &cuts[c], .sharding = sharding, .bucket_elements = which < 2 ? 1 : 100};
        w.grads = which % 2 == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_SAME;
        w.flags = which == 3 ? MDP_BUFFER_NO_OVERLAP : 0;
        run_ranks(cuts[c].world, train, &w);
      }
    }
  }
}

/* ── What tensor-parallel ranks must agree on ── */

typedef struct {
  mdp_placement second; /* of "b", on the ranks that are not the first of theirs */
  int64_t length;       /* likewise of "a" */
  uint64_t flags;       /* of "b", on all */
  const char* words;    /* NULL: it is fine */
} difference;

static void differ(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const difference* d = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(20000000000));
  SIZED(mdp_grid_config, sizes);
  sizes.tp = 2;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &sizes, &grid));
  const int other = rank % 2;
  const int64_t lengths[2] = {other ? d->length : 100, 50};
  mdp_param params[2];
  memset(params, 0, sizeof params);
  for (int p = 0; p < 2; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = p == 0 ? "a" : "b";
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
    params[p].placement = p == 0 ? MDP_PLACEMENT_SHARDED : other ? d->second : MDP_PLACEMENT_PARTIAL_SUM;
    params[p].flags = p == 1 ? d->flags : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.bucket_elements = UINT64_MAX;
  mdp_buffer* buffer = NULL;
  const mdp_status registered = mdp_buffer_register(NULL, grid, &config, params, 2, &buffer);
  if (d->words != NULL) {
    FAILS(MDP_E_DESYNC, d->words, registered);
  } else if (OK(registered)) {
    const float ones[50] = {1};
    for (int p = 1; p >= 0; --p) {
      float values[600];
      for (int i = 0; i < 600; ++i) values[i] = ones[0];
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
      OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
    }
    sync_and_wait(buffer);
    SIZED(mdp_tensor, sum);
    OK(mdp_grad_owned(buffer, 1, &sum));
    for (int64_t i = 0; i < (sum.data == NULL ? 0 : sum.shape[0]); ++i) CHECK(((const float*)sum.data)[i] == 2);
  }
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void tensor_parallel_ranks_cut_alike(void** state) {
  (void)state;
  difference all[] = {
      {MDP_PLACEMENT_PARTIAL_SUM, 100, 0, NULL},
      {MDP_PLACEMENT_PARTIAL_SUM, 600, 0, "MDP_PARAM_OWN_BUCKET"},
      {MDP_PLACEMENT_PARTIAL_SUM, 600, MDP_PARAM_OWN_BUCKET, NULL},
      {MDP_PLACEMENT_PARTIAL_MEAN, 100, 0, "partial (mean)"},
      {MDP_PLACEMENT_REPLICATED, 100, 0, "partial 'b'"},
  };
  for (size_t n = 0; n < sizeof all / sizeof all[0]; ++n) run_ranks(4, differ, &all[n]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(gradients_are_those_of_an_oracle),
      TEST(tensor_parallel_ranks_cut_alike),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
