/* SPDX-License-Identifier: Apache-2.0
 * What one rank does by itself while its collectives wait for another rank: calls that are local, and handles that go. No rank notices. */
#include <stdatomic.h>
#include <time.h>

#include "channels.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static atomic_int through; /* rank 0 is through with what it does by itself */

static void wait_until_through(mdp_comm* world) {
  const struct timespec moment = {0, 5000000};
  while (!atomic_load(&through) && !lost(world)) nanosleep(&moment, NULL);
  nanosleep(&moment, NULL);
}

/* ── Local calls ── */

/* Of the other ranks none has come to the bucket that waits, nor to the all-reduce. */
static void stay_local(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int from_host = *(const int*)argument;
  mdp_comm* world = comm_in_time(id, rank, n);
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(world, NULL, &grid));
  room arrays = room_open(world);
  model m = model_open(grid, 0);
  if (rank > 0) wait_until_through(world);
  call sum = call_begin(world, ALL_REDUCE, 0, &arrays, 0, 1);
  for (int part = PARTS; part-- > 0;) {
    if (from_host) put_part_from_host(&m, part);
    if (!from_host) put_part(&m, part, 0);
  }
  if (from_host) {
    const int64_t length = PART_LENGTH;
    float values[PART_LENGTH];
    const mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, &length);
    DID(mdp_param_read(m.buffer, 0, &array, NULL));
    DID(mdp_param_write(m.buffer, 0, &array, NULL));
  }
  DID(mdp_param_wait(m.buffer, SIZE_MAX, NULL));
  if (rank == 0) atomic_store(&through, 1);
  call_end(&sum);
  sync_and_check(&m);
  step_and_check(&m);
  (void)lost(world);
  model_close(&m);
  room_close(&arrays);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(world);
}

static void local_calls_wait_for_no_rank(void** state) {
  (void)state;
  int from_host = 0;
  begin_test();
  atomic_store(&through, 0);
  run_ranks(2, stay_local, &from_host);
}

/* On a device memory is taken and given back for them, and to give it back may mean to wait for the device. */
static void local_calls_with_arrays_of_the_host_wait_for_no_rank(void** state) {
  (void)state;
  int from_host = 1;
  begin_test();
  atomic_store(&through, 0);
  run_ranks(2, stay_local, &from_host);
}

/* ── Handles that go while their work is in flight ── */

enum {
  IN_FLIGHT = 3
};

static void destroy_a_communicator(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int keep_requests = *(const int*)argument;
  mdp_comm *world = comm_in_time(id, rank, n), *own = NULL;
  OK(mdp_comm_split(world, 0, rank, &own));
  room arrays = room_open(world);
  call calls[IN_FLIGHT];
  if (rank > 0) wait_until_through(world);
  for (int i = 0; i < IN_FLIGHT; ++i) {
    /* Only arrays of the host outlive the rank, and so a request that is freed too early. */
    calls[i] = call_begin(own, i == 0 ? ALL_GATHER : ALL_REDUCE, i, &arrays, keep_requests ? i : 2 * i + 1, 1);
    if (rank > 0 || keep_requests) continue;
    mdp_request_free(calls[i].request);
  }
  if (rank == 0) {
    mdp_comm_destroy(own);
    atomic_store(&through, 1);
  }
  if (rank > 0 || keep_requests) {
    for (int i = 0; i < IN_FLIGHT; ++i) call_end(&calls[i]);
  }
  call_now(world, ALL_REDUCE, 1, &arrays, SLOTS - 1);
  OK(mdp_barrier(world, NULL));
  CHECK(!lost(world));
  if (rank > 0) mdp_comm_destroy(own);
  room_close(&arrays);
  mdp_comm_destroy(world);
}

static void a_communicator_destroyed_in_flight(void** state) {
  (void)state;
  begin_test();
  for (int32_t n = 2; n <= 3; ++n) {
    for (int keep_requests = 0; keep_requests < 2 && go_on(); ++keep_requests) {
      atomic_store(&through, 0);
      run_ranks(n, destroy_a_communicator, &keep_requests);
    }
  }
}

typedef enum {
  BUCKETS, /* all are launched, and no sync comes */
  SYNC,
  STEP
} stage;

/* Polls: a gradient that no sync ends cannot be waited for. */
static void wait_for_buckets(mdp_comm* world, mdp_buffer* buffer) {
  const struct timespec moment = {0, 1000000};
  for (size_t bucket = 0; bucket < PARTS; ++bucket) {
    SIZED(mdp_bucket_report, report);
    while (OK(mdp_buffer_bucket(buffer, bucket, &report)) && report.state == MDP_BUCKET_IN_FLIGHT && !lost(world)) nanosleep(&moment, NULL);
    CHECK(report.state == MDP_BUCKET_REDUCED);
  }
}

/* Rank 0 goes as soon as it has begun; the others find its part of the work done. */
static void destroy_a_buffer(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const stage last = *(const stage*)argument;
  mdp_comm* world = comm_in_time(id, rank, n);
  mdp_grid* grid = NULL;
  mdp_request* request = NULL;
  OK(mdp_grid_create(world, NULL, &grid));
  room arrays = room_open(world);
  model m = model_open(grid, 0);
  dice d = dice_of(rank, (int)last);
  if (rank > 0 && last != STEP) wait_until_through(world);
  put_parts(&m, 0, &d);
  if (last == STEP) sync_and_check(&m);
  if (rank > 0 && last == STEP) wait_until_through(world);
  if (last == SYNC) DID(mdp_grad_sync(m.buffer, NULL, &request));
  if (last == STEP) DID(mdp_optimizer_step(m.optimizer, NULL, NULL, &request));
  if (rank == 0) {
    mdp_request_free(request);
    model_close(&m);
    atomic_store(&through, 1);
  } else {
    if (last == BUCKETS) wait_for_buckets(world, m.buffer);
    finish_request(request);
    if (last == SYNC) check_gradients(&m);
    if (last == STEP) check_parameters(&m);
  }
  call_now(world, ALL_REDUCE, 1, &arrays, 0);
  OK(mdp_barrier(world, NULL));
  CHECK(!lost(world));
  if (rank > 0) model_close(&m);
  room_close(&arrays);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(world);
}

static void a_buffer_destroyed_in_flight(void** state) {
  (void)state;
  begin_test();
  for (int32_t n = 2; n <= 3; ++n) {
    for (stage last = BUCKETS; last <= STEP && go_on(); ++last) {
      atomic_store(&through, 0);
      run_ranks(n, destroy_a_buffer, &last);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(local_calls_wait_for_no_rank),
      TEST(local_calls_with_arrays_of_the_host_wait_for_no_rank),
      TEST(a_communicator_destroyed_in_flight),
      TEST(a_buffer_destroyed_in_flight),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
