/* SPDX-License-Identifier: Apache-2.0
 * Averages of parameters: bit for bit the formula, whatever the type, the sharding, the rule and the number of ranks; their swap with the
 * parameters, after which all is as if there had been none; what is refused meanwhile; and checkpoints. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
  A,
  B,
  FIXED,
  C,
  D,
  COUNT,
  LONGEST = 301,
  STEPS = 22,
  MOST = 2,
  NAMES = 4
};
static const int64_t lengths[COUNT] = {LONGEST, 130, 5, 77, 40};
static const char* const names[COUNT] = {"a", "b", "fixed", "c", "d"};
static const mdp_dtype dtypes[COUNT] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F32, MDP_DTYPE_F16, MDP_DTYPE_F32};
static const int group_of[COUNT] = {0, 1, 0, 1, 1};
static const char* const state_names[NAMES] = {"master", "exp_avg", "exp_avg_sq", "average"};
static const double decays[MOST] = {0.9, 0.75};

/* One optimizer of everything, or one of each group. */
typedef struct {
  mdp_rule rule;
  mdp_sharding sharding;
  int32_t instances;
  int optimizers;
} run;

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  const run* run;
  mdp_optimizer* optimizers[MOST];
} model;

static int32_t descend(void* user, const mdp_update* u) {
  (void)user;
  await_default_stream();
  for (uint64_t i = 0; i < u->count; ++i) u->master[i] -= (float)u->lr * u->grad[i];
  return 0;
}

static mdp_optimizer_config config_of(const run* r, int number, int averages) {
  mdp_optimizer_config config = {.struct_size = sizeof config, .rule = r->rule, .lr = 0.03125, .weight_decay = 0.125};
  static const mdp_param_group groups[2] = {{.struct_size = sizeof groups[0], .lr = 0.0625}, {.struct_size = sizeof groups[0]}};
  const int all = r->optimizers == 1;
  config.param_groups = all ? groups : &groups[number];
  config.param_group_count = all ? 2 : 1;
  config.first_param_group = (uint32_t)number;
  config.flags = all ? 0 : MDP_OPTIMIZER_SOME_GROUPS;
  config.average_decay = averages ? decays[number] : 0;
  return config;
}

static void write_value(mdp_buffer* buffer, size_t p, int seed) {
  float values[LONGEST];
  for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)((i * 7 + seed) % 19 - 9) / 8;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
  OK(mdp_param_write(buffer, p, &t, NULL));
}

/* Everything but the communicator. */
static model model_on(mdp_comm* comm, const run* r, int averages) {
  model m = {.comm = comm, .run = r};
  SIZED(mdp_grid_config, grid);
  grid.instances = r->instances;
  OK(mdp_grid_create(comm, &grid, &m.grid));
  mdp_param params[COUNT];
  for (int p = 0; p < COUNT; ++p) {
    params[p] = vector_param(names[p], dtypes[p], &lengths[p]);
    params[p].param_group = group_of[p];
    params[p].flags = p == FIXED ? MDP_PARAM_FROZEN : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = r->sharding;
  config.bucket_elements = 100;
  OK(mdp_buffer_register(NULL, m.grid, &config, params, COUNT, &m.buffer));
  for (int k = 0; k < r->optimizers; ++k) {
    const mdp_optimizer_config optimizer = config_of(r, k, averages);
    OK(mdp_optimizer_create(m.buffer, &optimizer, &m.optimizers[k]));
    if (r->rule == MDP_RULE_CALLER) OK(mdp_optimizer_set_update(m.optimizers[k], descend, NULL));
  }
  for (size_t p = 0; p < COUNT; ++p) {
    if (p != FIXED) write_value(m.buffer, p, (int)p);
  }
  return m;
}

static void model_close(model* m) {
  for (int k = 0; k < m->run->optimizers; ++k) mdp_optimizer_destroy(m->optimizers[k]);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
}

static mdp_optimizer* optimizer_of(const model* m, size_t p) {
  return m->optimizers[m->run->optimizers == 1 ? 0 : group_of[p]];
}
static double decay_of(const model* m, size_t p) {
  return decays[m->run->optimizers == 1 ? 0 : group_of[p]];
}

static void put_grads(const model* m, int step) {
  const int32_t rank = mdp_comm_rank(m->comm);
  for (int p = COUNT; p-- > 0;) {
    if (p == FIXED) continue;
    float grads[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) grads[i] = (float)((i * (7 + p) + step * 5 + rank * 3) % 23 - 11) / 16;
    if (step == 4 && p == B) grads[3] = INFINITY;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &lengths[p]);
    if (p == D && step % 5 == 1) {
      OK(mdp_grad_skip(m->buffer, (size_t)p));
    } else {
      OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
    }
  }
}

