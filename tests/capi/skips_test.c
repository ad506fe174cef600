/* SPDX-License-Identifier: Apache-2.0
 * Parameters that are left out of some steps: each has a step count of its own, beside AdamW in float64 that counts likewise. */
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
  COUNT = 24,
  LONGEST = 90,
  STEPS = 9
};
static const double lr = 0.05, beta1 = 0.9, beta2 = 0.99, eps = 1e-6, decay = 0.1;

static int64_t length_of(int p) {
  return 3 + p % 5 * 21;
}

/* Which parameters a rank leaves out of a step. */
typedef enum {
  NOBODY,
  A_WHILE,     /* odd ones, on all ranks, early and again late */
  ON_ONE_RANK, /* odd ones, on rank 0 only: it counts as taken */
  ONE_BY_ONE,  /* each in steps of its own: as many histories as parameters */
  LATE         /* all but the first come in later than it, one a step */
} habit;

typedef struct {
  habit skips;
  int32_t ranks;
  mdp_sharding sharding;
  int holes; /* gradients of some steps are not finite, so that these are skipped */
} job_kind;

static int left_out(const job_kind* kind, int p, int step, int32_t rank) {
  switch (kind->skips) {
    case NOBODY:
      return 0;
    case A_WHILE:
      return p % 2 == 1 && (step < 4 || step == 7);
    case ON_ONE_RANK:
      return p % 2 == 1 && rank == 0 && kind->ranks > 1 && step % 3 != 1;
    case ONE_BY_ONE:
      return (p + 5) >> (step % 5) & 1;
    case LATE:
      return step < p % STEPS;
  }
  return 0;
}

static int not_finite(const job_kind* kind, int step) {
  return kind->holes && (step == 0 || step == 3 || step == 4);
}

static float gradient(int p, int64_t i, int step, int32_t rank) {
  return (float)(((i + 3) * (p + 2) * 7 + step * 31 + rank * 17) % 41 - 17) / 16;
}

/* ── AdamW in float64, with one step count a parameter ── */

typedef struct {
  double w[LONGEST], m[LONGEST], v[LONGEST];
  uint64_t steps;
} wide_param;

static void wide_start(wide_param* all) {
  memset(all, 0, COUNT * sizeof *all);
  for (int p = 0; p < COUNT; ++p) {
    for (int64_t i = 0; i < length_of(p); ++i) all[p].w[i] = (double)(i % 16 - 8) / 8;
  }
}

static void wide_step(const job_kind* kind, wide_param* all, int step) {
  for (int p = 0; p < COUNT && !not_finite(kind, step); ++p) {
    int32_t givers = 0;
    for (int32_t r = 0; r < kind->ranks; ++r) givers += !left_out(kind, p, step, r);
    if (givers == 0) continue;
    wide_param* const x = &all[p];
    x->steps += 1;
    const double unbiased1 = 1 - pow(beta1, (double)x->steps), unbiased2 = 1 - pow(beta2, (double)x->steps);
    for (int64_t i = 0; i < length_of(p); ++i) {
      double g = 0;
      for (int32_t r = 0; r < kind->ranks; ++r) g += left_out(kind, p, step, r) ? 0 : (double)gradient(p, i, step, r);
      g /= kind->ranks;
      x->m[i] = beta1 * x->m[i] + (1 - beta1) * g;
      x->v[i] = beta2 * x->v[i] + (1 - beta2) * g * g;
      x->w[i] -= lr * decay * x->w[i] + lr * (x->m[i] / unbiased1) / (sqrt(x->v[i] / unbiased2) + eps);
    }
  }
}

/* ── The same by the library ── */

static mdp_buffer* register_all(mdp_grid* grid, mdp_sharding sharding) {
  mdp_param params[COUNT];
  int64_t lengths[COUNT];
  char names[COUNT][8];
  memset(params, 0, sizeof params);
  for (int p = 0; p < COUNT; ++p) {
    lengths[p] = length_of(p);
    snprintf(names[p], sizeof names[p], "p%d", p);
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = p % 7 == 3 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.bucket_elements = 400;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, grid, &config, params, COUNT, &buffer));
  for (int p = 0; p < COUNT; ++p) {
    float values[LONGEST];
    for (int64_t i = 0; i < length_of(p); ++i) values[i] = (float)(i % 16 - 8) / 8;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_write(buffer, (size_t)p, &t, NULL));
  }
  return buffer;
}

