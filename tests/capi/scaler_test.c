/* SPDX-License-Identifier: Apache-2.0
 * The loss scaler: how the scale follows overflows, that a step which overflows anywhere changes nothing anywhere, and that gradients are
 * divided by it. Acceptance vectors 32 and 33. */
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
  COUNT,
  LONGEST = 150,
  STATES = 3
};
static const int64_t lengths[COUNT] = {37, 70, LONGEST};
static const char* const names[COUNT] = {"a", "b", "c"};
static const char* const state_names[STATES] = {"master", "exp_avg", "exp_avg_sq"};

/* tp: over so many ranks every parameter is cut. */
static job job_cut(mdp_comm* comm, int32_t tp, mdp_sharding sharding, double max_grad_norm) {
  job j = {.comm = comm};
  mdp_param params[COUNT];
  memset(params, 0, sizeof params);
  for (int p = 0; p < COUNT; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = p == B ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].ndim = 1;
    params[p].shape = &lengths[p];
    params[p].param_group = p == C;
    params[p].placement = tp > 1 ? MDP_PLACEMENT_SHARDED : MDP_PLACEMENT_UNSET;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.bucket_elements = 100;
  SIZED(mdp_grid_config, cut);
  cut.tp = tp;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &cut, &grid));
  OK(mdp_buffer_register(NULL, grid, &config, params, COUNT, &j.buffer));
  mdp_grid_destroy(grid);
  const mdp_param_group groups[2] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 0.0625;
  adamw.weight_decay = 0.125;
  adamw.max_grad_norm = max_grad_norm;
  adamw.param_groups = groups;
  adamw.param_group_count = 2;
  OK(mdp_optimizer_create(j.buffer, &adamw, &j.optimizer));
  for (size_t p = 0; p < COUNT; ++p) {
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)(i % 19 - 9) / 8;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_write(j.buffer, p, &t, NULL));
  }
  return j;
}

static job job_on_comm(mdp_comm* comm, mdp_sharding sharding, double max_grad_norm) {
  return job_cut(comm, 1, sharding, max_grad_norm);
}

static job job_of(const mdp_unique_id* id, int32_t rank, int32_t n) {
  return job_on_comm(comm_open(id, rank, n, UINT64_C(20000000000)), MDP_SHARDING_ZERO_1, 0);
}

/* Times `scale`; with a hole one element is infinite, on one rank only, each time another. */
static void put_grads(const job* j, int step, float scale, int hole) {
  const int32_t rank = mdp_comm_rank(j->comm), n = mdp_comm_size(j->comm);
  for (int p = COUNT; p-- > 0;) {
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = scale * (float)((i * (7 + p) + step * 5 + rank * 3) % 23 - 11) / 16;
    if (hole && p == step % COUNT && rank == step % n) values[step % 30] = INFINITY;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(j->buffer, (size_t)p, &t, 0, NULL));
  }
}

static mdp_scaler scaler_now(const job* j) {
  SIZED(mdp_scaler, now);
  OK(mdp_optimizer_scaler(j->optimizer, &now));
  return now;
}

/* One step with gradients of a loss that was scaled as the library says; its report. */
static mdp_step_report scaled_step(const job* j, int step, int hole) {
  const float scale = (float)scaler_now(j).scale;
  SIZED(mdp_step_report, report);
  put_grads(j, step, scale, hole);
  OK(mdp_optimizer_step(j->optimizer, NULL, &report, NULL));
  CHECK(report.loss_scale == (double)scale);
  CHECK(((report.flags & MDP_STEPPED_SKIPPED) != 0) == hole);
  return report;
}

/* ── How the scale follows: x is an overflow ── */

