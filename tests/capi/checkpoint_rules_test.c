/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints of every update rule, of several optimizers of one buffer, and of loss scalers: what goes on from one, on any number of
 * ranks, ends with the bits of a run that was never interrupted. Gradients are small integers, the same on all ranks, so that sums are
 * exact. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
  A,
  B,
  C,
  FIXED,
  D,
  COUNT,
  LONGEST = 301,
  GROUPS = 3,
  RULES = 6,
  NAMES = 4,
  MOST = 2
};
static const int64_t lengths[COUNT] = {37, 70, LONGEST, 5, 3};
static const char* const names[COUNT] = {"a", "b", "c", "fixed", "d"};
static const int group_of[COUNT] = {0, 1, 2, 0, 1};
static const mdp_dtype dtypes[COUNT] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_BF16, MDP_DTYPE_F32, MDP_DTYPE_F16};
static const char* const state_names[NAMES] = {"master", "exp_avg", "exp_avg_sq", "momentum_buffer"};
static const char* const rule_names[RULES] = {"AdamW", "Adam", "SGD", "SGD with momentum", "SGD with Nesterov momentum", "Lion"};

static char path[512];

static const char* directory_of(const char* name, int number) {
  snprintf(path, sizeof path, "%s/%s%d", folder, name, number);
  return path;
}

static int keeps(mdp_rule rule, int name) {
  if (name == 0) return 1;
  if (name == 2) return rule == MDP_RULE_ADAMW || rule == MDP_RULE_ADAM;
  if (name == 1) return rule == MDP_RULE_ADAMW || rule == MDP_RULE_ADAM || rule == MDP_RULE_LION;
  return rule == MDP_RULE_SGD_MOMENTUM || rule == MDP_RULE_SGD_NESTEROV;
}

/* ── A job of one or two optimizers ── */

typedef struct {
  mdp_rule rule;
  uint32_t first, count; /* its groups */
} share;
typedef struct {
  size_t count;
  share of[MOST];
} split;

typedef struct {
  mdp_comm* comm;
  mdp_buffer* buffer;
  const split* split;
  mdp_optimizer* optimizers[MOST];
} model;

static int has(const share* s, size_t param) {
  return param != FIXED && (uint32_t)group_of[param] >= s->first && (uint32_t)group_of[param] < s->first + s->count;
}

static const mdp_param_group own_values[GROUPS] = {{.struct_size = sizeof(mdp_param_group), .lr = 0.0625},
                                                   {.struct_size = sizeof(mdp_param_group)},
                                                   {.struct_size = sizeof(mdp_param_group), .weight_decay = 0.25}};

static mdp_optimizer* optimizer_of(mdp_buffer* buffer, const share* s) {
  SIZED(mdp_optimizer_config, config);
  config.rule = s->rule;
  config.lr = 0.03125;
  config.weight_decay = 0.125;
  config.first_param_group = s->first;
  config.flags = s->count < GROUPS ? MDP_OPTIMIZER_SOME_GROUPS : 0;
  config.param_groups = own_values + s->first;
  config.param_group_count = s->count;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  return optimizer;
}

static model model_of(const mdp_unique_id* id, int32_t rank, int32_t n, mdp_sharding sharding, const split* of) {
  model m = {.comm = comm_open(id, rank, n, UINT64_C(60000000000)), .split = of};
  mdp_param params[COUNT];
  for (int p = 0; p < COUNT; ++p) {
    params[p] = vector_param(names[p], dtypes[p], &lengths[p]);
    params[p].param_group = group_of[p];
    params[p].flags = p == FIXED ? MDP_PARAM_FROZEN : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.bucket_elements = 150 * (uint64_t)n;
  OK(mdp_buffer_register(m.comm, NULL, &config, params, COUNT, &m.buffer));
  for (size_t k = 0; k < of->count; ++k) m.optimizers[k] = optimizer_of(m.buffer, &of->of[k]);
  return m;
}

static void model_close(model* m) {
  for (size_t k = 0; k < m->split->count; ++k) mdp_optimizer_destroy(m->optimizers[k]);
  mdp_buffer_destroy(m->buffer);
  mdp_comm_destroy(m->comm);
}

static void first_values(const model* m) {
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)(i % 19 - 9) / 8;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_write(m->buffer, p, &t, NULL));
  }
}

/* Parameter D is left out of some steps. With a scaler gradients are those of a scaled loss, and in some steps one is not finite. */
static int overflows_in(int step) {
  return step % 4 == 1;
}

