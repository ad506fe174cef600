/* SPDX-License-Identifier: Apache-2.0
 * Every update rule, bit for bit against its formula in plain floats: all types of parameters, ZeRO-1 and 2, one to three ranks, values of
 * groups that change on the way. What a rule has not, neither hyperparameters nor state, is refused by name. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

typedef struct {
  double lr, beta1, beta2, eps, weight_decay, momentum;
} values;

enum {
  BETAS = 1, /* what a rule has beside lr and weight_decay */
  EPS = 2,
  MOMENTUM = 4,
  RULES = 6,
  NAMES = 3
};
typedef struct {
  mdp_rule rule;
  const char* name;
  int has;
  int states[NAMES]; /* of state_names: whether it keeps it */
  values presets;
} rule_kind;
static const char* const state_names[NAMES] = {"exp_avg", "exp_avg_sq", "momentum_buffer"};
static const rule_kind rules[RULES] = {
    {MDP_RULE_ADAMW, "AdamW", BETAS | EPS, {1, 1, 0}, {1e-3, 0.9, 0.999, 1e-8, 0, 0}},
    {MDP_RULE_ADAM, "Adam", BETAS | EPS, {1, 1, 0}, {1e-3, 0.9, 0.999, 1e-8, 0, 0}},
    {MDP_RULE_SGD, "SGD", 0, {0, 0, 0}, {1e-3, 0, 0, 0, 0, 0}},
    {MDP_RULE_SGD_MOMENTUM, "SGD with momentum", MOMENTUM, {0, 0, 1}, {1e-3, 0, 0, 0, 0, 0.9}},
    {MDP_RULE_SGD_NESTEROV, "SGD with Nesterov momentum", MOMENTUM, {0, 0, 1}, {1e-3, 0, 0, 0, 0, 0.9}},
    {MDP_RULE_LION, "Lion", BETAS, {1, 0, 0}, {1e-4, 0.9, 0.99, 0, 0, 0}},
};

/* ── The formulas, in the order of operations of src/base: constants in double, each rounded once; no fused multiply-add ── */

static double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) result *= (exponent & 1) != 0 ? base : 1;
  return result;
}

static float sign_of(float x) {
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

static void adam(const values* h, uint64_t t, int decoupled, float g, float* w, float* m, float* v) {
  const float beta1 = (float)h->beta1, rest1 = (float)(1 - h->beta1), beta2 = (float)h->beta2, rest2 = (float)(1 - h->beta2);
  const float size = (float)(h->lr / (1 - power(h->beta1, t))), root = (float)sqrt(1 - power(h->beta2, t)), eps = (float)h->eps;
  if (!decoupled) g = g + (float)h->weight_decay * *w;
  *m = beta1 * *m + rest1 * g;
  *v = beta2 * *v + rest2 * g * g;
  const float moved = size * *m / (sqrtf(*v) / root + eps);
  *w = decoupled ? *w * (float)(1 - h->lr * h->weight_decay) - moved : *w - moved;
}

static void sgd(const values* h, mdp_rule rule, float g, float* w, float* b) {
  const float lr = (float)h->lr, momentum = (float)h->momentum, decayed = g + (float)h->weight_decay * *w;
  if (rule == MDP_RULE_SGD) {
    *w = *w - lr * decayed;
    return;
  }
  *b = momentum * *b + decayed;
  *w = *w - lr * (rule == MDP_RULE_SGD_MOMENTUM ? *b : decayed + momentum * *b);
}

static void lion(const values* h, float g, float* w, float* m) {
  const float mean = (float)h->beta1 * *m + (float)(1 - h->beta1) * g;
  *w = *w * (float)(1 - h->lr * h->weight_decay) - (float)h->lr * sign_of(mean);
  *m = (float)h->beta2 * *m + (float)(1 - h->beta2) * g;
}

/* state: by state_names */
static void update(mdp_rule rule, const values* h, uint64_t t, float g, float* w, float* const state[NAMES]) {
  if (rule == MDP_RULE_ADAMW || rule == MDP_RULE_ADAM) {
    adam(h, t, rule == MDP_RULE_ADAMW, g, w, state[0], state[1]);
  } else if (rule == MDP_RULE_LION) {
    lion(h, g, w, state[0]);
  } else {
    sgd(h, rule, g, w, state[2]);
  }
}

static float rounded(mdp_dtype dtype, float x) {
  return dtype == MDP_DTYPE_BF16 ? to_bf16(x) : dtype == MDP_DTYPE_F16 ? to_f16(x) : x;
}

/* ── A job and what it should come to ── */

enum {
  A,
  B,
  C,
  D,
  COUNT,
  LONGEST = 301,
  STEPS = 20
};
static const int64_t lengths[COUNT] = {LONGEST, 130, 77, 40};
static const char* const names[COUNT] = {"a", "b", "c", "d"};
static const mdp_dtype dtypes[COUNT] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F16, MDP_DTYPE_F32};
static const int group_of[COUNT] = {0, 1, 0, 1};

