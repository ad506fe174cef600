/* SPDX-License-Identifier: Apache-2.0
 * Saves, loads, broadcasts and swaps that come in the middle of things: in a step to which not all ranks have a gradient, into optimizers
 * that have trained, shared out otherwise or of another rule, with arrays that are not alike on all ranks. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
  LENGTH = 24
};
static const int64_t long_one = LENGTH, short_one = 1;

static char path[600];
static pthread_barrier_t stages_barrier;

/* Its name keeps what the tests of one program save apart. */
static const char* directory_of(const char* name, int number) {
  snprintf(path, sizeof path, "%s/%s%d", folder, name, number);
  return path;
}

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizers[2];
  size_t count; /* of optimizers */
  const int64_t* length;
} model;

static mdp_optimizer* add_optimizer(model* m, const mdp_optimizer_config* config) {
  OK(mdp_optimizer_create(m->buffer, config, &m->optimizers[m->count]));
  return m->optimizers[m->count++];
}

/* Parameters of `names`, of bf16, in buckets of their own; "single" has one element. */
static model model_of(mdp_comm* comm, int32_t pp, const char* const* names, size_t count, const mdp_buffer_config* config) {
  model m = {.comm = comm, .length = strcmp(names[0], "single") == 0 ? &short_one : &long_one};
  SIZED(mdp_grid_config, grid);
  grid.pp = pp;
  OK(mdp_grid_create(comm, &grid, &m.grid));
  mdp_param params[2];
  for (size_t p = 0; p < count; ++p) {
    params[p] = vector_param(names[p], MDP_DTYPE_BF16, m.length);
    params[p].flags = MDP_PARAM_OWN_BUCKET;
    params[p].param_group = names[p][0] == 'b' ? 1 : 0;
  }
  OK(mdp_buffer_register(NULL, m.grid, config, params, count, &m.buffer));
  return m;
}

static void model_close(model* m) {
  while (m->count > 0) mdp_optimizer_destroy(m->optimizers[--m->count]);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
  mdp_comm_destroy(m->comm);
}

static void put(const model* m, size_t param, float value) {
  float values[LENGTH];
  for (int i = 0; i < LENGTH; ++i) values[i] = value;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, m->length);
  OK(mdp_grad_put(m->buffer, param, &t, 0, NULL));
}

static void write_param(const model* m, size_t param, float value) {
  float values[LENGTH];
  for (int i = 0; i < LENGTH; ++i) values[i] = value;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, m->length);
  OK(mdp_param_write(m->buffer, param, &t, NULL));
}

static float first_of(const model* m, size_t param) {
  float values[LENGTH];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, m->length);
  OK(mdp_param_read(m->buffer, param, &t, NULL));
  return values[0];
}

typedef mdp_status (*checkpoint_call)(const mdp_checkpoint_config* config);
static mdp_status save(const mdp_checkpoint_config* config) {
  return mdp_checkpoint_save(config, NULL);
}

static mdp_status with_parts(const model* m, checkpoint_call call, const char* directory, const char* optional, uint64_t flags) {
  mdp_checkpoint_part parts[2];
  for (size_t k = 0; k < m->count; ++k) {
    parts[k] = (mdp_checkpoint_part){.struct_size = sizeof *parts, .buffer = m->buffer, .optimizer = m->optimizers[k]};
  }
  const mdp_checkpoint_config config = {
      .struct_size = sizeof config, .directory = directory, .parts = parts, .part_count = m->count, .optional = optional, .flags = flags};
  return call(&config);
}

/* ── In the middle of a step ── */