typedef struct {
  mdp_scaler scaler;
  const char* steps;
  double wanted[8];
} sequence;
static const sequence sequences[] = {
    {{.scale = 1024, .growth_interval = 3, .hysteresis = 2}, "x.xx...x", {1024, 1024, 512, 256, 256, 256, 512, 512}},
    {{.scale = 4, .min_scale = 1, .hysteresis = 1}, "xxxx", {2, 1, 1, 1}},
    {{.scale = 8, .growth_interval = 1, .growth_factor = 4, .backoff_factor = 0.25}, "..x.", {32, 128, 32, 128}},
    {{.scale = 10, .min_scale = 3, .growth_interval = 2, .backoff_factor = 0.5}, "xx.x.", {5, 3, 3, 3, 3}},
    {{.scale = 1, .min_scale = 0.7, .hysteresis = 1}, "x.x", {0.7F, 0.7F, 0.7F}}, /* as f32 it is below 0.7 */
    {{.scale = 64, .growth_interval = 1, .flags = MDP_SCALER_CONSTANT}, "x..x", {64, 64, 64, 64}},
};

static void follow(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const sequence* s = argument;
  job j = job_of(id, rank, n);
  mdp_scaler scaler = s->scaler;
  scaler.struct_size = sizeof scaler;
  OK(mdp_optimizer_set_scaler(j.optimizer, &scaler));
  SIZED(mdp_tensor, place);
  OK(mdp_optimizer_scale(j.optimizer, &place));
  CHECK(place.dtype == MDP_DTYPE_F32 && place.ndim == 1 && place.shape[0] == 1 && place.data != NULL);
  CHECK((double)*(const float*)place.data == scaler.scale);
  uint64_t taken = 0;
  for (int step = 0; s->steps[step] != '\0'; ++step) {
    const int hole = s->steps[step] == 'x';
    taken += !hole;
    CHECK(scaled_step(&j, step, hole).step == taken);
    CHECK(scaler_now(&j).scale == s->wanted[step]);
    CHECK((double)*(const float*)place.data == s->wanted[step]); /* it was lent once */
  }
  scaler = scaler_now(&j);
  OK(mdp_optimizer_set_scaler(j.optimizer, &scaler)); /* what is told can be given back */
  job_close(&j);
}

static void the_scale_follows_overflows(void** state) {
  (void)state;
  for (size_t k = 0; k < sizeof sequences / sizeof sequences[0]; ++k) {
    for (int32_t n = 1; n <= 3; ++n) run_ranks(n, follow, (void*)&sequences[k]);
  }
}

/* Megatron-LM's rule, as the header has it. */
static void follow_by_hand(mdp_scaler* s, int overflow) {
  if (overflow) {
    s->clean_steps = 0;
    if (s->overflows < s->hysteresis) ++s->overflows;
    if (s->overflows == s->hysteresis) s->scale = (double)(float)fmax(s->scale * s->backoff_factor, s->min_scale);
  } else if (++s->clean_steps == s->growth_interval) {
    s->clean_steps = s->overflows = 0;
    s->scale = (double)(float)(s->scale * s->growth_factor);
  }
}

/* Taken away, and given back as it was, in the middle: nothing has happened. */
static void restored(void** state) {
  (void)state;
  static const char pattern[] = "..x.xx....x.xxx......x..x...x";
  for (uint32_t hysteresis = 1; hysteresis <= 3; ++hysteresis) {
    job j = job_of(NULL, 0, 1);
    mdp_scaler wanted = {.struct_size = sizeof wanted,
                         .growth_interval = 3,
                         .hysteresis = hysteresis,
                         .scale = 1000,
                         .growth_factor = 1.3,
                         .backoff_factor = 0.7,
                         .min_scale = 300};
    OK(mdp_optimizer_set_scaler(j.optimizer, &wanted));
    for (int step = 0; pattern[step] != '\0'; ++step) {
      scaled_step(&j, step, pattern[step] == 'x');
      follow_by_hand(&wanted, pattern[step] == 'x');
      const mdp_scaler now = scaler_now(&j);
      CHECK(memcmp(&now, &wanted, sizeof now) == 0);
      if (step % 2 == 0) continue;
      OK(mdp_optimizer_set_scaler(j.optimizer, NULL));
      OK(mdp_optimizer_set_scaler(j.optimizer, &now));
    }
    job_close(&j);
  }
}

