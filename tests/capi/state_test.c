/* SPDX-License-Identifier: Apache-2.0
 * What an optimizer is can be listed, read and set: mdp_optimizer_info, mdp_optimizer_state, mdp_optimizer_steps and
 * mdp_optimizer_set_steps. A run that goes on from what another one had ends with the same bits. */
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

enum {
  A,
  B,
  FIXED,
  C,
  D,
  COUNT,
  LONGEST = 3001,
  STEPS = 8,
  STATES = 3
};
static const int64_t lengths[COUNT] = {37, 70, 5, LONGEST, 3};
static const char* const names[COUNT] = {"a", "b", "fixed", "c", "d"};
static const char* const state_names[STATES] = {"master", "exp_avg", "exp_avg_sq"};

static job job_of(const mdp_unique_id* id, int32_t rank, int32_t n, mdp_sharding sharding) {
  job j = {.comm = comm_open(id, rank, n, UINT64_C(20000000000))};
  mdp_param params[COUNT];
  memset(params, 0, sizeof params);
  for (int p = 0; p < COUNT; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = p == B || p == C ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
    params[p].flags = p == FIXED ? MDP_PARAM_FROZEN : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.bucket_elements = 400;
  OK(mdp_buffer_register(j.comm, NULL, &config, params, COUNT, &j.buffer));
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 0.0625;
  adamw.weight_decay = 0.125;
  adamw.max_grad_norm = 2;
  OK(mdp_optimizer_create(j.buffer, &adamw, &j.optimizer));
  return j;
}

/* All ranks skip some parameters in some steps, so that counts differ. */
static int skipped(int param, int step) {
  return (param == D && step % 3 == 1) || (param == C && step == 2) || (param == A && step >= 5);
}

static void take_steps(const job* j, int from, int to) {
  const int32_t rank = mdp_comm_rank(j->comm);
  for (int step = from; step < to; ++step) {
    for (int p = COUNT; p-- > 0;) {
      if (p == FIXED) continue;
      if (skipped(p, step)) {
        OK(mdp_grad_skip(j->buffer, (size_t)p));
        continue;
      }
      float values[LONGEST];
      for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)((i * (7 + p) + step * 5 + rank * 3) % 23 - 11) / 16;
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
      OK(mdp_grad_put(j->buffer, (size_t)p, &t, 0, NULL));
    }
    SIZED(mdp_step_report, report);
    OK(mdp_optimizer_step(j->optimizer, NULL, &report, NULL));
    CHECK(report.step == (uint64_t)step + 1);
  }
}

static job after_three_steps(const mdp_unique_id* id, int32_t rank, int32_t n, mdp_sharding sharding) {
  const job j = job_of(id, rank, n, sharding);
  for (int p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)(i % 19 - 9) / 8;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_write(j.buffer, (size_t)p, &t, NULL));
  }
  take_steps(&j, 0, 3);
  return j;
}

/* All of a rank's state. */
typedef struct {
  float params[COUNT][LONGEST], states[STATES][COUNT][LONGEST];
  int64_t owned[COUNT];
  uint64_t taken, steps[COUNT];
} saved;

static saved* save(const job* j, uint64_t taken) {
  saved* s = calloc(1, sizeof *s);
  s->taken = taken;
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, s->params[p], &lengths[p]);
    OK(mdp_param_read(j->buffer, p, &t, NULL));
    OK(mdp_optimizer_steps(j->optimizer, p, &s->steps[p]));
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, p, state_names[k], &view));
      s->owned[p] = view.shape[0];
      if (view.shape[0] > 0) memcpy(s->states[k][p], view.data, (size_t)view.shape[0] * sizeof(float));
    }
  }
  return s;
}

/* A master holds what is written into it until its parameter is written: so parameters come first. */
static void restore(const job* j, const saved* s) {
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float values[LONGEST];
    memcpy(values, s->params[p], sizeof values);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_write(j->buffer, p, &t, NULL));
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, p, state_names[k], &view));
      if (!CHECK(view.shape[0] == s->owned[p]) || view.shape[0] == 0) continue;
      memcpy(view.data, s->states[k][p], (size_t)view.shape[0] * sizeof(float));
    }
  }
  OK(mdp_optimizer_set_steps(j->optimizer, s->taken, s->steps, COUNT));
}

/* ── Going on where another run stopped ── */

static void go_on(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const mdp_sharding sharding = *(const mdp_sharding*)argument;
  job whole = after_three_steps(id, rank, n, sharding);
  saved* middle = save(&whole, 3);
  take_steps(&whole, 3, STEPS);
  saved* wanted = save(&whole, STEPS);

  /* Twice: the second time, what is replaced was itself set. */
  for (int again = 0; again < 2; ++again) {
    restore(&whole, middle);
    for (size_t p = 0; p < COUNT; ++p) {
      uint64_t steps = 99;
      if (p != FIXED) OK(mdp_optimizer_steps(whole.optimizer, p, &steps));
      CHECK(p == FIXED || steps == middle->steps[p]);
    }
    take_steps(&whole, 3, STEPS);
    saved* got = save(&whole, STEPS);
    CHECK(memcmp(got, wanted, sizeof *got) == 0);
    free(got);
  }
  free(middle);
  free(wanted);
  job_close(&whole);
}

