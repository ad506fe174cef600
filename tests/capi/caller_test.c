/* SPDX-License-Identifier: Apache-2.0
 * Updates of the caller's: AdamW written as an update function, and by the calls begin, next and finish, gives the bits of the library's
 * own. A function that fails on one rank fails the step on all, before anything is gathered. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

enum {
  COUNT = 6,
  FIXED = 3,
  LONGEST = 301,
  STEPS = 6
};
static const int64_t lengths[COUNT] = {37, 70, LONGEST, 5, 3, 150};
static const char* const names[COUNT] = {"a", "b", "c", "fixed", "d", "e"};
static const int group_of[COUNT] = {0, 1, 0, 0, 1, 0};

static mdp_buffer* buffer_of(mdp_comm* comm, mdp_sharding sharding) {
  mdp_param params[COUNT];
  memset(params, 0, sizeof params);
  for (int p = 0; p < COUNT; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = p % 2 != 0 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
    params[p].param_group = group_of[p];
    params[p].flags = p == FIXED ? MDP_PARAM_FROZEN : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.bucket_elements = 200;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, COUNT, &buffer));
  for (size_t p = 0; p < COUNT; ++p) {
    float start[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) start[i] = (float)(i % 19 - 9) / 8;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, start, &lengths[p]);
    if (p != FIXED) OK(mdp_param_write(buffer, p, &t, NULL));
  }
  return buffer;
}

/* Two groups with values of their own. */
static const mdp_param_group groups[2] = {{.struct_size = sizeof(mdp_param_group), .beta1 = 0.75},
                                          {.struct_size = sizeof(mdp_param_group), .lr = 0.0625, .weight_decay = 0.5}};
static mdp_optimizer* optimizer_of(mdp_buffer* buffer, mdp_rule rule, uint32_t first, uint64_t count) {
  mdp_optimizer_config config = {.struct_size = sizeof config,
                                 .rule = rule,
                                 .lr = 0.03125,
                                 .weight_decay = 0.125,
                                 .max_grad_norm = 0.5,
                                 .param_groups = groups + first,
                                 .param_group_count = count,
                                 .flags = count < 2 ? MDP_OPTIMIZER_SOME_GROUPS : 0,
                                 .first_param_group = first,
                                 .state = rule == MDP_RULE_CALLER ? "exp_avg\nexp_avg_sq" : NULL};
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  return optimizer;
}

/* In step 3 the last rank has an element that is not finite; one parameter is skipped in step 2. */
static void put_grads(mdp_buffer* buffer, int32_t rank, int32_t n, int step) {
  for (int p = COUNT; p-- > 0;) {
    if (p == FIXED) continue;
    float grads[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) grads[i] = (float)((i * (7 + p) + step * 5 + rank * 3) % 23 - 11) / 16;
    if (step == 3 && rank == n - 1 && p == 2) grads[17] = NAN;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &lengths[p]);
    if (step == 2 && p == 1) {
      OK(mdp_grad_skip(buffer, (size_t)p));
    } else {
      OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
    }
  }
}

/* ── AdamW of the caller's ── */

typedef struct {
  mdp_comm* comm;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
  int calls, fails_at; /* 0: never */
  int on_stream;       /* updates are work for the stream */
  double lr;           /* that a step has set; 0: none */
  uint64_t seen[COUNT], step;
} caller;

static void adamw(const mdp_update* u) {
  const float beta1 = (float)u->beta1, rest1 = (float)(1 - u->beta1), beta2 = (float)u->beta2, rest2 = (float)(1 - u->beta2);
  const float decay = (float)(1 - u->lr * u->weight_decay), eps = (float)u->eps;
  double power1 = 1, power2 = 1;
  for (uint64_t i = 0; i < u->step; ++i) {
    power1 *= u->beta1;
    power2 *= u->beta2;
  }
  const float step_size = (float)(u->lr / (1 - power1)), root = (float)sqrt(1 - power2);
  for (uint64_t i = 0; i < u->count; ++i) {
    float *m = &u->state[0][i], *v = &u->state[1][i];
    const float g = u->grad[i];
    *m = beta1 * *m + rest1 * g;
    *v = beta2 * *v + rest2 * g * g;
    u->master[i] = u->master[i] * decay - step_size * *m / (sqrtf(*v) / root + eps);
  }
}

