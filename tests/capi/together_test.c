/* SPDX-License-Identifier: Apache-2.0
 * Several optimizers of one buffer in one step: each parameter ends with the bits that a lone optimizer of the same rule gives it, and
 * there is one norm, one decision to skip and one report. Lists that do not fit are refused on all ranks. */
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
  A,
  B,
  C,
  FIXED,
  D,
  E,
  F,
  G,
  H,
  I,
  COUNT,
  LONGEST = 301,
  GROUPS = 3,
  STEPS = 9
};
static const int64_t lengths[COUNT] = {37, 70, 150, 5, LONGEST, 3, 20, 21, 9, 13};
static const char* const names[COUNT] = {"a", "b", "c", "fixed", "d", "e", "f", "g", "h", "i"};
/* Nobody has the frozen one's. In a bucket two of one group lie beside each other, or have one of another group between them. */
static const int group_of[COUNT] = {0, 1, 2, 7, 1, 0, 2, 1, 0, 2};

/* Who has which groups. */
enum {
  MOST = 3
};
typedef struct {
  mdp_rule rule;
  uint32_t first, count;
} share;
typedef struct {
  size_t count;
  share of[MOST];
} split;
static const split splits[] = {
    {2, {{MDP_RULE_ADAMW, 0, 2}, {MDP_RULE_LION, 2, 1}}},
    {2, {{MDP_RULE_SGD_NESTEROV, 1, 2}, {MDP_RULE_ADAM, 0, 1}}},
    {3, {{MDP_RULE_SGD_MOMENTUM, 1, 1}, {MDP_RULE_ADAMW, 2, 1}, {MDP_RULE_SGD, 0, 1}}},
};
static const char* const state_names[] = {"master", "exp_avg", "exp_avg_sq", "momentum_buffer"};

static int has(const share* s, int param) {
  return (uint32_t)group_of[param] >= s->first && (uint32_t)group_of[param] < s->first + s->count;
}
static int keeps(mdp_rule rule, int name) {
  const int adam = rule == MDP_RULE_ADAMW || rule == MDP_RULE_ADAM,
            momentum = rule == MDP_RULE_SGD_MOMENTUM || rule == MDP_RULE_SGD_NESTEROV;
  return name == 0 || (name == 1 && (adam || rule == MDP_RULE_LION)) || (name == 2 && adam) || (name == 3 && momentum);
}

