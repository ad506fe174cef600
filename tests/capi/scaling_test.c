/* SPDX-License-Identifier: Apache-2.0
 * What gradients are divided by: ranks, nothing, tokens, and what a step says; with every sharding, f32 and half-width, on ranks that share
 * a batch. Acceptance vectors 17 to 19. */
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "fixture.h"

enum {
  LENGTH = 150
};
static const int64_t length = LENGTH;

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

typedef struct {
  mdp_scaling scaling;
  mdp_sharding sharding;
  mdp_dtype dtype; /* BF16: its gradients too */
  int32_t tp, pp, ep, instances;
  const double* numbers; /* of each rank */
  double wanted;
} kind;

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
  int32_t rank;
} model;

static model model_of(const mdp_unique_id* id, int32_t rank, int32_t n, const kind* k) {
  model m = {.comm = comm_open(id, rank, n, UINT64_C(20000000000)), .rank = rank};
  SIZED(mdp_grid_config, sizes);
  sizes.tp = k->tp;
  sizes.pp = k->pp;
  sizes.ep = k->ep;
  sizes.instances = k->instances;
  OK(mdp_grid_create(m.comm, &sizes, &m.grid));
  SIZED(mdp_param, w);
  w.name = "w";
  w.dtype = k->dtype;
  w.ndim = 1;
  w.shape = &length;
  w.placement = MDP_PLACEMENT_REPLICATED;
  w.param_class = k->ep > 1 ? MDP_PARAM_CLASS_EXPERT : MDP_PARAM_CLASS_DENSE;
  SIZED(mdp_buffer_config, config);
  config.scaling = k->scaling;
  config.sharding = k->sharding;
  config.grad_dtype = MDP_DTYPE_SAME;
  OK(mdp_buffer_register(NULL, m.grid, &config, &w, 1, &m.buffer));
  OK(mdp_optimizer_create(m.buffer, NULL, &m.optimizer));
  return m;
}

static void model_drop(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
  mdp_comm_destroy(m->comm);
}

static mdp_status put(const model* m, double value) {
  float values[LENGTH];
  for (int i = 0; i < LENGTH; ++i) values[i] = (float)value;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &length);
  return mdp_grad_put(m->buffer, 0, &t, 0, NULL);
}

/* All of what this rank owns of the reduced gradient. */
static void owns(const model* m, double wanted) {
  SIZED(mdp_tensor, sum);
  OK(mdp_grad_owned(m->buffer, 0, &sum));
  for (int64_t i = 0; i < sum.shape[0]; ++i) {
    float x = 0;
    if (sum.dtype == MDP_DTYPE_F32) {
      x = ((const float*)sum.data)[i];
    } else {
      const uint32_t bits = (uint32_t)((const uint16_t*)sum.data)[i] << 16;
      memcpy(&x, &bits, sizeof x);
    }
    CHECK((double)x == wanted);
  }
}

static void first_moment_is(const model* m, double wanted) {
  SIZED(mdp_tensor, moment);
  OK(mdp_optimizer_state(m->optimizer, 0, "exp_avg", &moment));
  for (int64_t i = 0; i < moment.shape[0]; ++i) {
    CHECK(fabs((double)((const float*)moment.data)[i] - 0.1 * wanted) < 1e-6 * (wanted + 1));
  }
}

/* The norm of as many elements as the model has. */
static double norm_of(double value, int copies) {
  return sqrt((double)(LENGTH * copies)) * value;
}

/* ── By ranks ── */

static void reduce(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const kind* k = argument;
  model m = model_of(id, rank, n, k);
  FAILS(MDP_E_STATE, "another mdp_buffer_config.scaling than MDP_SCALING_TOKENS", mdp_grad_tokens(m.buffer, 3));
  OK(put(&m, k->numbers[rank]));
  sync_and_wait(m.buffer);
  owns(&m, k->wanted);
  model_drop(&m);
}

static void a_mean_or_a_sum(void** state) {
  (void)state;
  const double counted[] = {1, 2, 3, 4}, fours[] = {4, 4, 4, 4, 4, 4, 4, 4};
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    for (int half = 0; half < 2; ++half) {
      const mdp_dtype dtype = half ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
      kind mean = {MDP_SCALING_MEAN, sharding, dtype, 1, 1, 1, 1, counted, 2.5};
      run_ranks(4, reduce, &mean);
      kind sum = {MDP_SCALING_SUM, sharding, dtype, 1, 1, 1, 1, counted, 10};
      run_ranks(4, reduce, &sum);
      kind instances = {MDP_SCALING_SUM, sharding, dtype, 1, 1, 1, 2, counted, 10};
      run_ranks(4, reduce, &instances);
      if (UNDER_SANITIZER && half) continue;
      kind experts = {MDP_SCALING_MEAN, sharding, dtype, 1, 1, 4, 1, fours, 1}; /* expert dp 2 of dp 8 */
      run_ranks(8, reduce, &experts);
    }
  }
}

/* ── By tokens ── */

static const double sums[] = {6, 20}, tokens[] = {3, 5};

static int batch_of(const kind* k, int32_t rank) {
  return rank / k->tp % 2;
}