typedef struct {
  const rule_kind* rule;
  mdp_sharding sharding;
} run;

typedef struct {
  float masters[COUNT][LONGEST], states[COUNT][NAMES][LONGEST];
  uint64_t steps[COUNT];
  values groups[2];
} oracle;

static float first_value(int64_t i) {
  return (float)(i % 19 - 9) / 8;
}
/* Sums of these are exact, in any order. */
static float gradient(int param, int64_t i, int step, int32_t rank) {
  return (float)((i * (7 + param) + step * 5 + rank * 3) % 23 - 11) / 16;
}

static mdp_optimizer_config config_of(const rule_kind* rule, const values* v) {
  mdp_optimizer_config config = {.struct_size = sizeof config, .rule = rule->rule, .lr = v->lr, .weight_decay = v->weight_decay};
  if (rule->has & BETAS) config.beta1 = v->beta1, config.beta2 = v->beta2;
  if (rule->has & EPS) config.eps = v->eps;
  if (rule->has & MOMENTUM) config.momentum = v->momentum;
  return config;
}

static mdp_param_group group_with(const rule_kind* rule, const values* v) {
  mdp_param_group group = {.struct_size = sizeof group, .lr = v->lr, .weight_decay = v->weight_decay};
  if (rule->has & BETAS) group.beta1 = v->beta1, group.beta2 = v->beta2;
  if (rule->has & EPS) group.eps = v->eps;
  if (rule->has & MOMENTUM) group.momentum = v->momentum;
  return group;
}

static job job_of(const mdp_unique_id* id, int32_t rank, int32_t n, mdp_sharding sharding, const mdp_optimizer_config* optimizer) {
  job j = {.comm = comm_open(id, rank, n, UINT64_C(20000000000))};
  mdp_param params[COUNT];
  for (int p = 0; p < COUNT; ++p) {
    params[p] = vector_param(names[p], dtypes[p], &lengths[p]);
    params[p].param_group = group_of[p];
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.scaling = MDP_SCALING_SUM;
  config.bucket_elements = 100;
  OK(mdp_buffer_register(j.comm, NULL, &config, params, COUNT, &j.buffer));
  OK(mdp_optimizer_create(j.buffer, optimizer, &j.optimizer));
  for (size_t p = 0; p < COUNT; ++p) {
    float start[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) start[i] = first_value(i);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, start, &lengths[p]);
    OK(mdp_param_write(j.buffer, p, &t, NULL));
  }
  return j;
}

static oracle* oracle_of(const values* group0, const values* group1) {
  oracle* o = calloc(1, sizeof *o);
  o->groups[0] = *group0;
  o->groups[1] = *group1;
  for (int p = 0; p < COUNT; ++p) {
    for (int64_t i = 0; i < lengths[p]; ++i) o->masters[p][i] = first_value(i);
  }
  return o;
}

/* All ranks skip some parameters in some steps, so that counts differ. */
static int skipped(int param, int step) {
  return (param == D && step % 6 == 1) || (param == B && step == 2);
}