static mdp_buffer* buffer_of(mdp_comm* comm, mdp_sharding sharding) {
  mdp_param params[COUNT];
  memset(params, 0, sizeof params);
  for (int p = 0; p < COUNT; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = p == B || p == C || p == E || p == G ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
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

static mdp_optimizer_config config_of(mdp_rule rule, double max_grad_norm) {
  const mdp_optimizer_config config = {
      .struct_size = sizeof config, .rule = rule, .lr = 0.03125, .weight_decay = 0.125, .max_grad_norm = max_grad_norm};
  return config;
}

static const mdp_param_group own_values[GROUPS] = {{.struct_size = sizeof(mdp_param_group), .lr = 0.0625},
                                                   {.struct_size = sizeof(mdp_param_group)},
                                                   {.struct_size = sizeof(mdp_param_group), .weight_decay = 0.5}};

static mdp_optimizer* some_groups(mdp_buffer* buffer, const share* s, double max_grad_norm) {
  mdp_optimizer_config config = config_of(s->rule, max_grad_norm);
  config.flags = MDP_OPTIMIZER_SOME_GROUPS;
  config.first_param_group = s->first;
  config.param_groups = own_values + s->first;
  config.param_group_count = s->count;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  return optimizer;
}

static mdp_optimizer* all_groups(mdp_buffer* buffer, mdp_rule rule, double max_grad_norm) {
  mdp_optimizer_config config = config_of(rule, max_grad_norm);
  config.param_groups = own_values;
  config.param_group_count = GROUPS;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  return optimizer;
}

/* All ranks skip some parameters in some steps. In step 3 an element is not finite: on one rank, in a parameter of one group. */
static void put_grads(mdp_buffer* buffer, int32_t rank, int32_t n, int step, int hole) {
  for (int p = COUNT; p-- > 0;) {
    if (p == FIXED) continue;
    float grads[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) grads[i] = (float)((i * (7 + p) + step * 5 + rank * 3) % 23 - 11) / 16;
    if (hole && rank == n - 1 && p == C) grads[17] = NAN;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &lengths[p]);
    if ((p == E && step % 3 == 1) || (p == D && step == 2)) {
      OK(mdp_grad_skip(buffer, (size_t)p));
    } else {
      OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
    }
  }
}

/* ── Beside lone optimizers ── */

typedef struct {
  const split* split;
  mdp_sharding sharding;
  double max_grad_norm;
} run;

typedef struct {
  const run* run;
  int32_t rank, n;
  mdp_buffer *buffer, *lone_buffers[MOST];
  mdp_optimizer *optimizers[MOST], *lones[MOST];
} pair;

static pair pair_of(mdp_comm* comm, const run* r) {
  pair p = {.run = r, .rank = mdp_comm_rank(comm), .n = mdp_comm_size(comm), .buffer = buffer_of(comm, r->sharding)};
  for (size_t k = 0; k < r->split->count; ++k) {
    p.optimizers[k] = some_groups(p.buffer, &r->split->of[k], r->max_grad_norm);
    p.lone_buffers[k] = buffer_of(comm, r->sharding);
    p.lones[k] = all_groups(p.lone_buffers[k], r->split->of[k].rule, r->max_grad_norm);
  }
  return p;
}

static void pair_close(pair* p) {
  for (size_t k = 0; k < p->run->split->count; ++k) {
    mdp_optimizer_destroy(p->optimizers[k]);
    mdp_optimizer_destroy(p->lones[k]);
    mdp_buffer_destroy(p->lone_buffers[k]);
  }
  mdp_buffer_destroy(p->buffer);
}

static void same_state(const pair* p, size_t k, size_t param) {
  for (int name = 0; name < 4; ++name) {
    SIZED(mdp_tensor, mine);
    SIZED(mdp_tensor, lone);
    if (!keeps(p->run->split->of[k].rule, name)) continue;
    OK(mdp_optimizer_state(p->optimizers[k], param, state_names[name], &mine));
    OK(mdp_optimizer_state(p->lones[k], param, state_names[name], &lone));
    if (!CHECK(mine.shape[0] == lone.shape[0]) || mine.shape[0] == 0) continue;
    CHECK(memcmp(mine.data, lone.data, (size_t)mine.shape[0] * sizeof(float)) == 0);
  }
  uint64_t mine = 1, lone = 2;
  OK(mdp_optimizer_steps(p->optimizers[k], param, &mine));
  OK(mdp_optimizer_steps(p->lones[k], param, &lone));
  CHECK(mine == lone);
}

static void same_bits(const pair* p) {
  for (size_t k = 0; k < p->run->split->count; ++k) {
    for (size_t param = 0; param < COUNT; ++param) {
      if (!has(&p->run->split->of[k], (int)param)) continue;
      float mine[LONGEST], lone[LONGEST];
      const mdp_tensor to_mine = tensor_of(MDP_DTYPE_F32, mine, &lengths[param]), to_lone = tensor_of(MDP_DTYPE_F32, lone, &lengths[param]);
      OK(mdp_param_read(p->buffer, param, &to_mine, NULL));
      OK(mdp_param_read(p->lone_buffers[k], param, &to_lone, NULL));
      CHECK(memcmp(mine, lone, (size_t)lengths[param] * sizeof(float)) == 0);
      same_state(p, k, param);
    }
  }
}

/* Some steps with a request, some without a report; the lone ones always wait. */
static void step_all(const pair* p, int step, const mdp_step_config* config, uint64_t flags) {
  const size_t count = p->run->split->count;
  SIZED(mdp_step_report, mine);
  mdp_request* request = NULL;
  put_grads(p->buffer, p->rank, p->n, step, (flags & MDP_STEPPED_SKIPPED) != 0);
  OK(mdp_optimizer_step_many(p->optimizers, count, config, step % 4 == 1 ? NULL : &mine, step % 2 == 0 ? &request : NULL));
  CHECK((request != NULL) == (step % 2 == 0));
  if (request != NULL) OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  for (size_t k = 0; k < count; ++k) {
    SIZED(mdp_step_report, lone);
    put_grads(p->lone_buffers[k], p->rank, p->n, step, (flags & MDP_STEPPED_SKIPPED) != 0);
    OK(mdp_optimizer_step(p->lones[k], config, &lone, NULL));
    CHECK((lone.flags & MDP_STEPPED_SKIPPED) == (flags & MDP_STEPPED_SKIPPED));
    if (step % 4 != 1 && k == 0 && !isnan(lone.grad_norm)) CHECK(memcmp(&mine, &lone, sizeof lone) == 0);
    if (step % 4 != 1 && k == 0) CHECK(mine.step == lone.step && mine.flags == lone.flags);
  }
}

/* What is done to the optimizers together is done to the lone ones. */
static void change_between_steps(const pair* p, int step) {
  const size_t last = p->run->split->count - 1;
  const uint32_t group = p->run->split->of[last].first;
  if (step == 4) {
    const mdp_param_group value = {.struct_size = sizeof value, .lr = 0.25, .flags = MDP_PARAM_GROUP_SET_WEIGHT_DECAY};
    OK(mdp_optimizer_set_param_group(p->optimizers[last], group, &value));
    OK(mdp_optimizer_set_param_group(p->lones[last], group, &value));
  }
  if (step == 5) {
    OK(mdp_optimizer_set_steps(p->optimizers[last], 40, NULL, 0));
    OK(mdp_optimizer_set_steps(p->lones[last], 40, NULL, 0));
  }
  for (size_t k = 0; step == 6 && k <= last + 1; ++k) {
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[B]; ++i) values[i] = (float)i / 8;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[B]);
    OK(mdp_param_write(k > last ? p->buffer : p->lone_buffers[k], B, &t, NULL));
  }
}