static void goes_on_with_the_same_bits(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    for (int32_t n = 1; n <= 3; n += UNDER_SANITIZER ? 2 : 1) run_ranks(n, go_on, &sharding);
  }
}

/* What a new process does, whose optimizer has never taken a step. */
static void a_new_optimizer_goes_on(void** state) {
  (void)state;
  job first = after_three_steps(NULL, 0, 1, MDP_SHARDING_ZERO_1), second = job_of(NULL, 0, 1, MDP_SHARDING_ZERO_2);
  saved* middle = save(&first, 3);
  restore(&second, middle);
  take_steps(&first, 3, STEPS);
  take_steps(&second, 3, STEPS);
  saved *wanted = save(&first, STEPS), *got = save(&second, STEPS);
  CHECK(memcmp(got, wanted, sizeof *got) == 0);
  free(middle);
  free(wanted);
  free(got);
  job_close(&first);
  job_close(&second);
}

static void all_alike(void** state) {
  (void)state;
  job j = after_three_steps(NULL, 0, 1, MDP_SHARDING_ZERO_1);
  OK(mdp_optimizer_set_steps(j.optimizer, 1000, NULL, 0));
  for (size_t p = 0; p < COUNT; ++p) {
    uint64_t steps = 0;
    if (p != FIXED) OK(mdp_optimizer_steps(j.optimizer, p, &steps));
    CHECK(p == FIXED || steps == 1000);
  }
  take_steps(&j, 1000, 1001);
  OK(mdp_optimizer_set_steps(j.optimizer, 0, NULL, 0));
  take_steps(&j, 0, 1);
  job_close(&j);
}

/* ── Bad input: nothing has changed after it ── */

static void refused(void** state) {
  (void)state;
  job j = after_three_steps(NULL, 0, 1, MDP_SHARDING_ZERO_1);
  saved* before = save(&j, 3);
  uint64_t steps[COUNT] = {4, 4, 99, 4, 4};
  FAILS(MDP_E_INVALID, "count is 4; the optimizer's buffer has 5 parameters", mdp_optimizer_set_steps(j.optimizer, 4, steps, COUNT - 1));
  FAILS(MDP_E_INVALID, "count is 0", mdp_optimizer_set_steps(j.optimizer, 4, steps, 0));
  FAILS(MDP_E_INVALID, "steps is NULL", mdp_optimizer_set_steps(j.optimizer, 4, NULL, COUNT));
  FAILS(MDP_E_INVALID, "steps[0], of parameter 0 'a', is 4; it must be at most taken, 3",
        mdp_optimizer_set_steps(j.optimizer, 3, steps, COUNT));
  FAILS(MDP_E_INVALID, "taken is 9223372036854775808", mdp_optimizer_set_steps(j.optimizer, UINT64_C(1) << 63, NULL, 0));
  FAILS(MDP_E_INVALID, "optimizer is NULL", mdp_optimizer_set_steps(NULL, 0, NULL, 0));
  saved* after = save(&j, 3);
  CHECK(memcmp(before, after, sizeof *before) == 0);
  take_steps(&j, 3, 4);
  OK(mdp_optimizer_set_steps(j.optimizer, 4, steps, COUNT)); /* the frozen one's 99 is not looked at */
  free(before);
  free(after);
  job_close(&j);
}

/* ── The list ── */

static void said_as_json(void** state) {
  (void)state;
  job j = job_of(NULL, 0, 1, MDP_SHARDING_ZERO_1);
  SIZED(mdp_param_group, group);
  group.lr = 0.25;
  OK(mdp_optimizer_set_param_group(j.optimizer, 0, &group));
  OK(mdp_optimizer_set_steps(j.optimizer, 7, NULL, 0));
  static const char wanted[] =
      "{\"rule\":\"AdamW\",\"steps\":7,\"lr\":0.0625,\"beta1\":0.9,\"beta2\":0.999,\"eps\":1e-08,\"weight_decay\":0.125,"
      "\"max_grad_norm\":2.0,\"max_grad_value\":0.0,\"norm\":\"l2\",\"first_group\":0,"
      "\"groups\":[{\"lr\":0.25,\"beta1\":0.9,\"beta2\":0.999,\"eps\":1e-08,\"weight_decay\":0.125}],"
      "\"state\":[{\"name\":\"master\",\"dtype\":\"f32\"},{\"name\":\"exp_avg\",\"dtype\":\"f32\"},"
      "{\"name\":\"exp_avg_sq\",\"dtype\":\"f32\"}]}";
  char json[sizeof wanted];
  size_t needed = 0;
  FAILS(MDP_E_INVALID, "capacity", mdp_optimizer_info(j.optimizer, json, 5, &needed));
  CHECK(needed == sizeof wanted);
  OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
  if (!CHECK(strcmp(json, wanted) == 0)) fprintf(stderr, "  %s\n", json);
  job_close(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(goes_on_with_the_same_bits), TEST(a_new_optimizer_goes_on), TEST(all_alike), TEST(refused), TEST(said_as_json),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
