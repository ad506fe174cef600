/* SPDX-License-Identifier: Apache-2.0
 * Several ranks, as threads of this process: what collectives compute, and what every rank is told when one of them does something else. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

static const uint64_t timeout_ns = UINT64_C(20000000000);

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static mdp_grid* cut(mdp_comm* comm, int32_t tp, int32_t ep) {
  SIZED(mdp_grid_config, config);
  config.tp = tp;
  config.ep = ep;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &config, &grid));
  return grid;
}

/* ── Collectives ── */

enum {
  MOST = 4
};

static void compute_everything(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  CHECK(mdp_comm_rank(comm) == rank && mdp_comm_size(comm) == n);
  double mine[3 * MOST], got[3 * MOST];
  const int64_t whole = 3 * n, piece = 3;
  for (int i = 0; i < 3 * n; ++i) mine[i] = 100 * rank + i;
  const mdp_tensor from = tensor_of(MDP_DTYPE_F64, mine, &whole), to = tensor_of(MDP_DTYPE_F64, got, &whole);
  const mdp_tensor small = tensor_of(MDP_DTYPE_F64, got, &piece), part = tensor_of(MDP_DTYPE_F64, mine, &piece);
  const double ranks = 100.0 * n * (n - 1) / 2;

  OK(mdp_all_reduce(comm, &from, &to, MDP_OP_SUM, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == ranks + n * i);
  OK(mdp_all_reduce(comm, &from, &to, MDP_OP_MAX, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == 100 * (n - 1) + i);
  OK(mdp_all_reduce(comm, &from, &to, MDP_OP_MIN, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == i);
  OK(mdp_reduce_scatter(comm, &from, &small, MDP_OP_AVG, NULL, NULL));
  for (int i = 0; i < 3; ++i) CHECK(fabs(got[i] - (ranks / n + 3 * rank + i)) < 1e-9);
  OK(mdp_all_gather(comm, &part, &to, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == 100 * (i / 3) + i % 3);
  OK(mdp_all_to_all(comm, &from, &to, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == 100 * (i / 3) + 3 * rank + i % 3);
  OK(mdp_broadcast(comm, &to, n - 1, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == 100 * (i / 3) + 3 * (n - 1) + i % 3);

  /* In place, and with a request. */
  mdp_request* request = NULL;
  memcpy(got, mine, sizeof got);
  OK(mdp_all_reduce(comm, &to, &to, MDP_OP_SUM, NULL, &request));
  OK(mdp_request_wait(request, timeout_ns));
  OK(mdp_request_test(request));
  mdp_request_free(request);
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == ranks + n * i);
  memcpy(got, mine, sizeof got);
  const mdp_tensor own = tensor_of(MDP_DTYPE_F64, got + 3 * rank, &piece);
  OK(mdp_reduce_scatter(comm, &to, &own, MDP_OP_SUM, NULL, NULL));
  for (int i = 0; i < 3; ++i) CHECK(got[3 * rank + i] == ranks + n * (3 * rank + i));
  OK(mdp_all_gather(comm, &own, &to, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == ranks + n * i);
  memcpy(got, mine, sizeof got);
  OK(mdp_all_to_all(comm, &to, &to, NULL, NULL));
  for (int i = 0; i < 3 * n; ++i) CHECK(got[i] == 100 * (i / 3) + 3 * rank + i % 3);

  int64_t count = INT64_C(1) << 40;
  const int64_t one = 1;
  const mdp_tensor integer = tensor_of(MDP_DTYPE_I64, &count, &one);
  OK(mdp_all_reduce(comm, &integer, &integer, MDP_OP_SUM, NULL, NULL));
  CHECK(count == n * (INT64_C(1) << 40));
  float nan = rank == 0 ? NAN : 1;
  const mdp_tensor odd = tensor_of(MDP_DTYPE_F32, &nan, &one);
  OK(mdp_all_reduce(comm, &odd, &odd, MDP_OP_MAX, NULL, NULL));
  CHECK(isnan(nan));
  OK(mdp_barrier(comm, NULL));
  mdp_comm_destroy(comm);
}

static void collectives(void** state) {
  (void)state;
  for (int32_t n = 1; n <= MOST; ++n) run_ranks(n, compute_everything, NULL);
}

static void split_everything(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm *comm = comm_open(id, rank, n, timeout_ns), *half = NULL, *none = comm;
  OK(mdp_comm_split(comm, rank % 2, -rank, &half));
  CHECK(mdp_comm_size(half) == 2 && mdp_comm_rank(half) == (rank < 2 ? 1 : 0));
  OK(mdp_comm_split(comm, rank == 0 ? -1 : 7, 0, &none));
  if (rank == 0) CHECK(none == NULL);
  if (rank > 0) CHECK(mdp_comm_size(none) == n - 1 && mdp_comm_rank(none) == rank - 1);
  mdp_comm_destroy(comm); /* the parts live on */
  int64_t sum = rank;
  const int64_t one = 1;
  const mdp_tensor t = tensor_of(MDP_DTYPE_I64, &sum, &one);
  OK(mdp_all_reduce(half, &t, &t, MDP_OP_SUM, NULL, NULL));
  CHECK(sum == (rank % 2 ? 4 : 2));
  mdp_comm_destroy(none);
  mdp_comm_destroy(half);
}

static void splits(void** state) {
  (void)state;
  run_ranks(4, split_everything, NULL);
}

static void grid_groups(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  (void)n;
  mdp_comm *comm = comm_open(id, rank, 4, timeout_ns), *tp = NULL, *again = NULL;
  mdp_grid* grid = cut(comm, 2, 1);
  int32_t index = -1, size = -1;
  OK(mdp_grid_coords(grid, MDP_AXIS_TP, &index, &size));
  CHECK(index == rank % 2 && size == 2);
  OK(mdp_grid_coords(grid, MDP_AXIS_DP | MDP_AXIS_CP, &index, &size));
  CHECK(index == rank / 2 && size == 2);
  OK(mdp_grid_comm(grid, MDP_AXIS_TP, &tp));
  OK(mdp_grid_comm(grid, MDP_AXIS_TP, &again));
  CHECK(mdp_comm_rank(tp) == rank % 2 && mdp_comm_size(tp) == 2 && again != tp);
  mdp_comm_destroy(tp);
  mdp_grid_destroy(grid);
  OK(mdp_barrier(again, NULL));
  mdp_comm_destroy(again);
  mdp_comm_destroy(comm);
}

static void grids(void** state) {
  (void)state;
  run_ranks(4, grid_groups, NULL);
}

/* ── Calls that any thread may make ── */

typedef struct {
  mdp_buffer* buffer;
  size_t param;
} put_start;

static void* put_one(void* argument) {
  const put_start* start = argument;
  float values[6] = {1, 2, 3, 4, 5, 6};
  SIZED(mdp_tensor, grad);
  grad.dtype = MDP_DTYPE_F32;
  grad.data = values;
  grad.ndim = job_params[start->param].ndim;
  grad.shape = job_params[start->param].shape;
  OK(mdp_param_wait(start->buffer, start->param, NULL));
  OK(mdp_grad_put(start->buffer, start->param, &grad, MDP_GRAD_MORE, NULL));
  OK(mdp_grad_put(start->buffer, start->param, &grad, 0, NULL));
  FAILS(MDP_E_STATE, job_params[start->param].name, mdp_grad_ready(start->buffer, start->param, NULL));
  return NULL;
}

static void put_from_threads(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  SIZED(mdp_tensor, view);
  OK(mdp_buffer_grad_view(j.buffer, SECOND, &view));
  for (int step = 0; step < 20; ++step) {
    pthread_t threads[FROZEN];
    put_start starts[FROZEN];
    for (size_t param = 0; param < FROZEN; ++param) {
      starts[param] = (put_start){j.buffer, param};
      CHECK(pthread_create(&threads[param], NULL, put_one, &starts[param]) == 0);
    }
    SIZED(mdp_error_info, info);
    OK(mdp_comm_error_info(j.comm, &info)); /* also from any thread */
    for (size_t param = 0; param < FROZEN; ++param) pthread_join(threads[param], NULL);
    sync_and_wait(j.buffer);
    if (rank == 0) CHECK(((const float*)view.data)[0] == 2 && ((const float*)view.data)[4] == 10);
    mdp_request* request = NULL;
    OK(mdp_optimizer_step(j.optimizer, NULL, NULL, &request));
    mdp_request_free(request);
  }
  OK(mdp_buffer_verify(j.buffer));
  job_close(&j);
}

static void gradients_from_threads(void** state) {
  (void)state;
  run_ranks(2, put_from_threads, NULL);
}

/* A sync that comes while a gradient is being copied: all of the gradient counts, or none of it. */
enum {
  LARGE = 1 << 20
};
static double large_values[LARGE];

typedef struct {
  mdp_buffer* buffer;
  pthread_barrier_t started;
  mdp_status put;
} race;

static void* put_large(void* argument) {
  race* r = argument;
  const int64_t count = LARGE;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F64, large_values, &count);
  pthread_barrier_wait(&r->started);
  r->put = mdp_grad_put(r->buffer, 0, &t, 0, NULL);
  return NULL;
}

static void a_sync_while_a_gradient_is_put(void** state) {
  (void)state;
  mdp_comm* comm = comm_open(NULL, 0, 1, timeout_ns);
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, NULL, &grid));
  const int64_t count = LARGE;
  SIZED(mdp_param, param);
  param.name = "large";
  param.dtype = MDP_DTYPE_F32;
  param.ndim = 1;
  param.shape = &count;
  SIZED(mdp_buffer_config, config);
  config.missing = MDP_MISSING_ZERO;
  race r = {0};
  OK(mdp_buffer_register(NULL, grid, &config, &param, 1, &r.buffer));
  SIZED(mdp_tensor, view);
  OK(mdp_buffer_grad_view(r.buffer, 0, &view));
  const float* grad = view.data;
  for (int i = 0; i < LARGE; ++i) large_values[i] = 7;
  pthread_barrier_init(&r.started, NULL, 2);
  for (int round = 0; round < 20; ++round) {
    OK(mdp_microbatch_begin(r.buffer, 1));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, put_large, &r) == 0);
    pthread_barrier_wait(&r.started);
    for (volatile int i = 0; i < round * 20000; ++i) { /* another moment in every round */
    }
    sync_and_wait(r.buffer);
    float expected = grad[0];
    int64_t torn = 0;
    for (int64_t i = 0; i < LARGE; ++i) torn += grad[i] != expected;
    pthread_join(thread, NULL);
    CHECK(torn == 0 && expected == (r.put == MDP_OK ? 7 : 0));
  }
  pthread_barrier_destroy(&r.started);
  mdp_buffer_destroy(r.buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

/* ── Ranks that differ ── */

static void register_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int how = *(const int*)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, NULL, &grid));
  mdp_param params[PARAMS];
  memcpy(params, job_params, sizeof params);
  static const int64_t other_shape[] = {6};
  size_t count = PARAMS;
  const char* difference = "";
  if (how == 0) difference = "second";
  if (how == 1) difference = "[6]";
  if (how == 2) difference = "frozen";
  if (rank == 2) {
    if (how == 0) params[SECOND].name = "zweiter";
    if (how == 1) params[SECOND].shape = other_shape;
    if (how == 2) count = 3;
  }
  mdp_buffer* buffer = NULL;
  FAILS(MDP_E_DESYNC, difference, mdp_buffer_register(NULL, grid, NULL, params, count, &buffer));
  const char* sentence = mdp_last_error();
  CHECK(strstr(sentence, "ranks 0 and 2") != NULL);
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.rank == 2 && buffer == NULL);
  /* Nothing is half done: the same ranks agree the next time. */
  OK(mdp_buffer_register(NULL, grid, NULL, job_params, PARAMS, &buffer));
  OK(mdp_buffer_verify(buffer));
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void different_registrations(void** state) {
  (void)state;
  for (int how = 0; how < 3; ++how) run_ranks(3, register_differently, &how);
}

