/* SPDX-License-Identifier: Apache-2.0
 * State in bf16, and bf16 parameters without masters: bit for bit what an emulation of the formula and of the random bits comes to; the
 * same bits on any number of ranks, with any sharding, buckets and tensor-parallel size; checkpoints, also between optimizers that store
 * otherwise. Gradients are small integers, so that sums are exact. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  be_alone();
  return open_folder(state);
}

enum {
  A,
  B,
  C,
  D,
  COUNT,
  LONGEST = 1301,
  STATES = 2
};
static const int64_t lengths[COUNT] = {LONGEST, 70, 37, 3};
static const char* const names[COUNT] = {"a", "layer.b", "c", "d"};
static const mdp_dtype dtypes[COUNT] = {MDP_DTYPE_BF16, MDP_DTYPE_BF16, MDP_DTYPE_F32, MDP_DTYPE_BF16};
static const char* const state_names[STATES] = {"exp_avg", "exp_avg_sq"};

typedef struct { /* how an optimizer stores */
  mdp_dtype state_dtype;
  uint64_t flags, seed;
} storage;
enum {
  MASTERS,
  NEAREST,
  STOCHASTIC,
  SMALLEST,
  STORAGES
};
static const storage storages[STORAGES] = {{MDP_DTYPE_DEFAULT, 0, 0},
                                           {MDP_DTYPE_BF16, 0, 0},
                                           {MDP_DTYPE_BF16, MDP_OPTIMIZER_STOCHASTIC_STATE, 11},
                                           {MDP_DTYPE_BF16, MDP_OPTIMIZER_STOCHASTIC_STATE | MDP_OPTIMIZER_NO_MASTER, UINT64_MAX}};
static const storage no_master = {MDP_DTYPE_F32, MDP_OPTIMIZER_NO_MASTER, 5};

/* ── The random bits, and the formula in plain floats ── */

static uint64_t mix(uint64_t h) {
  h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
  h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
  return h ^ h >> 33;
}
static uint64_t hash_of(const void* data, size_t bytes, uint64_t seed) {
  const char* at = data;
  uint64_t hash = mix(seed ^ (UINT64_C(0x9e3779b97f4a7c15) + bytes)), word = 0;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    memcpy(&word, at, 8);
    hash = mix(hash ^ word);
  }
  word = 0;
  memcpy(&word, at, bytes);
  return mix(hash ^ word);
}

static uint64_t threefry(uint64_t key, uint64_t counter) {
  static const int rotations[8] = {13, 15, 26, 6, 17, 29, 16, 24};
  const uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32), keys[3] = {k0, k1, k0 ^ k1 ^ 0x1bd11bda};
  uint32_t a = (uint32_t)counter + k0, b = (uint32_t)(counter >> 32) + k1;
  for (uint32_t round = 0; round < 20; ++round) {
    const int by = rotations[round % 8];
    a += b;
    b = (b << by | b >> (32 - by)) ^ a;
    if (round % 4 != 3) continue;
    const uint32_t turn = round / 4 + 1;
    a += keys[turn % 3];
    b += keys[(turn + 1) % 3] + turn;
  }
  return (uint64_t)b << 32 | a;
}

static float rounded_with(float x, uint64_t bits16) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + (uint32_t)bits16) & 0xffff0000;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static double power(double base, uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) result *= (exponent & 1) != 0 ? base : 1;
  return result;
}

static const double lr = 0.01, weight_decay = 0.125;

static void adamw(uint64_t t, float g, float* w, float* m, float* v) {
  const float beta1 = (float)0.9, rest1 = (float)(1 - 0.9), beta2 = (float)0.999, rest2 = (float)(1 - 0.999);
  const float size = (float)(lr / (1 - power(0.9, t))), root = (float)sqrt(1 - power(0.999, t)), eps = (float)1e-8;
  *m = beta1 * *m + rest1 * g;
  *v = beta2 * *v + rest2 * g * g;
  *w = *w * (float)(1 - lr * weight_decay) - size * *m / (sqrtf(*v) / root + eps);
}

/* ── A job ── */

typedef struct {
  mdp_sharding sharding;
  uint64_t bucket;
  storage storage;
} setting;

