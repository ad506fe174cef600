/* SPDX-License-Identifier: Apache-2.0
 * What a step changes, and what it leaves alone, on one rank: gaps between parameters, the numbers of buckets, gradients that are not
 * finite. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* Three bf16 parameters in one arena and one bucket, with alignment gaps between them. */
enum {
  COUNT = 3
};
static const int64_t sizes[COUNT] = {5, 70, 3};
static const char* const names[COUNT] = {"a", "b", "c"};

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

static model model_open(int groups_apart) {
  model m = {.comm = comm_open(NULL, 0, 1, UINT64_C(20000000000))};
  OK(mdp_grid_create(m.comm, NULL, &m.grid));
  mdp_param params[COUNT];
  memset(params, 0, sizeof params);
  mdp_param_group groups[COUNT];
  memset(groups, 0, sizeof groups);
  for (int p = 0; p < COUNT; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = MDP_DTYPE_BF16;
    params[p].ndim = 1;
    params[p].shape = &sizes[p];
    params[p].param_group = groups_apart ? p : 0;
    groups[p].struct_size = sizeof groups[p];
    groups[p].weight_decay = 0.125;
  }
  OK(mdp_buffer_register(NULL, m.grid, NULL, params, COUNT, &m.buffer));
  SIZED(mdp_optimizer_config, config);
  config.lr = 0.0625;
  config.param_groups = groups;
  config.param_group_count = COUNT;
  OK(mdp_optimizer_create(m.buffer, &config, &m.optimizer));
  for (size_t p = 0; p < COUNT; ++p) {
    float values[70];
    for (int i = 0; i < 70; ++i) values[i] = (float)(i + 1) / 8;
    mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[p]);
    OK(mdp_param_write(m.buffer, p, &t, NULL));
  }
  return m;
}

static void model_close(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
  mdp_comm_destroy(m->comm);
}

static void put_ramp(const model* m, size_t param, float scale) {
  float values[70];
  for (int i = 0; i < 70; ++i) values[i] = scale * (float)(i - 20);
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[param]);
  OK(mdp_grad_put(m->buffer, param, &t, 0, NULL));
}

/* In step `skipped` the parameter in the middle has no gradient. */
static void model_steps(const model* m, int count, int skipped) {
  for (int step = 0; step < count; ++step) {
    for (size_t p = COUNT; p-- > 0;) {
      if (step == skipped && p == 1) {
        OK(mdp_grad_skip(m->buffer, p));
      } else {
        put_ramp(m, p, (float)(step + 1) / 4);
      }
    }
    OK(mdp_grad_sync(m->buffer, NULL, NULL));
    if (on_cuda && step == count - 1) {
      step_and_wait(m->optimizer);
    } else {
      OK(mdp_optimizer_step(m->optimizer, NULL, NULL, NULL));
    }
  }
}

/* ── Gaps ── */

enum {
  PARAM,
  GRAD,
  MASTER,
  FIRST_MOMENT,
  SECOND_MOMENT,
  ARRAYS
};
static mdp_tensor array_of(const model* m, int which, size_t param) {
  static const char* const state[] = {"master", "exp_avg", "exp_avg_sq"};
  SIZED(mdp_tensor, view);
  if (which == PARAM) OK(mdp_buffer_param_view(m->buffer, param, &view));
  if (which == GRAD) OK(mdp_buffer_grad_view(m->buffer, param, &view));
  if (which >= MASTER) OK(mdp_optimizer_state(m->optimizer, param, state[which - MASTER], &view));
  return view;
}

/* Neighbours are updated in one go, with the gap between them: it is as if it were not there. */
static void gaps_stay_zero(void** state) {
  (void)state;
  model m = model_open(0);
  model_steps(&m, 3, 1);
  for (int which = 0; which < ARRAYS; ++which) {
    const size_t width = which == PARAM ? 2 : 4;
    for (size_t p = COUNT - 1; p > 0; --p) { /* parameters lie in reverse order */
      const mdp_tensor here = array_of(&m, which, p), next = array_of(&m, which, p - 1);
      const char *gap = (const char*)here.data + width * (size_t)sizes[p], *end = next.data;
      CHECK(gap < end && end - gap < 64 * (long)width);
      for (; gap < end; ++gap) CHECK(*gap == 0);
    }
  }
  model_close(&m);
}