static void take_steps(const model* m, int from, int to, int scaled) {
  for (int step = from; step < to; ++step) {
    SIZED(mdp_scaler, scaler);
    if (scaled) OK(mdp_optimizer_scaler(m->optimizers[0], &scaler));
    for (int p = COUNT; p-- > 0;) {
      if (p == FIXED) continue;
      float values[LONGEST];
      for (int64_t i = 0; i < lengths[p]; ++i) {
        values[i] = (float)((i * (7 + p) + step * 5) % 23 - 11) * (scaled ? (float)scaler.scale : 1);
      }
      if (scaled && p == B && overflows_in(step)) values[7] = INFINITY;
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
      if (p == D && step % 3 == 1) {
        OK(mdp_grad_skip(m->buffer, (size_t)p));
      } else {
        OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
      }
    }
    SIZED(mdp_step_report, report);
    OK(mdp_optimizer_step_many(m->optimizers, m->split->count, NULL, &report, NULL));
    CHECK(scaled || report.step == (uint64_t)step + 1);
    CHECK(((report.flags & MDP_STEPPED_SKIPPED) != 0) == (scaled && overflows_in(step)));
  }
}

/* The parts in the order of the optimizers, or the other way round. */
static mdp_checkpoint_config config_of(const model* m, const char* directory, mdp_checkpoint_part* parts, int backwards) {
  const size_t count = m->split->count;
  for (size_t k = 0; k < count; ++k) {
    mdp_optimizer* const optimizer = m->optimizers[backwards ? count - 1 - k : k];
    parts[k] = (mdp_checkpoint_part){.struct_size = sizeof parts[k], .buffer = m->buffer, .optimizer = optimizer};
  }
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = parts, .part_count = count};
  return config;
}

static mdp_status save(const model* m, const char* directory) {
  mdp_checkpoint_part parts[MOST];
  const mdp_checkpoint_config config = config_of(m, directory, parts, 0);
  return mdp_checkpoint_save(&config, NULL);
}

static mdp_status load(const model* m, const char* directory, uint64_t flags) {
  mdp_checkpoint_part parts[MOST];
  mdp_checkpoint_config config = config_of(m, directory, parts, 1);
  config.flags = flags;
  return mdp_checkpoint_load(&config);
}

/* ── All of the state, whatever rank has it ── */

typedef struct {
  float params[COUNT][LONGEST], states[NAMES][COUNT][LONGEST];
  uint64_t steps[COUNT];
  mdp_scaler scaler;
} everything;

static pthread_mutex_t collecting = PTHREAD_MUTEX_INITIALIZER;

static size_t optimizer_for(const model* m, size_t param) {
  return has(&m->split->of[0], param) ? 0 : 1;
}

static void collect(const model* m, everything* all) {
  SIZED(mdp_scaler, scaler);
  if (mdp_optimizer_scaler(m->optimizers[0], &scaler) == MDP_OK) {
    pthread_mutex_lock(&collecting);
    all->scaler = scaler;
    pthread_mutex_unlock(&collecting);
  }
  mdp_range ranges[64];
  const size_t count = owned_ranges(m->buffer, ranges, 64);
  for (size_t p = 0; p < COUNT; ++p) {
    if (p == FIXED) continue;
    float values[LONGEST];
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_param_read(m->buffer, p, &t, NULL));
    uint64_t steps = 0;
    OK(mdp_optimizer_steps(m->optimizers[optimizer_for(m, p)], p, &steps));
    pthread_mutex_lock(&collecting);
    memcpy(all->params[p], values, (size_t)lengths[p] * sizeof(float));
    all->steps[p] = steps;
    pthread_mutex_unlock(&collecting);
  }
  for (size_t r = 0; r < count; ++r) {
    const size_t p = (size_t)ranges[r].param, k = optimizer_for(m, p);
    for (int name = 0; name < NAMES; ++name) {
      SIZED(mdp_tensor, view);
      if (!keeps(m->split->of[k].rule, name)) continue;
      OK(mdp_optimizer_state(m->optimizers[k], p, state_names[name], &view));
      pthread_mutex_lock(&collecting);
      memcpy(all->states[name][p] + ranges[r].param_begin, view.data, (size_t)view.shape[0] * sizeof(float));
      pthread_mutex_unlock(&collecting);
    }
  }
}

/* ── Any number of ranks ── */