static void what_is_left_zero(void** state) {
  (void)state;
  job j = job_of(NULL, 0, 1);
  SIZED(mdp_scaler, given);
  OK(mdp_optimizer_set_scaler(j.optimizer, &given));
  const mdp_scaler now = scaler_now(&j);
  const mdp_scaler wanted = {.struct_size = sizeof wanted,
                             .growth_interval = 2000,
                             .hysteresis = 1,
                             .scale = 65536,
                             .growth_factor = 2,
                             .backoff_factor = 0.5,
                             .min_scale = 1};
  CHECK(memcmp(&now, &wanted, sizeof now) == 0);
  char json[2000];
  OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
  CHECK(strstr(json,
               "\"scaler\":{\"kind\":\"dynamic\",\"scale\":65536.0,\"clean_steps\":0,\"overflows\":0,\"growth_factor\":2.0,"
               "\"backoff_factor\":0.5,\"growth_interval\":2000,\"hysteresis\":1,\"min_scale\":1.0}") != NULL);
  given.flags = MDP_SCALER_CONSTANT;
  OK(mdp_optimizer_set_scaler(j.optimizer, &given));
  CHECK(scaler_now(&j).flags == MDP_SCALER_CONSTANT);
  OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
  CHECK(strstr(json, "\"scaler\":{\"kind\":\"constant\",\"scale\":65536.0,") != NULL);
  /* It does not grow beyond what floats can be divided by. */
  SIZED(mdp_scaler, large);
  large.scale = 8e36;
  large.growth_interval = 1;
  OK(mdp_optimizer_set_scaler(j.optimizer, &large));
  put_grads(&j, 0, 0, 0);
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  CHECK(scaler_now(&j).scale == (double)8e36F);
  job_close(&j);
}

/* ── An overflow on one rank ── */

typedef struct {
  float params[COUNT][LONGEST], states[STATES][COUNT][LONGEST];
  uint64_t steps[COUNT];
} everything;

static everything* save(const job* j) {
  everything* all = calloc(1, sizeof *all);
  for (size_t p = 0; p < COUNT; ++p) {
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, all->params[p], &lengths[p]);
    OK(mdp_param_read(j->buffer, p, &t, NULL));
    OK(mdp_optimizer_steps(j->optimizer, p, &all->steps[p]));
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, p, state_names[k], &view));
      if (view.shape[0] > 0) memcpy(all->states[k][p], view.data, (size_t)view.shape[0] * sizeof(float));
    }
  }
  return all;
}

/* Whether all is as in `before`, which is freed. */
static int is_as(const job* j, everything* before) {
  everything* now = save(j);
  const int same = memcmp(now, before, sizeof *now) == 0;
  free(now);
  free(before);
  return same;
}

typedef struct {
  int32_t ranks, tp;
  mdp_sharding sharding;
} overflowing;

static void overflow(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const overflowing* o = argument;
  job j = job_cut(comm_open(id, rank, n, UINT64_C(20000000000)), o->tp, o->sharding, 2);
  SIZED(mdp_scaler, scaler);
  OK(mdp_optimizer_set_scaler(j.optimizer, &scaler));
  for (int step = 0; step < 2; ++step) scaled_step(&j, step, 0);
  for (int step = 2; step < 5; ++step) {
    everything* before = save(&j);
    const mdp_step_report report = scaled_step(&j, step, 1);
    CHECK(report.flags == MDP_STEPPED_SKIPPED && report.step == 2);
    CHECK(is_as(&j, before));
    CHECK(scaler_now(&j).scale == ldexp(65536, 1 - step));
    OK(mdp_buffer_verify(j.buffer));
  }
  everything* before = save(&j);
  CHECK(scaled_step(&j, 5, 0).step == 3);
  CHECK(!is_as(&j, before));
  job_close(&j);
}