static void look_at(caller* who, const mdp_update* u) {
  CHECK(u->struct_size == sizeof *u && u->param < COUNT && u->param != FIXED && u->count > 0 && u->stream == NULL);
  CHECK(u->param_begin + u->count <= (uint64_t)lengths[u->param] && u->state_count == 2);
  const double lr = who->lr > 0 ? who->lr : 0.03125; /* where its group has none of its own */
  CHECK(u->lr == (group_of[u->param] == 1 ? 0.0625 : lr) && u->beta1 == (group_of[u->param] == 0 ? 0.75 : 0.9));
  CHECK(u->weight_decay == (group_of[u->param] == 1 ? 0.5 : 0.125) && u->beta2 == 0.999 && u->eps == 1e-8);
  who->seen[u->param] += u->count;
  who->step = u->step;
}

/* What a kernel would do: later, with what the piece was. */
static void adamw_later(void* user) {
  mdp_update* u = user;
  const struct timespec moment = {0, 200000};
  nanosleep(&moment, NULL);
  adamw(u);
  free((void*)u->state);
  free(u);
}
static void submit_adamw(const mdp_update* u) {
  mdp_update* copy = malloc(sizeof *copy);
  float** state = malloc(2 * sizeof *state);
  memcpy(state, u->state, 2 * sizeof *state);
  *copy = *u;
  copy->state = state;
  on_default_stream(adamw_later, copy);
}

static int32_t update(void* user, const mdp_update* u) {
  caller* who = user;
  who->calls += 1;
  if (!who->on_stream) await_default_stream();
  look_at(who, u);
  if (who->calls == who->fails_at) return 7;
  if (who->on_stream) {
    submit_adamw(u);
  } else {
    adamw(u);
  }
  return 0;
}

static caller caller_of(mdp_comm* comm, mdp_sharding sharding) {
  caller who = {.comm = comm, .buffer = buffer_of(comm, sharding)};
  who.optimizer = optimizer_of(who.buffer, MDP_RULE_CALLER, 0, 2);
  return who;
}

static void caller_close(caller* who) {
  mdp_optimizer_destroy(who->optimizer);
  mdp_buffer_destroy(who->buffer);
}

static int same_values(mdp_buffer* a, mdp_buffer* b, size_t p) {
  if (p == FIXED) return 1;
  uint8_t left[LONGEST * 4], right[LONGEST * 4];
  mdp_dtype dtype = p % 2 != 0 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
  mdp_tensor t = tensor_of(dtype, left, &lengths[p]);
  OK(mdp_param_read(a, p, &t, NULL));
  t.data = right;
  OK(mdp_param_read(b, p, &t, NULL));
  return memcmp(left, right, (size_t)lengths[p] * (dtype == MDP_DTYPE_F32 ? 4 : 2)) == 0;
}

static int same_state(mdp_optimizer* a, mdp_optimizer* b, size_t p, const char* name) {
  SIZED(mdp_tensor, left);
  SIZED(mdp_tensor, right);
  OK(mdp_optimizer_state(a, p, name, &left));
  OK(mdp_optimizer_state(b, p, name, &right));
  return left.shape[0] == right.shape[0] && (left.shape[0] == 0 || memcmp(left.data, right.data, (size_t)left.shape[0] * 4) == 0);
}

/* ── Beside the library's own ── */

typedef enum {
  FUNCTION,
  CALLS,
  REQUEST
} way;
typedef struct {
  way way;
  mdp_sharding sharding;
} run;

/* One step by the calls; the pieces of a skipped one are none. */
static void step_by_calls(caller* who, const mdp_step_config* config, mdp_step_report* report) {
  OK(mdp_optimizer_step_begin(&who->optimizer, 1, config));
  float values[3] = {0};
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[4]);
  FAILS(MDP_E_STATE, "a step is under way", mdp_grad_put(who->buffer, 4, &t, 0, NULL));
  FAILS(MDP_E_STATE, "a step is under way", mdp_buffer_zero_grad(who->buffer, NULL));
  FAILS(MDP_E_STATE, "a step is under way", mdp_microbatch_begin(who->buffer, 1));
  for (;;) {
    SIZED(mdp_update, u);
    OK(mdp_optimizer_step_next(who->optimizer, &u));
    if (u.count == 0) break;
    await_default_stream();
    look_at(who, &u);
    adamw(&u);
  }
  OK(mdp_optimizer_step_finish(who->optimizer, 0, report, NULL));
}