static void take_step(const job* j, int step, double lr) {
  const int32_t rank = mdp_comm_rank(j->comm);
  for (int p = COUNT; p-- > 0;) {
    float grads[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) grads[i] = gradient(p, i, step, rank);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &lengths[p]);
    if (skipped(p, step)) {
      OK(mdp_grad_skip(j->buffer, (size_t)p));
    } else {
      OK(mdp_grad_put(j->buffer, (size_t)p, &t, 0, NULL));
    }
  }
  SIZED(mdp_step_config, config);
  SIZED(mdp_step_report, report);
  config.lr = lr;
  OK(mdp_optimizer_step(j->optimizer, &config, &report, NULL));
  CHECK(report.step == (uint64_t)step + 1);
}

static void take_oracle_step(oracle* o, mdp_rule rule, int step, int32_t n) {
  for (int p = 0; p < COUNT; ++p) {
    if (skipped(p, step)) continue;
    ++o->steps[p];
    for (int64_t i = 0; i < lengths[p]; ++i) {
      float g = 0;
      for (int32_t r = 0; r < n; ++r) g += gradient(p, i, step, r);
      float* const state[NAMES] = {&o->states[p][0][i], &o->states[p][1][i], &o->states[p][2][i]};
      update(rule, &o->groups[group_of[p]], o->steps[p], g, &o->masters[p][i], state);
    }
  }
}

static void compare(const job* j, const rule_kind* rule, const oracle* o) {
  for (size_t p = 0; p < COUNT; ++p) {
    float got[LONGEST];
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, got, &lengths[p]);
    OK(mdp_param_read(j->buffer, p, &t, NULL));
    int wrong = 0;
    for (int64_t i = 0; i < lengths[p]; ++i) wrong += got[i] != rounded(dtypes[p], o->masters[p][i]);
    CHECK(wrong == 0);
    uint64_t steps = 0;
    OK(mdp_optimizer_steps(j->optimizer, p, &steps));
    CHECK(steps == o->steps[p]);
  }
  mdp_range ranges[64];
  const size_t count = owned_ranges(j->buffer, ranges, 64);
  for (size_t r = 0; r < count; ++r) {
    const size_t p = (size_t)ranges[r].param, bytes = (size_t)(ranges[r].end - ranges[r].begin) * sizeof(float);
    SIZED(mdp_tensor, view);
    OK(mdp_optimizer_state(j->optimizer, p, "master", &view));
    CHECK(memcmp(view.data, o->masters[p] + ranges[r].param_begin, bytes) == 0);
    for (int k = 0; k < NAMES; ++k) {
      if (!rule->states[k]) continue;
      OK(mdp_optimizer_state(j->optimizer, p, state_names[k], &view));
      CHECK(memcmp(view.data, o->states[p][k] + ranges[r].param_begin, bytes) == 0);
    }
  }
}

/* ── Twenty steps ── */

static const values optimizers = {0.0625, 0.875, 0.96, 1e-7, 0.125, 0.8}, own = {0.03, 0.8, 0.95, 1e-5, 0.25, 0.7};

/* Before a step: what one of the groups is told, and what it then goes by. Returns the lr that the step is given. */
static double change_values(const job* j, const rule_kind* rule, oracle* o, int step) {
  if (step == 4) {
    const mdp_param_group group = group_with(rule, &own);
    OK(mdp_optimizer_set_param_group(j->optimizer, 0, &group));
    o->groups[0] = own;
  }
  if (step == 13) { /* literally 0 */
    mdp_param_group group = {.struct_size = sizeof group, .flags = MDP_PARAM_GROUP_SET_WEIGHT_DECAY};
    if (rule->has & BETAS) group.flags |= MDP_PARAM_GROUP_SET_BETA1 | MDP_PARAM_GROUP_SET_BETA2;
    if (rule->has & MOMENTUM) group.flags |= MDP_PARAM_GROUP_SET_MOMENTUM;
    OK(mdp_optimizer_set_param_group(j->optimizer, 1, &group));
    o->groups[1].beta1 = o->groups[1].beta2 = o->groups[1].weight_decay = o->groups[1].momentum = 0;
  }
  if (step == 16) { /* nothing of its own any more */
    const mdp_param_group group = {.struct_size = sizeof group};
    OK(mdp_optimizer_set_param_group(j->optimizer, 0, &group));
    o->groups[0] = optimizers;
    o->groups[0].lr = 0.011;
  }
  if (step == 9) o->groups[1].lr = 0.011; /* the other group has its own */
  return step == 9 ? 0.011 : 0;
}