/* Step 4 is skipped. */
static void take_step(const model* m, int step) {
  put_grads(m, step);
  SIZED(mdp_step_config, config);
  SIZED(mdp_step_report, report);
  config.loss_scale = 2;
  OK(mdp_optimizer_step_many(m->optimizers, (size_t)m->run->optimizers, &config, &report, NULL));
  CHECK(((report.flags & MDP_STEPPED_SKIPPED) != 0) == (step == 4));
}

static void swap(const model* m) {
  for (int k = 0; k < m->run->optimizers; ++k) {
    mdp_request* swapped = NULL;
    OK(mdp_optimizer_swap_average(m->optimizers[k], NULL, k == 0 ? &swapped : NULL));
    if (k == 0) OK(mdp_request_wait(swapped, UINT64_MAX));
    mdp_request_free(swapped);
  }
  OK(mdp_param_wait(m->buffer, SIZE_MAX, NULL));
  await_default_stream();
}

static float rounded(mdp_dtype dtype, float x) {
  return dtype == MDP_DTYPE_BF16 ? to_bf16(x) : dtype == MDP_DTYPE_F16 ? to_f16(x) : x;
}

/* Of a shard, which may be empty. */
static int same_floats(const void* a, const void* b, int64_t count) {
  return count == 0 || memcmp(a, b, (size_t)count * sizeof(float)) == 0;
}

/* ── Beside an optimizer that does not average, and beside the formula ── */

static void same_as(const model* m, const model* plain, int states) {
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float ours[LONGEST] = {0}, its[LONGEST] = {0};
    const mdp_tensor a = tensor_of(MDP_DTYPE_F32, ours, &lengths[p]), b = tensor_of(MDP_DTYPE_F32, its, &lengths[p]);
    OK(mdp_param_read(m->buffer, p, &a, NULL));
    OK(mdp_param_read(plain->buffer, p, &b, NULL));
    CHECK(memcmp(ours, its, sizeof ours) == 0);
    for (int k = 0; k < (m->run->rule == MDP_RULE_CALLER ? 1 : NAMES - 1) && states; ++k) {
      SIZED(mdp_tensor, left);
      SIZED(mdp_tensor, right);
      OK(mdp_optimizer_state(optimizer_of(m, p), p, state_names[k], &left));
      OK(mdp_optimizer_state(optimizer_of(plain, p), p, state_names[k], &right));
      CHECK(left.shape[0] == right.shape[0] && same_floats(left.data, right.data, left.shape[0]));
    }
  }
}

/* What the average of what this rank owns should be; of each parameter from its beginning on. */
typedef struct {
  float values[COUNT][LONGEST];
} averages;

/* first: as they begin */
static void follow(const model* m, averages* wanted, int first) {
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    SIZED(mdp_tensor, master);
    OK(mdp_optimizer_state(optimizer_of(m, p), p, "master", &master));
    const float rest = (float)(1 - decay_of(m, p));
    for (int64_t i = 0; i < master.shape[0]; ++i) {
      const float w = ((const float*)master.data)[i];
      float* const a = &wanted->values[p][i];
      *a = first ? w : *a + rest * (w - *a);
    }
  }
}

static void check_averages(const model* m, const averages* wanted) {
  for (size_t p = 0; p < COUNT; ++p) {
    SIZED(mdp_tensor, view);
    if (p == FIXED) continue;
    OK(mdp_optimizer_state(optimizer_of(m, p), p, "average", &view));
    CHECK(view.dtype == MDP_DTYPE_F32 && same_floats(view.data, wanted->values[p], view.shape[0]));
  }
}