enum {
  STAGES = 3,
  EACH = 3
};
static const struct {
  int32_t n;
  mdp_sharding sharding;
} sizes[STAGES] = {{2, MDP_SHARDING_ZERO_1}, {3, MDP_SHARDING_ZERO_2}, {1, MDP_SHARDING_ZERO_1}};

typedef struct {
  const split* split;
  const char* directory;
  int number, scaled;
  everything *loaded, *later;
} stage;

static const mdp_scaler some_scaler = {.struct_size = sizeof some_scaler, .scale = 1024, .growth_interval = 3, .hysteresis = 2};

static void one_stage(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const stage* s = argument;
  model m = model_of(id, rank, n, sizes[s->number].sharding, s->split);
  if (s->scaled) OK(mdp_optimizer_set_scaler(m.optimizers[0], &some_scaler));
  if (s->number == 0) first_values(&m);
  if (s->number > 0) OK(load(&m, s->directory, 0));
  collect(&m, s->loaded);
  take_steps(&m, s->number * EACH, (s->number + 1) * EACH, s->scaled);
  collect(&m, s->later);
  OK(save(&m, s->directory));
  model_close(&m);
}

static void go_through_the_stages(const split* of, const char* directory, int scaled) {
  everything* before = NULL;
  for (int number = 0; number < STAGES; ++number) {
    stage s = {of, directory, number, scaled, calloc(1, sizeof *s.loaded), calloc(1, sizeof *s.later)};
    run_ranks(sizes[number].n, one_stage, &s);
    CHECK(before == NULL || memcmp(s.loaded, before, sizeof *before) == 0);
    free(s.loaded);
    free(before);
    before = s.later;
  }
  model whole = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, of);
  if (scaled) OK(mdp_optimizer_set_scaler(whole.optimizers[0], &some_scaler));
  first_values(&whole);
  take_steps(&whole, 0, STAGES * EACH, scaled);
  everything* wanted = calloc(1, sizeof *wanted);
  collect(&whole, wanted);
  CHECK(memcmp(before, wanted, sizeof *wanted) == 0);
  free(before);
  free(wanted);
  model_close(&whole);
}

static void every_rule(void** state) {
  (void)state;
  for (mdp_rule rule = 0; rule < RULES; ++rule) {
    char directory[512], json[20000], said[60];
    snprintf(directory, sizeof directory, "%s", directory_of("rule", (int)rule));
    const split one = {1, {{rule, 0, GROUPS}}};
    go_through_the_stages(&one, directory, 0);
    OK(mdp_checkpoint_info(directory, json, sizeof json, NULL));
    snprintf(said, sizeof said, "\"rule\":\"%s\",\"steps\":9,", rule_names[rule]);
    CHECK(strstr(json, said) != NULL);
    for (int name = 1; name < NAMES; ++name) CHECK((strstr(json, state_names[name]) != NULL) == keeps(rule, name));
    OK(mdp_checkpoint_verify(directory, NULL, 0, NULL));
  }
}

static const split pairs[] = {{2, {{MDP_RULE_SGD_MOMENTUM, 0, 1}, {MDP_RULE_LION, 1, 2}}},
                              {2, {{MDP_RULE_ADAMW, 2, 1}, {MDP_RULE_SGD, 0, 2}}},
                              {2, {{MDP_RULE_ADAM, 1, 2}, {MDP_RULE_ADAM, 0, 1}}}};

static void several_optimizers_of_one_buffer(void** state) {
  (void)state;
  for (int k = 0; k < 3; ++k) {
    char directory[512];
    snprintf(directory, sizeof directory, "%s", directory_of("pair", k));
    go_through_the_stages(&pairs[k], directory, 0);
    OK(mdp_checkpoint_verify(directory, NULL, 0, NULL));
  }
}

/* ── Scalers ── */

static void with_a_scaler(void** state) {
  (void)state;
  const split one = {1, {{MDP_RULE_ADAMW, 0, GROUPS}}};
  char directory[512];
  snprintf(directory, sizeof directory, "%s", directory_of("scaled", 0));
  go_through_the_stages(&one, directory, 1);
  snprintf(directory, sizeof directory, "%s", directory_of("scaled", 1));
  go_through_the_stages(&pairs[0], directory, 1);
}

static mdp_scaler scaler_now(const model* m) {
  SIZED(mdp_scaler, now);
  OK(mdp_optimizer_scaler(m->optimizers[0], &now));
  return now;
}

