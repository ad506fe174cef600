/* SPDX-License-Identifier: Apache-2.0
 *
 * The short way: a buffer on a communicator, a step that syncs, parameters by name, ranks of the world, and collectives of setting up as
 * requests. */
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static const uint64_t timeout_ns = UINT64_C(20000000000);

static mdp_optimizer* plain_optimizer(mdp_buffer* buffer, double weight_decay) {
  SIZED(mdp_optimizer_config, config);
  config.lr = 0.5;
  config.weight_decay = weight_decay;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, &config, &optimizer));
  return optimizer;
}

static const int64_t first_shape[] = {2, 3};
static mdp_tensor first_of(float values[6]) {
  mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, values, first_shape);
  tensor.ndim = 2;
  return tensor;
}

static float read_first(mdp_buffer* buffer) {
  float values[6] = {0};
  const mdp_tensor to = first_of(values);
  OK(mdp_param_read(buffer, FIRST, &to, NULL));
  return values[5];
}

static void write_first(mdp_buffer* buffer, float value) {
  float values[6] = {value, value, value, value, value, value};
  const mdp_tensor from = first_of(values);
  OK(mdp_param_write(buffer, FIRST, &from, NULL));
}

static void put_value(mdp_buffer* buffer, size_t param, float value) {
  float values[6] = {value, value, value, value, value, value};
  mdp_tensor grad = tensor_of(MDP_DTYPE_F32, values, job_params[param].shape);
  grad.ndim = job_params[param].ndim;
  OK(mdp_grad_put(buffer, param, &grad, 0, NULL));
}

static void put_values(mdp_buffer* buffer, float value) {
  for (size_t param = 0; param < FROZEN; ++param) put_value(buffer, param, value);
}

/* The nine calls: a communicator, a buffer on it, an optimizer, and no sync. The gradient is the mean over ranks: 1 + (n - 1) / 2. */
static void train(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, NULL, job_params, PARAMS, &buffer));
  mdp_optimizer* optimizer = plain_optimizer(buffer, 0);
  for (int step = 1; step <= 3; ++step) {
    put_value(buffer, FIRST, 1 + (float)rank);
    put_value(buffer, SECOND, 1);
    put_value(buffer, EMPTY, 1);
    SIZED(mdp_step_report, report);
    OK(mdp_optimizer_step(optimizer, NULL, &report, NULL));
    const double first = 1 + (n - 1) / 2.0, norm = 6 * first * first + 5;
    CHECK(report.step == (uint64_t)step && report.grad_norm * report.grad_norm > norm * 0.999 &&
          report.grad_norm * report.grad_norm < norm * 1.001);
    CHECK(read_first(buffer) < -0.49F * (float)step && read_first(buffer) > -0.51F * (float)step);
  }
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void nine_calls(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) run_ranks(n, train, NULL);
}

/* Rank 1 forgets a parameter: the step that syncs says so on all ranks, and the next step works. */
static void forget_one(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  put_value(j.buffer, FIRST, 1);
  put_value(j.buffer, EMPTY, 1);
  if (rank != 1) put_value(j.buffer, SECOND, 1);
  FAILS(MDP_E_STATE, "on rank 1 parameter 1 'second' never became ready", mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  CHECK(read_first(j.buffer) == 0);
  OK(mdp_microbatch_begin(j.buffer, 1));
  put_values(j.buffer, 1);
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  CHECK(read_first(j.buffer) < 0);
  job_close(&j);
}

static void a_step_that_syncs_fails_on_all_ranks(void** state) {
  (void)state;
  run_ranks(3, forget_one, NULL);
}

/* One rank registers on a grid and the others do not; then one has synced and the others leave that to the step, which is the same. */
static void come_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  put_values(j.buffer, 1);
  if (rank == 1) OK(mdp_grad_sync(j.buffer, NULL, NULL));
  step_and_wait(j.optimizer); /* what is under way as the job ends reads memory of ranks that have left */
  mdp_buffer* buffer = NULL;
  FAILS(MDP_E_INVALID, "comm and grid are both given", mdp_buffer_register(j.comm, j.grid, NULL, job_params, PARAMS, &buffer));
  FAILS(MDP_E_INVALID, "comm is NULL and grid is NULL", mdp_buffer_register(NULL, NULL, NULL, job_params, PARAMS, &buffer));
  if (rank == 1) FAILS(MDP_E_DESYNC, "mdp_buffer_register", mdp_buffer_register(NULL, j.grid, NULL, job_params, PARAMS, &buffer));
  if (rank != 1) FAILS(MDP_E_DESYNC, "without a grid", mdp_buffer_register(j.comm, NULL, NULL, job_params, PARAMS, &buffer));
  CHECK(buffer == NULL);
  job_close(&j);
}

static void ranks_that_come_differently(void** state) {
  (void)state;
  run_ranks(3, come_differently, NULL);
}