static void follow_the_formula(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const run* r = argument;
  values first = optimizers;
  first.lr = 0.03125;
  const mdp_param_group groups[2] = {{.struct_size = sizeof groups[0], .lr = first.lr}, {.struct_size = sizeof groups[0]}};
  mdp_optimizer_config config = config_of(r->rule, &optimizers);
  config.param_groups = groups;
  config.param_group_count = 2;
  job j = job_of(id, rank, n, r->sharding, &config);
  oracle* o = oracle_of(&first, &optimizers);
  compare(&j, r->rule, o);
  for (int step = 0; step < STEPS; ++step) {
    take_step(&j, step, change_values(&j, r->rule, o, step));
    take_oracle_step(o, r->rule->rule, step, n);
    if (step % 4 == 3 || step == STEPS - 1) compare(&j, r->rule, o);
  }
  free(o);
  job_close(&j);
}

static void bit_for_bit(void** state) {
  (void)state;
  for (int k = 0; k < RULES; ++k) {
    for (int32_t n = 1; n <= 3; n += UNDER_SANITIZER || on_cuda ? 2 : 1) {
      for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
        run r = {&rules[k], sharding};
        run_ranks(n, follow_the_formula, &r);
      }
    }
  }
}

/* ── What is left out, and what is 0 ── */

/* Some steps of one rank. */
static void step_beside(job* j, const rule_kind* rule, oracle* o) {
  for (int step = 0; step < 3; ++step) {
    take_step(j, step, 0);
    take_oracle_step(o, rule->rule, step, 1);
  }
  compare(j, rule, o);
}

static void presets(void** state) {
  (void)state;
  for (int k = 0; k < RULES; ++k) {
    const mdp_param_group groups[2] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
    SIZED(mdp_optimizer_config, config);
    config.rule = rules[k].rule;
    config.param_groups = groups;
    config.param_group_count = 2;
    job j = job_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &config);
    oracle* o = oracle_of(&rules[k].presets, &rules[k].presets);
    step_beside(&j, &rules[k], o);
    free(o);
    job_close(&j);
  }
}

static void literal_zeros(void** state) {
  (void)state;
  for (int k = 0; k < RULES; ++k) {
    const mdp_param_group groups[2] = {{.struct_size = sizeof groups[0], .lr = 0.5}, {.struct_size = sizeof groups[0]}};
    values zeros = rules[k].presets, first = zeros;
    zeros.lr = zeros.beta1 = zeros.beta2 = zeros.momentum = 0;
    first = zeros;
    first.lr = 0.5;
    SIZED(mdp_optimizer_config, config);
    config.rule = rules[k].rule;
    config.flags = MDP_OPTIMIZER_SET_LR;
    if (rules[k].has & BETAS) config.flags |= MDP_OPTIMIZER_SET_BETA1 | MDP_OPTIMIZER_SET_BETA2;
    if (rules[k].has & MOMENTUM) config.flags |= MDP_OPTIMIZER_SET_MOMENTUM;
    config.param_groups = groups;
    config.param_group_count = 2;
    job j = job_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &config);
    oracle* o = oracle_of(&first, &zeros);
    step_beside(&j, &rules[k], o);
    for (int64_t i = 0; i < lengths[B]; ++i) CHECK(o->masters[B][i] == first_value(i)); /* its lr is 0 */
    free(o);
    job_close(&j);
  }
}

/* ── What there is by name ── */