/* What it had come to goes along, what it was told does not; and what one side has not is not made up. */
static void what_a_scaler_has_come_to(void** state) {
  (void)state;
  const split one = {1, {{MDP_RULE_SGD, 0, GROUPS}}};
  const char* const directory = directory_of("come to", 0);
  model m = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &one);
  const mdp_scaler given = {
      .struct_size = sizeof given, .scale = 192, .growth_interval = 9, .hysteresis = 5, .clean_steps = 4, .overflows = 3};
  OK(mdp_optimizer_set_scaler(m.optimizers[0], &given));
  OK(save(&m, directory));
  model other = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &one);
  OK(load(&other, directory, 0));
  SIZED(mdp_scaler, out);
  FAILS(MDP_E_STATE, "no loss scaler", mdp_optimizer_scaler(other.optimizers[0], &out));
  const mdp_scaler mine = {
      .struct_size = sizeof mine, .scale = 16, .growth_interval = 7, .hysteresis = 2, .growth_factor = 3, .min_scale = 2};
  OK(mdp_optimizer_set_scaler(other.optimizers[0], &mine));
  OK(load(&other, directory, MDP_CHECKPOINT_PARAMS_ONLY));
  out = scaler_now(&other);
  CHECK(out.scale == 16 && out.clean_steps == 0 && out.overflows == 0);
  OK(load(&other, directory, 0));
  out = scaler_now(&other);
  CHECK(out.scale == 192 && out.clean_steps == 4 && out.overflows == 2); /* at most the hysteresis here */
  CHECK(out.growth_interval == 7 && out.hysteresis == 2 && out.growth_factor == 3 && out.min_scale == 2);
  OK(mdp_optimizer_set_scaler(m.optimizers[0], NULL));
  OK(save(&m, directory));
  OK(load(&other, directory, 0));
  const mdp_scaler later = scaler_now(&other);
  CHECK(memcmp(&later, &out, sizeof out) == 0);
  model_close(&other);
  model_close(&m);
}

/* ── Pipeline stages, of which each has parameters of one optimizer only ── */

static model stage_of(const mdp_unique_id* id, int32_t rank, int32_t n) {
  model m = {.comm = comm_open(id, rank, n, UINT64_C(60000000000)), .split = &pairs[0]};
  SIZED(mdp_grid_config, cut);
  cut.pp = n;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(m.comm, &cut, &grid));
  const mdp_param param = {
      .struct_size = sizeof param, .name = names[rank], .dtype = dtypes[rank], .ndim = 1, .shape = &lengths[rank], .param_group = rank};
  OK(mdp_buffer_register(NULL, grid, NULL, &param, 1, &m.buffer));
  mdp_grid_destroy(grid);
  for (size_t k = 0; k < MOST; ++k) m.optimizers[k] = optimizer_of(m.buffer, &pairs[0].of[k]);
  OK(mdp_optimizer_set_scaler(m.optimizers[0], &some_scaler));
  return m;
}

/* In step 1 the second stage overflows. Returns the steps that were taken, which all ranks are told alike. */
static uint64_t step_stages(const model* m, int32_t rank, int step) {
  float values[LONGEST];
  const float scale = (float)scaler_now(m).scale;
  for (int64_t i = 0; i < lengths[rank]; ++i) values[i] = (float)((i * 7 + step * 5) % 23 - 11) * scale;
  if (step == 1 && rank == 1) values[3] = NAN;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[rank]);
  OK(mdp_grad_put(m->buffer, 0, &t, 0, NULL));
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step_many(m->optimizers, MOST, NULL, &report, NULL));
  return report.step;
}

static void go_on_in_stages(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = stage_of(id, rank, n);
  for (int step = 0; step < 4; ++step) CHECK(step_stages(&m, rank, step) == (uint64_t)(step < 1 ? 1 : step));
  OK(save(&m, argument));
  const mdp_scaler saved = scaler_now(&m);
  CHECK(step_stages(&m, rank, 4) == 4);
  const mdp_scaler wanted = scaler_now(&m);
  float before[LONGEST], after[LONGEST];
  const mdp_tensor to_before = tensor_of(MDP_DTYPE_F32, before, &lengths[rank]), to_after = tensor_of(MDP_DTYPE_F32, after, &lengths[rank]);
  OK(mdp_param_read(m.buffer, 0, &to_before, NULL));
  for (size_t k = 0; k < MOST; ++k) OK(mdp_optimizer_set_steps(m.optimizers[k], 77, NULL, 0));
  OK(mdp_optimizer_set_scaler(m.optimizers[0], &some_scaler));
  OK(load(&m, argument, 0));
  const mdp_scaler loaded = scaler_now(&m);
  CHECK(memcmp(&loaded, &saved, sizeof saved) == 0);
  CHECK(step_stages(&m, rank, 4) == 4);
  const mdp_scaler later = scaler_now(&m);
  CHECK(memcmp(&later, &wanted, sizeof later) == 0);
  OK(mdp_param_read(m.buffer, 0, &to_after, NULL));
  CHECK(memcmp(before, after, (size_t)lengths[rank] * sizeof(float)) == 0);
  model_close(&m);
}

