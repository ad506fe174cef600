/* SPDX-License-Identifier: Apache-2.0
 * A rank whose step is under way, because another rank is late or never comes: what it may call meanwhile waits for the step, and learns
 * how it ended. The ranks are threads; the late one comes when the other has made its call, and a moment later. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

static const uint64_t timeout_ns = UINT64_C(20000000000);

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* One bf16 parameter of which each of two ranks owns a half. */
enum {
  LENGTH = 4096
};
static const int64_t length = LENGTH;

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

static model model_open(const mdp_unique_id* id, int32_t rank, int32_t n) {
  model m = {.comm = comm_open(id, rank, n, timeout_ns)};
  SIZED(mdp_param, param);
  param.name = "weight";
  param.dtype = MDP_DTYPE_BF16;
  param.shape = &length;
  param.ndim = 1;
  OK(mdp_grid_create(m.comm, NULL, &m.grid));
  OK(mdp_buffer_register(NULL, m.grid, NULL, &param, 1, &m.buffer));
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 0.5; /* the first step takes every element by so much */
  OK(mdp_optimizer_create(m.buffer, &adamw, &m.optimizer));
  return m;
}

static void model_close(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
  mdp_comm_destroy(m->comm);
  memset(m, 0, sizeof *m);
}

static void put_ones(mdp_buffer* buffer) {
  float ones[LENGTH];
  for (int i = 0; i < LENGTH; ++i) ones[i] = 1;
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, ones, &length);
  OK(mdp_grad_put(buffer, 0, &grad, 0, NULL));
}

/* The number of elements that are not about `value`. */
static int off(const float* values, float value) {
  int count = 0;
  for (int i = 0; i < LENGTH; ++i) count += !(values[i] > value - 0.01F && values[i] < value + 0.01F);
  return count;
}

static void a_moment(void) {
  const struct timespec moment = {0, 50000000};
  nanosleep(&moment, NULL);
}

/* Gradients are reduced; rank 0 has begun its step, which ends when rank 1 has come to its own. */
typedef enum {
  READ,
  WRITE,
  VERIFY,
  WAIT,
  PUT,
  FREE
} what;

static atomic_int begun;

static void call_meanwhile(model* m, what call) {
  float values[LENGTH];
  const mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, &length);
  if (call == READ) {
    OK(mdp_param_read(m->buffer, 0, &array, NULL));
    CHECK(off(values, -0.5F) == 0);
  }
  if (call == WRITE) {
    for (int i = 0; i < LENGTH; ++i) values[i] = 3;
    OK(mdp_param_write(m->buffer, 0, &array, NULL)); /* not overwritten by the step's gather */
    memset(values, 0, sizeof values);
    OK(mdp_param_read(m->buffer, 0, &array, NULL));
    CHECK(off(values, 3) == 0);
  }
  if (call == WAIT && !on_cuda) { /* a caller's stream waits on a device, not the caller */
    SIZED(mdp_tensor, view);
    OK(mdp_buffer_param_view(m->buffer, 0, &view));
    OK(mdp_param_wait(m->buffer, 0, NULL));
    for (int i = 0; i < LENGTH; ++i) CHECK(((const uint16_t*)view.data)[i] == 0xbf00); /* -0.5 */
  }
  if (call == PUT) { /* the step is still to read the slot */
    put_ones(m->buffer);
    OK(mdp_param_read(m->buffer, 0, &array, NULL));
    CHECK(off(values, -0.5F) == 0);
  }
}

static void step_with_a_late_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const what call = *(const what*)argument;
  model m = model_open(id, rank, n);
  mdp_request* request = NULL;
  put_ones(m.buffer);
  sync_and_wait(m.buffer);
  if (rank == 1) {
    while (!atomic_load(&begun)) a_moment();
    a_moment(); /* a call that does not wait is over by now */
  }
  OK(mdp_optimizer_step(m.optimizer, NULL, NULL, &request));
  atomic_store(&begun, 1);
  if (call == VERIFY) { /* what is compared is that after the step, whether or not a rank has waited for it */
    if (rank == 1) OK(mdp_request_wait(request, UINT64_MAX));
    OK(mdp_buffer_verify(m.buffer));
  }
  if (call == FREE && rank == 0) {
    /* The work goes on without its handles, and the other rank has its step. */
    mdp_request_free(request);
    mdp_optimizer_destroy(m.optimizer);
    mdp_buffer_destroy(m.buffer);
    OK(mdp_barrier(m.comm, NULL));
    m.optimizer = NULL;
    m.buffer = NULL;
    model_close(&m);
    return;
  }
  if (rank == 0) call_meanwhile(&m, call);
  OK(mdp_request_wait(request, UINT64_MAX));
  OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  if (call == FREE) OK(mdp_barrier(m.comm, NULL));
  model_close(&m);
}

