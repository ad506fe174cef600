/* SPDX-License-Identifier: Apache-2.0
 * Threads of a rank: whatever their number, and whether ranks agree on it, training ends with the same bits. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static int32_t processors(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

static void out_of_range(void** state) {
  (void)state;
  SIZED(mdp_comm_config, config);
  mdp_comm* comm = NULL;
  config.host_threads = processors() + 1;
  char most[32];
  snprintf(most, sizeof most, "to %d", processors());
  FAILS(MDP_E_INVALID, most, mdp_comm_create(&config, NULL, &comm));
  FAILS(MDP_E_INVALID, "config.host_threads", mdp_comm_create(&config, NULL, &comm));
  config.host_threads = processors();
  OK(mdp_comm_create(&config, NULL, &comm));
  mdp_comm_destroy(comm);
}

/* Pieces of work are half a MiB: these are several on each of two ranks. */
enum {
  WIDE = 0,
  NARROW = 1,
  COUNT = 2,
  STEPS = 3,
  RANKS = 2
};
static const int64_t lengths[COUNT] = {(1 << 20) + 4099, (1 << 19) + 7};

typedef struct {
  int32_t threads[RANKS];
  uint64_t flags;
  float* ends[RANKS]; /* all parameters, one behind the other */
} run;

static mdp_buffer* buffer_of(mdp_comm* comm) {
  mdp_param params[COUNT] = {vector_param("wide", MDP_DTYPE_F32, &lengths[WIDE]), vector_param("narrow", MDP_DTYPE_BF16, &lengths[NARROW])};
  SIZED(mdp_buffer_config, config);
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, COUNT, &buffer));
  return buffer;
}

static void fill(float* values, int64_t n, uint32_t seed) {
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525U + 1013904223U;
    values[i] = (float)(int32_t)seed / (1 << 26);
  }
}

static void train(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  run* const r = argument;
  SIZED(mdp_comm_config, config);
  config.rank = rank;
  config.size = n;
  config.host_threads = r->threads[rank];
  config.flags = r->flags;
  mdp_comm* comm = NULL;
  if (!OK(mdp_comm_create(&config, id, &comm))) return;
  mdp_buffer* const buffer = buffer_of(comm);
  SIZED(mdp_optimizer_config, rule);
  rule.lr = 0.01;
  rule.max_grad_norm = 0.5;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &rule, &optimizer));
  float* const all = malloc((size_t)(lengths[WIDE] + lengths[NARROW]) * sizeof(float));
  for (uint32_t step = 0; step <= STEPS; ++step) {
    for (size_t p = COUNT; p-- > 0;) {
      fill(all, lengths[p], 10 * step + (step == 0 ? 0 : (uint32_t)rank) + (p == WIDE));
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, all, &lengths[p]);
      if (step == 0) {
        OK(mdp_param_write(buffer, p, &t, NULL));
      } else {
        OK(mdp_grad_put(buffer, p, &t, 0, NULL));
      }
    }
    if (step == 0) continue;
    sync_and_wait(buffer);
    step_and_wait(optimizer);
  }
  float* to = all;
  for (size_t p = 0; p < COUNT; to += lengths[p], ++p) {
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, to, &lengths[p]);
    OK(mdp_param_read(buffer, p, &t, NULL));
  }
  r->ends[rank] = all;
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void same_bits(void** state) {
  (void)state;
  if (processors() < 2) SKIP("there is one processor, and so one thread");
  run runs[] = {{{1, 1}, 0, {NULL}},
                {{2, 2}, 0, {NULL}},
                {{2, 2}, MDP_COMM_THREADS_ALWAYS, {NULL}},
                {{1, 2}, MDP_COMM_THREADS_ALWAYS, {NULL}},
                {{0, processors() < 3 ? 2 : 3}, MDP_COMM_THREADS_ALWAYS, {NULL}}};
  const size_t count = sizeof runs / sizeof runs[0], bytes = (size_t)(lengths[WIDE] + lengths[NARROW]) * sizeof(float);
  for (size_t i = 0; i < count; ++i) {
    run_ranks(RANKS, train, &runs[i]);
    for (int32_t rank = 0; rank < RANKS; ++rank) {
      if (!CHECK(runs[i].ends[rank] != NULL)) continue;
      CHECK(memcmp(runs[i].ends[rank], runs[0].ends[0], bytes) == 0);
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (int32_t rank = 0; rank < RANKS; ++rank) free(runs[i].ends[rank]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(out_of_range), TEST(same_bits)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