static void stages_without_parameters_of_one(void** state) {
  (void)state;
  char directory[512];
  snprintf(directory, sizeof directory, "%s", directory_of("stages", 0));
  run_ranks(2, go_on_in_stages, directory);
}

/* ── Other rules ── */

static void another_rule_is_refused(void** state) {
  (void)state;
  for (mdp_rule rule = 0; rule < RULES; ++rule) {
    const char* const directory = directory_of("refused", (int)rule);
    const split one = {1, {{rule, 0, GROUPS}}};
    model m = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &one);
    first_values(&m);
    take_steps(&m, 0, 2, 0);
    OK(save(&m, directory));
    everything* saved = calloc(1, sizeof *saved);
    collect(&m, saved);
    for (mdp_rule here = 0; here < RULES; ++here) {
      if (here == rule) continue;
      const split another = {1, {{here, 0, GROUPS}}};
      model other = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &another);
      char part[200];
      snprintf(part, sizeof part, "with the state of '%s', and the optimizer here is %s; with MDP_CHECKPOINT_PARAMS_ONLY (1)",
               rule_names[rule], rule_names[here]);
      everything *before = calloc(1, sizeof *before), *after = calloc(1, sizeof *after);
      collect(&other, before);
      FAILS(MDP_E_INVALID, part, load(&other, directory, 0));
      collect(&other, after);
      CHECK(memcmp(before, after, sizeof *before) == 0);
      OK(load(&other, directory, MDP_CHECKPOINT_PARAMS_ONLY));
      collect(&other, after);
      CHECK(memcmp(saved->params, after->params, sizeof after->params) == 0);
      CHECK(memcmp(saved->states[0], after->states[0], sizeof after->states[0]) == 0);
      memcpy(after->states[0], before->states[0], sizeof after->states[0]);
      CHECK(memcmp(before->states, after->states, sizeof after->states) == 0); /* zeros */
      free(before);
      free(after);
      model_close(&other);
    }
    free(saved);
    model_close(&m);
  }
}

/* One optimizer of all groups becomes two of the same rule. */
static void one_becomes_two(void** state) {
  (void)state;
  const char* const directory = directory_of("two", 0);
  const split one = {1, {{MDP_RULE_ADAM, 0, GROUPS}}};
  model m = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &one), two = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_2, &pairs[2]);
  first_values(&m);
  take_steps(&m, 0, 4, 0);
  OK(save(&m, directory));
  OK(load(&two, directory, 0));
  take_steps(&m, 4, 7, 0);
  take_steps(&two, 4, 7, 0);
  everything *wanted = calloc(1, sizeof *wanted), *got = calloc(1, sizeof *got);
  collect(&m, wanted);
  collect(&two, got);
  CHECK(memcmp(wanted, got, sizeof *got) == 0);
  FAILS(MDP_E_INVALID, "the checkpoint's optimizer has 3 parameter groups, and this one ",
        load(&two, directory, MDP_CHECKPOINT_LOAD_HYPER));
  free(wanted);
  free(got);
  model_close(&two);
  model_close(&m);
}

/* ── What optimizers were told ── */

