/* SPDX-License-Identifier: Apache-2.0
 * What steps are told, and what is told between them, is compared between the ranks that update parts or copies of the same parameters. */
#include <string.h>

#include "fixture.h"

enum {
  COUNT = 600
};

typedef struct {
  mdp_sharding sharding;
  int32_t pp, tp;
} layout;

typedef enum {
  LR,
  DIVISOR,
  LOSS_SCALE,
  GROUP,
  SCALED,
  STEPS,

} way;

typedef struct {
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

static model model_on(mdp_comm* comm, const layout* of) {
  model m;
  SIZED(mdp_grid_config, grid);
  grid.pp = of->pp;
  grid.tp = of->tp;
  OK(mdp_grid_create(comm, &grid, &m.grid));
  const int64_t count = COUNT;
  mdp_param params[] = {vector_param("v", MDP_DTYPE_F32, &count), vector_param("w", MDP_DTYPE_F32, &count)};
  for (int p = 0; p < 2; ++p) params[p].placement = MDP_PLACEMENT_SHARDED;
  SIZED(mdp_buffer_config, config);
  config.sharding = of->sharding;
  OK(mdp_buffer_register(NULL, m.grid, &config, params, 2, &m.buffer));
  SIZED(mdp_optimizer_config, adam);
  OK(mdp_optimizer_create(m.buffer, &adam, &m.optimizer));
  return m;
}

static void close_model(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
}

static void put_ones(const model* m) {
  float ones[COUNT];
  for (int i = 0; i < COUNT; ++i) ones[i] = 1;
  const int64_t count = COUNT;
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, ones, &count);
  for (size_t p = 0; p < 2; ++p) OK(mdp_grad_put(m->buffer, p, &grad, 0, NULL));
}

/* One step of ones, told `value` in one of the ways. */
static mdp_status step(const model* m, way how, double value, int syncs) {
  put_ones(m);
  if (how == STEPS) OK(mdp_optimizer_set_steps(m->optimizer, (uint64_t)(8 * value), NULL, 0));
  if (syncs || how == SCALED) {
    const mdp_status synced = mdp_grad_sync(m->buffer, NULL, NULL);
    if (synced != MDP_OK) return synced;
  }
  if (how == SCALED) OK(mdp_grad_scale(m->buffer, NULL, 0, value, NULL));
  SIZED(mdp_step_config, config);
  if (how == LR) config.lr = value, config.flags = MDP_STEP_SET_LR;
  if (how == DIVISOR) config.grad_divisor = value;
  if (how == LOSS_SCALE) config.loss_scale = value;
  if (how == GROUP) {
    SIZED(mdp_param_group, group);
    group.weight_decay = value;
    group.flags = MDP_PARAM_GROUP_SET_WEIGHT_DECAY;
    OK(mdp_optimizer_set_param_group(m->optimizer, 0, &group));
  }
  return mdp_optimizer_step(m->optimizer, &config, NULL, NULL);
}

static void is_told_before_anything_changes(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const layout* const of = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  const char* const said[] = {"told the learning rate 0.5, and rank 1 0.25", "to divide gradients (loss_scale, grad_divisor) by 0.5",
                              "to divide gradients (loss_scale, grad_divisor) by 0.5", "different values of parameter groups"};
  for (way how = LR; how <= GROUP; ++how) {
    model m = model_on(comm, of);
    OK(step(&m, how, 0.5, 0));
    OK(step(&m, how, rank == 0 ? 0.5 : 0.5000000001, 0)); /* a schedule of another mathematical library */
    float before[COUNT], after[COUNT];
    const int64_t count = COUNT;
    const mdp_tensor a = tensor_of(MDP_DTYPE_F32, before, &count), b = tensor_of(MDP_DTYPE_F32, after, &count);
    OK(mdp_param_read(m.buffer, 0, &a, NULL));
    FAILS(MDP_E_INVALID, said[how], step(&m, how, rank == 0 ? 0.5 : 0.25, 0));
    OK(mdp_param_read(m.buffer, 0, &b, NULL));
    CHECK(memcmp(before, after, sizeof before) == 0);
    OK(mdp_buffer_zero_grad(m.buffer, NULL));
    OK(step(&m, how, 0.25, 0));
    OK(mdp_barrier(comm, NULL));
    close_model(&m);
  }
  mdp_comm_destroy(comm);
}