static void look_up(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  size_t param = 99, params = 0, buckets = 0;
  OK(mdp_buffer_find(j.buffer, "second", &param));
  CHECK(param == SECOND);
  OK(mdp_buffer_find(j.buffer, "frozen", &param));
  CHECK(param == FROZEN);
  FAILS(MDP_E_INVALID, "name is 'third'; none of the 4 parameters", mdp_buffer_find(j.buffer, "third", &param));
  FAILS(MDP_E_INVALID, "name is NULL", mdp_buffer_find(j.buffer, NULL, &param));
  FAILS(MDP_E_INVALID, "param is NULL", mdp_buffer_find(j.buffer, "second", NULL));
  CHECK(param == FROZEN);
  OK(mdp_buffer_counts(j.buffer, &params, &buckets));
  SIZED(mdp_bucket_report, report);
  CHECK(params == PARAMS && buckets > 0);
  OK(mdp_buffer_bucket(j.buffer, buckets - 1, &report));
  FAILS(MDP_E_INVALID, "bucket is", mdp_buffer_bucket(j.buffer, buckets, &report));
  FAILS(MDP_E_INVALID, "params is NULL", mdp_buffer_counts(j.buffer, NULL, &buckets));
  FAILS(MDP_E_INVALID, "buckets is NULL", mdp_buffer_counts(j.buffer, &params, NULL));

  mdp_comm* part = NULL; /* ranks n - 1 to 0 */
  OK(mdp_comm_split(j.comm, 0, -rank, &part));
  for (int32_t r = 0; r < n; ++r) CHECK(mdp_comm_world_rank(part, r) == n - 1 - r && mdp_comm_world_rank(j.comm, r) == r);
  CHECK(mdp_comm_world_rank(part, n) == -1 && strstr(mdp_last_error(), "rank is 3; in this communicator it must be 0 to 2") != NULL);
  CHECK(mdp_comm_world_rank(part, -1) == -1);
  mdp_comm_destroy(part);
  job_close(&j);
}

static void names_counts_and_world_ranks(void** state) {
  (void)state;
  run_ranks(3, look_up, NULL);
}

/* The barrier is over when all have come, and not before; what a broadcast copies is there when its request has finished. */
static void ask(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  mdp_request* request = NULL;
  if (rank == 0) {
    OK(mdp_barrier(j.comm, &request));
    CHECK(mdp_request_wait(request, UINT64_C(50000000)) == MDP_PENDING);
  }
  mdp_comm* same = NULL;
  OK(mdp_comm_split(j.comm, 0, rank, &same)); /* rank 0 comes to it only now */
  if (rank != 0) OK(mdp_barrier(j.comm, &request));
  OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  mdp_comm_destroy(same);

  write_first(j.buffer, (float)rank);
  FAILS(MDP_E_INVALID, "root is 3", mdp_buffer_broadcast(j.buffer, n, &request));
  OK(mdp_buffer_broadcast(j.buffer, 2, &request));
  OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  CHECK(read_first(j.buffer) == 2);
  OK(mdp_buffer_broadcast(j.buffer, 1, NULL));
  CHECK(read_first(j.buffer) == 2);
  job_close(&j);
}

static void barrier_and_broadcast_as_requests(void** state) {
  (void)state;
  run_ranks(3, ask, NULL);
}

/* 0 is the default of every field, and each flag makes it 0 for its own field alone. With beta1 = beta2 = 0 a step is lr * sign(g), and a
 * gradient of zero leaves the weight decay alone. */
static float stepped(const mdp_optimizer_config* given) {
  job j = job_open(NULL, 0, 1);
  write_first(j.buffer, 1);
  mdp_optimizer_config config = *given;
  config.struct_size = sizeof config;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(j.buffer, &config, &optimizer));
  put_values(j.buffer, 0);
  OK(mdp_optimizer_step(optimizer, NULL, NULL, NULL));
  const float value = read_first(j.buffer);
  mdp_optimizer_destroy(optimizer);
  job_close(&j);
  return value;
}

static void zero_is_the_default(void** state) {
  (void)state;
  mdp_param_group group = {.struct_size = sizeof group};
  mdp_optimizer_config config = {.lr = 0.5, .weight_decay = 0.5, .param_groups = &group, .param_group_count = 1};
  CHECK(stepped(&config) == 0.75F); /* the optimizer's weight decay and lr */
  group.weight_decay = 0.25;
  CHECK(stepped(&config) == 0.875F);
  group.weight_decay = 0;
  group.flags = MDP_PARAM_GROUP_SET_WEIGHT_DECAY;
  CHECK(stepped(&config) == 1);
  group.flags = MDP_PARAM_GROUP_SET_LR;
  CHECK(stepped(&config) == 1);
  group.flags = 0;
  config.lr = 0;
  CHECK(stepped(&config) == 1 - (float)(1e-3 * 0.5));
  config.flags = MDP_OPTIMIZER_SET_LR;
  CHECK(stepped(&config) == 1);
}

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(nine_calls),
      TEST(a_step_that_syncs_fails_on_all_ranks),
      TEST(ranks_that_come_differently),
      TEST(names_counts_and_world_ranks),
      TEST(barrier_and_broadcast_as_requests),
      TEST(zero_is_the_default),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