static void nothing_changes_anywhere(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    overflowing all[] = {{1, 1, sharding}, {2, 1, sharding}, {3, 1, sharding}, {2, 2, sharding}, {4, 2, sharding}, {3, 3, sharding}};
    for (size_t k = 0; k < sizeof all / sizeof all[0]; ++k) run_ranks(all[k].ranks, overflow, &all[k]);
  }
}

/* ── Gradients are divided by it ── */

/* Powers of two change no bit. The other run takes those steps only that were not skipped. */
static void beside_an_unscaled_run(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  static const char pattern[] = "..x....x..";
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  const double max_grad_norm = *(const double*)argument;
  job scaled = job_on_comm(comm, MDP_SHARDING_ZERO_1, max_grad_norm), plain = job_on_comm(comm, MDP_SHARDING_ZERO_1, max_grad_norm);
  const mdp_scaler scaler = {.struct_size = sizeof scaler, .scale = 256, .growth_interval = 2};
  OK(mdp_optimizer_set_scaler(scaled.optimizer, &scaler));
  for (int step = 0; pattern[step] != '\0'; ++step) {
    const int hole = pattern[step] == 'x';
    const mdp_step_report mine = scaled_step(&scaled, step, hole);
    if (hole) continue;
    SIZED(mdp_step_report, report);
    put_grads(&plain, step, 1, 0);
    OK(mdp_optimizer_step(plain.optimizer, NULL, &report, NULL));
    CHECK(mine.grad_norm == report.grad_norm && mine.clip_factor == report.clip_factor && mine.flags == report.flags);
    CHECK(mine.step == report.step && report.loss_scale == 1 && mine.loss_scale > 1);
    CHECK(((mine.flags & MDP_STEPPED_CLIPPED) != 0) == (max_grad_norm > 0));
  }
  CHECK(is_as(&scaled, save(&plain)));
  plain.comm = NULL;
  job_close(&plain);
  job_close(&scaled);
}

static void the_bits_of_an_unscaled_run(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) {
    double max_grad_norm = 0;
    run_ranks(n, beside_an_unscaled_run, &max_grad_norm);
    max_grad_norm = 0.5;
    run_ranks(n, beside_an_unscaled_run, &max_grad_norm);
  }
}

static void other_divisors(void** state) {
  (void)state;
  job j = job_of(NULL, 0, 1);
  const mdp_scaler scaler = {.struct_size = sizeof scaler, .scale = 256};
  OK(mdp_optimizer_set_scaler(j.optimizer, &scaler));
  const double norm = scaled_step(&j, 0, 0).grad_norm;
  SIZED(mdp_step_config, config);
  SIZED(mdp_step_report, report);
  config.loss_scale = 2;
  put_grads(&j, 0, 256, 0);
  FAILS(MDP_E_INVALID, "config.loss_scale is 2, but the optimizer has a scaler, whose scale divides; leave it 0",
        mdp_optimizer_step(j.optimizer, &config, &report, NULL));
  FAILS(MDP_E_INVALID, "config.loss_scale is 2, but", mdp_optimizer_step_many(&j.optimizer, 1, &config, &report, NULL));
  config.loss_scale = 0;
  config.grad_divisor = 4;
  OK(mdp_optimizer_step(j.optimizer, &config, &report, NULL));
  CHECK(report.grad_norm == norm / 4 && report.loss_scale == 256);
  job_close(&j);
}

/* ── Without waiting ── */