/* Each rank knows what it owns; mdp_buffer_verify, that the others have the same. */
static void check_swapped(const model* m, const averages* wanted) {
  mdp_range ranges[64];
  const size_t count = owned_ranges(m->buffer, ranges, 64);
  OK(mdp_buffer_verify(m->buffer));
  for (size_t r = 0; r < count; ++r) {
    const size_t p = (size_t)ranges[r].param;
    float got[LONGEST];
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, got, &lengths[p]);
    OK(mdp_param_read(m->buffer, p, &t, NULL));
    int wrong = 0;
    for (int64_t i = 0; i < ranges[r].end - ranges[r].begin; ++i) {
      wrong += got[ranges[r].param_begin + i] != rounded(dtypes[p], wanted->values[p][i]);
    }
    CHECK(wrong == 0);
  }
  check_averages(m, wanted);
}

/* A master that says more than its parameter. */
static void write_master(const model* m, size_t p) {
  SIZED(mdp_tensor, view);
  OK(mdp_optimizer_state(optimizer_of(m, p), p, "master", &view));
  for (int64_t i = 0; i < view.shape[0]; ++i) ((float*)view.data)[i] += 1.0F / 4096;
}

static void follow_the_formula(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const run* r = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model plain = model_on(comm, r, 0), averaging = model_on(comm, r, 1);
  averages* wanted = calloc(1, sizeof *wanted);
  follow(&averaging, wanted, 1);
  if (n == 2) check_averages(&averaging, wanted); /* or they begin with a swap, or with the first step */
  for (int step = 0; step < STEPS; ++step) {
    if (step == 8) { /* by hand, and by a write: the average stays, and masters follow after the swap */
      write_master(&plain, B), write_master(&averaging, B);
      write_value(plain.buffer, C, 3), write_value(averaging.buffer, C, 3);
    }
    if (step % 4 == 0 && (step > 0 || n == 1)) {
      swap(&averaging);
      check_swapped(&averaging, wanted);
      swap(&averaging);
      same_as(&averaging, &plain, 1);
    }
    take_step(&plain, step);
    take_step(&averaging, step);
    if (step != 4) follow(&averaging, wanted, 0);
    check_averages(&averaging, wanted);
    same_as(&averaging, &plain, 1);
  }
  free(wanted);
  model_close(&plain);
  model_close(&averaging);
  mdp_comm_destroy(comm);
}

static void bit_for_bit(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) {
    for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
      run r = {MDP_RULE_ADAMW, sharding, 1, 1};
      run_ranks(n, follow_the_formula, &r);
    }
  }
}

static void instances_several_and_the_callers(void** state) {
  (void)state;
  run instances = {MDP_RULE_ADAMW, MDP_SHARDING_ZERO_1, 2, 1};
  run_ranks(4, follow_the_formula, &instances);
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_1; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    run several = {MDP_RULE_ADAMW, sharding, 1, 2}, callers = {MDP_RULE_CALLER, sharding, 1, 1};
    run_ranks(2, follow_the_formula, &several);
    run_ranks(2, follow_the_formula, &callers);
  }
}

/* ── What may not be, and when ── */

static const run one = {MDP_RULE_ADAMW, MDP_SHARDING_ZERO_1, 1, 1}, two = {MDP_RULE_ADAMW, MDP_SHARDING_ZERO_1, 1, 2};

static mdp_status checkpoint(const model* m, const char* directory, int save, uint64_t flags) {
  mdp_checkpoint_part parts[MOST];
  for (int k = 0; k < m->run->optimizers; ++k) {
    parts[k] = (mdp_checkpoint_part){.struct_size = sizeof parts[k], .buffer = m->buffer, .optimizer = m->optimizers[k]};
  }
  mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = parts, .flags = flags};
  config.part_count = (uint64_t)m->run->optimizers;
  return save ? mdp_checkpoint_save(&config, NULL) : mdp_checkpoint_load(&config);
}

#define SWAPPED(name, call) FAILS(MDP_E_STATE, name ": parameters are an optimizer's averages; swap them back first", call)