/* Rank 1 has no gradient of "b", and says so at the sync only: nothing before that may wait for its reduction. */
static void before_the_sync(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  static const char* const names[] = {"a", "b"};
  SIZED(mdp_buffer_config, config);
  config.sharding = *(const mdp_sharding*)argument;
  config.missing = MDP_MISSING_ZERO;
  model m = model_of(comm_open(id, rank, n, UINT64_C(20000000000)), 1, names, 2, &config);
  SIZED(mdp_optimizer_config, rule);
  rule.rule = MDP_RULE_SGD;
  rule.lr = 0.5;
  rule.average_decay = 0.5;
  const mdp_param_group groups[2] = {{.struct_size = sizeof *groups}, {.struct_size = sizeof *groups}};
  rule.param_groups = groups;
  rule.param_group_count = 2;
  add_optimizer(&m, &rule);
  char directory[600];
  snprintf(directory, sizeof directory, "%s/midway%d", folder, (int)config.sharding);
  if (rank == 0) put(&m, 1, -4);
  put(&m, 0, -4);
  OK(with_parts(&m, save, directory, NULL, 0)); /* masters and averages begin here */
  for (size_t p = 0; p < 2; ++p) write_param(&m, p, 1);
  OK(with_parts(&m, save, directory, NULL, 0)); /* and follow */
  step_and_wait(m.optimizers[0]);
  for (size_t p = 0; p < 2; ++p) write_param(&m, p, 1);
  if (rank == 0) put(&m, 1, -4);
  put(&m, 0, -4);
  OK(with_parts(&m, save, directory, NULL, 0));
  OK(mdp_buffer_broadcast(m.buffer, 0, NULL));
  OK(mdp_buffer_verify(m.buffer));
  FAILS(MDP_E_STATE, "mdp_optimizer_swap_average comes in the middle of backward", mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  FAILS(MDP_E_STATE, "mdp_checkpoint_load comes in the middle of backward", with_parts(&m, mdp_checkpoint_load, directory, NULL, 0));
  step_and_wait(m.optimizers[0]);
  CHECK(first_of(&m, 0) == 1 + 2 && first_of(&m, 1) == 1 + 1);
  /* Where all have the same, a swap may come there. */
  for (size_t p = 2; p-- > 0;) put(&m, p, -2);
  OK(mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  OK(mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  step_and_wait(m.optimizers[0]);
  CHECK(first_of(&m, 0) == 4 && first_of(&m, 1) == 3);
  OK(with_parts(&m, mdp_checkpoint_load, directory, NULL, 0));
  CHECK(first_of(&m, 0) == 1 && first_of(&m, 1) == 1);
  /* Of an earlier microbatch too; what it has given can be thrown away, but where it has been reduced already. */
  if (config.sharding != MDP_SHARDING_ZERO_2) {
    OK(mdp_microbatch_begin(m.buffer, 0));
    if (rank == 0) put(&m, 0, 1000);
    OK(mdp_microbatch_begin(m.buffer, 0));
    FAILS(MDP_E_STATE, "comes between the microbatches of a step: parameter 0 'a' has a gradient",
          with_parts(&m, mdp_checkpoint_load, directory, NULL, 0));
    OK(mdp_buffer_zero_grad(m.buffer, NULL));
    OK(with_parts(&m, mdp_checkpoint_load, directory, NULL, 0));
  }
  model_close(&m);
}

static void not_all_ranks_have_a_gradient(void** state) {
  (void)state;
  mdp_sharding shardings[] = {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2};
  for (int i = 0; i < 3; ++i) run_ranks(2, before_the_sync, &shardings[i]);
}

/* ── Averages and masters ── */

/* Of one element, which all ranks have with its state, and of which one rank alone writes the piece of a checkpoint. */
static model single_of(const mdp_unique_id* id, int32_t rank, int32_t n, const mdp_optimizer_config* rule) {
  static const char* const names[] = {"single"};
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_0;
  model m = model_of(comm_open(id, rank, n, UINT64_C(20000000000)), 1, names, 1, &config);
  add_optimizer(&m, rule);
  write_param(&m, 0, 1);
  return m;
}

/* What is written and written back in between is a write on all ranks, or on none. */
static void save_between_writes(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  const mdp_optimizer_config rule = {.struct_size = sizeof rule, .rule = MDP_RULE_SGD, .lr = 1.0 / 4096};
  model m = single_of(id, rank, n, &rule);
  put(&m, 0, 1);
  step_and_wait(m.optimizers[0]);
  char directory[600];
  snprintf(directory, sizeof directory, "%s/between", folder);
  const float small = first_of(&m, 0);
  write_param(&m, 0, 2);
  OK(with_parts(&m, save, directory, NULL, 0));
  write_param(&m, 0, small);
  SIZED(mdp_tensor, master);
  OK(mdp_optimizer_state(m.optimizers[0], 0, "master", &master));
  CHECK(*(const float*)master.data == small);
  model_close(&m);
}

static void masters_of_replicas_stay_the_same(void** state) {
  (void)state;
  run_ranks(2, save_between_writes, NULL);
}

/* The rank that writes a piece begins the average with it; so does every other that has the same. */
static void save_write_swap(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  const mdp_optimizer_config rule = {.struct_size = sizeof rule, .average_decay = 0.5};
  model m = single_of(id, rank, n, &rule);
  char directory[600];
  snprintf(directory, sizeof directory, "%s/averages", folder);
  OK(with_parts(&m, save, directory, NULL, 0));
  write_param(&m, 0, 2);
  OK(mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  OK(mdp_buffer_verify(m.buffer));
  CHECK(first_of(&m, 0) == 1);
  model_close(&m);
}

static void a_save_begins_averages_on_all_ranks(void** state) {
  (void)state;
  run_ranks(2, save_write_swap, NULL);
}

/* ── Arrays of the caller's ── */

static void save_different_arrays(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  float fixed[4] = {1, 2, 3, 4}, stats[6] = {1, 1, 1, 1, 1, 1};
  const int64_t four = 4, turned[2] = {2, 3}, strides[2] = {1, 2};
  mdp_tensor arrays[2] = {tensor_of(MDP_DTYPE_F32, fixed, &four), tensor_of(MDP_DTYPE_F32, stats, &four)};
  arrays[1].ndim = 2;
  arrays[1].shape = turned;
  arrays[1].strides = strides;
  const mdp_checkpoint_tensor tensors[2] = {{.struct_size = sizeof *tensors, .name = "fixed", .tensor = &arrays[0]},
                                            {.struct_size = sizeof *tensors, .name = "stats", .tensor = &arrays[1]}};
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer, .optimizer = j.optimizer};
  char directory[600];
  snprintf(directory, sizeof directory, "%s/tensors", folder);
  const mdp_checkpoint_config config = {
      .struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1, .tensors = tensors, .tensor_count = 2};
  OK(save(&config));
  stats[5] += (float)rank;
  FAILS(MDP_E_DESYNC, "mdp_checkpoint_save: tensor 'stats' differs between ranks 0 and 1", save(&config));
  stats[5] = 7;
  const mdp_checkpoint_tensor turned_round[2] = {tensors[1], tensors[0]};
  mdp_checkpoint_config in_order = config; /* of the list: another one on each rank */
  if (rank == 1) in_order.tensors = turned_round;
  OK(save(&in_order));
  mdp_checkpoint_tensor others[2] = {tensors[0], tensors[1]};
  if (rank == 2) others[0].name = "unfixed";
  in_order.tensors = others;
  FAILS(MDP_E_DESYNC, "which are to have the same tensors, give other ones", save(&in_order));
  stats[5] = 0;
  OK(mdp_checkpoint_load(&config));
  CHECK(stats[5] == 7);
  job_close(&j);
}

static void arrays_that_differ_between_ranks_are_not_saved(void** state) {
  (void)state;
  run_ranks(3, save_different_arrays, NULL);
}

/* ── Into an optimizer that is not as new ── */

static void what_a_checkpoint_lacks_stays(void** state) {
  (void)state;
  static const char* const names[] = {"a", "another"};
  SIZED(mdp_optimizer_config, rule);
  for (int life = 0; life < 2; ++life) {
    const size_t count = life == 0 ? 1 : 2;
    model m = model_of(comm_open(NULL, 0, 1, 0), 1, names, count, NULL);
    add_optimizer(&m, &rule);
    for (int step = 0; step < (life == 0 ? 2 : 5); ++step) {
      for (size_t p = count; p-- > 0;) put(&m, p, 1);
      step_and_wait(m.optimizers[0]);
    }
    if (life == 0) OK(with_parts(&m, save, directory_of("lacks", 0), NULL, 0));
    for (uint64_t flags = 0; flags < 2 && life == 1; ++flags) { /* the second time MDP_CHECKPOINT_PARAMS_ONLY */
      SIZED(mdp_tensor, before);
      OK(mdp_optimizer_state(m.optimizers[0], 1, "exp_avg", &before));
      const float kept = ((const float*)before.data)[3];
      OK(with_parts(&m, mdp_checkpoint_load, directory_of("lacks", 0), "anoth*", flags));
      uint64_t steps[2] = {9, 9};
      for (size_t p = 0; p < 2; ++p) OK(mdp_optimizer_steps(m.optimizers[0], p, &steps[p]));
      CHECK(steps[0] == (flags ? 0 : 2) && steps[1] == 5);
      CHECK(kept > 0.3F && ((const float*)before.data)[3] == kept);
    }
    model_close(&m);
  }
}

/* On one stage, of which the other must know: what is saved next could not be loaded otherwise. */
static void load_and_save_by_stages(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  static const char* const names[2][2] = {{"a", NULL}, {"apart", "another"}};
  char directory[600];
  snprintf(directory, sizeof directory, "%s/stages", folder);
  for (int life = 0; life < 2; ++life) {
    const size_t count = life == 1 && rank == 1 ? 2 : 1;
    static mdp_unique_id second;
    if (rank == 0 && life == 1) OK(mdp_unique_id_create(&second));
    pthread_barrier_wait(&stages_barrier);
    model m = model_of(comm_open(life == 0 ? id : &second, rank, n, UINT64_C(20000000000)), n, names[rank], count, NULL);
    SIZED(mdp_optimizer_config, rule);
    add_optimizer(&m, &rule);
    for (int step = 0; step < (life == 0 ? 2 : 5); ++step) {
      for (size_t p = count; p-- > 0;) put(&m, p, 1);
      step_and_wait(m.optimizers[0]);
    }
    if (life == 1) OK(with_parts(&m, mdp_checkpoint_load, directory, "another", 0));
    OK(with_parts(&m, save, directory, NULL, 0));
    if (life == 1) OK(with_parts(&m, mdp_checkpoint_load, directory, NULL, 0));
    for (size_t p = count; p-- > 0;) put(&m, p, 1);
    SIZED(mdp_step_report, report);
    OK(mdp_optimizer_step(m.optimizers[0], NULL, &report, NULL));
    CHECK(report.step == (life == 0 ? 3 : 6));
    model_close(&m);
  }
}

static void what_one_stage_lacks(void** state) {
  (void)state;
  pthread_barrier_init(&stages_barrier, NULL, 2);
  run_ranks(2, load_and_save_by_stages, NULL);
  pthread_barrier_destroy(&stages_barrier);
}

/* Two buffers, whose optimizers differ in their values only. */
static void two_models(void** state) {
  (void)state;
  static const char* const names[2][1] = {{"a"}, {"z"}};
  for (int life = 0; life < 2; ++life) {
    mdp_checkpoint_part parts[2];
    model m[2];
    for (int k = 0; k < 2; ++k) {
      m[k] = model_of(k == 0 ? comm_open(NULL, 0, 1, 0) : m[0].comm, 1, names[k], 1, NULL);
      const mdp_optimizer_config rule = {.struct_size = sizeof rule, .lr = life == 1 ? 0.5 : k == 0 ? 0.125 : 0.25};
      add_optimizer(&m[k], &rule);
      const mdp_scaler scaler = {.struct_size = sizeof scaler, .scale = life == 1 ? 65536 : k == 0 ? 1024 : 2048};
      OK(mdp_optimizer_set_scaler(m[k].optimizers[0], &scaler));
      parts[k] = (mdp_checkpoint_part){.struct_size = sizeof *parts, .buffer = m[k].buffer, .optimizer = m[k].optimizers[0]};
    }
    const mdp_checkpoint_config config = {.struct_size = sizeof config,
                                          .directory = directory_of("two", 0),
                                          .parts = parts,
                                          .part_count = 2,
                                          .flags = life == 1 ? MDP_CHECKPOINT_LOAD_HYPER : 0};
    OK((life == 0 ? save : mdp_checkpoint_load)(&config));
    for (int k = 0; k < 2 && life == 1; ++k) {
      char json[2000];
      OK(mdp_optimizer_info(m[k].optimizers[0], json, sizeof json, NULL));
      CHECK(strstr(json, k == 0 ? "\"lr\":0.125," : "\"lr\":0.25,") != NULL);
      SIZED(mdp_scaler, scaler);
      OK(mdp_optimizer_scaler(m[k].optimizers[0], &scaler));
      CHECK(scaler.scale == (k == 0 ? 1024 : 2048));
    }
    mdp_optimizer_destroy(m[1].optimizers[0]);
    mdp_buffer_destroy(m[1].buffer);
    mdp_grid_destroy(m[1].grid);
    model_close(&m[0]);
  }
}

static void another_rules_state_is_refused(void** state) {
  (void)state;
  static const char* const names[] = {"a"};
  static const char* const kept[] = {"mu\nnu", "nu", NULL, "nu\nmu"};
  for (int i = 0; i < 4; ++i) {
    model m = model_of(comm_open(NULL, 0, 1, 0), 1, names, 1, NULL);
    const mdp_optimizer_config rule = {.struct_size = sizeof rule, .rule = MDP_RULE_CALLER, .state = kept[i]};
    add_optimizer(&m, &rule);
    if (i == 0) OK(with_parts(&m, save, directory_of("rules", 0), NULL, 0));
    if (i == 1) {
      FAILS(MDP_E_INVALID, "has of 'a' what another rule keeps: 'mu', 'nu', and here it is 'nu'",
            with_parts(&m, mdp_checkpoint_load, directory_of("rules", 0), NULL, 0));
      OK(with_parts(&m, save, directory_of("rules", 1), NULL, 0));
    }
    if (i == 2) {
      FAILS(MDP_E_INVALID, "and here it is nothing", with_parts(&m, mdp_checkpoint_load, directory_of("rules", 0), NULL, 0));
      OK(with_parts(&m, mdp_checkpoint_load, directory_of("rules", 0), NULL, MDP_CHECKPOINT_PARAMS_ONLY));
    }
    if (i == 3) {
      FAILS(MDP_E_INVALID, "what another rule keeps: 'nu', and here it is 'mu', 'nu'",
            with_parts(&m, mdp_checkpoint_load, directory_of("rules", 1), NULL, 0));
      OK(with_parts(&m, mdp_checkpoint_load, directory_of("rules", 0), NULL, 0));
    }
    model_close(&m);
  }
}

static void the_norm_comes_with_the_values(void** state) {
  (void)state;
  static const char* const names[] = {"a"};
  char json[2000];
  for (int life = 0; life < 2; ++life) {
    model m = model_of(comm_open(NULL, 0, 1, 0), 1, names, 1, NULL);
    const mdp_optimizer_config rule = {
        .struct_size = sizeof rule, .max_grad_norm = 2 - life, .norm = life == 0 ? MDP_NORM_INF : MDP_NORM_L2};
    add_optimizer(&m, &rule);
    if (life == 0) OK(with_parts(&m, save, directory_of("norm", 0), NULL, 0));
    for (uint64_t loads = 0; loads < 2 && life == 1; ++loads) {
      OK(with_parts(&m, mdp_checkpoint_load, directory_of("norm", 0), NULL, loads ? MDP_CHECKPOINT_LOAD_HYPER : 0));
      OK(mdp_optimizer_info(m.optimizers[0], json, sizeof json, NULL));
      CHECK(strstr(json, loads ? "\"max_grad_norm\":2.0," : "\"max_grad_norm\":1.0,") != NULL);
      CHECK(strstr(json, loads ? "\"norm\":\"inf\"" : "\"norm\":\"l2\"") != NULL);
    }
    model_close(&m);
  }
}

/* Two optimizers, of which the first has the scaler, become one. Each stage has a parameter of one of the two. */
static void share_out_otherwise(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int life = *(const int*)argument;
  static const char* const names[] = {"a", "b"};
  model m = model_of(comm_open(id, rank, n, UINT64_C(20000000000)), n, n == 1 ? names : names + rank, n == 1 ? 2 : 1, NULL);
  const mdp_param_group groups[2] = {{.struct_size = sizeof *groups}, {.struct_size = sizeof *groups}};
  for (uint32_t k = 0; k < (life == 0 ? 2 : 1); ++k) {
    const mdp_optimizer_config rule = {.struct_size = sizeof rule,
                                       .param_groups = groups,
                                       .param_group_count = life == 0 ? 1 : 2,
                                       .first_param_group = k,
                                       .flags = life == 0 ? MDP_OPTIMIZER_SOME_GROUPS : 0};
    add_optimizer(&m, &rule);
  }
  SIZED(mdp_scaler, scaler);
  scaler.scale = life == 0 ? 1024 : 65536;
  OK(mdp_optimizer_set_scaler(m.optimizers[0], &scaler));
  char directory[600];
  snprintf(directory, sizeof directory, "%s/scaler%d", folder, n);
  OK(with_parts(&m, life == 0 ? save : mdp_checkpoint_load, directory, NULL, 0));
  OK(mdp_optimizer_scaler(m.optimizers[0], &scaler));
  CHECK(scaler.scale == 1024);
  model_close(&m);
}

static void the_loss_scale_is_all_stages(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 2; ++n) {
    for (int life = 0; life < 2; ++life) run_ranks(n, share_out_otherwise, &life);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(not_all_ranks_have_a_gradient),
                                     TEST(a_save_begins_averages_on_all_ranks),
                                     TEST(masters_of_replicas_stay_the_same),
                                     TEST(arrays_that_differ_between_ranks_are_not_saved),
                                     TEST(what_a_checkpoint_lacks_stays),
                                     TEST(what_one_stage_lacks),
                                     TEST(two_models),
                                     TEST(another_rules_state_is_refused),
                                     TEST(the_norm_comes_with_the_values),
                                     TEST(the_loss_scale_is_all_stages)};
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