static void with_requests(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const sequence* s = argument;
  job j = job_of(id, rank, n), waits = job_on_comm(j.comm, MDP_SHARDING_ZERO_1, 0);
  mdp_scaler scaler = s->scaler;
  scaler.struct_size = sizeof scaler;
  OK(mdp_optimizer_set_scaler(j.optimizer, &scaler));
  OK(mdp_optimizer_set_scaler(waits.optimizer, &scaler));
  mdp_request* requests[8] = {NULL};
  for (int step = 0; s->steps[step] != '\0'; ++step) {
    const int hole = s->steps[step] == 'x';
    const double scale = step == 0 ? scaler.scale : s->wanted[step - 1]; /* nobody asks */
    put_grads(&j, step, (float)scale, hole);
    OK(mdp_optimizer_step(j.optimizer, NULL, NULL, step % 3 == 2 ? NULL : &requests[step]));
    scaled_step(&waits, step, hole);
  }
  for (int step = 0; step < 8; ++step) {
    if (requests[step] != NULL) OK(mdp_request_wait(requests[step], UINT64_MAX)); /* a skipped step is none that failed */
    mdp_request_free(requests[step]);
  }
  const mdp_scaler mine = scaler_now(&j), other = scaler_now(&waits);
  CHECK(memcmp(&mine, &other, sizeof mine) == 0 && mine.scale == s->wanted[strlen(s->steps) - 1]);
  CHECK(is_as(&j, save(&waits)));
  waits.comm = NULL;
  job_close(&waits);
  job_close(&j);
}

static void steps_that_nobody_waits_for(void** state) {
  (void)state;
  for (size_t k = 0; k < 3; ++k) {
    run_ranks(1, with_requests, (void*)&sequences[k]);
    run_ranks(2, with_requests, (void*)&sequences[k]);
  }
}

/* ── Several optimizers have one, the first one's ── */

static mdp_optimizer* one_group(const job* j, uint32_t group, mdp_rule rule) {
  SIZED(mdp_optimizer_config, config);
  config.rule = rule;
  config.flags = MDP_OPTIMIZER_SOME_GROUPS;
  config.first_param_group = group;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(j->buffer, &config, &optimizer));
  return optimizer;
}

static void read_params(const job* j, float values[COUNT][LONGEST]) {
  for (size_t p = 0; p < COUNT; ++p) {
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values[p], &lengths[p]);
    OK(mdp_param_read(j->buffer, p, &t, NULL));
  }
}

static void share_a_scaler(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  static const char pattern[] = ".xx..x...";
  job scaled = job_of(id, rank, n), plain = job_on_comm(scaled.comm, MDP_SHARDING_ZERO_1, 0);
  mdp_optimizer* const mine[2] = {one_group(&scaled, 1, MDP_RULE_ADAM), one_group(&scaled, 0, MDP_RULE_SGD_MOMENTUM)};
  mdp_optimizer* const others[2] = {one_group(&plain, 1, MDP_RULE_ADAM), one_group(&plain, 0, MDP_RULE_SGD_MOMENTUM)};
  mdp_scaler wanted = {.struct_size = sizeof wanted,
                       .scale = 512,
                       .growth_interval = 2,
                       .hysteresis = 2,
                       .growth_factor = 2,
                       .backoff_factor = 0.5,
                       .min_scale = 1};
  OK(mdp_optimizer_set_scaler(mine[0], &wanted));
  for (int step = 0; pattern[step] != '\0'; ++step) {
    const int hole = pattern[step] == 'x';
    SIZED(mdp_step_report, report);
    put_grads(&scaled, step, (float)wanted.scale, hole);
    OK(mdp_optimizer_step_many(mine, 2, NULL, &report, NULL));
    CHECK(report.loss_scale == wanted.scale && ((report.flags & MDP_STEPPED_SKIPPED) != 0) == hole);
    follow_by_hand(&wanted, hole);
    SIZED(mdp_scaler, now);
    OK(mdp_optimizer_scaler(mine[0], &now));
    CHECK(memcmp(&now, &wanted, sizeof now) == 0);
    FAILS(MDP_E_STATE, "the optimizer has no loss scaler", mdp_optimizer_scaler(mine[1], &now));
    if (hole) continue;
    put_grads(&plain, step, 1, 0);
    OK(mdp_optimizer_step_many(others, 2, NULL, NULL, NULL));
  }
  float a[COUNT][LONGEST] = {{0}}, b[COUNT][LONGEST] = {{0}};
  read_params(&scaled, a);
  read_params(&plain, b);
  CHECK(memcmp(a, b, sizeof a) == 0);
  for (int k = 0; k < 2; ++k) {
    uint64_t steps = 0;
    OK(mdp_optimizer_steps(mine[k], k == 0 ? C : A, &steps));
    CHECK(steps == 6);
    mdp_optimizer_destroy(mine[k]);
    mdp_optimizer_destroy(others[k]);
  }
  plain.comm = NULL;
  job_close(&plain);
  job_close(&scaled);
}