/* Parameters of different groups are updated one by one; the bits are the same. */
static void merged_updates_have_the_same_bits(void** state) {
  (void)state;
  model together = model_open(0), apart = model_open(1);
  model_steps(&together, 4, 2);
  model_steps(&apart, 4, 2);
  for (int which = 0; which < ARRAYS; ++which) {
    const size_t width = which == PARAM ? 2 : 4;
    for (size_t p = 0; p < COUNT; ++p) {
      const mdp_tensor a = array_of(&together, which, p), b = array_of(&apart, which, p);
      CHECK(memcmp(a.data, b.data, width * (size_t)sizes[p]) == 0);
    }
  }
  model_close(&together);
  model_close(&apart);
}

/* ── Numbers of buckets ── */

/* Owned ranges and errors count buckets alike, over all arenas. */
static void ranges_say_the_bucket(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  mdp_range ranges[4];
  const size_t count = owned_ranges(j.buffer, ranges, 4);
  CHECK(count == 2);
  put_all(j.buffer);
  for (size_t i = 0; i < count; ++i) {
    FAILS(MDP_E_STATE, "ready already", mdp_grad_ready(j.buffer, (size_t)ranges[i].param, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.bucket == ranges[i].bucket && info.param == ranges[i].param);
  }
  CHECK(ranges[0].bucket != ranges[1].bucket);
  job_close(&j);
}

/* ── Gradients that are not finite ── */

static void put_with_a_hole(const model* m, size_t param, int64_t hole) {
  float values[70] = {0};
  values[hole] = hole % 2 ? NAN : INFINITY;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[param]);
  OK(mdp_grad_put(m->buffer, param, &t, 0, NULL));
}

static void the_place_is_named(void** state) {
  (void)state;
  model m = model_open(0);
  for (int64_t hole = 63; hole < 70; hole += 6) {
    OK(mdp_grad_skip(m.buffer, 0));
    put_with_a_hole(&m, 1, hole);
    put_ramp(&m, 2, 1);
    OK(mdp_grad_sync(m.buffer, NULL, NULL));
    char part[100];
    snprintf(part, sizeof part, "has 1 elements that are not finite, among them element %d of parameter 1 'b'", (int)hole);
    SIZED(mdp_step_report, report); /* so that a device is waited for, too */
    FAILS(MDP_E_NUMERIC, part, mdp_optimizer_step(m.optimizer, NULL, on_cuda ? &report : NULL, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.param == 1 && info.bucket == 0 && info.rank == -1);
  }
  model_close(&m);
}

static void the_owner_names_the_place(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  float values[6] = {1, 2, 3, 4, 5, NAN};
  SIZED(mdp_tensor, grad);
  grad.dtype = MDP_DTYPE_F32;
  grad.data = values;
  grad.ndim = job_params[FIRST].ndim;
  grad.shape = job_params[FIRST].shape;
  OK(mdp_grad_put(j.buffer, FIRST, &grad, 0, NULL));
  OK(mdp_grad_skip(j.buffer, SECOND));
  OK(mdp_grad_skip(j.buffer, EMPTY));
  OK(mdp_grad_sync(j.buffer, NULL, NULL));
  SIZED(mdp_step_report, report);
  const char* part =
      rank == 0 ? "element 5 of parameter 0 'first'" : "none of them among those that this rank owns; the rank that owns one names it";
  FAILS(MDP_E_NUMERIC, part, mdp_optimizer_step(j.optimizer, NULL, &report, NULL));
  job_close(&j);
}

static void the_place_is_named_by_its_owner(void** state) {
  (void)state;
  run_ranks(2, the_owner_names_the_place, NULL);
}

/* ── State that is written between steps ── */

enum {
  KINDS = 3,
  LENGTH = 150
};
static const mdp_dtype kinds[KINDS] = {MDP_DTYPE_BF16, MDP_DTYPE_F16, MDP_DTYPE_F32};
static const int64_t written_length = LENGTH;

/* Not to be held by a 16-bit type, so that a master that was taken from the parameter shows. */
static float written(int round, int64_t i) {
  return (float)(round + 2) + (float)i / 256 + 1.0F / 8192;
}

static void write_param(mdp_buffer* buffer, size_t param, float first) {
  float values[LENGTH];
  for (int i = 0; i < LENGTH; ++i) values[i] = first + (float)(i % 8) / 8;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &written_length);
  OK(mdp_param_write(buffer, param, &t, NULL));
}

static mdp_tensor state_of(mdp_optimizer* optimizer, size_t param, const char* name) {
  SIZED(mdp_tensor, view);
  OK(mdp_optimizer_state(optimizer, param, name, &view));
  return view;
}