enum {
  WAYS = 23
};

/* What rank 1 registers otherwise; and what all are told. */
static const char* otherwise(int way, int is_other, mdp_buffer_config* config, mdp_param* param) {
  const mdp_param all_param = *param;
  const mdp_buffer_config all_config = *config;
  const char* told = NULL;
  switch (way) {
#define WAY(number, words, change) \
  case number:                     \
    change;                        \
    told = words;                  \
    break
    WAY(0, "gradient type: ", config->grad_dtype = MDP_DTYPE_SAME);
    WAY(1, "sharding: ", config->sharding = MDP_SHARDING_ZERO_0);
    WAY(2, "missing gradients: ", config->missing = MDP_MISSING_ZERO);
    WAY(3, "missing gradients: ", config->missing = MDP_MISSING_SKIP);
    WAY(4, "scaling: ", config->scaling = MDP_SCALING_SUM);
    WAY(5, "high-bandwidth padding: ", config->flags = MDP_BUFFER_HIGH_BANDWIDTH_PADDING);
    WAY(6, "overlap: ", config->flags = MDP_BUFFER_NO_OVERLAP);
    WAY(7, "gradients between ranks: ", config->wire_dtype = MDP_DTYPE_BF16);
    WAY(8, "checks: ", config->flags = MDP_BUFFER_CHECK_FINITE);
    WAY(9, "checks: ", config->flags = MDP_BUFFER_CHECK_LARGE);
    WAY(10, "bucket elements of f32 parameters: ", config->bucket_elements = 4096);
    WAY(11, "'w' bf16", param->dtype = MDP_DTYPE_BF16);
    WAY(12, "used 2 times", param->uses_per_step = 2);
    WAY(13, "replicated", param->placement = MDP_PLACEMENT_REPLICATED; param->shard_dim = param->shard_stride = 0);
    WAY(14, "on dimension 1 by 1", param->shard_dim = 1);
    WAY(15, "on dimension 0 by 2", param->shard_stride = 2);
    WAY(16, "group 1", param->param_group = 1);
    WAY(17, "frozen", param->flags = MDP_PARAM_FROZEN);
    WAY(18, "own bucket", param->flags = MDP_PARAM_OWN_BUCKET);
    WAY(19, "use order 3", param->use_order = 3);
    WAY(20, "tied as 'both'", param->tie = "both");
    WAY(21, "with feedback", config->flags = MDP_BUFFER_ERROR_FEEDBACK);
    WAY(22, "pool buckets: ", config->pool_buckets = 3);
#undef WAY
  }
  if (!is_other) {
    *param = all_param;
    *config = all_config;
  }
  if (way == 21) config->wire_dtype = MDP_DTYPE_BF16; /* on both: these say nothing without it */
  if (way == 22) config->sharding = MDP_SHARDING_ZERO_2;
  return told;
}