static float first_value(int64_t i) {
  return (float)(i % 19 - 9) / 8;
}
/* Of all ranks together. */
static float gradient(int param, int64_t i, int step) {
  return (float)((i * (7 + param) + step * 5) % 23 - 11);
}
static int skipped(int param, int step) {
  return param == D && step % 3 == 1;
}

static mdp_optimizer* optimizer_of(mdp_buffer* buffer, const storage* s) {
  SIZED(mdp_optimizer_config, config);
  config.lr = lr;
  config.weight_decay = weight_decay;
  config.state_dtype = s->state_dtype;
  config.flags = s->flags;
  config.seed = s->seed;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  return optimizer;
}

static mdp_buffer* buffer_of(mdp_comm* comm, mdp_sharding sharding, uint64_t bucket) {
  mdp_param params[COUNT];
  for (int p = 0; p < COUNT; ++p) params[p] = vector_param(names[p], dtypes[p], &lengths[p]);
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.scaling = MDP_SCALING_SUM;
  config.bucket_elements = bucket;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, COUNT, &buffer));
  return buffer;
}

static void write_first_values(mdp_buffer* buffer) {
  for (size_t p = 0; p < COUNT; ++p) {
    float start[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) start[i] = first_value(i);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, start, &lengths[p]);
    OK(mdp_param_write(buffer, p, &t, NULL));
  }
}

static job job_of(const mdp_unique_id* id, int32_t rank, int32_t n, const setting* s) {
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  j.buffer = buffer_of(j.comm, s->sharding, s->bucket);
  j.optimizer = optimizer_of(j.buffer, &s->storage);
  write_first_values(j.buffer);
  return j;
}

static void take_steps(const job* j, int from, int to) {
  const int32_t rank = mdp_comm_rank(j->comm), n = mdp_comm_size(j->comm);
  for (int step = from; step < to; ++step) {
    for (int p = COUNT; p-- > 0;) {
      float grads[LONGEST];
      for (int64_t i = 0; i < lengths[p]; ++i) {
        grads[i] = rank == 0 ? gradient(p, i, step) : (float)(i % 5 * rank);
        for (int32_t r = 1; r < n && rank == 0; ++r) grads[i] -= (float)(i % 5 * r);
      }
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, grads, &lengths[p]);
      if (skipped(p, step)) {
        OK(mdp_grad_skip(j->buffer, (size_t)p));
      } else {
        OK(mdp_grad_put(j->buffer, (size_t)p, &t, 0, NULL));
      }
    }
    OK(mdp_optimizer_step(j->optimizer, NULL, NULL, NULL));
  }
}

typedef struct { /* whatever rank has it, widened */
  float params[COUNT][LONGEST], states[STATES][COUNT][LONGEST];
  uint64_t steps[COUNT];
} everything;

static float widened(const mdp_tensor* view, int64_t i) {
  if (view->dtype == MDP_DTYPE_F32) return ((const float*)view->data)[i];
  const uint32_t bits = (uint32_t)((const uint16_t*)view->data)[i] << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

static pthread_mutex_t collecting = PTHREAD_MUTEX_INITIALIZER;

static void collect(const job* j, const storage* s, everything* all) {
  mdp_range ranges[256];
  const size_t count = owned_ranges(j->buffer, ranges, 256);
  pthread_mutex_lock(&collecting);
  for (size_t p = 0; p < COUNT; ++p) {
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, all->params[p], &lengths[p]);
    OK(mdp_param_read(j->buffer, p, &t, NULL));
    OK(mdp_optimizer_steps(j->optimizer, p, &all->steps[p]));
  }
  for (size_t r = 0; r < count; ++r) {
    const size_t p = (size_t)ranges[r].param;
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, p, state_names[k], &view));
      CHECK(view.dtype == (s->state_dtype == MDP_DTYPE_BF16 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32));
      for (int64_t i = 0; i < view.shape[0]; ++i) all->states[k][p][ranges[r].param_begin + i] = widened(&view, i);
    }
  }
  pthread_mutex_unlock(&collecting);
}

/* ── Bit for bit ── */

