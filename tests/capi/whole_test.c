/* SPDX-License-Identifier: Apache-2.0
 * Whole parameters. Element-wise rules give the bits of ZeRO-1 and 2, on models made up from a seed, side by side with parameters that are
 * cut; an update that needs all of a parameter is given all of it, by one rank, and gives the same on any number of ranks; owners are
 * balanced by cost; checkpoints go from one sharding to the other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
  MOST = 10,
  LONGEST = 3000,
  STEPS = 3
};

/* A number from 0 to below - 1 that follows from the others. */
static unsigned drawn(uint64_t seed, unsigned what, unsigned a, unsigned b, unsigned below) {
  uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + what * UINT64_C(0xff51afd7ed558ccd) + a * UINT64_C(0xc4ceb9fe1a85ec53) +
               b * UINT64_C(0x2545f4914f6cdd1d);
  for (int i = 0; i < 3; ++i) x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  return (unsigned)((x >> 32) % below);
}
enum {
  PARAMS_DRAWN,
  LENGTH,
  DTYPE,
  WHOLE,
  BUCKETS,
  FLAGS,
  GRADS,
  WIRE,
  ORDER,
  GRID,
  VALUE,
  SKIP,
  POOL
};

typedef struct {
  uint64_t seed;
  int params;
  int64_t lengths[MOST];
} model;

static float* values_of(const model* m, unsigned when, unsigned rank, int p) {
  float* const values = malloc(LONGEST * sizeof(float));
  for (int64_t i = 0; i < m->lengths[p]; ++i)
    values[i] = ((float)drawn(m->seed, VALUE + when, rank * MOST + (unsigned)p, (unsigned)i, 2001) - 1000) / 777;
  return values;
}

/* Whether the gradients of both buffers pass through a pool, in so many microbatches. */
static int is_pooled(const model* m) {
  return drawn(m->seed, POOL, 0, 0, 3) == 0;
}
static unsigned microbatches(const model* m) {
  return is_pooled(m) ? 1 + drawn(m->seed, POOL, 1, 0, 2) : 1;
}

/* whole: 0: all parameters are cut; 1: all are whole, as the buffer says (with a pool they say it themselves); 2: some. */
static mdp_buffer* open_buffer(mdp_grid* grid, model* m, int whole) {
  static const char* const names[MOST] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
  const mdp_dtype dtypes[] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F16};
  const uint64_t seed = m->seed;
  m->params = 1 + (int)drawn(seed, PARAMS_DRAWN, 0, 0, MOST);
  const unsigned types = 1 + drawn(seed, DTYPE, MOST, 0, 3);
  mdp_param params[MOST];
  memset(params, 0, sizeof params);
  for (unsigned p = 0; p < (unsigned)m->params; ++p) {
    m->lengths[p] =
        drawn(seed, LENGTH, p, 0, 8) == 0 ? 0 : 1 + (int64_t)drawn(seed, LENGTH, p, 1, drawn(seed, LENGTH, p, 2, 3) == 0 ? LONGEST : 200);
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = names[p], .shape = &m->lengths[p], .ndim = 1};
    params[p].dtype = dtypes[drawn(seed, DTYPE, p, 0, types)];
    params[p].use_order = drawn(seed, ORDER, MOST, 0, 2) == 0 ? 0 : (int32_t)drawn(seed, ORDER, p, 0, 5) - 2;
    params[p].flags = drawn(seed, FLAGS, p, 0, 7) == 0 ? MDP_PARAM_OWN_BUCKET : 0;
    params[p].cost = drawn(seed, WHOLE, p, 2, 3) == 0 ? drawn(seed, WHOLE, p, 3, 5000) : 0;
    const mdp_sharding cut = is_pooled(m) ? MDP_SHARDING_ZERO_2 : MDP_SHARDING_ZERO_1;
    if (whole == 2) params[p].sharding = drawn(seed, WHOLE, p, 1, 2) == 0 ? MDP_SHARDING_WHOLE : drawn(seed, WHOLE, p, 4, 2) * cut;
    if (whole == 1 && is_pooled(m)) params[p].sharding = MDP_SHARDING_WHOLE;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = is_pooled(m) ? MDP_SHARDING_ZERO_2 : whole == 1 ? MDP_SHARDING_WHOLE : MDP_SHARDING_DEFAULT;
  config.pool_buckets = is_pooled(m) ? drawn(seed, POOL, 2, 0, 4) : 0;
  config.grad_dtype = drawn(seed, GRADS, 0, 0, 2) == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_SAME;
  config.bucket_elements = drawn(seed, BUCKETS, 0, 0, 3) == 0 ? 0 : 1 + drawn(seed, BUCKETS, 1, 0, 6000);
  config.flags = drawn(seed, FLAGS, MOST, 0, 4) == 0 ? MDP_BUFFER_NO_OVERLAP : 0;
  if (drawn(seed, FLAGS, MOST, 1, 8) == 0) config.flags |= MDP_BUFFER_HIGH_BANDWIDTH_PADDING;
  config.wire_dtype = drawn(seed, WIRE, 0, 0, 3) == 0 ? MDP_DTYPE_BF16 : MDP_DTYPE_DEFAULT;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, grid, &config, params, (size_t)m->params, &buffer));
  for (int p = 0; p < m->params; ++p) {
    float* const start = values_of(m, 100, 0, p);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, start, &m->lengths[p]);
    OK(mdp_param_write(buffer, (size_t)p, &t, NULL));
    free(start);
  }
  return buffer;
}