static void beside_lone_ones(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  pair p = pair_of(comm, argument);
  for (int step = 0; step < STEPS; ++step) {
    change_between_steps(&p, step);
    SIZED(mdp_step_config, config);
    config.loss_scale = step == 3 ? 2 : 0;
    config.grad_divisor = step == 7 ? 4 : 0;
    step_all(&p, step, &config, step == 3 ? MDP_STEPPED_SKIPPED : 0);
    if (step >= 2) same_bits(&p);
  }
  OK(mdp_buffer_verify(p.buffer));
  pair_close(&p);
  mdp_comm_destroy(comm);
}

static void the_bits_of_lone_optimizers(void** state) {
  (void)state;
  for (size_t k = 0; k < sizeof splits / sizeof splits[0]; ++k) {
    for (int32_t n = 1; n <= 3; n += UNDER_SANITIZER || on_cuda ? 2 : 1) {
      for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
        run free_run = {&splits[k], sharding, 0}, clipped = {&splits[k], sharding, 0.5};
        run_ranks(n, beside_lone_ones, &free_run);
        if (sharding != MDP_SHARDING_ZERO_0) run_ranks(n, beside_lone_ones, &clipped);
      }
    }
  }
}

/* ── A step that is not finite: one outcome, and nothing has changed ── */