static void one_scaler_of_several_optimizers(void** state) {
  (void)state;
  run_ranks(1, share_a_scaler, NULL);
  run_ranks(2, share_a_scaler, NULL);
}

/* ── None, and wrong ones ── */

static void without_one(void** state) {
  (void)state;
  job j = job_of(NULL, 0, 1);
  SIZED(mdp_scaler, out);
  SIZED(mdp_tensor, view);
  for (int round = 0; round < 2; ++round) {
    FAILS(MDP_E_STATE, "the optimizer has no loss scaler; give it one by mdp_optimizer_set_scaler",
          mdp_optimizer_scaler(j.optimizer, &out));
    FAILS(MDP_E_STATE, "the optimizer has no loss scaler", mdp_optimizer_scale(j.optimizer, &view));
    char json[2000];
    OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
    CHECK(strstr(json, "scaler") == NULL);
    SIZED(mdp_step_report, report);
    everything* before = save(&j);
    put_grads(&j, round, 1, 1);
    FAILS(MDP_E_NUMERIC, "1 elements that are not finite", mdp_optimizer_step(j.optimizer, NULL, &report, NULL));
    CHECK(is_as(&j, before));
    if (round == 1) break;
    SIZED(mdp_scaler, scaler);
    OK(mdp_optimizer_set_scaler(j.optimizer, &scaler));
    CHECK(scaled_step(&j, 0, 1).step == 0);
    OK(mdp_optimizer_set_scaler(j.optimizer, NULL));
  }
  put_grads(&j, 2, 1, 0);
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(j.optimizer, NULL, &report, NULL));
  CHECK(report.loss_scale == 1 && report.step == 1);
  job_close(&j);
}

static const struct {
  mdp_scaler scaler;
  const char* part;
} bad[] = {
    {{.reserved = 1}, "scaler.reserved is 1"},
    {{.flags = 2}, "scaler.flags is 2"},
    {{.scale = -1}, "scaler.scale is -1"},
    {{.scale = NAN}, "scaler.scale is"},
    {{.scale = INFINITY}, "scaler.scale is inf"},
    {{.scale = 1e-39}, "scaler.scale is 1e-39; it must be between"},
    {{.scale = 1e38}, "scaler.scale is 1e+38; it must be between"},
    {{.scale = 1e300}, "scaler.scale is 1e+300"},
    {{.scale = 0.5}, "scaler.scale is 0.5, below scaler.min_scale, 1"},
    {{.scale = 2, .min_scale = 4}, "scaler.scale is 2, below scaler.min_scale, 4"},
    {{.min_scale = -1}, "scaler.min_scale is -1"},
    {{.min_scale = NAN}, "scaler.min_scale is"},
    {{.min_scale = 1e-39}, "scaler.min_scale is 1e-39"},
    {{.growth_factor = 0.5}, "scaler.growth_factor is 0.5; it must be at least 1"},
    {{.growth_factor = -2}, "scaler.growth_factor is -2"},
    {{.growth_factor = NAN}, "scaler.growth_factor is"},
    {{.growth_factor = INFINITY}, "scaler.growth_factor is inf"},
    {{.backoff_factor = 1}, "scaler.backoff_factor is 1; it must be above 0 and below 1"},
    {{.backoff_factor = -0.5}, "scaler.backoff_factor is -0.5"},
    {{.backoff_factor = NAN}, "scaler.backoff_factor is"},
    {{.growth_interval = 3, .clean_steps = 3}, "scaler.clean_steps is 3; it must be below growth_interval, 3"},
    {{.clean_steps = 2000}, "scaler.clean_steps is 2000; it must be below growth_interval, 2000"},
    {{.overflows = 2}, "scaler.overflows is 2; it must be at most hysteresis, 1"},
    {{.hysteresis = 3, .overflows = 4}, "scaler.overflows is 4; it must be at most hysteresis, 3"},
};