/* A field that is left out of the comparison would lay out, add up or step differently on the two ranks, and tell nobody. */
static void register_each_field_otherwise(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_grid* grid = cut(comm, 1, 1);
  const int64_t shape[] = {64, 64};
  for (int way = 0; way < WAYS; ++way) {
    mdp_param params[2];
    memset(params, 0, sizeof params);
    for (int p = 0; p < 2; ++p) {
      params[p].struct_size = sizeof params[p];
      params[p].name = p == 0 ? "w" : "other"; /* not all are frozen */
      params[p].dtype = MDP_DTYPE_F32;
      params[p].shape = shape;
      params[p].ndim = 2;
      params[p].placement = MDP_PLACEMENT_SHARDED;
      params[p].shard_stride = 1;
    }
    SIZED(mdp_buffer_config, config);
    const char* const told = otherwise(way, rank == 1, &config, &params[0]);
    mdp_buffer* buffer = NULL;
    FAILS(MDP_E_DESYNC, told, mdp_buffer_register(NULL, grid, &config, params, 2, &buffer));
    CHECK(buffer == NULL && strstr(mdp_last_error(), "ranks 0 and 1 registered different parameters") != NULL);
  }
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void each_field_is_compared(void** state) {
  (void)state;
  run_ranks(2, register_each_field_otherwise, NULL);
}

/* An expert parameter that one rank does not know, although the grid has no expert parallelism: both must come to the comparison. */
static void register_an_expert(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, NULL, &grid));
  mdp_param params[2] = {job_params[FIRST], job_params[SECOND]};
  params[1].param_class = MDP_PARAM_CLASS_EXPERT;
  mdp_buffer* buffer = NULL;
  FAILS(MDP_E_DESYNC, "ranks 0 and 1 registered different parameters",
        mdp_buffer_register(NULL, grid, NULL, params, rank == 0 ? 2 : 1, &buffer));
  CHECK(strstr(mdp_last_error(), "second") != NULL && buffer == NULL);
  OK(mdp_buffer_register(NULL, grid, NULL, params, 2, &buffer));
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void an_expert_on_one_rank(void** state) {
  (void)state;
  run_ranks(2, register_an_expert, NULL);
}