static void not_finite(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  pair p = pair_of(comm, argument);
  const size_t count = p.run->split->count;
  step_all(&p, 0, NULL, 0);
  SIZED(mdp_step_report, report);
  put_grads(p.buffer, rank, n, 1, 1);
  FAILS(MDP_E_NUMERIC, "the reduced gradient has 1 elements that are not finite",
        mdp_optimizer_step_many(p.optimizers, count, NULL, &report, NULL));
  same_bits(&p);
  mdp_request* request = NULL;
  put_grads(p.buffer, rank, n, 1, 1);
  OK(mdp_optimizer_step_many(p.optimizers, count, NULL, NULL, &request));
  FAILS(MDP_E_NUMERIC, "1 elements that are not finite", mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  same_bits(&p);
  step_all(&p, 1, NULL, 0);
  same_bits(&p);
  pair_close(&p);
  mdp_comm_destroy(comm);
}

static void none_changes_where_it_is_not_finite(void** state) {
  (void)state;
  for (size_t k = 0; k < sizeof splits / sizeof splits[0]; ++k) {
    run r = {&splits[k], k == 0 ? MDP_SHARDING_ZERO_2 : MDP_SHARDING_ZERO_1, 2};
    run_ranks(2, not_finite, &r);
  }
}

/* ── Whose parameter it is ── */

static void others_parameters(void** state) {
  (void)state;
  mdp_comm* comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  run r = {&splits[0], MDP_SHARDING_ZERO_1, 0};
  pair p = pair_of(comm, &r);
  SIZED(mdp_tensor, view);
  uint64_t steps = 7;
  FAILS(MDP_E_INVALID, "parameter 2 'c' is in parameter group 2, another optimizer's; this one has 2 groups, numbers 0 to 1",
        mdp_optimizer_state(p.optimizers[0], C, "master", &view));
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  FAILS(MDP_E_INVALID, "parameter 0 'a' is in parameter group 0, another optimizer's; this one has 1 group, number 2",
        mdp_optimizer_steps(p.optimizers[1], A, &steps));
  CHECK(steps == 7);
  FAILS(MDP_E_STATE, "frozen", mdp_optimizer_state(p.optimizers[1], FIXED, "master", &view));
  FAILS(MDP_E_INVALID, "group is 0; this optimizer has 1 group, number 2", mdp_optimizer_set_param_group(p.optimizers[1], 0, own_values));
  FAILS(MDP_E_INVALID, "group is 2; this optimizer has 2 groups, numbers 0 to 1",
        mdp_optimizer_set_param_group(p.optimizers[0], 2, own_values));

  /* Only its own counts are looked at, and set. */
  const uint64_t counts[COUNT] = {3, 4, 99, 99, 4, 2, 99, 1, 0, 99};
  OK(mdp_optimizer_set_steps(p.optimizers[0], 4, counts, COUNT));
  for (size_t param = 0; param < COUNT; ++param) {
    if (param == FIXED) continue;
    OK(mdp_optimizer_steps(p.optimizers[has(&splits[0].of[0], (int)param) ? 0 : 1], param, &steps));
    CHECK(steps == (has(&splits[0].of[0], (int)param) ? counts[param] : 0));
  }
  FAILS(MDP_E_INVALID, "steps[2], of parameter 2 'c', is 99; it must be at most taken, 4",
        mdp_optimizer_set_steps(p.optimizers[1], 4, counts, COUNT));
  pair_close(&p);
  mdp_comm_destroy(comm);
}

/* ── Lists that do not fit ── */

static mdp_status try_list(mdp_optimizer* first, mdp_optimizer* second, size_t count) {
  mdp_optimizer* const list[] = {first, second, second};
  mdp_request* request = NULL;
  const mdp_status status = mdp_optimizer_step_many(list, count, NULL, NULL, &request);
  CHECK((request != NULL) == (status == MDP_OK));
  if (request != NULL) OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  return status;
}

static mdp_optimizer* clipping_otherwise(mdp_buffer* buffer, int which) {
  mdp_optimizer_config config = config_of(MDP_RULE_LION, which == 0 ? 3 : 2);
  config.flags = MDP_OPTIMIZER_SOME_GROUPS;
  config.first_param_group = 2;
  config.max_grad_value = which == 1 ? 1 : 0;
  config.norm = which == 2 ? MDP_NORM_INF : MDP_NORM_L2;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  return optimizer;
}

/* All ranks give the same wrong list; each is refused, and the right one is then taken as if nothing had been. */
static void wrong_lists(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  pair p = pair_of(comm, argument);
  mdp_optimizer *const first = p.optimizers[0], *const second = p.optimizers[1];
  const share both = {MDP_RULE_SGD, 1, 2};
  mdp_optimizer* const overlapping = some_groups(p.buffer, &both, 2);
  mdp_optimizer* const elsewhere = some_groups(p.lone_buffers[0], &splits[0].of[1], 2);
  for (int round = 0; round < 2; ++round) {
    put_grads(p.buffer, rank, n, round, 0);
    FAILS(MDP_E_INVALID, "count is 0; give at least one", try_list(first, second, 0));
    FAILS(MDP_E_INVALID, "count is 18446744073709551615", mdp_optimizer_step_many(p.optimizers, SIZE_MAX, NULL, NULL, NULL));
    FAILS(MDP_E_INVALID, "optimizers is NULL", mdp_optimizer_step_many(NULL, 2, NULL, NULL, NULL));
    FAILS(MDP_E_INVALID, "optimizers[1] is NULL", try_list(first, NULL, 2));
    const char* const none =
        "parameter 2 'c' is in parameter group 2, which no optimizer of this step has; this one has 2 groups, numbers 0 to 1";
    FAILS(MDP_E_INVALID, none, try_list(first, NULL, 1));
    FAILS(MDP_E_INVALID, none, mdp_optimizer_step(first, NULL, NULL, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.param == C);
    FAILS(MDP_E_INVALID, "parameter 0 'a' is in parameter group 0, which no optimizer of this step has; give all of the buffer's",
          try_list(overlapping, overlapping, 2));
    FAILS(MDP_E_INVALID, "parameter 1 'b' is in parameter group 1, which both optimizers[0] and optimizers[1] have",
          try_list(first, overlapping, 2));
    FAILS(MDP_E_INVALID, "parameter 0 'a' is in parameter group 0, which both optimizers[0] and optimizers[1] have",
          try_list(first, first, 2));
    FAILS(MDP_E_INVALID, "which both optimizers[1] and optimizers[2] have", try_list(first, second, 3));
    FAILS(MDP_E_INVALID, "optimizers[1] is of another buffer than optimizers[0]", try_list(first, elsewhere, 2));
    for (int which = 0; which < 3; ++which) {
      mdp_optimizer* const otherwise = clipping_otherwise(p.buffer, which);
      FAILS(MDP_E_INVALID, "optimizers[1] clips otherwise than optimizers[0]", try_list(first, otherwise, 2));
      mdp_optimizer_destroy(otherwise);
    }
    SIZED(mdp_step_config, config);
    config.lr = 0.5;
    FAILS(MDP_E_INVALID, "config.lr is 0.5; each of several optimizers has its own",
          mdp_optimizer_step_many(p.optimizers, 2, &config, NULL, NULL));
    config.lr = 0;
    config.flags = MDP_STEP_SET_LR;
    FAILS(MDP_E_INVALID, "config.lr is 0; each of several", mdp_optimizer_step_many(p.optimizers, 2, &config, NULL, NULL));
    SIZED(mdp_scaler, scaler);
    OK(mdp_optimizer_set_scaler(second, &scaler));
    FAILS(MDP_E_INVALID, "optimizers[1] has a loss scaler; a step has one, and it is that of optimizers[0]", try_list(first, second, 2));
    OK(mdp_optimizer_set_scaler(second, NULL));
    OK(try_list(first, second, 2));
    put_grads(p.lone_buffers[0], rank, n, round, 0);
    put_grads(p.lone_buffers[1], rank, n, round, 0);
    OK(mdp_optimizer_step(p.lones[0], NULL, NULL, NULL));
    OK(mdp_optimizer_step(p.lones[1], NULL, NULL, NULL));
    same_bits(&p);
  }
  mdp_optimizer_destroy(overlapping);
  mdp_optimizer_destroy(elsewhere);
  pair_close(&p);
  mdp_comm_destroy(comm);
}

static void lists_that_do_not_fit(void** state) {
  (void)state;
  run r = {&splits[0], MDP_SHARDING_ZERO_1, 2};
  for (int32_t n = 1; n <= 2; ++n) run_ranks(n, wrong_lists, &r);
}

/* One rank's list is wrong: all ranks are told the same, and none has begun the step. */
static void one_wrong_list(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  pair p = pair_of(comm, argument);
  mdp_optimizer *const first = p.optimizers[0], *const second = p.optimizers[1];
  put_grads(p.buffer, rank, n, 0, 0);
  FAILS(MDP_E_INVALID, "parameter 0 'a' is in parameter group 0, which both optimizers[0] and optimizers[1] have",
        try_list(first, rank == 0 ? first : second, 2));
  FAILS(MDP_E_INVALID, "parameter 0 'a' is in parameter group 0, which no optimizer of this step has",
        try_list(rank == n - 1 ? second : first, second, 2));
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.param == A && info.rank == (rank == n - 1 ? -1 : n - 1));
  OK(try_list(first, second, 2));
  put_grads(p.lone_buffers[0], rank, n, 0, 0);
  put_grads(p.lone_buffers[1], rank, n, 0, 0);
  OK(mdp_optimizer_step(p.lones[0], NULL, NULL, NULL));
  OK(mdp_optimizer_step(p.lones[1], NULL, NULL, NULL));
  same_bits(&p);
  pair_close(&p);
  mdp_comm_destroy(comm);
}

/* Where another list was good in an earlier step, or a list is shorter, the ranks do not meet: none steps, and none waits for ever. */
typedef struct {
  run run;
  int stepped;
} lateness;

static void too_late(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const lateness* l = argument;
  mdp_comm* comm = comm_open(id, rank, n, UNDER_SANITIZER ? UINT64_C(20000000000) : UINT64_C(5000000000));
  pair p = pair_of(comm, &l->run);
  put_grads(p.buffer, rank, n, 0, 0);
  if (l->stepped) {
    OK(try_list(p.optimizers[0], p.optimizers[1], 2));
    put_grads(p.buffer, rank, n, 1, 0);
  }
  CHECK(mdp_optimizer_step_many(p.optimizers, rank == 1 ? 1 : 2, NULL, NULL, NULL) < 0);
  pair_close(&p);
  mdp_comm_destroy(comm);
}

static void one_ranks_list_does_not_fit(void** state) {
  (void)state;
  run r = {&splits[0], MDP_SHARDING_ZERO_1, 0};
  run_ranks(2, one_wrong_list, &r);
  run_ranks(3, one_wrong_list, &r);
  for (int stepped = 0; stepped < 2; ++stepped) {
    lateness l = {r, stepped};
    run_ranks(2, too_late, &l);
  }
}

/* ── Alone ── */

static void all_of_some_groups(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  const share all = {MDP_RULE_ADAMW, 0, GROUPS};
  const split one = {1, {all}};
  const run r = {&one, MDP_SHARDING_ZERO_1, 0};
  pair p = pair_of(comm, &r);
  step_all(&p, 0, NULL, 0);
  for (int step = 1; step < 3; ++step) { /* the other call does the same, and with a learning rate */
    SIZED(mdp_step_config, config);
    config.lr = 0.125;
    put_grads(p.buffer, rank, n, step, 0);
    put_grads(p.lone_buffers[0], rank, n, step, 0);
    OK(step == 1 ? mdp_optimizer_step(p.optimizers[0], &config, NULL, NULL)
                 : mdp_optimizer_step_many(p.optimizers, 1, &config, NULL, NULL));
    OK(step == 1 ? mdp_optimizer_step_many(p.lones, 1, &config, NULL, NULL) : mdp_optimizer_step(p.lones[0], &config, NULL, NULL));
  }
  same_bits(&p);
  pair_close(&p);
  mdp_comm_destroy(comm);
}

static void one_that_has_all_needs_nobody(void** state) {
  (void)state;
  run_ranks(1, all_of_some_groups, NULL);
  run_ranks(2, all_of_some_groups, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_bits_of_lone_optimizers), TEST(none_changes_where_it_is_not_finite), TEST(others_parameters),
      TEST(lists_that_do_not_fit),       TEST(one_ranks_list_does_not_fit),         TEST(one_that_has_all_needs_nobody),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