/* Where the slice of `param` begins that this rank owns. */
static int64_t owned_begin(mdp_buffer* buffer, size_t param) {
  mdp_range ranges[2 * KINDS];
  const size_t count = owned_ranges(buffer, ranges, 2 * KINDS);
  for (size_t r = 0; r < count; ++r) {
    if (ranges[r].param == (int64_t)param) return ranges[r].param_begin;
  }
  return 0;
}

/* The master shows the parameter; what is written into the three then holds, through a step that moves nothing. */
static void write_state(mdp_buffer* buffer, mdp_optimizer* optimizer, int round, float shown) {
  for (size_t p = 0; p < KINDS; ++p) {
    const int64_t begin = owned_begin(buffer, p);
    const mdp_tensor master = state_of(optimizer, p, "master"), m = state_of(optimizer, p, "exp_avg"),
                     v = state_of(optimizer, p, "exp_avg_sq");
    int wrong = 0;
    for (int64_t i = 0; i < master.shape[0]; ++i) {
      wrong += ((const float*)master.data)[i] != shown + (float)((begin + i) % 8) / 8;
      ((float*)master.data)[i] = written(round, begin + i);
      ((float*)m.data)[i] = 0.5F;
      ((float*)v.data)[i] = 0.25F;
    }
    CHECK(wrong == 0);
  }
}

static void check_state(mdp_buffer* buffer, mdp_optimizer* optimizer, int round) {
  for (size_t p = 0; p < KINDS; ++p) {
    const int64_t begin = owned_begin(buffer, p);
    const mdp_tensor master = state_of(optimizer, p, "master"), m = state_of(optimizer, p, "exp_avg"),
                     v = state_of(optimizer, p, "exp_avg_sq");
    int wrong = 0;
    for (int64_t i = 0; i < master.shape[0]; ++i) {
      wrong += ((const float*)master.data)[i] != written(round, begin + i);
      wrong += ((const float*)m.data)[i] != 0.5F * 0.5F || ((const float*)v.data)[i] != 0.25F * 0.75F;
    }
    CHECK(wrong == 0);
    float values[LENGTH];
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &written_length);
    OK(mdp_param_read(buffer, p, &t, NULL));
    for (int64_t i = 0; i < LENGTH; ++i) wrong += fabsf(values[i] - written(round, i)) > 1.0F / 32;
    CHECK(wrong == 0);
  }
}

static void idle_step(mdp_buffer* buffer, mdp_optimizer* optimizer) {
  static const float zeros[LENGTH];
  for (size_t p = 0; p < KINDS; ++p) {
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, (void*)zeros, &written_length);
    OK(mdp_grad_put(buffer, p, &t, 0, NULL));
  }
  OK(mdp_grad_sync(buffer, NULL, NULL));
  SIZED(mdp_step_config, still);
  still.flags = MDP_STEP_SET_LR; /* 0 */
  mdp_request* stepped = NULL;
  OK(mdp_optimizer_step(optimizer, &still, NULL, &stepped));
  OK(mdp_request_wait(stepped, UINT64_MAX));
  mdp_request_free(stepped);
}

static job kinds_open(const mdp_unique_id* id, int32_t rank, int32_t n, mdp_sharding sharding, const mdp_optimizer_config* config) {
  job j = {.comm = comm_open(id, rank, n, UINT64_C(20000000000))};
  OK(mdp_grid_create(j.comm, NULL, &j.grid));
  static const char* const kind_names[KINDS] = {"bf16", "f16", "f32"};
  mdp_param params[KINDS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < KINDS; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = kind_names[p];
    params[p].dtype = kinds[p];
    params[p].ndim = 1;
    params[p].shape = &written_length;
  }
  SIZED(mdp_buffer_config, buffers);
  buffers.sharding = sharding;
  OK(mdp_buffer_register(NULL, j.grid, &buffers, params, KINDS, &j.buffer));
  OK(mdp_optimizer_create(j.buffer, config, &j.optimizer));
  return j;
}

static void write_and_step(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  SIZED(mdp_optimizer_config, config);
  config.beta1 = 0.5;
  config.beta2 = 0.75;
  job j = kinds_open(id, rank, n, *(const mdp_sharding*)argument, &config);
  mdp_buffer* const buffer = j.buffer;
  mdp_optimizer* const optimizer = j.optimizer;
  for (size_t p = 0; p < KINDS; ++p) write_param(buffer, p, 1);
  write_state(buffer, optimizer, 0, 1); /* before the first step */
  idle_step(buffer, optimizer);
  check_state(buffer, optimizer, 0);
  for (size_t p = 0; p < KINDS; ++p) write_param(buffer, p, 7);
  write_state(buffer, optimizer, 1, 7); /* after the parameters were written */
  OK(mdp_barrier(j.comm, NULL));        /* f32 parameters are their own masters, and all ranks must have read theirs */
  idle_step(buffer, optimizer);
  check_state(buffer, optimizer, 1);
  job_close(&j);
}