static void refused_while_swapped(const model* m) {
  float values[LONGEST] = {0};
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[A]);
  SIZED(mdp_tensor, view);
  int32_t first = 0;
  char json[4000];
  SWAPPED("mdp_optimizer_step", mdp_optimizer_step(m->optimizers[0], NULL, NULL, NULL));
  SWAPPED("mdp_optimizer_step", mdp_optimizer_step_many(m->optimizers, 1, NULL, NULL, NULL));
  SWAPPED("mdp_optimizer_step", mdp_optimizer_step_begin(m->optimizers, 1, NULL));
  SWAPPED("mdp_checkpoint_save", checkpoint(m, folder, 1, 0));
  SWAPPED("mdp_checkpoint_load", checkpoint(m, folder, 0, 0));
  SWAPPED("mdp_param_write", mdp_param_write(m->buffer, A, &t, NULL));
  SWAPPED("mdp_param_changed", mdp_param_changed(m->buffer));
  SWAPPED("mdp_buffer_broadcast", mdp_buffer_broadcast(m->buffer, 0, NULL));
  SWAPPED("mdp_microbatch_begin", mdp_microbatch_begin(m->buffer, 1));
  SWAPPED("mdp_buffer_zero_grad", mdp_buffer_zero_grad(m->buffer, NULL));
  SWAPPED("mdp_grad_put", mdp_grad_put(m->buffer, A, &t, 0, NULL));
  SWAPPED("mdp_grad_acquire", mdp_grad_acquire(m->buffer, A, &view, &first, NULL));
  SWAPPED("mdp_grad_ready", mdp_grad_ready(m->buffer, A, NULL));
  SWAPPED("mdp_grad_skip", mdp_grad_skip(m->buffer, A));
  SWAPPED("mdp_grad_tokens", mdp_grad_tokens(m->buffer, 7));
  SWAPPED("mdp_grad_sync", mdp_grad_sync(m->buffer, NULL, NULL));
  SWAPPED("mdp_optimizer_state of a 'master'", mdp_optimizer_state(m->optimizers[0], A, "master", &view));
  OK(mdp_optimizer_state(m->optimizers[0], A, "average", &view));
  OK(mdp_optimizer_state(m->optimizers[0], A, "exp_avg", &view));
  OK(mdp_param_read(m->buffer, A, &t, NULL));
  OK(mdp_buffer_param_view(m->buffer, A, &view));
  OK(mdp_optimizer_info(m->optimizers[0], json, sizeof json, NULL));
  CHECK(strstr(json, "\"average_decay\":0.9,\"swapped\":true") != NULL && strstr(json, "{\"name\":\"average\",\"dtype\":\"f32\"}") != NULL);
}

static void wrong_moments(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model plain = model_on(comm, &one, 0), m = model_on(comm, &one, 1);
  for (int step = 0; step < 3; ++step) take_step(&plain, step), take_step(&m, step);
  swap(&m);
  refused_while_swapped(&m);
  swap(&m);
  same_as(&m, &plain, 1);
  /* With a step's gradients half there: they stay. */
  put_grads(&plain, 3), put_grads(&m, 3);
  swap(&m), swap(&m);
  OK(mdp_optimizer_step(plain.optimizers[0], NULL, NULL, NULL));
  OK(mdp_optimizer_step(m.optimizers[0], NULL, NULL, NULL));
  await_default_stream();
  same_as(&m, &plain, 1);
  FAILS(MDP_E_STATE, "the optimizer keeps no average; mdp_optimizer_config.average_decay asks for one",
        mdp_optimizer_swap_average(plain.optimizers[0], NULL, NULL));
  SIZED(mdp_tensor, view);
  FAILS(MDP_E_INVALID, "name is 'average'; AdamW keeps 'master', 'exp_avg' and 'exp_avg_sq'",
        mdp_optimizer_state(plain.optimizers[0], A, "average", &view));
  FAILS(MDP_E_INVALID, "AdamW keeps 'master', 'exp_avg', 'exp_avg_sq' and 'average'",
        mdp_optimizer_state(m.optimizers[0], A, "exp", &view));
  mdp_request* request = NULL;
  FAILS(MDP_E_INVALID, "optimizer", mdp_optimizer_swap_average(NULL, NULL, &request));
  model_close(&plain);
  model_close(&m);
  mdp_comm_destroy(comm);
}

static void refusals(void** state) {
  (void)state;
  run_ranks(1, wrong_moments, NULL);
  run_ranks(2, wrong_moments, NULL);
}