/* Two tensor-parallel columns: ranks 0 and 2 differ, ranks 1 and 3 do not; all four are told the same. */
static void register_differently_in_a_column(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_grid* grid = cut(comm, 2, 1);
  mdp_param params[2] = {job_params[FIRST], job_params[SECOND]};
  params[0].placement = params[1].placement = MDP_PLACEMENT_REPLICATED;
  mdp_buffer* buffer = NULL;
  if (rank == 2) params[1].name = "zweiter";
  FAILS(MDP_E_DESYNC, "ranks 0 and 2 registered different parameters", mdp_buffer_register(NULL, grid, NULL, params, 2, &buffer));
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.rank == 2 && buffer == NULL && strstr(info.text, "zweiter") != NULL);
  params[1].name = "second";
  OK(mdp_buffer_register(NULL, grid, NULL, params, 2, &buffer));
  OK(mdp_barrier(comm, NULL));
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void a_column_that_differs(void** state) {
  (void)state;
  run_ranks(4, register_differently_in_a_column, NULL);
}

static void configure_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  static const char* const axes[] = {"tp 2 ", "cp 2 ", "ep 2 ", "pp 2 ", "expert_tp 2 ", "instances 2 ", "order dp-tp-cp-ep-pp"};
  mdp_grid* grid = NULL;
  for (int axis = 0; axis < 7; ++axis) {
    SIZED(mdp_grid_config, grid_config);
    int32_t* const sizes[] = {&grid_config.tp, &grid_config.cp,        &grid_config.ep,
                              &grid_config.pp, &grid_config.expert_tp, &grid_config.instances};
    if (rank == 1 && axis < 6) *sizes[axis] = 2;
    if (rank == 1 && axis == 6) grid_config.order = "dp-tp-cp-ep-pp";
    FAILS(MDP_E_DESYNC, axes[axis], mdp_grid_create(j.comm, &grid_config, &grid));
  }
  SIZED(mdp_optimizer_config, config);
  config.lr = rank == 1 ? 0.5 : 0.25;
  mdp_optimizer* optimizer = NULL;
  FAILS(MDP_E_DESYNC, "configure the optimizer differently", mdp_optimizer_create(j.buffer, &config, &optimizer));
  config.lr = rank == 1 ? 3e-4 : (double)3e-4F; /* the same in six digits */
  FAILS(MDP_E_DESYNC, "configure the optimizer differently", mdp_optimizer_create(j.buffer, &config, &optimizer));
  CHECK(grid == NULL && optimizer == NULL);
  put_all(j.buffer);
  OK(mdp_grad_sync(j.buffer, NULL, NULL));
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  job_close(&j);
}