static void backward(const model* m, mdp_buffer* buffer, unsigned rank, unsigned step) {
  for (unsigned i = 0; i < (unsigned)m->params; ++i) {
    const int p = (int)((2U * (unsigned)m->params - 1 - i + drawn(m->seed, ORDER, step, rank, 3)) % (unsigned)m->params);
    float* const grads = values_of(m, step, rank, p);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &m->lengths[p]);
    if (drawn(m->seed, SKIP, step, (unsigned)p, 6) == 0) {
      OK(mdp_grad_skip(buffer, (size_t)p));
    } else {
      OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
    }
    free(grads);
  }
}

static void same_params(const model* m, mdp_buffer* a, mdp_buffer* b, unsigned step) {
  for (int p = 0; p < m->params; ++p) {
    float* const read[2] = {malloc(LONGEST * sizeof(float)), malloc(LONGEST * sizeof(float))};
    for (int k = 0; k < 2; ++k) {
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, read[k], &m->lengths[p]);
      OK(mdp_param_read(k == 0 ? a : b, (size_t)p, &t, NULL));
    }
    if (!CHECK(memcmp(read[0], read[1], (size_t)m->lengths[p] * sizeof(float)) == 0))
      printf("seed %u step %u parameter %d\n", (unsigned)m->seed, step, p);
    free(read[0]);
    free(read[1]);
  }
}

/* Of a parameter that is whole this rank has all or nothing. */
static void owns_whole_ones(const model* m, mdp_buffer* buffer, int whole) {
  mdp_range ranges[8 * MOST];
  const size_t count = owned_ranges(buffer, ranges, 8 * MOST);
  for (size_t r = 0; r < count; ++r) {
    const int64_t p = ranges[r].param;
    if (whole == 2 && drawn(m->seed, WHOLE, (unsigned)p, 1, 2) != 0) continue;
    CHECK(ranges[r].param_begin == 0 && ranges[r].end - ranges[r].begin == m->lengths[p] && ranges[r].begin % 64 == 0);
    SIZED(mdp_tensor, owned);
    OK(mdp_grad_owned(buffer, (size_t)p, &owned));
    CHECK(owned.shape[0] == m->lengths[p]);
  }
}