/* A step whose updates are the caller's is under way. */
static void not_within_a_step(void** state) {
  (void)state;
  const run r = {MDP_RULE_CALLER, MDP_SHARDING_ZERO_1, 1, 1};
  mdp_comm* const comm = comm_open(NULL, 0, 1, 0);
  model m = model_on(comm, &r, 1);
  put_grads(&m, 0);
  OK(mdp_optimizer_step_begin(m.optimizers, 1, NULL));
  FAILS(MDP_E_STATE, "mdp_optimizer_swap_average: a step is under way", mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  FAILS(MDP_E_ABORTED, NULL, mdp_optimizer_step_finish(m.optimizers[0], 1, NULL, NULL));
  FAILS(MDP_E_STATE, "mdp_optimizer_swap_average: an update of the caller's has failed",
        mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  model_close(&m);
  mdp_comm_destroy(comm);
}

static void decays_that_are_none(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  static const double wrong[] = {1, -0.5, 1.5, NAN, INFINITY};
  mdp_optimizer* optimizer = NULL;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    SIZED(mdp_optimizer_config, config);
    config.average_decay = wrong[i];
    FAILS(MDP_E_INVALID, "config.average_decay is ", mdp_optimizer_create(j.buffer, &config, &optimizer));
    FAILS(MDP_E_INVALID, "; it must be at least 0 and below 1", mdp_optimizer_create(j.buffer, &config, &optimizer));
  }
  mdp_optimizer_config callers = {.struct_size = sizeof callers, .rule = MDP_RULE_CALLER, .state = "average"};
  FAILS(MDP_E_INVALID, "config.state has the name 'average', which is the library's", mdp_optimizer_create(j.buffer, &callers, &optimizer));
  job_close(&j);
}

static void different_decays(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  SIZED(mdp_optimizer_config, config);
  config.average_decay = rank == 0 ? 0.5 : 0.75;
  mdp_optimizer* optimizer = NULL;
  FAILS(MDP_E_DESYNC, "average_decay 0.75", mdp_optimizer_create(j.buffer, &config, &optimizer));
  job_close(&j);
}
static void compared(void** state) {
  (void)state;
  run_ranks(2, different_decays, NULL);
}

/* ── Several optimizers, and the end of one ── */

static void each_by_itself(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model plain = model_on(comm, &two, 0), m = model_on(comm, &two, 1);
  for (int step = 0; step < 3; ++step) take_step(&plain, step), take_step(&m, step);
  const mdp_optimizer_config config = config_of(&one, 0, 1);
  mdp_optimizer* all = NULL; /* of both groups, beside the others */
  OK(mdp_optimizer_create(m.buffer, &config, &all));
  OK(mdp_optimizer_swap_average(m.optimizers[1], NULL, NULL));
  FAILS(MDP_E_STATE, "parameter 1 'b' is another optimizer's average", mdp_optimizer_swap_average(all, NULL, NULL));
  OK(mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  OK(mdp_optimizer_swap_average(m.optimizers[1], NULL, NULL));
  SWAPPED("mdp_param_changed", mdp_param_changed(m.buffer));
  OK(mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  same_as(&m, &plain, 1);
  OK(mdp_optimizer_swap_average(all, NULL, NULL)); /* its averages have just begun */
  same_as(&m, &plain, 0);
  OK(mdp_optimizer_swap_average(all, NULL, NULL));
  mdp_optimizer_destroy(all);
  model_close(&plain);
  model_close(&m);
  mdp_comm_destroy(comm);
}

/* The averages stay, and are what later masters begin with. */
static void destroyed_while_swapped(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model m = model_on(comm, &two, 1);
  for (int step = 0; step < 3; ++step) take_step(&m, step);
  swap(&m);
  float averaged[LONGEST], later[LONGEST];
  mdp_tensor t = tensor_of(MDP_DTYPE_F32, averaged, &lengths[B]);
  OK(mdp_param_read(m.buffer, B, &t, NULL));
  mdp_optimizer_destroy(m.optimizers[1]);
  SWAPPED("mdp_param_changed", mdp_param_changed(m.buffer));
  OK(mdp_optimizer_swap_average(m.optimizers[0], NULL, NULL));
  OK(mdp_param_changed(m.buffer));
  const mdp_optimizer_config config = config_of(&two, 1, 1);
  OK(mdp_optimizer_create(m.buffer, &config, &m.optimizers[1]));
  t.data = later;
  OK(mdp_param_read(m.buffer, B, &t, NULL));
  CHECK(memcmp(averaged, later, (size_t)lengths[B] * sizeof(float)) == 0);
  SIZED(mdp_tensor, view);
  SIZED(mdp_tensor, first);
  OK(mdp_optimizer_state(m.optimizers[1], B, "master", &view));
  OK(mdp_optimizer_state(m.optimizers[1], B, "average", &first));
  CHECK(same_floats(view.data, first.data, view.shape[0]));
  take_step(&m, 5);
  model_close(&m);
  mdp_comm_destroy(comm);
}

static void several(void** state) {
  (void)state;
  run_ranks(1, each_by_itself, NULL);
  run_ranks(2, each_by_itself, NULL);
  run_ranks(2, destroyed_while_swapped, NULL);
}

/* ── Restored by hand, and from checkpoints of other numbers of ranks ── */

static void written_before_the_first_step(void** state) {
  (void)state;
  mdp_comm* const comm = comm_open(NULL, 0, 1, 0);
  model m = model_on(comm, &one, 1);
  SIZED(mdp_tensor, view);
  OK(mdp_optimizer_state(m.optimizers[0], C, "average", &view));
  for (int64_t i = 0; i < lengths[C]; ++i) ((float*)view.data)[i] = 100;
  take_step(&m, 0);
  SIZED(mdp_tensor, master);
  OK(mdp_optimizer_state(m.optimizers[0], C, "master", &master));
  int wrong = 0;
  for (int64_t i = 0; i < lengths[C]; ++i)
    wrong += ((const float*)view.data)[i] != 100 + (float)(1 - decays[0]) * (((const float*)master.data)[i] - 100);
  CHECK(wrong == 0);
  model_close(&m);
  mdp_comm_destroy(comm);
}

enum {
  STAGES = 3,
  EACH = 3
};
static const int32_t sizes[STAGES] = {2, 3, 1};

/* Gradients of a rank alone: the same on all of any number. */
static void take_even_steps(const model* m, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (int p = COUNT; p-- > 0;) {
      if (p == FIXED) continue;
      float grads[LONGEST];
      for (int64_t i = 0; i < lengths[p]; ++i) grads[i] = (float)((i * (7 + p) + step * 5) % 23 - 11);
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &lengths[p]);
      OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
    }
    OK(mdp_optimizer_step_many(m->optimizers, (size_t)m->run->optimizers, NULL, NULL, NULL));
    await_default_stream();
  }
}

/* Of one rank alone, which owns all. */
static void same_averages(const model* m, const model* other) {
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    SIZED(mdp_tensor, left);
    SIZED(mdp_tensor, right);
    OK(mdp_optimizer_state(optimizer_of(m, p), p, "average", &left));
    OK(mdp_optimizer_state(optimizer_of(other, p), p, "average", &right));
    CHECK(memcmp(left.data, right.data, (size_t)lengths[p] * sizeof(float)) == 0);
  }
}