static void backward(const job_kind* kind, mdp_buffer* buffer, int step, int32_t rank) {
  for (int p = COUNT; p-- > 0;) {
    if (left_out(kind, p, step, rank)) {
      OK(mdp_grad_skip(buffer, (size_t)p));
      continue;
    }
    const int64_t length = length_of(p);
    float values[LONGEST];
    for (int64_t i = 0; i < length; ++i) values[i] = not_finite(kind, step) ? INFINITY : gradient(p, i, step, rank);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &length);
    OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
  }
  OK(mdp_grad_sync(buffer, NULL, NULL));
}

static void compare(const job_kind* kind, mdp_buffer* buffer, mdp_optimizer* optimizer, const wide_param* all, int step) {
  mdp_range ranges[2 * COUNT];
  const size_t count = owned_ranges(buffer, ranges, 2 * COUNT);
  double worst = 0;
  size_t at = 0;
  for (size_t r = 0; r < count; ++r) {
    const size_t p = (size_t)ranges[r].param;
    SIZED(mdp_tensor, view);
    OK(mdp_optimizer_state(optimizer, p, "master", &view));
    for (int64_t i = 0; i < view.shape[0]; ++i) {
      const double off = fabs((double)((const float*)view.data)[i] - all[p].w[ranges[r].param_begin + i]);
      if (off > worst) worst = off, at = p;
    }
  }
  if (!CHECK(worst < 1e-5)) {
    fprintf(stderr, "  habit %d, %d ranks, sharding %u, holes %d: after step %d parameter %zu is off by %g\n", (int)kind->skips,
            (int)kind->ranks, kind->sharding, kind->holes, step, at, worst);
  }
  for (size_t p = 0; p < COUNT; ++p) {
    uint64_t steps = 99;
    OK(mdp_optimizer_steps(optimizer, p, &steps));
    CHECK(steps == all[p].steps);
  }
}

static void train(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const job_kind* kind = argument;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, NULL, &grid));
  mdp_buffer* buffer = register_all(grid, kind->sharding);
  SIZED(mdp_optimizer_config, config);
  config.lr = lr;
  config.beta1 = beta1;
  config.beta2 = beta2;
  config.eps = eps;
  config.weight_decay = decay;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  wide_param* all = malloc(COUNT * sizeof *all);
  wide_start(all);
  for (int step = 0; step < STEPS; ++step) {
    backward(kind, buffer, step, rank);
    SIZED(mdp_step_config, scaled);
    scaled.loss_scale = 1;
    mdp_request* stepped = NULL;
    OK(mdp_optimizer_step(optimizer, &scaled, NULL, &stepped));
    OK(mdp_request_wait(stepped, UINT64_MAX));
    mdp_request_free(stepped);
    wide_step(kind, all, step);
    compare(kind, buffer, optimizer, all, step);
  }
  free(all);
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void train_all(habit skips) {
  static const mdp_sharding shardings[] = {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2};
  for (int i = 0; i < 12; ++i) {
    job_kind kind = {.skips = skips, .ranks = 1 + i % 2, .sharding = shardings[i / 2 % 3], .holes = i / 6};
    run_ranks(kind.ranks, train, &kind);
  }
}

static void nothing_left_out(void** state) {
  (void)state;
  train_all(NOBODY);
}

static void left_out_for_a_while(void** state) {
  (void)state;
  train_all(A_WHILE);
}

static void left_out_on_one_rank_only(void** state) {
  (void)state;
  train_all(ON_ONE_RANK);
}

static void each_with_its_own_history(void** state) {
  (void)state;
  train_all(ONE_BY_ONE);
}

static void coming_in_late(void** state) {
  (void)state;
  train_all(LATE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(nothing_left_out),          TEST(left_out_for_a_while), TEST(left_out_on_one_rank_only),
      TEST(each_with_its_own_history), TEST(coming_in_late),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