static void state_by_name(void** state) {
  (void)state;
  for (int k = 0; k < RULES; ++k) {
    const mdp_param_group groups[2] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
    SIZED(mdp_optimizer_config, config);
    config.rule = rules[k].rule;
    config.param_groups = groups;
    config.param_group_count = 2;
    job j = job_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &config);
    char part[80], json[1500], listed[200];
    snprintf(listed, sizeof listed, "\"state\":[{\"name\":\"master\",\"dtype\":\"f32\"}");
    for (int which = 0; which < NAMES; ++which) {
      SIZED(mdp_tensor, view);
      snprintf(part, sizeof part, "name is '%s'; %s keeps 'master'", state_names[which], rules[k].name);
      if (rules[k].states[which]) {
        OK(mdp_optimizer_state(j.optimizer, A, state_names[which], &view));
        CHECK(view.dtype == MDP_DTYPE_F32 && view.ndim == 1 && view.shape[0] == lengths[A]);
        const size_t end = strlen(listed);
        snprintf(listed + end, sizeof listed - end, ",{\"name\":\"%s\",\"dtype\":\"f32\"}", state_names[which]);
      } else {
        FAILS(MDP_E_INVALID, part, mdp_optimizer_state(j.optimizer, A, state_names[which], &view));
      }
    }
    const size_t end = strlen(listed);
    snprintf(listed + end, sizeof listed - end, "]}");
    snprintf(part, sizeof part, "{\"rule\":\"%s\",\"steps\":0,\"lr\":", rules[k].name);
    OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
    CHECK(strstr(json, listed) != NULL && strncmp(json, part, strlen(part)) == 0);
    CHECK((strstr(json, "\"eps\"") != NULL) == ((rules[k].has & EPS) != 0));
    CHECK((strstr(json, "\"beta1\"") != NULL) == ((rules[k].has & BETAS) != 0));
    CHECK((strstr(json, "\"momentum\":") != NULL) == ((rules[k].has & MOMENTUM) != 0));
    job_close(&j);
  }
}

typedef struct {
  const char* name;
  int of; /* the rules that have it */
  size_t in_config, in_group;
  uint64_t config_flag, group_flag; /* 0: none */
} field;
static const field fields[] = {
    {"beta1", BETAS, offsetof(mdp_optimizer_config, beta1), offsetof(mdp_param_group, beta1), MDP_OPTIMIZER_SET_BETA1,
     MDP_PARAM_GROUP_SET_BETA1},
    {"beta2", BETAS, offsetof(mdp_optimizer_config, beta2), offsetof(mdp_param_group, beta2), MDP_OPTIMIZER_SET_BETA2,
     MDP_PARAM_GROUP_SET_BETA2},
    {"eps", EPS, offsetof(mdp_optimizer_config, eps), offsetof(mdp_param_group, eps), 0, 0},
    {"momentum", MOMENTUM, offsetof(mdp_optimizer_config, momentum), offsetof(mdp_param_group, momentum), MDP_OPTIMIZER_SET_MOMENTUM,
     MDP_PARAM_GROUP_SET_MOMENTUM},
};
enum {
  FIELDS = sizeof fields / sizeof fields[0]
};

static void refused(const job* j, const mdp_optimizer_config* config, const char* part) {
  mdp_optimizer* optimizer = NULL;
  FAILS(MDP_E_INVALID, part, mdp_optimizer_create(j->buffer, config, &optimizer));
  CHECK(optimizer == NULL);
}

/* The same value in an optimizer, in one of its groups and in a group that is changed. */
static void refused_everywhere(const job* j, const rule_kind* rule, const field* f, double value, const char* why) {
  char part[200];
  SIZED(mdp_optimizer_config, config);
  config.rule = rule->rule;
  memcpy((char*)&config + f->in_config, &value, sizeof value);
  snprintf(part, sizeof part, "config.%s is %s", f->name, why);
  refused(j, &config, part);
  mdp_param_group groups[2] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
  memcpy((char*)&groups[1] + f->in_group, &value, sizeof value);
  SIZED(mdp_optimizer_config, grouped);
  grouped.rule = rule->rule;
  grouped.param_groups = groups;
  grouped.param_group_count = 2;
  snprintf(part, sizeof part, "config.param_groups[1].%s is %s", f->name, why);
  refused(j, &grouped, part);
  snprintf(part, sizeof part, "value.%s is %s", f->name, why);
  FAILS(MDP_E_INVALID, part, mdp_optimizer_set_param_group(j->optimizer, 0, &groups[1]));
}