static void step_beside(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = {.seed = *(const uint64_t*)argument};
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  SIZED(mdp_grid_config, cut);
  cut.instances = n == 4 && drawn(m.seed, GRID, 0, 0, 2) == 0 ? 2 : 1;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &cut, &grid));
  const int whole = 1 + (int)drawn(m.seed, WHOLE, MOST, 0, 2);
  mdp_buffer* const buffers[2] = {open_buffer(grid, &m, 0), open_buffer(grid, &m, whole)};
  mdp_optimizer* optimizers[2] = {NULL, NULL};
  for (int k = 0; k < 2; ++k) OK(mdp_optimizer_create(buffers[k], NULL, &optimizers[k]));
  for (unsigned step = 0; step < STEPS; ++step) {
    for (int k = 0; k < 2; ++k) {
      for (unsigned b = 0; b < microbatches(&m); ++b) {
        OK(mdp_microbatch_begin(buffers[k], b + 1 == microbatches(&m)));
        backward(&m, buffers[k], (unsigned)rank, step + b * STEPS);
      }
      if (k == 1) sync_and_wait(buffers[k]), owns_whole_ones(&m, buffers[k], whole);
      step_and_wait(optimizers[k]);
    }
    same_params(&m, buffers[0], buffers[1], step);
  }
  OK(mdp_buffer_verify(buffers[1]));
  for (int k = 0; k < 2; ++k) {
    mdp_optimizer_destroy(optimizers[k]);
    mdp_buffer_destroy(buffers[k]);
  }
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void element_wise_rules_have_the_bits_of_cut_parameters(void** state) {
  (void)state;
  const uint64_t seeds = UNDER_SANITIZER ? 16 : on_cuda ? 40 : 80;
  for (uint64_t seed = 0; seed < seeds; ++seed) run_ranks(1 + (int32_t)(seed % 4), step_beside, &seed);
}

/* ── Owners ── */

enum {
  WEIGHTS = 5
};
static const int64_t ten[1] = {10};
static const char* const weight_names[WEIGHTS] = {"p0", "p1", "p2", "p3", "p4"};

static mdp_buffer* five(mdp_comm* comm, const double* costs, mdp_status wanted, const char* part) {
  mdp_param params[WEIGHTS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < WEIGHTS; ++p)
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = weight_names[p], .shape = ten, .ndim = 1, .cost = costs[p]};
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_WHOLE;
  mdp_buffer* buffer = NULL;
  if (wanted == MDP_OK) {
    OK(mdp_buffer_register(comm, NULL, &config, params, WEIGHTS, &buffer));
  } else {
    FAILS(wanted, part, mdp_buffer_register(comm, NULL, &config, params, WEIGHTS, &buffer));
  }
  return buffer;
}

