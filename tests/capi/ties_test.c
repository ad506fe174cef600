/* SPDX-License-Identifier: Apache-2.0
 * Parameters tied between pipeline stages: what the stages must register alike, every way in which stages can share, and copies that start
 * and stay equal. Their gradients are checked in placements_test.c. */
#include <string.h>

#include "fixture.h"

enum {
  LENGTH = 70
};
static const int64_t length = LENGTH;

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static mdp_param param_of(const char* name, const char* tie) {
  SIZED(mdp_param, p);
  p.name = name;
  p.ndim = 1;
  p.shape = &length;
  p.placement = MDP_PLACEMENT_REPLICATED;
  p.tie = tie;
  return p;
}

static mdp_grid* grid_of(mdp_comm* comm, int32_t tp, int32_t pp) {
  SIZED(mdp_grid_config, sizes);
  sizes.tp = tp;
  sizes.pp = pp;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &sizes, &grid));
  return grid;
}

/* ── One rank's own mistakes ── */

static void what_one_rank_gets_wrong(void** state) {
  (void)state;
  mdp_comm* comm = NULL;
  OK(mdp_comm_create(NULL, NULL, &comm));
  char too_long[257];
  memset(too_long, 'x', sizeof too_long - 1);
  too_long[sizeof too_long - 1] = '\0';
  const struct {
    const char *first, *second;
    uint64_t flags; /* of the second */
    const char* words;
  } all[] = {
      {"words", "words", 0, "parameter 1 'b' has the same tie as parameter 0 'a'"},
      {"words", "numbers", MDP_PARAM_FROZEN, "'b' is frozen and has a tie"},
      {NULL, too_long, 0, "a tie of 256 bytes; at most 255"},
      {NULL, "w\xff", 0, "the tie of parameter 1 'b' is not valid UTF-8 from byte 1"},
      {"words", "numbers", 0, NULL},
      {"", "", 0, NULL}, /* none */
  };
  for (size_t n = 0; n < sizeof all / sizeof all[0]; ++n) {
    mdp_param params[2] = {param_of("a", all[n].first), param_of("b", all[n].second)};
    params[1].flags = all[n].flags;
    mdp_buffer* buffer = NULL;
    const mdp_status registered = mdp_buffer_register(comm, NULL, NULL, params, 2, &buffer);
    if (all[n].words == NULL) {
      OK(registered);
    } else {
      FAILS(MDP_E_INVALID, all[n].words, registered);
    }
    mdp_buffer_destroy(buffer);
  }
  mdp_comm_destroy(comm);
}

/* ── What stages must agree on ── */

typedef struct {
  int64_t length; /* of the last stage's copy, as are all the others */
  mdp_dtype dtype;
  int32_t group;
  mdp_placement placement;
  mdp_sharding sharding;
  int missing_on; /* a tensor-parallel rank of the last stage that has no copy; -1: none */
  const char* words;
} difference;

static void differ(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const difference* d = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(20000000000));
  mdp_grid* const grid = grid_of(comm, 2, 2);
  mdp_param params[2] = {param_of("own", NULL), param_of("copy", "words")};
  SIZED(mdp_buffer_config, config);
  if (rank / 4 == 1) {
    params[1].shape = &d->length;
    params[1].dtype = d->dtype;
    params[1].param_group = d->group;
    params[1].placement = d->placement;
    config.sharding = d->sharding;
    if (rank % 2 == d->missing_on) params[1].tie = NULL;
  }
  mdp_buffer* buffer = NULL;
  const mdp_status registered = mdp_buffer_register(NULL, grid, &config, params, 2, &buffer);
  if (d->words == NULL) {
    OK(registered);
  } else {
    FAILS(MDP_E_INVALID, d->words, registered);
    CHECK(buffer == NULL);
  }
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void stages_register_copies_alike(void** state) {
  (void)state;
  const difference same = {LENGTH, MDP_DTYPE_F32, 0, MDP_PLACEMENT_REPLICATED, MDP_SHARDING_ZERO_1, -1, NULL};
  difference all[8];
  for (size_t n = 0; n < 8; ++n) all[n] = same;
  all[1].length = 71;
  all[1].words = "parameters tied as 'words': rank 0 holds f32[70]";
  all[2].dtype = MDP_DTYPE_BF16;
  all[2].words = "bf16[70]";
  all[3].group = 1;
  all[3].words = "group 1, 128 elements in 2 shards; give both the same";
  all[4].placement = MDP_PLACEMENT_PARTIAL_SUM;
  all[4].words = "partial (sum)";
  all[5].sharding = MDP_SHARDING_ZERO_0;
  all[5].words = "rank 4 f32[70] with gradients in f32, dense, replicated, group 0, not sharded";
  all[6].missing_on = 1;
  all[6].words = "rank 5 has none, but other ranks of pipeline stage 1 do";
  all[7].sharding = MDP_SHARDING_ZERO_2; /* owns the same ranges */
  for (size_t n = 0; n < 8; ++n) run_ranks(8, differ, &all[n]);
}