static void different_configurations(void** state) {
  (void)state;
  run_ranks(2, configure_differently, NULL);
}

static void call_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int how = *(const int*)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  float values[8] = {0};
  const int64_t count = how == 0 && rank == 1 ? 4 : 8;
  const mdp_tensor t = tensor_of(how == 1 && rank == 1 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32, values, &count);
  const mdp_op op = how == 2 && rank == 1 ? MDP_OP_MAX : MDP_OP_SUM;
  mdp_status status;
  if (how == 3 && rank == 1) {
    status = mdp_broadcast(comm, &t, 0, NULL, NULL);
  } else {
    status = mdp_all_reduce(comm, &t, &t, op, NULL, NULL);
  }
  check_status(status, MDP_E_DESYNC, "all-reduce", "ranks that call different operations", __FILE__, __LINE__);
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.operation > 0);
  /* This cannot be mended: which ranks have done what is not known any more. */
  OK(mdp_comm_error_info(comm, &info));
  CHECK(info.status == MDP_E_DESYNC);
  FAILS(MDP_E_DESYNC, NULL, mdp_barrier(comm, NULL));
  mdp_comm_destroy(comm);
}

static void different_operations(void** state) {
  (void)state;
  for (int how = 0; how < 4; ++how) run_ranks(2, call_differently, &how);
}

static void skip_one(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  if (rank == 1) {
    OK(mdp_grad_ready(j.buffer, FIRST, NULL));
    OK(mdp_grad_ready(j.buffer, EMPTY, NULL));
  } else {
    put_all(j.buffer);
  }
  FAILS(MDP_E_STATE, "on rank 1 parameter 1 'second' never became ready", mdp_grad_sync(j.buffer, NULL, NULL));
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.rank == 1 && info.param == SECOND);
  FAILS(MDP_E_STATE, "not whole", mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  OK(mdp_microbatch_begin(j.buffer, 1));
  put_all(j.buffer);
  OK(mdp_grad_sync(j.buffer, NULL, NULL));
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  OK(mdp_buffer_verify(j.buffer));
  job_close(&j);
}