static void emulate(const storage* s, int steps, everything* all) {
  for (int p = 0; p < COUNT; ++p) {
    const uint64_t name = hash_of(names[p], strlen(names[p]), 0), key = hash_of(&name, sizeof name, s->seed);
    const int bare = dtypes[p] == MDP_DTYPE_BF16 && (s->flags & MDP_OPTIMIZER_NO_MASTER) != 0;
    for (int64_t i = 0; i < lengths[p]; ++i) {
      float w = first_value(i), *const m = &all->states[0][p][i], *const v = &all->states[1][p][i];
      uint64_t t = 0;
      for (int step = 0; step < steps; ++step) {
        if (skipped(p, step)) continue;
        adamw(++t, gradient(p, i, step), &w, m, v);
        const uint64_t random = threefry(threefry(key, t), (uint64_t)i);
        if (bare) w = rounded_with(w, random & 0xffff);
        if (s->state_dtype != MDP_DTYPE_BF16) continue;
        const int stochastic = (s->flags & MDP_OPTIMIZER_STOCHASTIC_STATE) != 0;
        *m = stochastic ? rounded_with(*m, random >> 16 & 0xffff) : to_bf16(*m);
        *v = stochastic ? rounded_with(*v, random >> 32 & 0xffff) : to_bf16(*v);
      }
      all->params[p][i] = dtypes[p] == MDP_DTYPE_BF16 && !bare ? to_bf16(w) : w;
      all->steps[p] = t;
    }
  }
}

static void by_the_formula(void** state) {
  (void)state;
  for (int k = 0; k <= STORAGES; ++k) {
    const setting s = {MDP_SHARDING_ZERO_1, 200, k < STORAGES ? storages[k] : no_master};
    everything *got = calloc(1, sizeof *got), *wanted = calloc(1, sizeof *wanted);
    job j = job_of(NULL, 0, 1, &s);
    take_steps(&j, 0, 20);
    collect(&j, &s.storage, got);
    emulate(&s.storage, 20, wanted);
    CHECK(memcmp(got, wanted, sizeof *got) == 0);
    job_close(&j);
    free(got);
    free(wanted);
  }
}

typedef struct {
  setting setting;
  everything* all;
} run;

static void six_steps(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const run* r = argument;
  job j = job_of(id, rank, n, &r->setting);
  take_steps(&j, 0, 6);
  collect(&j, &r->setting.storage, r->all);
  OK(mdp_buffer_verify(j.buffer));
  job_close(&j);
}

static void any_ranks_and_buckets(void** state) {
  (void)state;
  static const uint64_t buckets[] = {64, 500, UINT64_MAX};
  const int few = UNDER_SANITIZER || on_cuda;
  everything *got = calloc(1, sizeof *got), *wanted = calloc(1, sizeof *wanted);
  for (int k = NEAREST; k < STORAGES; ++k) {
    memset(wanted, 0, sizeof *wanted);
    emulate(&storages[k], 6, wanted);
    for (int32_t n = 1; n <= 4; n *= 2) {
      for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
        for (int b = 0; b < 3; b += few ? 2 : 1) {
          run r = {{sharding, buckets[b], storages[k]}, got};
          memset(got, 0, sizeof *got);
          run_ranks(n, six_steps, &r);
          CHECK(memcmp(got, wanted, sizeof *got) == 0);
        }
      }
    }
  }
  free(got);
  free(wanted);
}

/* ── Tensor-parallel ranks: a matrix that is cut by columns, in two turns, into parts of one size or not ── */

enum {
  ROWS = 5,
  COLUMNS = 12
};
typedef struct {
  int columns[2]; /* of each rank */
  float* whole;
} cut;