/* ── Every way to share among three stages ── */

static const char* const names[] = {"01", "12", "02", "012", "1", "01 again"};
enum {
  TIES = sizeof names / sizeof names[0]
};
static int shares(int tie, int32_t stage) {
  return strchr(names[tie], '0' + stage) != NULL;
}

static float value_of(mdp_buffer* buffer, const char* name) {
  size_t param = 0;
  OK(mdp_buffer_find(buffer, name, &param));
  float values[LENGTH];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &length);
  OK(mdp_param_read(buffer, param, &t, NULL));
  for (int i = 1; i < LENGTH; ++i) CHECK(values[i] == values[0]);
  return values[0];
}

static void fill(mdp_buffer* buffer, size_t param, float value, int is_gradient) {
  float values[LENGTH];
  for (int i = 0; i < LENGTH; ++i) values[i] = value;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &length);
  OK(is_gradient ? mdp_grad_put(buffer, param, &t, 0, NULL) : mdp_param_write(buffer, param, &t, NULL));
}

/* Each stage gives each of its copies its number + 1: the sum over those that share it, at every step. */
static void share(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const mdp_sharding* sharding = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(20000000000));
  mdp_grid* const grid = grid_of(comm, 1, 3);
  const int32_t stage = rank / 2;
  mdp_param params[TIES];
  size_t count = 0;
  for (int t = 0; t < TIES; ++t) {
    const int tie = stage == 1 ? TIES - 1 - t : t;
    if (shares(tie, stage)) params[count++] = param_of(names[tie], names[tie]);
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = *sharding;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, grid, &config, params, count, &buffer));
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, NULL, &optimizer));

  for (size_t p = 0; p < count; ++p) fill(buffer, p, (float)(stage + 1), 0);
  FAILS(MDP_E_DESYNC, "mdp_buffer_verify: the parameters tied as '01' differ between ranks 0 and 2", mdp_buffer_verify(buffer));
  for (int round = 0; round < 20; ++round) { /* in the end all have the first one's, wherever it went first */
    for (size_t p = 0; p < count; ++p) fill(buffer, p, (float)(stage + 1 + rank % 2 * 10), 0);
    OK(mdp_buffer_broadcast(buffer, 0, NULL));
    OK(mdp_buffer_verify(buffer));
    for (size_t p = 0; p < count; ++p) CHECK(value_of(buffer, params[p].name) == (float)(params[p].name[0] - '0' + 1));
  }

  for (int step = 0; step < 3; ++step) {
    for (size_t p = count; p-- > 0;) fill(buffer, p, (float)(stage + 1), 1);
    sync_and_wait(buffer);
    double expected = 0, norm = 0;
    for (int tie = 0; tie < TIES; ++tie) {
      int sum = 0;
      for (int s = 0; s < 3; ++s) sum += shares(tie, s) ? s + 1 : 0;
      expected += (double)(LENGTH * sum * sum);
    }
    OK(mdp_grad_norm(buffer, NULL, 0, &norm));
    CHECK(norm * norm - expected < 1e-9 && expected - norm * norm < 1e-9);
    step_and_wait(optimizer);
    OK(mdp_buffer_verify(buffer));
  }
  for (size_t p = 0; p < count; ++p) CHECK(value_of(buffer, params[p].name) != (float)(params[p].name[0] - '0' + 1));
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void all_ways_to_share(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) run_ranks(6, share, &sharding);
}

/* Of each stage's two ranks one has no gradient before the sync, ranks 1 and 2: a broadcast that goes through the gradients' channel must
 * not wait for their reductions, or rank 0 waits for 1, which waits for 3, which waits for 2, which waits for 0. */
static void broadcast_in_backward(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(20000000000));
  mdp_grid* const grid = grid_of(comm, 1, 2);
  const mdp_param param = param_of("shared", "shared");
  SIZED(mdp_buffer_config, config);
  config.missing = MDP_MISSING_ZERO;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, grid, &config, &param, 1, &buffer));
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, NULL, &optimizer));
  if (rank == 0 || rank == 3) fill(buffer, 0, 1, 1);
  FAILS(MDP_E_STATE, "mdp_buffer_broadcast comes in the middle of backward", mdp_buffer_broadcast(buffer, 0, NULL));
  step_and_wait(optimizer);
  fill(buffer, 0, (float)(rank + 1), 0);
  fill(buffer, 0, 1, 1);
  OK(mdp_buffer_broadcast(buffer, 0, NULL)); /* all have it */
  CHECK(value_of(buffer, "shared") == 1);
  step_and_wait(optimizer);
  OK(mdp_buffer_verify(buffer));
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void broadcasts_do_not_wait_for_gradients(void** state) {
  (void)state;
  run_ranks(4, broadcast_in_backward, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(what_one_rank_gets_wrong),
      TEST(stages_register_copies_alike),
      TEST(all_ways_to_share),
      TEST(broadcasts_do_not_wait_for_gradients),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