/* The costliest first, each to the rank that has least: 8 + 5 + 4 and 7 + 6. */
static void balances(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  const double costs[WEIGHTS] = {6, 8, 5, 7, 4};
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  mdp_buffer* const buffer = five(comm, costs, MDP_OK, NULL);
  mdp_range ranges[WEIGHTS];
  const size_t count = owned_ranges(buffer, ranges, WEIGHTS);
  unsigned mine = 0;
  for (size_t r = 0; r < count; ++r) mine |= 1U << ranges[r].param;
  CHECK(mine == (rank == 0 ? 1U << 1 | 1U << 2 | 1U << 4 : 1U << 0 | 1U << 3));
  double other[WEIGHTS] = {6, 8, 5, 7, 4};
  other[3] += rank == 1 ? 0.25 : 0;
  five(comm, other, MDP_E_DESYNC, "cost 7.25");
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void owners_are_balanced_by_cost(void** state) {
  (void)state;
  run_ranks(2, balances, NULL);
}

/* What mdp_plan tells is what there is. */
static void the_plan_counts_each_rank(void** state) {
  (void)state;
  const int64_t lengths[WEIGHTS] = {1000, 10, 200, 64, 65};
  mdp_param params[WEIGHTS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < WEIGHTS; ++p)
    params[p] =
        (mdp_param){.struct_size = sizeof params[p], .name = weight_names[p], .shape = &lengths[p], .ndim = 1, .dtype = MDP_DTYPE_BF16};
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_WHOLE;
  uint64_t owned = 0, state_bytes = 0, master_bytes = 0;
  for (int32_t rank = 0; rank < 3; ++rank) {
    SIZED(mdp_plan_report, report);
    OK(mdp_plan(NULL, 3, rank, &config, params, WEIGHTS, NULL, &report));
    owned += report.owned_elements;
    state_bytes += report.state_bytes;
    master_bytes += report.master_bytes;
    CHECK(report.state_bytes == 2 * report.master_bytes && report.master_bytes >= 4 * report.owned_elements);
    if (rank == 0) CHECK(report.owned_elements == 1000); /* the others share what is left */
  }
  CHECK(owned == 1339);
  /* Each begins on 64 elements, and the bucket ends on 128. */
  CHECK(master_bytes % (128 * 4) == 0 && master_bytes >= 4 * 1339 && master_bytes <= 4 * (1339 + 6 * 64));
}

/* ── An update of whole parameters ── */

static const int64_t matrices[WEIGHTS] = {12, 600, 1, 77, 3000};
static float results[WEIGHTS][LONGEST];

/* Along the gradient, by its length: what no piece of it knows. */
static int32_t normalized(void* user, const mdp_update* u) {
  await_default_stream();
  ++*(int*)user;
  CHECK(u->param_begin == 0 && u->count == (uint64_t)matrices[u->param]);
  double square = 0;
  for (uint64_t i = 0; i < u->count; ++i) square += (double)u->grad[i] * (double)u->grad[i];
  for (uint64_t i = 0; i < u->count; ++i) {
    u->state[0][i] = 0.5F * u->state[0][i] + u->grad[i];
    u->master[i] -= (float)(u->lr / (sqrt(square) + 1e-9)) * u->state[0][i];
  }
  return 0;
}

static void descend(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int first = *(const int*)argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  mdp_param params[WEIGHTS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < WEIGHTS; ++p) {
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = weight_names[p], .shape = &matrices[p], .ndim = 1};
    params[p].dtype = p % 2 == 1 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_WHOLE;
  config.bucket_elements = 700;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, WEIGHTS, &buffer));
  SIZED(mdp_optimizer_config, rule);
  rule.rule = MDP_RULE_CALLER;
  rule.state = "momentum";
  rule.lr = 0.25;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &rule, &optimizer));
  int calls = 0;
  OK(mdp_optimizer_set_update(optimizer, normalized, &calls));
  for (int step = 0; step < 4; ++step) {
    for (int p = WEIGHTS; p-- > 0;) {
      float* const grads = malloc(LONGEST * sizeof(float));
      for (int64_t i = 0; i < matrices[p]; ++i) grads[i] = (float)((i * 7 + p + step * 3) % 23 - 11); /* exact sums */
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &matrices[p]);
      OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
      free(grads);
    }
    step_and_wait(optimizer);
  }
  mdp_range ranges[WEIGHTS];
  CHECK((size_t)calls == 4 * owned_ranges(buffer, ranges, WEIGHTS));
  for (int p = 0; p < WEIGHTS; ++p) {
    float* const read = malloc(LONGEST * sizeof(float));
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, read, &matrices[p]);
    OK(mdp_param_read(buffer, (size_t)p, &t, NULL));
    if (first && rank == 0) memcpy(results[p], read, (size_t)matrices[p] * sizeof(float));
    if (!first) CHECK(memcmp(results[p], read, (size_t)matrices[p] * sizeof(float)) == 0);
    free(read);
  }
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void updates_get_whole_parameters(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 4; ++n) {
    int first = n == 1;
    run_ranks(n, descend, &first);
  }
}

/* ── Checkpoints ── */