static void beside(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const run* r = argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  mdp_buffer* buffer = buffer_of(comm, r->sharding);
  mdp_optimizer* own = optimizer_of(buffer, MDP_RULE_ADAMW, 0, 2);
  caller who = caller_of(comm, r->sharding);
  if (r->way != CALLS) OK(mdp_optimizer_set_update(who.optimizer, update, &who));
  who.on_stream = r->way == REQUEST;
  for (int step = 1; step <= STEPS; ++step) {
    const mdp_step_config config = {.struct_size = sizeof config, .loss_scale = 2};
    SIZED(mdp_step_report, wanted);
    SIZED(mdp_step_report, report);
    if (step == 3) { /* not finite: an error without a loss scale, and its learning rate stays with both */
      const mdp_step_config numeric = {.struct_size = sizeof numeric, .lr = 0.015625};
      put_grads(buffer, rank, n, step);
      CHECK(mdp_optimizer_step(own, &numeric, &wanted, NULL) == MDP_E_NUMERIC);
      put_grads(who.buffer, rank, n, step);
      who.lr = numeric.lr;
      CHECK((r->way == CALLS ? mdp_optimizer_step_begin(&who.optimizer, 1, &numeric)
                             : mdp_optimizer_step(who.optimizer, &numeric, &report, NULL)) == MDP_E_NUMERIC);
    }
    put_grads(buffer, rank, n, step);
    OK(mdp_optimizer_step(own, &config, &wanted, NULL));
    memset(who.seen, 0, sizeof who.seen);
    put_grads(who.buffer, rank, n, step);
    if (r->way == CALLS) step_by_calls(&who, &config, &report);
    if (r->way == FUNCTION) OK(mdp_optimizer_step(who.optimizer, &config, &report, NULL));
    if (r->way == REQUEST) {
      mdp_request* request = NULL;
      OK(mdp_optimizer_step(who.optimizer, &config, &report, &request));
      OK(mdp_request_wait(request, UINT64_MAX));
      mdp_request_free(request);
    }
    CHECK(memcmp(&wanted, &report, sizeof report) == 0);
    for (size_t p = 0; p < COUNT; ++p) {
      CHECK(same_values(buffer, who.buffer, p));
      if (p == FIXED) continue;
      uint64_t left = 0, right = 0;
      OK(mdp_optimizer_steps(own, p, &left));
      OK(mdp_optimizer_steps(who.optimizer, p, &right));
      CHECK(left == right);
      CHECK(same_state(own, who.optimizer, p, "master") && same_state(own, who.optimizer, p, "exp_avg"));
      CHECK(same_state(own, who.optimizer, p, "exp_avg_sq"));
      if (step == 3 || (step == 2 && p == 1)) CHECK(who.seen[p] == 0);
      if (n == 1 && step != 3 && !(step == 2 && p == 1)) CHECK(who.seen[p] == (uint64_t)lengths[p]);
    }
  }
  mdp_optimizer_destroy(own);
  mdp_buffer_destroy(buffer);
  caller_close(&who);
  mdp_comm_destroy(comm);
}

static void the_librarys_bits(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) {
    for (int w = FUNCTION; w <= REQUEST; ++w) {
      for (mdp_sharding sharding = MDP_SHARDING_ZERO_1; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
        run r = {(way)w, sharding};
        run_ranks(n, beside, &r);
      }
    }
  }
}

/* ── One step with the library's ── */

static void together(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  mdp_buffer* buffer = buffer_of(comm, MDP_SHARDING_ZERO_1);
  mdp_optimizer* own = optimizer_of(buffer, MDP_RULE_ADAMW, 0, 2);
  caller who = {.comm = comm, .buffer = buffer_of(comm, MDP_SHARDING_ZERO_1)};
  for (uint32_t callers = 0; callers < 2; ++callers) {
    mdp_optimizer* both[2] = {optimizer_of(who.buffer, callers == 0 ? MDP_RULE_CALLER : MDP_RULE_ADAMW, 0, 1),
                              optimizer_of(who.buffer, callers == 1 ? MDP_RULE_CALLER : MDP_RULE_ADAMW, 1, 1)};
    OK(mdp_optimizer_set_update(both[callers], update, &who));
    for (int step = 4; step < 4 + STEPS; ++step) {
      put_grads(buffer, rank, n, step);
      OK(mdp_optimizer_step(own, NULL, NULL, NULL));
      put_grads(who.buffer, rank, n, step);
      OK(mdp_optimizer_step_many(both, 2, NULL, NULL, NULL));
      for (size_t p = 0; p < COUNT; ++p) CHECK(same_values(buffer, who.buffer, p));
    }
    for (int i = 0; i < 2; ++i) mdp_optimizer_destroy(both[i]);
    /* Again from where both are, with new moments. */
    mdp_optimizer_destroy(own);
    own = optimizer_of(buffer, MDP_RULE_ADAMW, 0, 2);
  }
  mdp_optimizer_destroy(own);
  mdp_buffer_destroy(buffer);
  mdp_buffer_destroy(who.buffer);
  mdp_comm_destroy(comm);
}

