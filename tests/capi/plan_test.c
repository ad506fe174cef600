/* SPDX-License-Identifier: Apache-2.0
 * A plan counts the optimizer that it is given: what each keeps of an element, of a parameter, and what its updates need; and it refuses
 * what mdp_optimizer_create would. */
#include <string.h>

#include "fixture.h"

enum {
  PARAMS_PLANNED = 3,
  RANKS = 2
};
static const int64_t lengths[PARAMS_PLANNED] = {1000, 300, 77};

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static void describe_params(mdp_param* params, mdp_dtype dtype) {
  static const char* const names[PARAMS_PLANNED] = {"a", "b", "c"};
  for (int p = 0; p < PARAMS_PLANNED; ++p)
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = names[p], .shape = &lengths[p], .ndim = 1, .dtype = dtype};
}

static mdp_plan_report plan_of(mdp_sharding sharding, mdp_dtype dtype, int32_t rank, const mdp_optimizer_config* optimizer) {
  mdp_param params[PARAMS_PLANNED];
  describe_params(params, dtype);
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  SIZED(mdp_plan_report, report);
  OK(mdp_plan(NULL, RANKS, rank, &config, params, PARAMS_PLANNED, optimizer, &report));
  char json[10000], bytes[64];
  OK(mdp_plan_json(NULL, RANKS, &config, params, PARAMS_PLANNED, optimizer, json, sizeof json, NULL));
  snprintf(bytes, sizeof bytes, "\"state\":%llu", (unsigned long long)report.state_bytes);
  CHECK(strstr(json, bytes) != NULL);
  return report;
}

/* Of an element: its state in f32 and as bf16. */
static const struct {
  mdp_rule rule;
  uint64_t state, small;
} rules[] = {{MDP_RULE_ADAMW, 8, 4},        {MDP_RULE_ADAM, 8, 4},         {MDP_RULE_SGD, 0, 0},
             {MDP_RULE_SGD_MOMENTUM, 4, 2}, {MDP_RULE_SGD_NESTEROV, 4, 2}, {MDP_RULE_LION, 4, 2}};

static void every_rule(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_WHOLE; ++sharding) {
    for (int32_t rank = 0; rank < RANKS; ++rank) {
      const mdp_plan_report usual = plan_of(sharding, MDP_DTYPE_BF16, rank, NULL);
      const uint64_t elements = usual.state_bytes / 8;
      CHECK(usual.master_bytes == 4 * elements && elements > 0);
      for (size_t i = 0; i < sizeof rules / sizeof rules[0]; ++i) {
        mdp_optimizer_config config = {.struct_size = sizeof config, .rule = rules[i].rule};
        CHECK(plan_of(sharding, MDP_DTYPE_BF16, rank, &config).state_bytes == rules[i].state * elements);
        config.flags = MDP_OPTIMIZER_NO_MASTER;
        CHECK(plan_of(sharding, MDP_DTYPE_BF16, rank, &config).master_bytes == 0);
        if (rules[i].small == 0) continue;
        config.state_dtype = MDP_DTYPE_BF16;
        CHECK(plan_of(sharding, MDP_DTYPE_BF16, rank, &config).state_bytes == rules[i].small * elements);
      }
    }
  }
}

/* Its arrays, the gradients that are handed out of a bucket at a time, and what it keeps of whole parameters. */
static void the_callers(void** state) {
  (void)state;
  const mdp_plan_report usual = plan_of(MDP_SHARDING_ZERO_1, MDP_DTYPE_F32, 0, NULL);
  mdp_optimizer_config config = {.struct_size = sizeof config, .rule = MDP_RULE_CALLER, .state = "first\nsecond\nthird"};
  const mdp_plan_report callers = plan_of(MDP_SHARDING_ZERO_1, MDP_DTYPE_F32, 0, &config);
  CHECK(callers.state_bytes == usual.state_bytes / 8 * 12);
  const uint64_t handed_out = callers.scratch_bytes - usual.scratch_bytes;
  CHECK(handed_out >= 4 * callers.owned_elements && handed_out <= usual.state_bytes / 2);

  const uint64_t bytes[PARAMS_PLANNED] = {100, 0, 65};
  const mdp_param_state kept = {.struct_size = sizeof kept, .name = "kept", .bytes = bytes};
  config.state = NULL;
  config.param_states = &kept;
  config.param_state_count = 1;
  uint64_t all = 0;
  for (int32_t rank = 0; rank < RANKS; ++rank) all += plan_of(MDP_SHARDING_WHOLE, MDP_DTYPE_F32, rank, &config).state_bytes;
  CHECK(all == 128 + 128);
  CHECK(plan_of(MDP_SHARDING_ZERO_0, MDP_DTYPE_F32, 1, &config).state_bytes == 128 + 128);
}

static void refusals(void** state) {
  (void)state;
  mdp_param params[PARAMS_PLANNED];
  describe_params(params, MDP_DTYPE_F16);
  SIZED(mdp_plan_report, report);
#define REFUSED(code, part, ...)                                                                                 \
  do {                                                                                                           \
    const mdp_optimizer_config config = {.struct_size = sizeof config, __VA_ARGS__};                             \
    FAILS(code, part, mdp_plan(NULL, RANKS, 0, NULL, params, PARAMS_PLANNED, &config, &report));                 \
    FAILS(code, part, mdp_plan_json(NULL, RANKS, NULL, params, PARAMS_PLANNED, &config, NULL, 0, &(size_t){0})); \
  } while (0)
  REFUSED(MDP_E_INVALID, "optimizer: config.rule is 99", .rule = 99);
  REFUSED(MDP_E_INVALID, "a plan is of one optimizer that has all groups", .flags = MDP_OPTIMIZER_SOME_GROUPS);
  REFUSED(MDP_E_UNSUPPORTED, "parameter 0 'a' is f16", .flags = MDP_OPTIMIZER_NO_MASTER);
  const uint64_t bytes[PARAMS_PLANNED] = {0, 1, 0};
  const mdp_param_state kept = {.struct_size = sizeof kept, .name = "kept", .bytes = bytes};
  REFUSED(MDP_E_INVALID, "parameter 1 'b' 1 bytes of 'kept', but it is cut over the ranks", .rule = MDP_RULE_CALLER, .param_states = &kept,
          .param_state_count = 1);
  params[2].param_group = 3;
  REFUSED(MDP_E_INVALID, "parameter 2 'c' is in parameter group 3; the optimizer has 1 group, number 0", .rule = MDP_RULE_LION);
#undef REFUSED
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_rule), TEST(the_callers), TEST(refusals)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