typedef struct {
  mdp_sharding sharding, param; /* the buffer's; of every other parameter */
  int from, to;                 /* steps */
  int last;                     /* compares with what was kept */
} leg;
static float kept[WEIGHTS][LONGEST];

static void go_on(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const leg* l = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  mdp_param params[WEIGHTS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < WEIGHTS; ++p) {
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = weight_names[p], .shape = &matrices[p], .ndim = 1};
    params[p].dtype = p % 3 == 1 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].sharding = p % 2 == 0 ? l->param : MDP_SHARDING_DEFAULT;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = l->sharding;
  config.bucket_elements = 500 * (uint64_t)n;
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, WEIGHTS, &buffer));
  OK(mdp_optimizer_create(buffer, NULL, &optimizer));
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = buffer, .optimizer = optimizer};
  mdp_checkpoint_config where = {.struct_size = sizeof where, .directory = folder, .parts = &part, .part_count = 1};
  if (l->from > 0) OK(mdp_checkpoint_load(&where));
  for (int step = l->from; step < l->to; ++step) {
    for (int p = WEIGHTS; p-- > 0;) {
      float* const grads = malloc(LONGEST * sizeof(float));
      for (int64_t i = 0; i < matrices[p]; ++i) grads[i] = (float)((i * 7 + p + step * 3) % 23 - 11);
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &matrices[p]);
      OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
      free(grads);
    }
    step_and_wait(optimizer);
  }
  OK(mdp_buffer_verify(buffer));
  for (int p = 0; p < WEIGHTS; ++p) {
    float* const read = malloc(LONGEST * sizeof(float));
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, read, &matrices[p]);
    OK(mdp_param_read(buffer, (size_t)p, &t, NULL));
    if (l->last < 0 && rank == 0) memcpy(kept[p], read, (size_t)matrices[p] * sizeof(float));
    if (l->last > 0) CHECK(memcmp(kept[p], read, (size_t)matrices[p] * sizeof(float)) == 0);
    free(read);
  }
  if (l->last == 0) OK(mdp_checkpoint_save(&where, NULL));
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void checkpoints_load_at_any_sharding(void** state) {
  (void)state;
  leg legs[] = {{MDP_SHARDING_ZERO_1, 0, 0, 8, -1},
                {MDP_SHARDING_WHOLE, 0, 0, 2, 0},
                {MDP_SHARDING_ZERO_1, MDP_SHARDING_WHOLE, 2, 3, 0},
                {MDP_SHARDING_ZERO_0, 0, 3, 4, 0},
                {MDP_SHARDING_ZERO_2, MDP_SHARDING_WHOLE, 4, 5, 0},
                {MDP_SHARDING_WHOLE, MDP_SHARDING_ZERO_1, 5, 6, 0},
                {MDP_SHARDING_WHOLE, 0, 6, 8, 1}};
  const int32_t ranks[] = {1, 2, 3, 2, 3, 4, 1};
  for (size_t k = 0; k < sizeof legs / sizeof legs[0]; ++k) run_ranks(ranks[k], go_on, &legs[k]);
}

/* ── What an owner keeps ── */

enum {
  STATES = 2
};
/* Of each parameter: as many counts as it has the letter's number of bytes for. */
static const uint64_t bytes_of[STATES][WEIGHTS] = {{8, 4800, 0, 24, 16}, {0, 3, 5, 0, 70001}};
static const mdp_param_state kept_states[STATES] = {{.struct_size = sizeof(mdp_param_state), .name = "rows", .bytes = bytes_of[0]},
                                                    {.struct_size = sizeof(mdp_param_state), .name = "cols", .bytes = bytes_of[1]}};