static void written_state_holds(void** state) {
  (void)state;
  mdp_sharding shardings[] = {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2};
  for (int i = 0; i < 6; ++i) run_ranks(1 + i / 3, write_and_step, &shardings[i % 3]);
}

/* A master that was looked at follows its parameter all the same. */
static void looked_at_masters_follow(void** state) {
  (void)state;
  model m = model_open(0);
  for (int round = 0; round < 2; ++round) {
    float values[5];
    for (int i = 0; i < 5; ++i) values[i] = (float)(i + 3 * round);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[0]);
    OK(mdp_param_write(m.buffer, 0, &t, NULL));
    const float* const master = state_of(m.optimizer, 0, "master").data;
    CHECK(memcmp(master, values, sizeof values) == 0);
    values[2] = 11;
    OK(mdp_param_write(m.buffer, 0, &t, NULL));
    for (size_t p = 0; p < COUNT; ++p) OK(mdp_grad_skip(m.buffer, p));
    OK(mdp_grad_sync(m.buffer, NULL, NULL));
    step_and_wait(m.optimizer);
    CHECK(memcmp(state_of(m.optimizer, 0, "master").data, values, sizeof values) == 0);
  }
  model_close(&m);
}

enum {
  SMALL_STEPS = 31,
  WRITTEN_AT = 16
};

/* Of a script that writes into parameters between steps, such as a clamp: the master of what is as it was keeps all its digits. After a
 * broadcast masters that several ranks have are the parameter. */
static void write_between_steps(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  SIZED(mdp_optimizer_config, config);
  config.rule = MDP_RULE_SGD;
  config.lr = 1.0 / 4096;
  job j = kinds_open(id, rank, n, *(const mdp_sharding*)argument, &config);
  mdp_buffer* const buffer = j.buffer;
  mdp_optimizer* const optimizer = j.optimizer;
  float values[LENGTH];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &written_length);
  for (int step = 0; step < SMALL_STEPS; ++step) {
    for (size_t p = 0; p < KINDS; ++p) {
      OK(mdp_param_read(buffer, p, &t, NULL));
      for (int i = 0; i < LENGTH && step == 0; ++i) values[i] = 1;
      if (step == WRITTEN_AT) values[0] = 2;
      OK(mdp_param_write(buffer, p, &t, NULL));
    }
    OK(mdp_param_changed(buffer));
    for (size_t p = 0; p < KINDS; ++p) {
      for (int i = 0; i < LENGTH; ++i) values[i] = 1;
      OK(mdp_grad_put(buffer, p, &t, 0, NULL));
    }
    step_and_wait(optimizer);
  }
  for (int replaced = 0; replaced < 2; ++replaced) {
    for (size_t p = 0; p < KINDS; ++p) {
      const int64_t begin = owned_begin(buffer, p);
      const mdp_tensor master = state_of(optimizer, p, "master");
      OK(mdp_param_read(buffer, p, &t, NULL));
      int wrong = 0;
      for (int64_t i = 0; i < master.shape[0]; ++i) {
        const int is_shared = n > 1 && *(const mdp_sharding*)argument == MDP_SHARDING_ZERO_0;
        const float kept = begin + i == 0 ? 2 - (float)(SMALL_STEPS - WRITTEN_AT) / 4096 : 1 - (float)SMALL_STEPS / 4096;
        wrong += ((const float*)master.data)[i] != (replaced && is_shared ? values[begin + i] : kept);
        if (kinds[p] == MDP_DTYPE_BF16) wrong += values[begin + i] == kept; /* or nothing would be shown */
      }
      CHECK(wrong == 0);
    }
    OK(mdp_buffer_broadcast(buffer, 0, NULL));
  }
  job_close(&j);
}

static void what_is_not_written_keeps_its_digits(void** state) {
  (void)state;
  mdp_sharding shardings[] = {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2};
  for (int i = 0; i < 6; ++i) run_ranks(1 + i / 3, write_between_steps, &shardings[i % 3]);
}