static void in_one_step_with_others(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) run_ranks(n, together, NULL);
}

/* ── Failures ── */

static void fails_on_one(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const way w = *(const way*)argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  caller who = caller_of(comm, MDP_SHARDING_ZERO_1);
  mdp_buffer* before = buffer_of(comm, MDP_SHARDING_ZERO_1);
  if (w != CALLS) OK(mdp_optimizer_set_update(who.optimizer, update, &who));
  put_grads(who.buffer, rank, n, 1);
  if (w == CALLS) {
    OK(mdp_optimizer_step_begin(&who.optimizer, 1, NULL));
    SIZED(mdp_update, u);
    OK(mdp_optimizer_step_next(who.optimizer, &u));
    if (rank == n - 1) {
      FAILS(MDP_E_ABORTED, "masters and state may have changed", mdp_optimizer_step_finish(who.optimizer, 9, NULL, NULL));
    } else {
      while (u.count > 0) OK(mdp_optimizer_step_next(who.optimizer, &u));
      FAILS(MDP_E_ABORTED, "parameter ", mdp_optimizer_step_finish(who.optimizer, 0, NULL, NULL));
      SIZED(mdp_error_info, info);
      OK(mdp_last_error_info(&info));
      CHECK(strstr(info.text, "failed is 9") != NULL && info.rank == n - 1 && info.param >= 0 && info.bucket >= 0);
    }
    FAILS(MDP_E_STATE, "no step is under way", mdp_optimizer_step_finish(who.optimizer, 0, NULL, NULL));
    FAILS(MDP_E_STATE, "no step is under way", mdp_optimizer_step_next(who.optimizer, &u));
  } else {
    if (rank == n - 1) who.fails_at = 2;
    FAILS(MDP_E_ABORTED, "its update function returned 7", mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
    CHECK(rank != n - 1 || who.calls == 2);
  }
  for (size_t p = 1; p < COUNT; p += 4) CHECK(same_values(before, who.buffer, p)); /* bf16: nothing was rounded into it */
  who.fails_at = 0;
  put_grads(who.buffer, rank, n, 2);
  OK(mdp_optimizer_set_update(who.optimizer, update, &who));
  FAILS(MDP_E_STATE, "are not whole", mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  OK(mdp_optimizer_set_steps(who.optimizer, 0, NULL, 0));
  OK(mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  caller_close(&who);
  mdp_buffer_destroy(before);
  mdp_comm_destroy(comm);
}

static void a_failure_is_everybodys(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) {
    for (int w = FUNCTION; w <= CALLS; ++w) run_ranks(n, fails_on_one, &w);
  }
}

/* Of two in one step the second's update fails: it alone has changed half of its masters, and refuses to go on. */
static void fails_beside(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  caller who = {.comm = comm, .buffer = buffer_of(comm, MDP_SHARDING_ZERO_1)};
  for (int callers = 1; callers <= 2; ++callers) {
    mdp_optimizer* both[2] = {optimizer_of(who.buffer, callers == 2 ? MDP_RULE_CALLER : MDP_RULE_ADAMW, 0, 1),
                              optimizer_of(who.buffer, MDP_RULE_CALLER, 1, 1)};
    for (int i = 2 - callers; i < 2; ++i) OK(mdp_optimizer_set_update(both[i], update, &who));
    who.calls = 0;
    who.fails_at = 1;
    put_grads(who.buffer, rank, n, 1);
    FAILS(MDP_E_ABORTED, "its update function returned 7", mdp_optimizer_step_many(both, 2, NULL, NULL, NULL));
    who.fails_at = 0;
    put_grads(who.buffer, rank, n, 2);
    FAILS(MDP_E_STATE, "are not whole", mdp_optimizer_step_many(both, 2, NULL, NULL, NULL));
    if (callers == 2) {
      OK(mdp_optimizer_set_steps(both[0], 0, NULL, 0));
      FAILS(MDP_E_STATE, "are not whole", mdp_optimizer_step_many(both, 2, NULL, NULL, NULL));
    }
    OK(mdp_optimizer_set_steps(both[1], 0, NULL, 0));
    OK(mdp_optimizer_step_many(both, 2, NULL, NULL, NULL));
    for (int i = 0; i < 2; ++i) mdp_optimizer_destroy(both[i]);
  }
  mdp_buffer_destroy(who.buffer);
  mdp_comm_destroy(comm);
}

static void a_failure_beside_others(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 2; ++n) run_ranks(n, fails_beside, NULL);
}

static void count_is(mdp_optimizer* optimizer, size_t param, uint64_t wanted) {
  uint64_t steps = 0;
  OK(mdp_optimizer_steps(optimizer, param, &steps));
  CHECK(steps == wanted);
}

/* The library's optimizer of a step that is given up, by one rank's failure or as its first optimizer goes, is as before: the next step is
 * its first. What is set in the midst of a step is for the next. */
static void goes_on_beside(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  for (int destroyed = 0; destroyed < 2; ++destroyed) {
    mdp_buffer *buffer = buffer_of(comm, MDP_SHARDING_ZERO_1), *alone = buffer_of(comm, MDP_SHARDING_ZERO_1);
    mdp_optimizer* own = optimizer_of(alone, MDP_RULE_ADAMW, 0, 2);
    mdp_optimizer* both[2] = {optimizer_of(buffer, MDP_RULE_CALLER, 0, 1), optimizer_of(buffer, MDP_RULE_ADAMW, 1, 1)};
    put_grads(buffer, rank, n, 2); /* without the first of group 1 */
    OK(mdp_optimizer_step_begin(both, 2, NULL));
    count_is(both[1], 4, 1);
    if (destroyed) {
      mdp_optimizer_destroy(both[0]);
      both[0] = optimizer_of(buffer, MDP_RULE_CALLER, 0, 1);
    } else {
      FAILS(MDP_E_ABORTED, "failed is 1", mdp_optimizer_step_finish(both[0], 1, NULL, NULL));
      OK(mdp_optimizer_set_steps(both[0], 0, NULL, 0));
    }
    count_is(both[1], 1, 0);
    count_is(both[1], 4, 0);
    caller who = {.comm = comm, .buffer = buffer};
    OK(mdp_optimizer_set_update(both[0], update, &who));
    for (int step = 0; step < 2; ++step) {
      put_grads(buffer, rank, n, step);
      put_grads(alone, rank, n, step);
      OK(mdp_optimizer_step_begin(both, 2, NULL));
      mdp_param_group set = groups[1];
      set.lr = 0.5;
      if (step == 0) OK(mdp_optimizer_set_param_group(both[1], 1, &set));
      SIZED(mdp_update, u);
      for (OK(mdp_optimizer_step_next(both[0], &u)); u.count > 0; OK(mdp_optimizer_step_next(both[0], &u))) adamw(&u);
      OK(mdp_optimizer_step_finish(both[0], 0, NULL, NULL));
      OK(mdp_optimizer_step(own, NULL, NULL, NULL));
      if (step == 0) OK(mdp_optimizer_set_param_group(own, 1, &set));
      for (size_t p = 1; p < COUNT; p += 3) CHECK(same_values(alone, buffer, p)); /* the library's */
    }
    for (int i = 0; i < 2; ++i) mdp_optimizer_destroy(both[i]);
    mdp_optimizer_destroy(own);
    mdp_buffer_destroy(alone);
    mdp_buffer_destroy(buffer);
  }
  mdp_comm_destroy(comm);
}

static void the_librarys_go_on(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 2; ++n) run_ranks(n, goes_on_beside, NULL);
}