static void calls_wait_for_the_step(void** state) {
  (void)state;
  for (what call = READ; call <= FREE; ++call) {
    atomic_store(&begun, 0);
    run_ranks(2, step_with_a_late_rank, &call);
  }
}

/* The late rank ends it all: every call that waits for the step is told so, as often as it is asked. */
static void step_without_a_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const what call = *(const what*)argument;
  model m = model_open(id, rank, n);
  put_ones(m.buffer);
  sync_and_wait(m.buffer);
  if (rank == 1) {
    while (!atomic_load(&begun)) a_moment();
    a_moment(); /* rank 0 waits by now */
    OK(mdp_comm_abort(m.comm));
    model_close(&m);
    return;
  }
  float values[LENGTH];
  const mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, &length);
  const char* const part = "rank 1 called mdp_comm_abort";
  mdp_request* request = NULL;
  OK(mdp_optimizer_step(m.optimizer, NULL, NULL, &request));
  atomic_store(&begun, 1);
  if (call == WAIT && !on_cuda) FAILS(MDP_E_ABORTED, part, mdp_param_wait(m.buffer, 0, NULL));
  if (call == READ && !on_cuda) FAILS(MDP_E_ABORTED, part, mdp_param_read(m.buffer, 0, &array, NULL));
  if (call == PUT && !on_cuda) FAILS(MDP_E_ABORTED, part, mdp_grad_put(m.buffer, 0, &array, 0, NULL));
  for (int again = 0; again < 3; ++again) {
    FAILS(MDP_E_ABORTED, part, mdp_request_wait(request, UINT64_MAX));
    FAILS(MDP_E_ABORTED, part, mdp_request_test(request));
  }
  mdp_request_free(request);
  model_close(&m);
}

static void calls_fail_with_the_step(void** state) {
  (void)state;
  for (what call = READ; call <= FREE; ++call) {
    atomic_store(&begun, 0);
    run_ranks(2, step_without_a_rank, &call);
  }
}

/* A sync that found a problem is told to whoever asks, again and again, by its request too. */
static void a_failed_sync_asked_again(void** state) {
  (void)state;
  model m = model_open(NULL, 0, 1);
  mdp_request *first = NULL, *second = NULL;
  OK(mdp_grad_sync(m.buffer, NULL, &first));
  OK(mdp_grad_sync(m.buffer, NULL, &second));
  for (int again = 0; again < 3; ++again) {
    FAILS(MDP_E_STATE, "parameter 0 'weight' never became ready", mdp_request_wait(first, UINT64_MAX));
    FAILS(MDP_E_STATE, "parameter 0 'weight' never became ready", mdp_request_wait(second, UINT64_MAX));
    FAILS(MDP_E_STATE, "parameter 0 'weight' never became ready", mdp_grad_sync(m.buffer, NULL, NULL));
  }
  mdp_request_free(first);
  mdp_request_free(second);
  model_close(&m);
}

/* ── While a sync is pending ── */

static mdp_bucket_state bucket_state(mdp_buffer* buffer) {
  SIZED(mdp_bucket_report, report);
  OK(mdp_buffer_bucket(buffer, 0, &report));
  return report.state;
}