/* An infinite norm calls for clipping, and a step that is skipped has clipped nothing. */
static void a_skipped_step_is_not_clipped(void** state) {
  (void)state;
  model m = model_open(0);
  mdp_param_group groups[COUNT] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
  SIZED(mdp_optimizer_config, config);
  config.max_grad_norm = 1;
  config.param_groups = groups;
  config.param_group_count = COUNT;
  mdp_optimizer* clipping = NULL;
  OK(mdp_optimizer_create(m.buffer, &config, &clipping));
  for (int finite = 0; finite < 2; ++finite) {
    for (size_t p = 0; p < COUNT; ++p) {
      float values[70];
      for (int i = 0; i < 70; ++i) values[i] = 3;
      if (!finite) values[1] = INFINITY;
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[p]);
      OK(mdp_grad_put(m.buffer, p, &t, 0, NULL));
    }
    SIZED(mdp_step_config, scaled);
    SIZED(mdp_step_report, report);
    scaled.loss_scale = 2;
    OK(mdp_optimizer_step(clipping, &scaled, &report, NULL));
    CHECK(report.clip_factor < 1 && report.flags == (finite ? MDP_STEPPED_CLIPPED : MDP_STEPPED_SKIPPED));
  }
  mdp_optimizer_destroy(clipping);
  model_close(&m);
}

/* A step that changes nothing, skipped or failed, leaves the masters of other optimizers alone: they hold more than bf16 parameters show.
 */
static void a_step_that_changes_nothing(void** state) {
  (void)state;
  model m = model_open(0);
  mdp_param_group groups[COUNT] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
  SIZED(mdp_optimizer_config, config);
  config.param_groups = groups;
  config.param_group_count = COUNT;
  config.rule = MDP_RULE_SGD;
  config.lr = 1;
  mdp_optimizer* other = NULL;
  OK(mdp_optimizer_create(m.buffer, &config, &other));
  float values[70] = {1, 1, 1, 1, 1}, wanted[5] = {1, 1, 1, 1, 1};
  const mdp_tensor a = tensor_of(MDP_DTYPE_F32, values, &sizes[0]);
  OK(mdp_param_write(m.buffer, 0, &a, NULL));
  for (int turn = 0; turn < 4; ++turn) {
    for (size_t p = 0; p < COUNT; ++p) {
      for (int i = 0; i < 70; ++i) values[i] = -0.001F;
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[p]);
      OK(mdp_grad_put(m.buffer, p, &t, 0, NULL));
    }
    step_and_wait(other);
    for (int i = 0; i < 5; ++i) wanted[i] += 0.001F;
    CHECK(memcmp(state_of(other, 0, "master").data, wanted, sizeof wanted) == 0);
    for (size_t p = 0; p < COUNT; ++p) {
      for (int i = 0; i < 70; ++i) values[i] = INFINITY;
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[p]);
      OK(mdp_grad_put(m.buffer, p, &t, 0, NULL));
    }
    SIZED(mdp_step_config, scaled);
    SIZED(mdp_step_report, report);
    scaled.loss_scale = turn % 2;
    mdp_request* request = NULL;
    const mdp_status status = mdp_optimizer_step(m.optimizer, &scaled, turn < 2 ? &report : NULL, turn < 2 ? NULL : &request);
    CHECK(turn >= 2 || status == (turn == 0 ? MDP_E_NUMERIC : MDP_OK));
    if (request != NULL) (void)mdp_request_wait(request, UINT64_C(20000000000));
    mdp_request_free(request);
    CHECK(memcmp(state_of(other, 0, "master").data, wanted, sizeof wanted) == 0);
  }
  /* One that changes them is followed. */
  for (size_t p = 0; p < COUNT; ++p) {
    for (int i = 0; i < 70; ++i) values[i] = 1;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[p]);
    OK(mdp_grad_put(m.buffer, p, &t, 0, NULL));
  }
  step_and_wait(m.optimizer);
  float now[5];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, now, &sizes[0]);
  OK(mdp_param_read(m.buffer, 0, &t, NULL));
  CHECK(now[0] < 0.98F && memcmp(state_of(other, 0, "master").data, now, sizeof now) == 0);
  mdp_optimizer_destroy(other);
  model_close(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(gaps_stay_zero),
      TEST(merged_updates_have_the_same_bits),
      TEST(ranges_say_the_bucket),
      TEST(the_place_is_named),
      TEST(the_place_is_named_by_its_owner),
      TEST(written_state_holds),
      TEST(looked_at_masters_follow),
      TEST(a_skipped_step_is_not_clipped),
      TEST(a_step_that_changes_nothing),
      TEST(what_is_not_written_keeps_its_digits),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