static void hyperparameters(void** state) {
  (void)state;
  for (mdp_rule rule = 0; rule < RULES; ++rule) {
    const char* const directory = directory_of("hyper", (int)rule);
    const split one = {1, {{rule, 0, GROUPS}}};
    model m = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &one), other = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &one);
    const int betas = keeps(rule, 1), eps = keeps(rule, 2), momentum = keeps(rule, 3);
    mdp_param_group group = {.struct_size = sizeof group, .lr = 0.7, .weight_decay = 0.3};
    if (betas) group.beta1 = 0.6, group.beta2 = 0.8;
    if (eps) group.eps = 1e-5;
    if (momentum) group.momentum = 0.4;
    char wanted[2000], before[2000], got[2000];
    OK(mdp_optimizer_info(other.optimizers[0], before, sizeof before, NULL));
    OK(mdp_optimizer_set_param_group(m.optimizers[0], 1, &group));
    OK(mdp_optimizer_info(m.optimizers[0], wanted, sizeof wanted, NULL));
    CHECK(strcmp(wanted, before) != 0);
    OK(save(&m, directory));
    OK(load(&other, directory, 0));
    OK(mdp_optimizer_info(other.optimizers[0], got, sizeof got, NULL));
    CHECK(strcmp(got, before) == 0);
    OK(load(&other, directory, MDP_CHECKPOINT_LOAD_HYPER));
    OK(mdp_optimizer_info(other.optimizers[0], got, sizeof got, NULL));
    CHECK(strcmp(got, wanted) == 0);
    CHECK((strstr(got, "\"momentum\":0.4") != NULL) == momentum && (strstr(got, "\"eps\":1e-05") != NULL) == eps);
    CHECK((strstr(got, "\"beta1\":0.6,\"beta2\":0.8") != NULL) == betas && strstr(got, "\"lr\":0.7") != NULL);
    first_values(&m);
    first_values(&other);
    take_steps(&m, 0, 3, 0);
    take_steps(&other, 0, 3, 0);
    everything *mine = calloc(1, sizeof *mine), *others = calloc(1, sizeof *others);
    collect(&m, mine);
    collect(&other, others);
    CHECK(memcmp(mine, others, sizeof *mine) == 0);
    free(mine);
    free(others);
    model_close(&other);
    model_close(&m);
  }
}

/* Each part's optimizer is told what it was told, whatever the order of the parts. */
static void hyperparameters_of_two(void** state) {
  (void)state;
  const char* const directory = directory_of("hyper of two", 0);
  model m = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &pairs[0]), other = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &pairs[0]);
  const mdp_param_group momentum = {.struct_size = sizeof momentum, .momentum = 0.4}, beta = {.struct_size = sizeof beta, .beta2 = 0.4};
  OK(mdp_optimizer_set_param_group(m.optimizers[0], 0, &momentum));
  OK(mdp_optimizer_set_param_group(m.optimizers[1], 2, &beta));
  OK(save(&m, directory));
  OK(load(&other, directory, MDP_CHECKPOINT_LOAD_HYPER));
  for (int k = 0; k < 2; ++k) {
    char wanted[2000], got[2000];
    OK(mdp_optimizer_info(m.optimizers[k], wanted, sizeof wanted, NULL));
    OK(mdp_optimizer_info(other.optimizers[k], got, sizeof got, NULL));
    CHECK(strcmp(got, wanted) == 0 && strstr(got, k == 0 ? "\"momentum\":0.4" : "\"beta2\":0.4") != NULL);
  }
  model_close(&other);
  model_close(&m);
}

/* ── Parts that do not fit ── */

static void parts_that_do_not_fit(void** state) {
  (void)state;
  const char* const directory = directory_of("parts", 0);
  model m = model_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &pairs[0]);
  first_values(&m);
  mdp_checkpoint_part parts[MOST];
  mdp_checkpoint_config config = config_of(&m, directory, parts, 0);
  parts[1].optimizer = NULL;
  FAILS(MDP_E_INVALID, "config.parts[1].buffer is that of config.parts[0] already; parts of one buffer have optimizers of different",
        mdp_checkpoint_save(&config, NULL));
  FAILS(MDP_E_INVALID, "config.parts[1].buffer is that of config.parts[0] already", mdp_checkpoint_load(&config));
  parts[1].optimizer = m.optimizers[0];
  FAILS(MDP_E_INVALID, "config.parts[1].optimizer has parameter 0 'a', and so has that of config.parts[0]",
        mdp_checkpoint_save(&config, NULL));
  /* A part for some of the parameters: the others go along without state. */
  config.part_count = 1;
  OK(mdp_checkpoint_save(&config, NULL));
  FAILS(MDP_E_INVALID, "with MDP_CHECKPOINT_PARAMS_ONLY (1) it begins with zeros", load(&m, directory, 0));
  OK(mdp_checkpoint_load(&config));
  OK(load(&m, directory, MDP_CHECKPOINT_PARAMS_ONLY));
  model_close(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_rule),
      TEST(several_optimizers_of_one_buffer),
      TEST(with_a_scaler),
      TEST(what_a_scaler_has_come_to),
      TEST(stages_without_parameters_of_one),
      TEST(another_rule_is_refused),
      TEST(one_becomes_two),
      TEST(hyperparameters),
      TEST(hyperparameters_of_two),
      TEST(parts_that_do_not_fit),
  };
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