/* One step: its norm and its first moment are those of 26 / 8. */
static void divide(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const kind* k = argument;
  const int at_once = k->dtype == MDP_DTYPE_BF16;
  model m = model_of(id, rank, n, k);
  const int batch = batch_of(k, rank);
  if (at_once) FAILS(MDP_E_STATE, "comes before mdp_grad_tokens", put(&m, 1));
  for (int step = 0; step < 2; ++step) {
    OK(mdp_microbatch_begin(m.buffer, 0));
    /* Of ranks that share a batch one says it in odd steps: the last stage. */
    const int says = at_once || step == 0 || rank / (k->tp * 2) == k->pp - 1;
    if (says && step == 0) OK(mdp_grad_tokens(m.buffer, tokens[batch]));
    OK(mdp_buffer_zero_grad(m.buffer, NULL)); /* what was said holds */
    if (says && step == 0) FAILS(MDP_E_STATE, "was called already in this step, with", mdp_grad_tokens(m.buffer, 1));
    if (says && step == 1) OK(mdp_grad_tokens(m.buffer, tokens[batch]));
    OK(put(&m, sums[batch] / 2));
    OK(mdp_microbatch_begin(m.buffer, 1));
    OK(put(&m, sums[batch] / 2));
    sync_and_wait(m.buffer);
    FAILS(MDP_E_STATE, "comes after mdp_grad_sync", mdp_grad_tokens(m.buffer, 1));
    owns(&m, at_once ? 3.25 : 26);
    double norm = 0;
    OK(mdp_grad_norm(m.buffer, NULL, 0, &norm));
    CHECK(fabs(norm - norm_of(3.25, k->pp)) < 1e-9);
    SIZED(mdp_step_report, report);
    SIZED(mdp_step_config, config);
    config.grad_divisor = step == 0 ? 0 : 2;
    OK(mdp_optimizer_step(m.optimizer, &config, &report, NULL));
    const double divided = step == 0 ? 3.25 : 1.625;
    CHECK(fabs(report.grad_norm - norm_of(divided, k->pp)) < 1e-9 && report.loss_scale == 1);
    first_moment_is(&m, step == 0 ? 3.25 : 1.625 + 0.9 * 3.25);
  }
  model_drop(&m);
}

static void tokens_of_all_ranks(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    for (int half = 0; half < 2; ++half) {
      const mdp_dtype dtype = half ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
      kind plain = {MDP_SCALING_TOKENS, sharding, dtype, 1, 1, 1, 1, NULL, 0};
      run_ranks(2, divide, &plain);
      kind instances = {MDP_SCALING_TOKENS, sharding, dtype, 1, 1, 1, 2, NULL, 0};
      run_ranks(2, divide, &instances);
      if (UNDER_SANITIZER && !half) continue;
      kind cut = {MDP_SCALING_TOKENS, sharding, dtype, 2, 2, 1, 1, NULL, 0};
      run_ranks(8, divide, &cut);
    }
  }
}

static void divide_by_none(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_of(id, rank, n, argument);
  OK(mdp_grad_tokens(m.buffer, 0));
  OK(put(&m, 0));
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(m.optimizer, NULL, &report, NULL));
  CHECK(report.grad_norm == 0);
  first_moment_is(&m, 0);
  model_drop(&m);
}

static void no_tokens_at_all(void** state) {
  (void)state;
  for (int half = 0; half < 2; ++half) {
    kind k = {MDP_SCALING_TOKENS, MDP_SHARDING_ZERO_1, half ? MDP_DTYPE_BF16 : MDP_DTYPE_F32, 1, 1, 1, 1, NULL, 0};
    run_ranks(2, divide_by_none, &k);
  }
}

/* A gradient that another thread puts before all ranks have told theirs is not divided by what the last step had. */
typedef struct {
  const model* m;
  double value;
  mdp_status status;
} early;

static void* put_when_told(void* argument) {
  early* e = argument;
  while ((e->status = put(e->m, e->value)) == MDP_E_STATE) usleep(200);
  return NULL;
}

static void put_meanwhile(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_of(id, rank, n, argument);
  for (int step = 0; step < 4; ++step) {
    const double count = step % 2 == 0 ? 2 : 8;
    early e = {&m, count, MDP_OK};
    pthread_t thread;
    if (rank == 0) CHECK(pthread_create(&thread, NULL, put_when_told, &e) == 0);
    if (rank != 0) usleep(50000);
    OK(mdp_grad_tokens(m.buffer, count));
    if (rank == 0) {
      pthread_join(thread, NULL);
      OK(e.status);
    } else {
      OK(put(&m, count));
    }
    sync_and_wait(m.buffer);
    owns(&m, 1);
    step_and_wait(m.optimizer);
  }
  model_drop(&m);
}

static void tokens_before_gradients(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    kind k = {MDP_SCALING_TOKENS, sharding, MDP_DTYPE_BF16, 2, 1, 1, 1, NULL, 0};
    run_ranks(2, put_meanwhile, &k);
  }
}

/* ── Mistakes ── */

