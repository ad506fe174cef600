/* SPDX-License-Identifier: Apache-2.0
 * Tensor-parallel ranks that hold different parameters: each goes its way on the ranks that hold it, and is saved whole. What all hold is
 * compared as ever. */
#include <math.h>
#include <string.h>

#include "fixture.h"

enum {
  TP = 3,
  MOST = 3,
  LENGTH = 257
};
static const int64_t length = LENGTH;
/* By tensor-parallel rank, in the order in which it registers them. */
static const char* const held[TP][MOST] = {{"one", "all", "cut"}, {"two", "all", "cut"}, {"all", "two", "cut"}};

static int setup(void** state) {
  be_alone();
  return open_folder(state);
}

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
  const char* const* names;
  int32_t tp;
} model;

static model model_on(mdp_comm* comm, const mdp_sharding* sharding) {
  model m = {.comm = comm, .tp = mdp_comm_rank(comm) % TP};
  m.names = held[m.tp];
  SIZED(mdp_grid_config, sizes);
  sizes.tp = TP;
  OK(mdp_grid_create(comm, &sizes, &m.grid));
  mdp_param params[MOST];
  for (int p = 0; p < MOST; ++p) {
    params[p] = vector_param(m.names[p], MDP_DTYPE_BF16, &length);
    params[p].placement = strcmp(m.names[p], "cut") == 0 ? MDP_PLACEMENT_SHARDED : MDP_PLACEMENT_REPLICATED;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = *sharding;
  config.missing = MDP_MISSING_ZERO;
  OK(mdp_buffer_register(NULL, m.grid, &config, params, MOST, &m.buffer));
  SIZED(mdp_optimizer_config, optimizer);
  optimizer.lr = 0.1;
  OK(mdp_optimizer_create(m.buffer, &optimizer, &m.optimizer));
  return m;
}

static void model_drop(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
}

/* Alike on the ranks that hold the same. */
static double gradient(const char* name, int tp, int step, int i) {
  return (i * 3 + step + name[0] + (strcmp(name, "cut") == 0 ? tp : 0)) % 7 - 3;
}

static void put(model* m, size_t p, int step) {
  float values[LENGTH];
  for (int i = 0; i < LENGTH; ++i) values[i] = (float)gradient(m->names[p], m->tp, step, i);
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &length);
  OK(mdp_grad_put(m->buffer, p, &t, 0, NULL));
}

/* In step 2 what only one holds is skipped there. The norm is that of the whole model, each element once. */
static void train(model* m, int step) {
  double squares = 0;
  for (int tp = 0; tp < TP; ++tp) {
    for (int p = 0; p < MOST; ++p) {
      const char* const name = held[tp][p];
      if (tp > 0 && strcmp(name, "all") == 0) continue;
      if (tp == 2 && strcmp(name, "two") == 0) continue;
      for (int i = 0; i < LENGTH && (step != 2 || strcmp(name, "one") != 0); ++i) squares += pow(gradient(name, tp, step, i), 2);
    }
  }
  for (size_t p = 0; p < MOST; ++p) {
    if (step == 2 && strcmp(m->names[p], "one") == 0) {
      OK(mdp_grad_skip(m->buffer, p));
    } else {
      put(m, p, step);
    }
  }
  sync_and_wait(m->buffer);
  double norm = 0;
  OK(mdp_grad_norm(m->buffer, NULL, 0, &norm));
  CHECK(fabs(norm - sqrt(squares)) < 1e-6 * norm);
  OK(mdp_grad_scale(m->buffer, NULL, 0, 0.5F, NULL));
  step_and_wait(m->optimizer);
}

static void same_models(model* a, model* b) {
  for (size_t p = 0; p < MOST; ++p) {
    float of_a[LENGTH], of_b[LENGTH];
    const mdp_tensor to_a = tensor_of(MDP_DTYPE_F32, of_a, &length), to_b = tensor_of(MDP_DTYPE_F32, of_b, &length);
    OK(mdp_param_read(a->buffer, p, &to_a, NULL));
    OK(mdp_param_read(b->buffer, p, &to_b, NULL));
    CHECK(memcmp(of_a, of_b, sizeof of_a) == 0 && of_a[0] != of_a[1]);
    uint64_t steps_a = 0, steps_b = 1;
    OK(mdp_optimizer_steps(a->optimizer, p, &steps_a));
    OK(mdp_optimizer_steps(b->optimizer, p, &steps_b));
    CHECK(steps_a == steps_b);
  }
  OK(mdp_buffer_verify(a->buffer));
}

static void job_of_three(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const mdp_sharding* const sharding = argument;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model m = model_on(comm, sharding);
  for (int step = 0; step < 4; ++step) {
    train(&m, step);
    if (step == 1) OK(mdp_optimizer_set_steps(m.optimizer, 7, NULL, 0));
  }
  char directory[300];
  snprintf(directory, sizeof directory, "%s/of-%d-%u", folder, (int)n, *sharding);
  mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = m.buffer, .optimizer = m.optimizer};
  mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1};
  OK(mdp_checkpoint_save(&config, NULL));
  model other = model_on(comm, sharding);
  part.buffer = other.buffer;
  part.optimizer = other.optimizer;
  OK(mdp_checkpoint_load(&config));
  same_models(&m, &other);
  train(&m, 4);
  train(&other, 4);
  same_models(&m, &other);
  model_drop(&other);
  model_drop(&m);
  mdp_comm_destroy(comm);
}

static void each_holds_its_own(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    run_ranks(TP, job_of_three, &sharding);
    if (!UNDER_THREAD_SANITIZER) run_ranks(2 * TP, job_of_three, &sharding);
  }
}

/* What all hold must come on all of them. */
static void left_out(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  model m = model_on(comm, argument);
  for (size_t p = 0; p < MOST; ++p) {
    if (rank != 1 || strcmp(m.names[p], "all") != 0) put(&m, p, 0);
  }
  FAILS(MDP_E_STATE, "rank 1 has no gradient of parameter", mdp_grad_sync(m.buffer, NULL, NULL));
  model_drop(&m);
  mdp_comm_destroy(comm);
}

static void what_all_hold_is_compared(void** state) {
  (void)state;
  mdp_sharding sharding = MDP_SHARDING_ZERO_1;
  run_ranks(TP, left_out, &sharding);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(each_holds_its_own), TEST(what_all_hold_is_compared)};
  return cmocka_run_group_tests(tests, setup, close_folder);
}