/* Every byte of them counts steps, each in its own way. */
static int32_t counts_steps(void* user, const mdp_update* u) {
  (void)user;
  await_default_stream();
  CHECK(u->param_state_count == STATES && u->param_begin == 0 && u->count == (uint64_t)matrices[u->param]);
  for (unsigned k = 0; k < STATES; ++k) {
    CHECK(u->param_state_bytes[k] == bytes_of[k][u->param] && (u->param_states[k] != NULL) == (bytes_of[k][u->param] > 0));
    uint8_t* const bytes = u->param_states[k];
    for (uint64_t i = 0; i < u->param_state_bytes[k]; ++i) {
      CHECK(bytes[i] == (uint8_t)((u->step - 1) * (1 + i % 7 + k)));
      bytes[i] = (uint8_t)(u->step * (1 + i % 7 + k));
    }
  }
  for (uint64_t i = 0; i < u->count; ++i) u->master[i] -= u->grad[i] / 64;
  return 0;
}

static void keep_on(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const leg* l = argument;
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  mdp_param params[WEIGHTS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < WEIGHTS; ++p)
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = weight_names[p], .shape = &matrices[p], .ndim = 1};
  SIZED(mdp_buffer_config, config);
  config.sharding = l->sharding;
  SIZED(mdp_optimizer_config, rule);
  rule.rule = MDP_RULE_CALLER;
  rule.param_states = kept_states;
  rule.param_state_count = STATES;
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, WEIGHTS, &buffer));
  OK(mdp_optimizer_create(buffer, &rule, &optimizer));
  OK(mdp_optimizer_set_update(optimizer, counts_steps, NULL));
  char where_to[512];
  snprintf(where_to, sizeof where_to, "%s/kept", folder);
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = buffer, .optimizer = optimizer};
  mdp_checkpoint_config where = {.struct_size = sizeof where, .directory = where_to, .parts = &part, .part_count = 1};
  if (l->from > 0) OK(mdp_checkpoint_load(&where));
  for (int step = l->from; step < l->to; ++step) {
    for (int p = WEIGHTS; p-- > 0;) {
      float* const grads = calloc(LONGEST, sizeof(float));
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &matrices[p]);
      OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
      free(grads);
    }
    step_and_wait(optimizer);
  }
  for (size_t p = 0; p < WEIGHTS; ++p) {
    SIZED(mdp_tensor, view);
    OK(mdp_optimizer_state(optimizer, p, "cols", &view));
    CHECK(view.dtype == MDP_DTYPE_U8 && view.ndim == 1 && (view.shape[0] == 0 || (uint64_t)view.shape[0] == bytes_of[1][p]));
    const uint8_t* const bytes = view.data;
    for (int64_t i = 0; i < view.shape[0]; ++i) CHECK(bytes[i] == (uint8_t)(l->to * (2 + i % 7)));
  }
  if (l->last > 0) { /* without state nothing is kept */
    where.flags = MDP_CHECKPOINT_PARAMS_ONLY;
    OK(mdp_checkpoint_load(&where));
    SIZED(mdp_tensor, view);
    OK(mdp_optimizer_state(optimizer, 4, "cols", &view));
    for (int64_t i = 0; i < view.shape[0]; ++i) CHECK(((const uint8_t*)view.data)[i] == 0);
  } else {
    OK(mdp_checkpoint_save(&where, NULL));
  }
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void owners_keep_bytes(void** state) {
  (void)state;
  leg legs[] = {{MDP_SHARDING_WHOLE, 0, 0, 3, 0},
                {MDP_SHARDING_WHOLE, 0, 3, 4, 0},
                {MDP_SHARDING_ZERO_0, 0, 4, 6, 0},
                {MDP_SHARDING_WHOLE, 0, 6, 7, 1}};
  const int32_t ranks[] = {2, 3, 2, 1};
  for (size_t k = 0; k < sizeof legs / sizeof legs[0]; ++k) run_ranks(ranks[k], keep_on, &legs[k]);
}