static void mistake(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const kind* k = argument;
  model m = model_of(id, rank, n, k);
  FAILS(MDP_E_INVALID, "count is -1; it must be between 0", mdp_grad_tokens(m.buffer, -1));
  FAILS(MDP_E_INVALID, "count is nan", mdp_grad_tokens(m.buffer, NAN));
  FAILS(MDP_E_INVALID, "count is inf", mdp_grad_tokens(m.buffer, INFINITY));

  /* Nobody of batch 1 has said it; the step is begun anew. */
  if (batch_of(k, rank) == 0) OK(mdp_grad_tokens(m.buffer, 3));
  OK(put(&m, 1));
  FAILS(MDP_E_STATE, "mdp_grad_sync: neither rank 2 nor any that shares its batch", mdp_grad_sync(m.buffer, NULL, NULL));
  FAILS(MDP_E_STATE, "neither rank 2", mdp_optimizer_step(m.optimizer, NULL, NULL, NULL));

  /* Ranks that share a batch say something else. */
  OK(mdp_microbatch_begin(m.buffer, 1));
  OK(mdp_grad_tokens(m.buffer, rank == 5 ? 4 : 3));
  OK(put(&m, 1));
  FAILS(MDP_E_STATE, "rank 0 has 3 tokens in this step, rank 5, which shares its batch, 4", mdp_grad_sync(m.buffer, NULL, NULL));

  /* What all of it comes to cannot be divided by. */
  OK(mdp_microbatch_begin(m.buffer, 1));
  OK(mdp_grad_tokens(m.buffer, 1e15));
  OK(put(&m, 1));
  SIZED(mdp_step_config, config);
  config.grad_divisor = 1e37;
  FAILS(MDP_E_INVALID, "loss_scale times grad_divisor times the step's tokens is 2e+52",
        mdp_optimizer_step(m.optimizer, &config, NULL, NULL));
  config.grad_divisor = -1;
  FAILS(MDP_E_INVALID, "config.grad_divisor is -1", mdp_optimizer_step(m.optimizer, &config, NULL, NULL));
  config.grad_divisor = 1e-15;
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(m.optimizer, &config, &report, NULL));
  CHECK(fabs(report.grad_norm - norm_of(1, 2)) < 1e-9);
  model_drop(&m);
}

static void mistake_at_once(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_of(id, rank, n, argument);
  FAILS(MDP_E_STATE, "rank 0 has 3 tokens in this step, rank 1, which shares its batch, 4", mdp_grad_tokens(m.buffer, rank == 1 ? 4 : 3));
  FAILS(MDP_E_STATE, "mdp_grad_put: parameter 0 'w' comes before mdp_grad_tokens", put(&m, 1));
  FAILS(MDP_E_STATE, "mdp_grad_sync comes before mdp_grad_tokens", mdp_grad_sync(m.buffer, NULL, NULL));
  OK(mdp_microbatch_begin(m.buffer, 1));
  OK(mdp_grad_tokens(m.buffer, 2));
  OK(put(&m, 1));
  sync_and_wait(m.buffer);
  owns(&m, 0.5);
  model_drop(&m);
}

static void mistakes(void** state) {
  (void)state;
  kind k = {MDP_SCALING_TOKENS, MDP_SHARDING_ZERO_1, MDP_DTYPE_F32, 2, 2, 1, 1, NULL, 0};
  run_ranks(8, mistake, &k);
  kind half = {MDP_SCALING_TOKENS, MDP_SHARDING_ZERO_1, MDP_DTYPE_BF16, 2, 1, 1, 1, NULL, 0};
  run_ranks(4, mistake_at_once, &half);
}

/* ── Stages with gradients of different types ── */

static void differ(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int first_is_half = *(const int*)argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(20000000000));
  SIZED(mdp_grid_config, stages);
  stages.pp = 2;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &stages, &grid));
  SIZED(mdp_buffer_config, config);
  config.grad_dtype = MDP_DTYPE_SAME;
  config.scaling = MDP_SCALING_TOKENS;
  const int64_t size = 4;
  const int half = (rank == 0) == first_is_half;
  const mdp_param param = {sizeof param, half ? MDP_DTYPE_BF16 : MDP_DTYPE_F32, .name = "w", .shape = &size, .ndim = 1};
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, grid, &config, &param, 1, &buffer));
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, NULL, &optimizer));
  float values[4] = {8, 8, 8, 8};
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &size);
  for (int step = 0; step < 2; ++step) {
    OK(mdp_grad_tokens(buffer, 4));
    OK(mdp_grad_put(buffer, 0, &t, 0, NULL));
    SIZED(mdp_step_report, report);
    OK(mdp_optimizer_step(optimizer, NULL, &report, NULL));
    CHECK(fabs(report.grad_norm - 2 * sqrt(8)) < 1e-9);
  }
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void stages_may_differ(void** state) {
  (void)state;
  for (int first_is_half = 0; first_is_half < 2; ++first_is_half) run_ranks(2, differ, &first_is_half);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_mean_or_a_sum), TEST(tokens_of_all_ranks), TEST(no_tokens_at_all),
      TEST(mistakes),        TEST(stages_may_differ),   TEST(tokens_before_gradients),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