/* Where the caller syncs, before the step is told anything, the next sync finds it. */
typedef struct {
  way how;
  double of_rank[2];
} told;

static void is_told_after_a_sync(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const told* const what = argument;
  const layout of = {.sharding = MDP_SHARDING_ZERO_1, .pp = 1, .tp = 1};
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model m = model_on(comm, &of);
  OK(step(&m, what->how, 0.5, 1));
  OK(step(&m, what->how, what->of_rank[rank], 1));
  FAILS(MDP_E_DESYNC, "come apart", step(&m, what->how, 0.5, 1));
  close_model(&m);
  mdp_comm_destroy(comm);
}

static void all_are_told_the_same(void** state) {
  (void)state;
  const mdp_sharding shardings[] = {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2};
  for (int k = 0; k < 3; ++k) {
    layout of = {.sharding = shardings[k], .pp = 1, .tp = 1};
    run_ranks(2, is_told_before_anything_changes, &of);
  }
  layout cut = {.sharding = MDP_SHARDING_ZERO_1, .pp = 1, .tp = 2};
  run_ranks(2, is_told_before_anything_changes, &cut);
}

static void or_the_next_sync_finds_it(void** state) {
  (void)state;
  told all[] = {{LR, {0.5, 0.25}},         {DIVISOR, {3, 4}},     {LOSS_SCALE, {65536, 32768}},       {GROUP, {0.5, 0.25}},
                {SCALED, {0.5, 0.25}},     {LR, {1e-6, 1.4e-6}},  {SCALED, {1.0 / 4096, 1.0 / 4000}}, {GROUP, {1e-5, 2e-5}},
                {DIVISOR, {81920, 81940}}, {SCALED, {0.5, 0.501}}};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) run_ranks(2, is_told_after_a_sync, &all[i]);
}

static mdp_status step_of_list(const model* m, const size_t* list) {
  put_ones(m);
  OK(mdp_grad_sync(m->buffer, NULL, NULL));
  OK(mdp_grad_scale(m->buffer, list, 2, 0.5, NULL));
  return mdp_optimizer_step(m->optimizer, NULL, NULL, NULL);
}

static void sync_or_not(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  const layout of = {.sharding = MDP_SHARDING_ZERO_1, .pp = 1, .tp = 1};
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model m = model_on(comm, &of);
  for (int k = 0; k < 12; ++k) OK(step(&m, LR, 0.125 * (k % 5), ((k >> rank) & 1) != 0)); /* each rank syncs in other steps */
  OK(mdp_optimizer_set_steps(m.optimizer, 3, NULL, 0));
  OK(step(&m, LR, 0.5, 0));
  const size_t list[] = {(size_t)rank, (size_t)(1 - rank)}; /* as a program has it of a set */
  OK(step_of_list(&m, list));
  OK(step(&m, LR, 0.5, 0));
  OK(mdp_optimizer_set_steps(m.optimizer, rank == 0 ? 3 : 4, NULL, 0));
  FAILS(MDP_E_DESYNC, "mdp_optimizer_set_steps", step(&m, LR, 0.5, 0));
  close_model(&m);
  mdp_comm_destroy(comm);
}

/* Pipeline stages update parameters of their own. */
static void stages(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  const layout of = {.sharding = MDP_SHARDING_ZERO_1, .pp = 2, .tp = 1};
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model m = model_on(comm, &of);
  for (int k = 0; k < 3; ++k) {
    OK(step(&m, LR, rank == 0 ? 0.5 : 0.25, k % 2));
    OK(step(&m, GROUP, rank == 0 ? 0.5 : 0.25, k % 2));
  }
  OK(mdp_barrier(comm, NULL));
  close_model(&m);
  mdp_comm_destroy(comm);
}

static void what_is_alike_is_not_refused(void** state) {
  (void)state;
  run_ranks(2, sync_or_not, NULL);
  run_ranks(2, stages, NULL);
}

int main(void) {
  be_alone();
  const struct CMUnitTest tests[] = {TEST(all_are_told_the_same), TEST(or_the_next_sync_finds_it), TEST(what_is_alike_is_not_refused)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