/* A checkpoint of other bytes, and configurations that cannot be. */
static mdp_status create(mdp_buffer* buffer, mdp_rule rule, const mdp_param_state* states, uint64_t count) {
  SIZED(mdp_optimizer_config, config);
  config.rule = rule;
  config.state = rule == MDP_RULE_CALLER ? "momentum" : NULL;
  config.param_states = states;
  config.param_state_count = count;
  mdp_optimizer* optimizer = NULL;
  const mdp_status status = mdp_optimizer_create(buffer, &config, &optimizer);
  if (status == MDP_OK) mdp_optimizer_destroy(optimizer);
  return status;
}

static void bad_states(void** state) {
  (void)state;
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(60000000000));
  mdp_param params[3];
  memset(params, 0, sizeof params);
  for (int p = 0; p < 3; ++p) params[p] = (mdp_param){.struct_size = sizeof params[p], .name = weight_names[p], .shape = ten, .ndim = 1};
  params[1].sharding = MDP_SHARDING_WHOLE;
  params[2].flags = MDP_PARAM_FROZEN;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, NULL, params, 3, &buffer));
  uint64_t bytes[3] = {0, 8, 0};
  mdp_param_state good[2] = {{.struct_size = sizeof good[0], .name = "a", .bytes = bytes},
                             {.struct_size = sizeof good[0], .name = "b", .bytes = bytes}};
  OK(create(buffer, MDP_RULE_CALLER, good, 2));
  FAILS(MDP_E_INVALID, "config.param_states is of the caller's rule", create(buffer, MDP_RULE_ADAMW, good, 2));
  FAILS(MDP_E_INVALID, "config.param_state_count is 0", create(buffer, MDP_RULE_CALLER, good, 0));
  FAILS(MDP_E_INVALID, "config.param_state_count is 5", create(buffer, MDP_RULE_CALLER, good, 5));
  FAILS(MDP_E_INVALID, "config.param_states is NULL", create(buffer, MDP_RULE_CALLER, NULL, 1));
  mdp_param_state bad[2] = {good[0], good[0]};
  FAILS(MDP_E_INVALID, "config.param_states[1].name has the name 'a' twice", create(buffer, MDP_RULE_CALLER, bad, 2));
  bad[1].name = "momentum";
  FAILS(MDP_E_INVALID, "has the name 'momentum' twice", create(buffer, MDP_RULE_CALLER, bad, 2));
  bad[1].name = "master";
  FAILS(MDP_E_INVALID, "has the name 'master', which is the library's", create(buffer, MDP_RULE_CALLER, bad, 2));
  bad[1].name = "a b";
  FAILS(MDP_E_INVALID, "has the name 'a b'; names are of", create(buffer, MDP_RULE_CALLER, bad, 2));
  bad[1].name = NULL;
  FAILS(MDP_E_INVALID, "config.param_states[1].name is NULL", create(buffer, MDP_RULE_CALLER, bad, 2));
  bad[1] = good[1];
  bad[1].bytes = NULL;
  FAILS(MDP_E_INVALID, "config.param_states[1].bytes is NULL", create(buffer, MDP_RULE_CALLER, bad, 2));
  bad[1] = good[1];
  bad[1].reserved = 1;
  FAILS(MDP_E_INVALID, "config.param_states[1].reserved is 1", create(buffer, MDP_RULE_CALLER, bad, 2));
  bytes[0] = 1;
  FAILS(MDP_E_INVALID, "gives parameter 0 'p0' 1 bytes of 'a', but it is cut over the ranks", create(buffer, MDP_RULE_CALLER, good, 2));
  bytes[0] = 0;
  bytes[2] = 4;
  FAILS(MDP_E_INVALID, "gives parameter 2 'p2' 4 bytes of 'a', but it is frozen", create(buffer, MDP_RULE_CALLER, good, 2));
  bytes[2] = 0;
  bytes[1] = UINT64_MAX;
  FAILS(MDP_E_INVALID, "config.param_states[0].bytes[1] is 18446744073709551615", create(buffer, MDP_RULE_CALLER, good, 2));
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void others_keep_others(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  const double costs[WEIGHTS] = {0};
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  mdp_buffer* const buffer = five(comm, costs, MDP_OK, NULL);
  const uint64_t bytes[WEIGHTS] = {8, rank == 1 ? 16 : 8};
  const mdp_param_state one = {.struct_size = sizeof one, .name = "a", .bytes = bytes};
  FAILS(MDP_E_DESYNC, "ranks 0 and 1 give parameters different param_states: 'bytes of 'a' 0:8 1:8",
        create(buffer, MDP_RULE_CALLER, &one, 1));
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void ranks_keep_the_same(void** state) {
  (void)state;
  run_ranks(2, others_keep_others, NULL);
}

/* ── What is refused ── */

static void refused(mdp_comm* comm, mdp_sharding sharding, mdp_param param, mdp_status wanted, const char* part) {
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  mdp_buffer* buffer = NULL;
  FAILS(wanted, part, mdp_buffer_register(comm, NULL, &config, &param, 1, &buffer));
  CHECK(buffer == NULL);
}

static void bad_input(void** state) {
  (void)state;
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(60000000000));
  const mdp_param good = {.struct_size = sizeof good, .name = "w", .shape = ten, .ndim = 1};
  mdp_param bad = good;
  bad.sharding = 5;
  refused(comm, MDP_SHARDING_DEFAULT, bad, MDP_E_INVALID, "params[0].sharding is 5; it must be");
  bad.sharding = MDP_SHARDING_ZERO_0;
  refused(comm, MDP_SHARDING_DEFAULT, bad, MDP_E_INVALID, "parameter 0 'w' has sharding zero_0 in a buffer of zero_1");
  refused(comm, MDP_SHARDING_ZERO_2, bad, MDP_E_INVALID,
          "has sharding zero_0 in a buffer of zero_2; it may be whole in one of zero_1 or zero_2");
  bad.sharding = MDP_SHARDING_ZERO_2;
  refused(comm, MDP_SHARDING_WHOLE, bad, MDP_E_INVALID, "has sharding zero_2 in a buffer of whole");
  bad.sharding = MDP_SHARDING_WHOLE;
  refused(comm, MDP_SHARDING_ZERO_0, bad, MDP_E_INVALID, "has sharding whole in a buffer of zero_0");
  refused(comm, 5, good, MDP_E_INVALID, "config.sharding is 5");
  const double costs[] = {-1, NAN, INFINITY, 1e31};
  for (size_t k = 0; k < sizeof costs / sizeof costs[0]; ++k) {
    bad = good;
    bad.cost = costs[k];
    refused(comm, MDP_SHARDING_WHOLE, bad, MDP_E_INVALID, "parameter 0 'w' has cost ");
  }
  bad = good;
  bad.reserved = 1;
  refused(comm, MDP_SHARDING_WHOLE, bad, MDP_E_INVALID, "params[0].reserved is 1");
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_WHOLE;
  config.pool_buckets = 2;
  mdp_buffer* buffer = NULL;
  FAILS(MDP_E_INVALID, "only MDP_SHARDING_ZERO_2 has a pool", mdp_buffer_register(comm, NULL, &config, &good, 1, &buffer));
  mdp_comm_destroy(comm);
}

static void say_nothing(void* user, mdp_log_level level, const char* text, size_t length) {
  (void)user, (void)level, (void)text, (void)length;
}

/* Gradients come in any order, of which the library warns. */
static int setup(void** state) {
  mdp_log_set(say_nothing, NULL);
  return open_folder(state);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(element_wise_rules_have_the_bits_of_cut_parameters),
                                     TEST(owners_are_balanced_by_cost),
                                     TEST(the_plan_counts_each_rank),
                                     TEST(updates_get_whole_parameters),
                                     TEST(checkpoints_load_at_any_sharding),
                                     TEST(owners_keep_bytes),
                                     TEST(bad_states),
                                     TEST(ranks_keep_the_same),
                                     TEST(bad_input)};
  return cmocka_run_group_tests(tests, setup, close_folder);
}