static void missing_on_one_rank(void** state) {
  (void)state;
  run_ranks(3, skip_one, NULL);
}

static void differ_in_values(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  float values[6] = {0, 0, 0, 0, 0, (float)rank};
  SIZED(mdp_tensor, t);
  t.dtype = MDP_DTYPE_F32;
  t.data = values;
  t.ndim = job_params[FIRST].ndim;
  t.shape = job_params[FIRST].shape;
  OK(mdp_param_write(j.buffer, FIRST, &t, NULL));
  FAILS(MDP_E_DESYNC, "'first' differs between ranks 0 and 1", mdp_buffer_verify(j.buffer));
  OK(mdp_buffer_broadcast(j.buffer, 1, NULL));
  OK(mdp_buffer_verify(j.buffer));
  OK(mdp_param_read(j.buffer, FIRST, &t, NULL));
  CHECK(values[5] == 1);
  job_close(&j);
}

static void replicas_that_differ(void** state) {
  (void)state;
  run_ranks(2, differ_in_values, NULL);
}

/* Experts are shared by fewer ranks than dense parameters, and come first here: ranks that share only the latter are told too. */
static void differ_in_an_expert(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_grid* grid = cut(comm, 1, 2);
  mdp_param params[2] = {job_params[FIRST], job_params[SECOND]};
  params[0].placement = params[1].placement = MDP_PLACEMENT_REPLICATED;
  params[0].param_class = MDP_PARAM_CLASS_EXPERT;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, grid, NULL, params, 2, &buffer));
  OK(mdp_buffer_verify(buffer));
  float values[6] = {0, 0, 0, 0, 0, rank == 2};
  SIZED(mdp_tensor, t);
  t.dtype = MDP_DTYPE_F32;
  t.data = values;
  t.ndim = params[0].ndim;
  t.shape = params[0].shape;
  OK(mdp_param_write(buffer, 0, &t, NULL));
  FAILS(MDP_E_DESYNC, "parameter 0 'first' differs between ranks 0 and 2", mdp_buffer_verify(buffer));
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.rank == 2 && info.param == 0 && info.bucket >= 0);
  OK(mdp_buffer_broadcast(buffer, 0, NULL));
  OK(mdp_buffer_verify(buffer));
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void experts_that_differ(void** state) {
  (void)state;
  run_ranks(4, differ_in_an_expert, NULL);
}

/* Ranks that share dense parameters have different experts before, between and behind them, so that a dense bucket is another number on
 * each: they are reduced and gathered all the same, every bucket by itself or those of the same ranks at once. */
static const char* const mixed_names[] = {"an expert", "dense", "another", "also dense", "the last", "an only one"};
static const mdp_dtype mixed_types[] = {MDP_DTYPE_F32, MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_BF16, MDP_DTYPE_F32, MDP_DTYPE_F32};

static void step_with_other_experts(mdp_grid* grid, int32_t rank, const mdp_buffer_config* config) {
  static const int64_t count = 3;
  static const int many[] = {0, 1, 2, 3, 4}, few[] = {1, 3, 5};
  const int has_few = rank % 2 != 0; /* the experts' groups are {0, 2} and {1, 3} */
  const size_t n = has_few ? 3 : 5;
  mdp_param params[5];
  for (size_t p = 0; p < n; ++p) {
    const int which = has_few ? few[p] : many[p];
    params[p] = (mdp_param){.struct_size = sizeof(mdp_param),
                            .dtype = mixed_types[which],
                            .name = mixed_names[which],
                            .shape = &count,
                            .ndim = 1,
                            .placement = MDP_PLACEMENT_REPLICATED,
                            .param_class = which == 1 || which == 3 ? MDP_PARAM_CLASS_DENSE : MDP_PARAM_CLASS_EXPERT};
  }
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_buffer_register(NULL, grid, config, params, n, &buffer));
  OK(mdp_optimizer_create(buffer, NULL, &optimizer));
  float values[3] = {1.0F + (float)rank, 0, 0};
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, values, &count);
  for (size_t p = n; p-- > 0;) OK(mdp_grad_put(buffer, p, &grad, 0, NULL));
  sync_and_wait(buffer);
  if (config->sharding == MDP_SHARDING_ZERO_0) {
    for (size_t p = 0; p < n; ++p) {
      SIZED(mdp_tensor, view);
      OK(mdp_buffer_grad_view(buffer, p, &view));
      const int expert = params[p].param_class == MDP_PARAM_CLASS_EXPERT; /* 1 + 3 or 2 + 4, by 4 ranks */
      CHECK(((const float*)view.data)[0] == (!expert ? 2.5F : has_few ? 1.5F : 1.0F));
    }
  }
  step_and_wait(optimizer);
  OK(mdp_buffer_verify(buffer));
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
}