typedef struct {
  const run* run;
  const char* directory;
  int number;
} stage;

static void one_stage(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const stage* s = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  model m = model_on(comm, s->run, 1);
  if (s->number > 0) OK(checkpoint(&m, s->directory, 0, 0));
  take_even_steps(&m, s->number * EACH, (s->number + 1) * EACH);
  swap(&m), swap(&m);
  OK(checkpoint(&m, s->directory, 1, 0));
  if (s->number == STAGES - 1) {
    model whole = model_on(comm, s->run, 1);
    take_even_steps(&whole, 0, STAGES * EACH);
    same_as(&m, &whole, 1);
    same_averages(&m, &whole);
    model_close(&whole);
  }
  model_close(&m);
  mdp_comm_destroy(comm);
}

static void any_number_of_ranks(void** state) {
  (void)state;
  const run runs[] = {one, two, {MDP_RULE_ADAMW, MDP_SHARDING_ZERO_2, 1, 1}};
  for (size_t r = 0; r < sizeof runs / sizeof *runs; ++r) {
    char directory[300];
    snprintf(directory, sizeof directory, "%s/stages%zu", folder, r);
    for (int number = 0; number < STAGES; ++number) {
      stage s = {&runs[r], directory, number};
      run_ranks(sizes[number], one_stage, &s);
    }
    OK(mdp_checkpoint_verify(directory, NULL, 0, NULL));
  }
}

static char said[500];
static void hear(void* user, mdp_log_level level, const char* text, size_t length) {
  (void)user, (void)length;
  if (level == MDP_LOG_WARNING) snprintf(said, sizeof said, "%s", text);
}