/* ── Whether it goes element by element ── */

/* One that needs all of a parameter: the mean of its gradients goes off each. */
static int32_t centered(void* user, const mdp_update* u) {
  caller* who = user;
  await_default_stream();
  who->calls += 1;
  float sum = 0;
  for (uint64_t i = 0; i < u->count; ++i) sum += u->grad[i];
  for (uint64_t i = 0; i < u->count; ++i) u->master[i] -= (float)u->lr * (u->grad[i] - sum / (float)u->count);
  return 0;
}
/* This one's state alone needs it. */
static int32_t counted(void* user, const mdp_update* u) {
  (void)user;
  await_default_stream();
  for (uint64_t i = 0; i < u->count; ++i) u->state[1][i] = (float)u->count;
  return 0;
}

static void tried_out(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  caller plain = caller_of(comm, MDP_SHARDING_ZERO_1), who = caller_of(comm, MDP_SHARDING_ZERO_1);
  mdp_optimizer_destroy(who.optimizer);
  mdp_optimizer_config config = {.struct_size = sizeof config,
                                 .rule = MDP_RULE_CALLER,
                                 .lr = 0.03125,
                                 .weight_decay = 0.125,
                                 .max_grad_norm = 0.5,
                                 .param_groups = groups,
                                 .param_group_count = 2,
                                 .flags = MDP_OPTIMIZER_CHECK_UPDATE,
                                 .state = "exp_avg\nexp_avg_sq"};
  OK(mdp_optimizer_create(who.buffer, &config, &who.optimizer));
  OK(mdp_optimizer_set_update(plain.optimizer, update, &plain));
  OK(mdp_optimizer_set_update(who.optimizer, update, &who));
  for (int step = 4; step < 8; ++step) { /* none is skipped */
    who.on_stream = plain.on_stream = step % 2;
    put_grads(plain.buffer, rank, n, step);
    OK(mdp_optimizer_step(plain.optimizer, NULL, NULL, NULL));
    put_grads(who.buffer, rank, n, step);
    if (step < 6) {
      OK(mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
    } else {
      step_by_calls(&who, NULL, NULL);
    }
    for (size_t p = 0; p < COUNT; ++p) CHECK(same_values(plain.buffer, who.buffer, p));
  }
  CHECK(who.calls > plain.calls && who.calls <= 3 * plain.calls);
  put_grads(who.buffer, rank, n, 8);
  OK(mdp_optimizer_set_update(who.optimizer, counted, &who));
  FAILS(MDP_E_INVALID, "its update is not element-wise: element ", mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  CHECK(strstr(mdp_last_error(), " of exp_avg_sq is ") != NULL);
  OK(mdp_optimizer_set_steps(who.optimizer, 0, NULL, 0));
  OK(mdp_optimizer_set_update(who.optimizer, centered, &who));
  put_grads(who.buffer, rank, n, 8);
  FAILS(MDP_E_INVALID, "register the parameter with MDP_SHARDING_WHOLE (4)", mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  CHECK(strstr(mdp_last_error(), " of master is ") != NULL);
  /* By calls, what the last half has shown is told by the call after it, and by the end. */
  OK(mdp_optimizer_set_steps(who.optimizer, 0, NULL, 0));
  put_grads(who.buffer, rank, n, 9);
  OK(mdp_optimizer_step_begin(&who.optimizer, 1, NULL));
  SIZED(mdp_update, u);
  for (int i = 0; i < 3; ++i) {
    OK(mdp_optimizer_step_next(who.optimizer, &u));
    (void)centered(&who, &u);
  }
  FAILS(MDP_E_INVALID, "its update is not element-wise", mdp_optimizer_step_next(who.optimizer, &u));
  FAILS(MDP_E_INVALID, "its update is not element-wise", mdp_optimizer_step_finish(who.optimizer, 0, NULL, NULL));
  caller_close(&plain);
  caller_close(&who);
  mdp_comm_destroy(comm);
}

static void checked_in_halves(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 2; ++n) run_ranks(n, tried_out, NULL);
}

static void checks_refused(void** state) {
  (void)state;
  mdp_comm* comm = comm_open(NULL, 0, 1, 0);
  mdp_buffer* buffer = buffer_of(comm, MDP_SHARDING_WHOLE);
  mdp_optimizer* optimizer = NULL;
  mdp_optimizer_config config = {.struct_size = sizeof config, .flags = MDP_OPTIMIZER_CHECK_UPDATE};
  FAILS(MDP_E_INVALID, "CHECK_UPDATE (128), and the rule is AdamW", mdp_optimizer_create(buffer, &config, &optimizer));
  const uint64_t bytes[COUNT] = {0};
  const mdp_param_state kept = {.struct_size = sizeof kept, .name = "kept", .bytes = bytes};
  config.rule = MDP_RULE_CALLER;
  config.param_states = &kept;
  config.param_state_count = 1;
  FAILS(MDP_E_INVALID, "CHECK_UPDATE (128), which cuts parameters in two", mdp_optimizer_create(buffer, &config, &optimizer));
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

/* ── What is refused ── */

static int32_t call_back(void* user, const mdp_update* u) {
  caller* who = user;
  const int64_t one = 1;
  float value = 1;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, &value, &one);
  SIZED(mdp_tensor, view);
  SIZED(mdp_error_info, info);
  const char* part = "only requests, errors and ranks";
  FAILS(MDP_E_STATE, part, mdp_all_reduce(who->comm, &t, &t, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_STATE, part, mdp_grad_put(who->buffer, u->param, &t, 0, NULL));
  FAILS(MDP_E_STATE, part, mdp_buffer_param_view(who->buffer, u->param, &view));
  FAILS(MDP_E_STATE, part, mdp_optimizer_state(who->optimizer, u->param, "master", &view));
  FAILS(MDP_E_STATE, part, mdp_optimizer_step(who->optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_STATE, part, mdp_optimizer_step_finish(who->optimizer, 0, NULL, NULL));
  CHECK(mdp_comm_rank(who->comm) == 0 && mdp_comm_size(who->comm) == 1);
  OK(mdp_comm_error_info(who->comm, &info));
  CHECK(info.status == MDP_OK);
  who->calls += 1;
  return 0;
}

static void calls_from_within(void** state) {
  (void)state;
  mdp_comm* comm = comm_open(NULL, 0, 1, 0);
  caller who = caller_of(comm, MDP_SHARDING_ZERO_1);
  OK(mdp_optimizer_set_update(who.optimizer, call_back, &who));
  put_grads(who.buffer, 0, 2, 1);
  OK(mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  CHECK(who.calls == COUNT - 1);
  OK(mdp_barrier(comm, NULL)); /* what was refused inside is not any more */
  caller_close(&who);
  mdp_comm_destroy(comm);
}

static void refusals(void** state) {
  (void)state;
  mdp_comm* comm = comm_open(NULL, 0, 1, 0);
  caller who = caller_of(comm, MDP_SHARDING_ZERO_1);
  put_grads(who.buffer, 0, 2, 1);
  FAILS(MDP_E_STATE, "no update function", mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_INVALID, "fn is NULL", mdp_optimizer_set_update(who.optimizer, NULL, NULL));
  FAILS(MDP_E_INVALID, "count is 0", mdp_optimizer_step_begin(&who.optimizer, 0, NULL));
  OK(mdp_optimizer_step_begin(&who.optimizer, 1, NULL));
  FAILS(MDP_E_STATE, "a step is under way", mdp_optimizer_step_begin(&who.optimizer, 1, NULL));
  FAILS(MDP_E_STATE, "a step is under way", mdp_optimizer_set_update(who.optimizer, update, &who));
  /* What the step's end would overwrite. */
  float values[LONGEST];
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_read(who.buffer, p, &t, NULL));
    FAILS(MDP_E_STATE, "mdp_param_write: a step is under way", mdp_param_write(who.buffer, p, &t, NULL));
  }
  FAILS(MDP_E_STATE, "mdp_param_changed: a step is under way", mdp_param_changed(who.buffer));
  FAILS(MDP_E_STATE, "mdp_buffer_broadcast: a step is under way", mdp_buffer_broadcast(who.buffer, 0, NULL));
  FAILS(MDP_E_STATE, "mdp_buffer_verify: a step is under way", mdp_buffer_verify(who.buffer));
  /* What its norm has decided already. */
  SIZED(mdp_scaler, scaler);
  FAILS(MDP_E_STATE, "mdp_optimizer_set_steps: a step is under way", mdp_optimizer_set_steps(who.optimizer, 5, NULL, 0));
  FAILS(MDP_E_STATE, "mdp_optimizer_set_scaler: a step is under way", mdp_optimizer_set_scaler(who.optimizer, &scaler));
  FAILS(MDP_E_STATE, "was not asked for", mdp_optimizer_step_finish(who.optimizer, 0, NULL, NULL));
  mdp_optimizer_destroy(who.optimizer);

  mdp_optimizer_config config = {.struct_size = sizeof config, .rule = MDP_RULE_CALLER, .param_groups = groups, .param_group_count = 2};
  const struct {
    const char *names, *part;
  } bad[] = {{"a b", "'a b'"}, {"a\n\nb", "''"}, {"master", "'master'"}, {"x\nx", "twice"}, {"a\nb\nc\nd\ne", "names 5 arrays"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    config.state = bad[i].names;
    FAILS(MDP_E_INVALID, bad[i].part, mdp_optimizer_create(who.buffer, &config, &who.optimizer));
  }
  config.rule = MDP_RULE_LION;
  config.state = "mine";
  FAILS(MDP_E_INVALID, "Lion has its own", mdp_optimizer_create(who.buffer, &config, &who.optimizer));
  config.rule = 7; /* the library's own use */
  FAILS(MDP_E_INVALID, "config.rule is 7", mdp_optimizer_create(who.buffer, &config, &who.optimizer));
  config.rule = MDP_RULE_ADAMW;
  config.state = NULL;
  OK(mdp_optimizer_create(who.buffer, &config, &who.optimizer));
  FAILS(MDP_E_STATE, "the optimizer's rule is AdamW", mdp_optimizer_set_update(who.optimizer, update, &who));
  caller_close(&who);
  mdp_comm_destroy(comm);
}

/* An optimizer that is destroyed in the midst of a step leaves a buffer that goes on. */
static void given_up_midway(void** state) {
  (void)state;
  mdp_comm* comm = comm_open(NULL, 0, 1, 0);
  caller who = caller_of(comm, MDP_SHARDING_ZERO_1);
  put_grads(who.buffer, 0, 2, 1);
  OK(mdp_optimizer_step_begin(&who.optimizer, 1, NULL));
  mdp_optimizer_destroy(who.optimizer);
  who.optimizer = optimizer_of(who.buffer, MDP_RULE_ADAMW, 0, 2);
  put_grads(who.buffer, 0, 2, 2);
  OK(mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  caller_close(&who);
  mdp_comm_destroy(comm);
}

/* ── Checkpoints ── */

typedef struct {
  char folder[64];
  mdp_status status;
} saved;

static void train(caller* who, int32_t rank, int32_t n, int from, int to) {
  for (int step = from; step < to; ++step) {
    put_grads(who->buffer, rank, n, step);
    OK(mdp_optimizer_step(who->optimizer, NULL, NULL, NULL));
  }
}

static void save(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  saved* s = argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  caller who = caller_of(comm, MDP_SHARDING_ZERO_1);
  OK(mdp_optimizer_set_update(who.optimizer, update, &who));
  train(&who, 0, 2, 4, 7);
  mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = who.buffer, .optimizer = who.optimizer};
  mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = s->folder, .parts = &part, .part_count = 1};
  put_grads(who.buffer, 0, 2, 7);
  OK(mdp_optimizer_step_begin(&who.optimizer, 1, NULL));
  FAILS(MDP_E_STATE, "a step is under way", mdp_checkpoint_save(&config, NULL));
  FAILS(MDP_E_ABORTED, "failed is 1", mdp_optimizer_step_finish(who.optimizer, 1, NULL, NULL));
  OK(mdp_optimizer_set_steps(who.optimizer, 3, NULL, 0));
  OK(mdp_checkpoint_save(&config, NULL));
  caller_close(&who);
  mdp_comm_destroy(comm);
}

static void load(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  saved* s = argument;
  mdp_comm* comm = comm_open(id, rank, n, 0);
  mdp_buffer* buffer = buffer_of(comm, MDP_SHARDING_ZERO_2);
  mdp_optimizer* own = optimizer_of(buffer, MDP_RULE_ADAMW, 0, 2);
  for (int step = 4; step < 9; ++step) {
    put_grads(buffer, 0, 2, step);
    OK(mdp_optimizer_step(own, NULL, NULL, NULL));
  }
  caller who = caller_of(comm, MDP_SHARDING_ZERO_2);
  OK(mdp_optimizer_set_update(who.optimizer, update, &who));
  mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = who.buffer, .optimizer = who.optimizer};
  mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = s->folder, .parts = &part, .part_count = 1};
  /* A failed update is made good by a load. */
  put_grads(who.buffer, 0, 2, 1);
  who.fails_at = 1;
  FAILS(MDP_E_ABORTED, "returned 7", mdp_optimizer_step(who.optimizer, NULL, NULL, NULL));
  who.fails_at = 0;
  OK(mdp_checkpoint_load(&config));
  train(&who, 0, 2, 7, 9);
  CHECK(who.step == 5);
  for (size_t p = 0; p < COUNT; ++p) CHECK(same_values(buffer, who.buffer, p));
  part.buffer = buffer; /* another rule's state */
  part.optimizer = own;
  FAILS(MDP_E_INVALID, "the caller's rule", mdp_checkpoint_load(&config));
  mdp_optimizer_destroy(own);
  mdp_buffer_destroy(buffer);
  caller_close(&who);
  mdp_comm_destroy(comm);
}

static void goes_on_from_a_checkpoint(void** state) {
  (void)state;
  saved s = {.status = MDP_OK};
  CHECK(make_folder(s.folder, sizeof s.folder) == 0);
  run_ranks(2, save, &s);
  run_ranks(3, load, &s);
  run_ranks(1, load, &s);
  CHECK(remove_folder(s.folder) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(the_librarys_bits),       TEST(in_one_step_with_others),
                                     TEST(a_failure_is_everybodys), TEST(a_failure_beside_others),
                                     TEST(checked_in_halves),       TEST(checks_refused),
                                     TEST(calls_from_within),       TEST(refusals),
                                     TEST(given_up_midway),         TEST(goes_on_from_a_checkpoint),
                                     TEST(the_librarys_go_on)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