static void wrong_values(void** state) {
  (void)state;
  job j = job_of(NULL, 0, 1);
  SIZED(mdp_scaler, out);
  const mdp_scaler good = {.struct_size = sizeof good, .scale = 8, .hysteresis = 3, .overflows = 3, .growth_interval = 3, .clean_steps = 2};
  for (int given = 0; given < 2; ++given) {
    if (given) OK(mdp_optimizer_set_scaler(j.optimizer, &good));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
      mdp_scaler scaler = bad[i].scaler;
      scaler.struct_size = sizeof scaler;
      FAILS(MDP_E_INVALID, bad[i].part, mdp_optimizer_set_scaler(j.optimizer, &scaler));
      if (!given) FAILS(MDP_E_STATE, NULL, mdp_optimizer_scaler(j.optimizer, &out));
    }
  }
  const mdp_scaler now = scaler_now(&j);
  CHECK(now.scale == 8 && now.hysteresis == 3 && now.overflows == 3 && now.clean_steps == 2 && now.min_scale == 1);
  job_close(&j);
}

enum {
  DIFFERENCES = 10
};
static void differ_in_one_value(mdp_scaler* scaler, int which) {
  if (which == 0) scaler->growth_interval = 100;
  if (which == 1) scaler->hysteresis = 3;
  if (which == 2) scaler->clean_steps = 1;
  if (which == 3) scaler->overflows = 1;
  if (which == 4) scaler->scale = 512;
  if (which == 5) scaler->growth_factor = 3;
  if (which == 6) scaler->backoff_factor = 0.25;
  if (which == 7) scaler->min_scale = 2;
  if (which == 8) scaler->flags = MDP_SCALER_CONSTANT;
}

static void set_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_of(id, rank, n);
  for (int round = 0; round < 2; ++round) {
    for (int which = 0; which < DIFFERENCES; ++which) {
      SIZED(mdp_scaler, scaler);
      if (rank == 1) differ_in_one_value(&scaler, which);
      FAILS(MDP_E_DESYNC, "ranks 0 and 1 set the loss scaler differently",
            mdp_optimizer_set_scaler(j.optimizer, rank == 1 && which == DIFFERENCES - 1 ? NULL : &scaler));
      SIZED(mdp_scaler, out);
      if (round == 0) FAILS(MDP_E_STATE, "no loss scaler", mdp_optimizer_scaler(j.optimizer, &out));
      if (round == 1) CHECK(scaler_now(&j).scale == 16);
    }
    const mdp_scaler same = {.struct_size = sizeof same, .scale = 16};
    OK(mdp_optimizer_set_scaler(j.optimizer, &same));
  }
  scaled_step(&j, 0, 0);
  job_close(&j);
}

static void every_value_is_compared(void** state) {
  (void)state;
  run_ranks(2, set_differently, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(the_scale_follows_overflows),
      TEST(restored),
      TEST(what_is_left_zero),
      TEST(nothing_changes_anywhere),
      TEST(the_bits_of_an_unscaled_run),
      TEST(other_divisors),
      TEST(steps_that_nobody_waits_for),
      TEST(one_scaler_of_several_optimizers),
      TEST(without_one),
      TEST(wrong_values),
      TEST(every_value_is_compared),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