/* One average is as good as another's beginning: it is the parameter. */
static void begins_anew(const model* m) {
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    SIZED(mdp_tensor, average);
    SIZED(mdp_tensor, master);
    OK(mdp_optimizer_state(optimizer_of(m, p), p, "average", &average));
    OK(mdp_optimizer_state(optimizer_of(m, p), p, "master", &master));
    CHECK(memcmp(average.data, master.data, (size_t)lengths[p] * sizeof(float)) == 0);
  }
}

static void without_an_average(void** state) {
  (void)state;
  char directory[300], without[300];
  snprintf(directory, sizeof directory, "%s/with", folder);
  snprintf(without, sizeof without, "%s/without", folder);
  mdp_comm* const comm = comm_open(NULL, 0, 1, 0);
  model plain = model_on(comm, &one, 0), m = model_on(comm, &one, 1);
  take_even_steps(&plain, 0, 3), take_even_steps(&m, 0, 3);
  OK(checkpoint(&plain, without, 1, 0));
  OK(checkpoint(&m, directory, 1, 0));
  OK(mdp_log_set(hear, NULL));
  OK(checkpoint(&m, without, 0, 0));
  OK(mdp_log_set(NULL, NULL));
  CHECK(strstr(said, "has no averages of 4 parameters; they begin anew, as the parameters are") != NULL);
  begins_anew(&m);
  same_as(&m, &plain, 1);
  take_even_steps(&m, 3, 5);
  OK(checkpoint(&m, directory, 0, MDP_CHECKPOINT_PARAMS_ONLY));
  begins_anew(&m);
  OK(checkpoint(&plain, directory, 0, 0)); /* of no use there */
  OK(checkpoint(&m, directory, 0, 0));
  same_as(&m, &plain, 1);
  /* What was told with the checkpoint. */
  mdp_optimizer_config config = config_of(&one, 0, 1);
  config.average_decay = 0.25;
  mdp_optimizer_destroy(m.optimizers[0]);
  OK(mdp_optimizer_create(m.buffer, &config, &m.optimizers[0]));
  OK(checkpoint(&m, directory, 0, MDP_CHECKPOINT_LOAD_HYPER));
  char json[4000];
  OK(mdp_optimizer_info(m.optimizers[0], json, sizeof json, NULL));
  CHECK(strstr(json, "\"average_decay\":0.9,\"swapped\":false") != NULL);
  model_close(&plain);
  model_close(&m);
  mdp_comm_destroy(comm);
}

/* ── What it takes ── */

static void planned(void** state) {
  (void)state;
  const int64_t length = 1000;
  mdp_param params[2] = {{.struct_size = sizeof params[0], .name = "a", .dtype = MDP_DTYPE_BF16, .ndim = 1, .shape = &length},
                         {.struct_size = sizeof params[0], .name = "b", .ndim = 1, .shape = &length, .dtype = MDP_DTYPE_F32}};
  SIZED(mdp_plan_report, one_rank);
  SIZED(mdp_plan_report, of_two);
  SIZED(mdp_buffer_config, config);
  OK(mdp_plan(NULL, 1, 0, &config, params, 2, NULL, &one_rank));
  OK(mdp_plan(NULL, 2, 0, &config, params, 2, NULL, &of_two));
  /* f32 and what the parameter was: 6 and 8 bytes an element. masters: 4 of the first. */
  CHECK(one_rank.average_bytes == one_rank.master_bytes / 4 * 6 + (one_rank.state_bytes / 8 - one_rank.master_bytes / 4) * 8);
  CHECK(of_two.average_bytes == of_two.master_bytes / 4 * 6 + (of_two.state_bytes / 8 - of_two.master_bytes / 4) * 8);
  CHECK(of_two.average_bytes < one_rank.average_bytes * 6 / 10);
}

static int start(void** state) {
  be_alone();
  return open_folder(state);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(bit_for_bit),
      TEST(instances_several_and_the_callers),
      TEST(refusals),
      TEST(not_within_a_step),
      TEST(decays_that_are_none),
      TEST(compared),
      TEST(several),
      TEST(written_before_the_first_step),
      TEST(any_number_of_ranks),
      TEST(without_an_average),
      TEST(planned),
  };
  return cmocka_run_group_tests(tests, start, close_folder);
}