static void train_a_part(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const cut* c = argument;
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  SIZED(mdp_grid_config, grid);
  grid.tp = n;
  OK(mdp_grid_create(j.comm, &grid, &j.grid));
  const int mine = c->columns[rank], before = rank == 0 ? 0 : c->columns[0] / 2;
  const int64_t shape[2] = {ROWS, mine}, same[1] = {COLUMNS};
  const mdp_param params[2] = {{.struct_size = sizeof params[0],
                                .name = "same",
                                .dtype = MDP_DTYPE_BF16,
                                .ndim = 1,
                                .shape = same,
                                .placement = MDP_PLACEMENT_REPLICATED},
                               {.struct_size = sizeof params[0],
                                .name = "cut",
                                .dtype = MDP_DTYPE_BF16,
                                .ndim = 2,
                                .shape = shape,
                                .placement = MDP_PLACEMENT_SHARDED,
                                .shard_dim = 1,
                                .shard_stride = 2}};
  OK(mdp_buffer_register(NULL, j.grid, NULL, params, 2, &j.buffer));
  j.optimizer = optimizer_of(j.buffer, &storages[SMALLEST]);
  float values[ROWS * COLUMNS], all_same[COLUMNS];
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < ROWS * mine; ++i) {
      const int column = i % mine, half = mine / 2, whole = column / half * (COLUMNS / 2) + before + column % half;
      values[i] = gradient(A, i / mine * COLUMNS + whole, step);
    }
    for (int i = 0; i < COLUMNS; ++i) all_same[i] = gradient(B, i, step);
    mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, shape);
    t.ndim = 2;
    OK(mdp_grad_put(j.buffer, 1, &t, 0, NULL));
    t = tensor_of(MDP_DTYPE_F32, all_same, same);
    OK(mdp_grad_put(j.buffer, 0, &t, 0, NULL));
    OK(mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  }
  mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, shape);
  t.ndim = 2;
  OK(mdp_param_read(j.buffer, 1, &t, NULL));
  OK(mdp_buffer_verify(j.buffer)); /* "same" is the same on all */
  pthread_mutex_lock(&collecting);
  for (int i = 0; i < ROWS * mine; ++i) {
    const int column = i % mine, half = mine / 2, whole = column / half * (COLUMNS / 2) + before + column % half;
    c->whole[i / mine * COLUMNS + whole] = values[i];
  }
  pthread_mutex_unlock(&collecting);
  job_close(&j);
}

static void any_tensor_parallel_size(void** state) {
  (void)state;
  float wanted[ROWS * COLUMNS], got[ROWS * COLUMNS];
  cut c = {{COLUMNS, 0}, wanted};
  run_ranks(1, train_a_part, &c);
  for (int first = 4; first <= 8; first += 2) {
    cut halves = {{first, COLUMNS - first}, got};
    memset(got, 0, sizeof got);
    run_ranks(2, train_a_part, &halves);
    CHECK(memcmp(got, wanted, sizeof got) == 0);
  }
}

/* ── What is refused ── */

static void refused(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  mdp_optimizer* optimizer = NULL;
  const struct {
    mdp_status status;
    const char* part;
    mdp_optimizer_config config;
  } bad[] = {
      {MDP_E_INVALID, "state_dtype is 4", {.state_dtype = MDP_DTYPE_F16}},
      {MDP_E_INVALID, "state_dtype is 1", {.state_dtype = MDP_DTYPE_SAME}},
      {MDP_E_INVALID, "SGD keeps no state", {.rule = MDP_RULE_SGD, .state_dtype = MDP_DTYPE_BF16}},
      {MDP_E_INVALID, "without config.state_dtype", {.flags = MDP_OPTIMIZER_STOCHASTIC_STATE}},
      {MDP_E_INVALID, "config.seed is 3", {.state_dtype = MDP_DTYPE_BF16, .seed = 3}},
      {MDP_E_INVALID, "config.reserved", {.reserved = 1}},
      {MDP_E_UNSUPPORTED, "state_dtype is BF16", {.rule = MDP_RULE_CALLER, .state_dtype = MDP_DTYPE_BF16}},
      {MDP_E_UNSUPPORTED, "NO_MASTER", {.rule = MDP_RULE_CALLER, .flags = MDP_OPTIMIZER_NO_MASTER}},
      {MDP_E_UNSUPPORTED, "parameter 2 'empty' is f16", {.flags = MDP_OPTIMIZER_NO_MASTER}},
  };
  for (size_t k = 0; k < sizeof bad / sizeof bad[0]; ++k) {
    mdp_optimizer_config config = bad[k].config;
    config.struct_size = sizeof config;
    FAILS(bad[k].status, bad[k].part, mdp_optimizer_create(j.buffer, &config, &optimizer));
  }
  job_close(&j);
  const setting s = {MDP_SHARDING_ZERO_1, 0, storages[SMALLEST]};
  j = job_of(NULL, 0, 1, &s);
  SIZED(mdp_tensor, view);
  FAILS(MDP_E_INVALID, "AdamW without masters keeps 'exp_avg' and 'exp_avg_sq'", mdp_optimizer_state(j.optimizer, A, "master", &view));
  char json[4000];
  OK(mdp_optimizer_info(j.optimizer, json, sizeof json, NULL));
  CHECK(strstr(json,
               "\"stochastic_state\":true,\"no_master\":true,\"seed\":18446744073709551615,"
               "\"state\":[{\"name\":\"exp_avg\",\"dtype\":\"bf16\"},{\"name\":\"exp_avg_sq\",\"dtype\":\"bf16\"}]") != NULL);
  job_close(&j);
}