static void other_experts(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_grid* grid = cut(comm, 1, 2);
  for (int way = 0; way < 4; ++way) {
    SIZED(mdp_buffer_config, buffer);
    buffer.sharding = way % 2 == 0 ? MDP_SHARDING_ZERO_0 : MDP_SHARDING_ZERO_1;
    buffer.flags = way < 2 ? 0 : MDP_BUFFER_NO_OVERLAP;
    step_with_other_experts(grid, rank, &buffer);
  }
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void different_numbers_of_experts(void** state) {
  (void)state;
  run_ranks(4, other_experts, NULL);
}

/* ── Ranks that leave, stop or never come ── */

static void abort_one(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  if (rank == 2) {
    const struct timespec moment = {0, 50000000};
    nanosleep(&moment, NULL);
    OK(mdp_comm_abort(comm));
  } else {
    FAILS(MDP_E_ABORTED, "rank 2 called mdp_comm_abort", mdp_barrier(comm, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_comm_error_info(comm, &info));
    CHECK(info.status == MDP_E_ABORTED && info.rank == 2);
  }
  mdp_comm_destroy(comm);
}

static void abort_by_one_rank(void** state) {
  (void)state;
  run_ranks(3, abort_one, NULL);
}

static void leave_early(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  if (rank == 0) FAILS(MDP_E_PEER, "rank 1", mdp_barrier(comm, NULL));
  mdp_comm_destroy(comm);
}

static void leaving_while_others_wait(void** state) {
  (void)state;
  run_ranks(2, leave_early, NULL);
}

static pthread_barrier_t late;
static void come_late(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  /* The same limit holds for finding each other: the ranks begin together, and it is long enough for a busy machine. */
  pthread_barrier_wait(&late);
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(3000000000));
  if (rank == 0) FAILS(MDP_E_TIMEOUT, "rank 1", mdp_barrier(comm, NULL));
  pthread_barrier_wait(&late);
  mdp_comm_destroy(comm);
}

static void a_rank_that_does_not_come_in_time(void** state) {
  (void)state;
  pthread_barrier_init(&late, NULL, 2);
  run_ranks(2, come_late, NULL);
  pthread_barrier_destroy(&late);
}

static void rendezvous_without_a_rank(void** state) {
  (void)state;
  mdp_unique_id id;
  OK(mdp_unique_id_create(&id));
  SIZED(mdp_comm_config, config);
  config.size = 3;
  config.rank = 1;
  config.timeout_ns = 200000000;
  mdp_comm* comm = NULL;
  FAILS(MDP_E_TIMEOUT, "0", mdp_comm_create(&config, &id, &comm));
  config.rank = 0;
  FAILS(MDP_E_TIMEOUT, "1", mdp_comm_create(&config, &id, &comm));
  CHECK(comm == NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(collectives),
      TEST(splits),
      TEST(grids),
      TEST(gradients_from_threads),
      TEST(a_sync_while_a_gradient_is_put),
      TEST(different_registrations),
      TEST(each_field_is_compared),
      TEST(an_expert_on_one_rank),
      TEST(a_column_that_differs),
      TEST(different_configurations),
      TEST(different_operations),
      TEST(missing_on_one_rank),
      TEST(replicas_that_differ),
      TEST(experts_that_differ),
      TEST(different_numbers_of_experts),
      TEST(abort_by_one_rank),
      TEST(leaving_while_others_wait),
      TEST(a_rank_that_does_not_come_in_time),
      TEST(rendezvous_without_a_rank),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