static void sync_with_a_late_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  model m = model_open(id, rank, n);
  float zeros[LENGTH] = {0};
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, zeros, &length);
  mdp_request *synced = NULL, *again = NULL, *stepped = NULL;
  CHECK(bucket_state(m.buffer) == MDP_BUCKET_FILLING);
  if (rank == 1) {
    while (!atomic_load(&begun)) a_moment();
  }
  put_ones(m.buffer); /* its bucket is full, and launched */
  if (rank == 0) CHECK(bucket_state(m.buffer) == MDP_BUCKET_IN_FLIGHT);
  OK(mdp_grad_sync(m.buffer, NULL, &synced));
  if (rank == 0) {
    CHECK(mdp_request_test(synced) == MDP_PENDING && mdp_request_wait(synced, 1000000) == MDP_PENDING);
    FAILS(MDP_E_STATE, "mdp_grad_sync is pending", mdp_microbatch_begin(m.buffer, 1));
    FAILS(MDP_E_STATE, "mdp_grad_sync is pending", mdp_buffer_zero_grad(m.buffer, NULL));
    FAILS(MDP_E_STATE, "'weight' comes after mdp_grad_sync; its bucket 0 is in flight", mdp_grad_put(m.buffer, 0, &grad, 0, NULL));
    FAILS(MDP_E_STATE, "'weight' comes after mdp_grad_sync", mdp_grad_ready(m.buffer, 0, NULL));
    FAILS(MDP_E_STATE, "'weight' comes after mdp_grad_sync", mdp_grad_skip(m.buffer, 0));
    OK(mdp_grad_sync(m.buffer, NULL, &again)); /* the same outcome, a request of its own */
    atomic_store(&begun, 1);
    OK(mdp_request_wait(again, UINT64_MAX));
    mdp_request_free(again);
  }
  OK(mdp_request_wait(synced, UINT64_MAX));
  mdp_request_free(synced);
  CHECK(bucket_state(m.buffer) == MDP_BUCKET_REDUCED);
  FAILS(MDP_E_STATE, "'weight' comes after mdp_grad_sync; its bucket 0 is reduced", mdp_grad_put(m.buffer, 0, &grad, 0, NULL));
  if (rank == 1) {
    while (atomic_load(&begun) < 2) a_moment();
  }
  OK(mdp_optimizer_step(m.optimizer, NULL, NULL, &stepped));
  if (rank == 0) {
    CHECK(bucket_state(m.buffer) == MDP_BUCKET_GATHERING);
    atomic_store(&begun, 2);
  }
  OK(mdp_request_wait(stepped, UINT64_MAX));
  mdp_request_free(stepped);
  CHECK(bucket_state(m.buffer) == MDP_BUCKET_WHOLE);
  SIZED(mdp_stats_report, stats);
  OK(mdp_buffer_stats(m.buffer, &stats));
  CHECK(stats.syncs == 1 && stats.buckets == 1 && stats.launched_in_backward == 1);
  model_close(&m);
}

static void calls_during_a_sync(void** state) {
  (void)state;
  atomic_store(&begun, 0);
  run_ranks(2, sync_with_a_late_rank, NULL);
}

/* What a step that was begun anew had been told of its microbatches is forgotten with it. */
static void begun_anew_after_a_failed_sync(void** state) {
  (void)state;
  model m = model_open(NULL, 0, 1);
  for (int by_zero_grad = 0; by_zero_grad < 2; ++by_zero_grad) {
    OK(mdp_microbatch_begin(m.buffer, 0));
    put_ones(m.buffer);
    FAILS(MDP_E_STATE, "not the last", mdp_grad_sync(m.buffer, NULL, NULL));
    FAILS(MDP_E_STATE, "the gradients are not whole", mdp_optimizer_step(m.optimizer, NULL, NULL, NULL));
    if (by_zero_grad) {
      OK(mdp_buffer_zero_grad(m.buffer, NULL));
    } else {
      OK(mdp_microbatch_begin(m.buffer, 1));
    }
    put_ones(m.buffer);
    FAILS(MDP_E_STATE, "is ready already: it came 1 of 1 times in this microbatch", mdp_grad_ready(m.buffer, 0, NULL));
    sync_and_wait(m.buffer);
    step_and_wait(m.optimizer);
  }
  /* Gradients that were reduced and not used: the next step begins without them. */
  put_ones(m.buffer);
  sync_and_wait(m.buffer);
  OK(mdp_microbatch_begin(m.buffer, 1));
  FAILS(MDP_E_STATE, "never became ready", mdp_optimizer_step(m.optimizer, NULL, NULL, NULL));
  OK(mdp_microbatch_begin(m.buffer, 1));
  put_ones(m.buffer);
  sync_and_wait(m.buffer);
  SIZED(mdp_tensor, view);
  OK(mdp_buffer_grad_view(m.buffer, 0, &view));
  CHECK(((const float*)view.data)[0] == 1 && ((const float*)view.data)[LENGTH - 1] == 1);
  model_close(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(calls_wait_for_the_step), TEST(calls_fail_with_the_step),       TEST(a_failed_sync_asked_again),
      TEST(calls_during_a_sync),     TEST(begun_anew_after_a_failed_sync),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