static void other_on_one_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(60000000000));
  mdp_buffer* buffer = buffer_of(comm, MDP_SHARDING_ZERO_1, 0);
  const int what = *(const int*)argument;
  SIZED(mdp_optimizer_config, config);
  config.state_dtype = what == 0 && rank == 1 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16;
  config.flags = MDP_OPTIMIZER_NO_MASTER | (what == 1 && rank == 1 ? MDP_OPTIMIZER_STOCHASTIC_STATE : 0);
  config.seed = what == 2 && rank == 1 ? 7 : 8;
  if (what == 3 && rank == 1) config.flags = config.seed = 0;
  mdp_optimizer* optimizer = NULL;
  FAILS(MDP_E_DESYNC, "ranks 0 and 1 configure the optimizer differently", mdp_optimizer_create(buffer, &config, &optimizer));
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void different_on_ranks(void** state) {
  (void)state;
  for (int what = 0; what < 4; ++what) run_ranks(2, other_on_one_rank, &what);
}

/* ── Checkpoints ── */

static mdp_status save_or_load(const job* j, const char* directory, int loads, uint64_t flags) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j->buffer, .optimizer = j->optimizer};
  const mdp_checkpoint_config config = {
      .struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1, .flags = flags};
  return loads ? mdp_checkpoint_load(&config) : mdp_checkpoint_save(&config, NULL);
}

typedef struct {
  setting setting;
  int number;
  const char* directory;
  everything* all;
} stage;

static void one_stage(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const stage* s = argument;
  job j = job_of(id, rank, n, &s->setting);
  if (s->number > 0) OK(save_or_load(&j, s->directory, 1, 0));
  take_steps(&j, 3 * s->number, 3 * (s->number + 1));
  collect(&j, &s->setting.storage, s->all);
  OK(save_or_load(&j, s->directory, 0, 0));
  job_close(&j);
}

static void two_three_one_ranks(void** state) {
  (void)state;
  static const int32_t sizes[3] = {2, 3, 1};
  everything *got = calloc(1, sizeof *got), *wanted = calloc(1, sizeof *wanted);
  for (int k = NEAREST; k < STORAGES; ++k) {
    char directory[512], json[20000];
    snprintf(directory, sizeof directory, "%s/stages%d", folder, k);
    for (int number = 0; number < 3; ++number) {
      stage s = {
          {number == 1 ? MDP_SHARDING_ZERO_2 : MDP_SHARDING_ZERO_1, 64 + 100 * (uint64_t)number, storages[k]}, number, directory, got};
      run_ranks(sizes[number], one_stage, &s);
    }
    memset(wanted, 0, sizeof *wanted);
    emulate(&storages[k], 9, wanted);
    CHECK(memcmp(got, wanted, sizeof *got) == 0);
    OK(mdp_checkpoint_verify(directory, NULL, 0, NULL));
    OK(mdp_checkpoint_info(directory, json, sizeof json, NULL));
    CHECK((strstr(json, "\"name\":\"master\"") == NULL) == (k == SMALLEST) && (strstr(json, "\"seed\":11,") != NULL) == (k == STOCHASTIC));
  }
  free(got);
  free(wanted);
}