static void meant_literally(const job* j, const rule_kind* rule, const field* f) {
  char part[200];
  snprintf(part, sizeof part, "config.flags says that %s is meant literally; %s has none", f->name, rule->name);
  SIZED(mdp_optimizer_config, config);
  config.rule = rule->rule;
  config.flags = f->config_flag;
  refused(j, &config, part);
  const mdp_param_group group = {.struct_size = sizeof group, .flags = f->group_flag};
  FAILS(MDP_E_INVALID, part + strlen("config"), mdp_optimizer_set_param_group(j->optimizer, 0, &group));
}

static void hyperparameters_of_others(void** state) {
  (void)state;
  static const struct {
    double value;
    const char* said;
  } wrong[] = {{1, "1; it must be at least 0 and below 1"}, {-0.5, "-0.5; it must"}, {INFINITY, "inf; it must"}, {NAN, ""}};
  for (int k = 0; k < RULES; ++k) {
    const mdp_param_group groups[2] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
    SIZED(mdp_optimizer_config, config);
    config.rule = rules[k].rule;
    config.param_groups = groups;
    config.param_group_count = 2;
    job j = job_of(NULL, 0, 1, MDP_SHARDING_ZERO_1, &config);
    char before[1500], after[1500], part[100];
    OK(mdp_optimizer_info(j.optimizer, before, sizeof before, NULL));
    for (const field* f = fields; f < fields + FIELDS; ++f) {
      if (rules[k].has & f->of) {
        for (size_t w = 0; w < 4 && f->of != EPS; ++w) refused_everywhere(&j, &rules[k], f, wrong[w].value, wrong[w].said);
        if (f->of == EPS) refused_everywhere(&j, &rules[k], f, 1e-50, "1e-50; it must be between");
        if (f->of == EPS) refused_everywhere(&j, &rules[k], f, -1, "-1; it must be 0 or more");
        continue;
      }
      snprintf(part, sizeof part, "0.5; %s has none, leave it 0", rules[k].name);
      refused_everywhere(&j, &rules[k], f, 0.5, part);
      if (f->config_flag != 0) meant_literally(&j, &rules[k], f);
    }
    OK(mdp_optimizer_info(j.optimizer, after, sizeof after, NULL));
    CHECK(strcmp(before, after) == 0);
    job_close(&j);
  }
}

/* ── Ranks ── */

enum {
  DIFFERENCES = 5
};
static void differ_in_one_value(mdp_optimizer_config* config, mdp_param_group* group, int which) {
  if (which == 0) config->rule = MDP_RULE_SGD_NESTEROV;
  if (which == 1) config->momentum = 0.5;
  if (which == 2) config->flags = MDP_OPTIMIZER_SET_MOMENTUM;
  if (which == 3) group->momentum = 0.5;
  if (which == 4) config->flags = MDP_OPTIMIZER_SOME_GROUPS;
}

static void configure_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  const mdp_param_group same[2] = {{.struct_size = sizeof same[0]}, {.struct_size = sizeof same[0]}};
  SIZED(mdp_optimizer_config, first);
  first.param_groups = same;
  first.param_group_count = 2;
  job j = job_of(id, rank, n, MDP_SHARDING_ZERO_1, &first);
  for (int which = 0; which < DIFFERENCES; ++which) {
    mdp_param_group groups[2] = {{.struct_size = sizeof groups[0]}, {.struct_size = sizeof groups[0]}};
    SIZED(mdp_optimizer_config, config);
    config.rule = MDP_RULE_SGD_MOMENTUM;
    config.param_groups = groups;
    config.param_group_count = 2;
    if (rank == 1) differ_in_one_value(&config, &groups[1], which);
    mdp_optimizer* optimizer = NULL;
    FAILS(MDP_E_DESYNC, "ranks 0 and 1 configure the optimizer differently", mdp_optimizer_create(j.buffer, &config, &optimizer));
    CHECK(optimizer == NULL);
  }
  job_close(&j);
}

static void every_value_is_compared(void** state) {
  (void)state;
  run_ranks(2, configure_differently, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(bit_for_bit),
      TEST(presets),
      TEST(literal_zeros),
      TEST(state_by_name),
      TEST(hyperparameters_of_others),
      TEST(every_value_is_compared),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