static char told[2048];
static void hear(void* user, mdp_log_level level, const char* sentence, size_t length) {
  (void)user, (void)level, (void)length;
  snprintf(told, sizeof told, "%s", sentence);
}

/* From one way of storing to another: values are rounded to the nearest, and the log says so. */
static void stored_otherwise(void** state) {
  (void)state;
  OK(mdp_log_set(hear, NULL));
  for (int from = 0; from < STORAGES; ++from) {
    char directory[512];
    snprintf(directory, sizeof directory, "%s/from%d", folder, from);
    const setting s = {MDP_SHARDING_ZERO_1, 0, storages[from]};
    everything *saved = calloc(1, sizeof *saved), *got = calloc(1, sizeof *got);
    job j = job_of(NULL, 0, 1, &s);
    take_steps(&j, 0, 5);
    collect(&j, &s.storage, saved);
    OK(save_or_load(&j, directory, 0, 0));
    job_close(&j);
    for (int to = 0; to < STORAGES; ++to) {
      const setting other = {MDP_SHARDING_ZERO_1, 300, storages[to]};
      j = job_of(NULL, 0, 1, &other);
      told[0] = '\0';
      OK(save_or_load(&j, directory, 1, 0));
      const int casts = (from == MASTERS) != (to == MASTERS);
      CHECK((strstr(told, from == MASTERS ? "8 arrays are cast, the first exp_avg of '" : "from bf16 to f32") != NULL) == casts);
      collect(&j, &other.storage, got);
      CHECK(memcmp(got->params, saved->params, sizeof got->params) == 0 && memcmp(got->steps, saved->steps, sizeof got->steps) == 0);
      int wrong = 0;
      for (int k = 0; k < STATES; ++k) {
        for (int p = 0; p < COUNT; ++p) {
          for (int64_t i = 0; i < lengths[p]; ++i) {
            const float was = saved->states[k][p][i];
            wrong += got->states[k][p][i] != (from == MASTERS && to != MASTERS ? to_bf16(was) : was);
          }
        }
      }
      CHECK(wrong == 0);
      if (from == SMALLEST && to != SMALLEST) { /* the parameters are the masters */
        SIZED(mdp_tensor, master);
        OK(mdp_optimizer_state(j.optimizer, A, "master", &master));
        CHECK(memcmp(master.data, saved->params[A], sizeof saved->params[A]) == 0);
      }
      take_steps(&j, 5, 6);
      job_close(&j);
    }
    free(saved);
    free(got);
  }
  OK(mdp_log_set(NULL, NULL));
}

/* With LOAD_HYPER the seed too; else an optimizer keeps its own. */
static void seed_of_a_checkpoint(void** state) {
  (void)state;
  char directory[512];
  snprintf(directory, sizeof directory, "%s/seed", folder);
  setting s = {MDP_SHARDING_ZERO_1, 0, storages[SMALLEST]};
  everything *wanted = calloc(1, sizeof *wanted), *got = calloc(1, sizeof *got);
  job j = job_of(NULL, 0, 1, &s);
  take_steps(&j, 0, 5);
  OK(save_or_load(&j, directory, 0, 0));
  take_steps(&j, 5, 8);
  collect(&j, &s.storage, wanted);
  job_close(&j);
  s.storage.seed = 77;
  for (int hyper = 0; hyper < 2; ++hyper) {
    j = job_of(NULL, 0, 1, &s);
    OK(save_or_load(&j, directory, 1, hyper ? MDP_CHECKPOINT_LOAD_HYPER : 0));
    take_steps(&j, 5, 8);
    collect(&j, &s.storage, got);
    CHECK((memcmp(got, wanted, sizeof *got) == 0) == hyper);
    job_close(&j);
  }
  free(wanted);
  free(got);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(by_the_formula),   TEST(any_ranks_and_buckets), TEST(any_tensor_parallel_size),
                                     TEST(refused),          TEST(different_on_ranks),    TEST(two_three_one_ranks),
                                     TEST(stored_otherwise), TEST(seed_of_a_checkpoint)};
  return cmocka_run_group_tests(tests, setup, close_folder);
}
