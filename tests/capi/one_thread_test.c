/* SPDX-License-Identifier: Apache-2.0
 * One thread at a time: while a call is under way, what another thread calls on the same communicator, grid or buffer is refused with a
 * sentence that names the first, and does nothing; what any thread may call goes on. The ranks are threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

static const uint64_t timeout_ns = UINT64_C(60000000000); /* no test gets there */

static int setup(void** state) {
  be_alone();
  return open_folder(state);
}

static void a_moment(void) {
  const struct timespec moment = {0, 5000000};
  nanosleep(&moment, NULL);
}

/* Rank 1 comes to the call that rank 0 is in when this is set. */
static atomic_int seen;

static void await_seen(void) {
  while (!atomic_load(&seen)) a_moment();
}

static const int64_t six[] = {2, 3};
static mdp_tensor six_of(float* values) {
  mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, six);
  array.ndim = 2;
  return array;
}

static mdp_status read_first(mdp_buffer* buffer) {
  float values[6];
  const mdp_tensor array = six_of(values);
  return mdp_param_read(buffer, FIRST, &array, NULL);
}

static mdp_status reduce(mdp_comm* comm) {
  float one = 1;
  const int64_t count = 1;
  const mdp_tensor array = tensor_of(MDP_DTYPE_F32, &one, &count);
  return mdp_all_reduce(comm, &array, &array, MDP_OP_SUM, NULL, NULL);
}

/* Until the other thread is in its call: what is called meanwhile changes nothing. */
static mdp_status repeat_until_refused(mdp_status (*call)(job*), job* j) {
  mdp_status status = MDP_OK;
  for (int tries = 0; tries < 6000 && (status = call(j)) != MDP_E_STATE; ++tries) a_moment();
  return status;
}

/* The call that the other thread waits for; its own may come first. */
static mdp_status repeat_while_refused(mdp_status (*call)(job*), job* j) {
  mdp_status status = MDP_E_STATE;
  for (int tries = 0; tries < 6000 && (status = call(j)) == MDP_E_STATE; ++tries) a_moment();
  return status;
}

/* ── A buffer ── */

static mdp_status read_it(job* j) {
  return read_first(j->buffer);
}

static mdp_status verify(job* j) {
  return mdp_buffer_verify(j->buffer);
}

static mdp_status save(job* j) {
  char path[300];
  snprintf(path, sizeof path, "%s/never", folder);
  SIZED(mdp_checkpoint_part, part);
  part.buffer = j->buffer;
  part.optimizer = j->optimizer;
  SIZED(mdp_checkpoint_config, config);
  config.directory = path;
  config.parts = &part;
  config.part_count = 1;
  return mdp_checkpoint_save(&config, NULL);
}

static mdp_buffer* other; /* of rank 0, in the same context */

static void* beside_a_buffer(void* argument) {
  job* const j = argument;
  const char* const said = "in use by mdp_buffer_verify on another thread";
  float values[6] = {0};
  const mdp_tensor array = six_of(values);
  SIZED(mdp_param_group, group);
  SIZED(mdp_tensor, view);
  SIZED(mdp_stats_report, stats);
  double norm = 0;
  uint64_t steps = 0;
  mdp_comm* part = NULL;
  if (!FAILS(MDP_E_STATE, said, repeat_until_refused(read_it, j))) {
    atomic_store(&seen, 1); /* what follows would be done */
    return NULL;
  }
  FAILS(MDP_E_STATE, said, mdp_param_write(j->buffer, FIRST, &array, NULL));
  FAILS(MDP_E_STATE, said, mdp_param_changed(j->buffer));
  FAILS(MDP_E_STATE, said, mdp_microbatch_begin(j->buffer, 1));
  FAILS(MDP_E_STATE, said, mdp_grad_sync(j->buffer, NULL, NULL));
  FAILS(MDP_E_STATE, said, mdp_grad_norm(j->buffer, NULL, 0, &norm));
  FAILS(MDP_E_STATE, said, mdp_grad_scale(j->buffer, NULL, 0, 2, NULL));
  FAILS(MDP_E_STATE, said, mdp_buffer_zero_grad(j->buffer, NULL));
  FAILS(MDP_E_STATE, said, mdp_buffer_broadcast(j->buffer, 0, NULL));
  FAILS(MDP_E_STATE, "optimizer is in use by mdp_buffer_verify", mdp_optimizer_step(j->optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_STATE, said, mdp_optimizer_set_param_group(j->optimizer, 0, &group));
  FAILS(MDP_E_STATE, said, mdp_optimizer_set_steps(j->optimizer, 1, NULL, 0));
  FAILS(MDP_E_STATE, said, mdp_optimizer_steps(j->optimizer, FIRST, &steps));
  FAILS(MDP_E_STATE, said, mdp_optimizer_state(j->optimizer, FIRST, "master", &view));
  FAILS(MDP_E_STATE, "parts[0].buffer is in use by mdp_buffer_verify", save(j));
  FAILS(MDP_E_STATE, "buffer's context is in use by mdp_buffer_verify", mdp_buffer_verify(other));
  FAILS(MDP_E_STATE, "comm's context is in use by mdp_buffer_verify", mdp_comm_split(j->comm, 0, 0, &part));
  OK(read_first(other));
  OK(mdp_param_wait(j->buffer, SIZE_MAX, NULL));
  OK(mdp_buffer_stats(j->buffer, &stats));
  OK(mdp_buffer_param_view(j->buffer, FIRST, &view));
  put_all(j->buffer);
  CHECK(mdp_comm_rank(j->comm) == 0);
  atomic_store(&seen, 1);
  return NULL;
}

static void verify_beside(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_on(comm_open(id, rank, n, timeout_ns));
  mdp_buffer* second = NULL;
  OK(mdp_buffer_register(NULL, j.grid, NULL, job_params, PARAMS, &second));
  pthread_t thread;
  if (rank == 0) {
    other = second;
    CHECK(pthread_create(&thread, NULL, beside_a_buffer, &j) == 0);
  } else {
    await_seen();
    put_all(j.buffer);
  }
  OK(repeat_while_refused(verify, &j));
  if (rank == 0) CHECK(pthread_join(thread, NULL) == 0);
  /* Nothing that was refused has happened, and all may be called again. */
  uint64_t steps = 7;
  OK(mdp_optimizer_steps(j.optimizer, FIRST, &steps));
  CHECK(steps == 0);
  step_and_wait(j.optimizer);
  OK(mdp_optimizer_steps(j.optimizer, FIRST, &steps));
  CHECK(steps == 1);
  OK(mdp_buffer_verify(j.buffer));
  OK(mdp_buffer_verify(second));
  OK(save(&j));
  mdp_buffer_destroy(second);
  job_close(&j);
}

static void a_buffer(void** state) {
  (void)state;
  atomic_store(&seen, 0);
  run_ranks(2, verify_beside, NULL);
}

/* ── A communicator ── */

static mdp_status reduce_nothing(job* j) {
  return mdp_all_reduce(j->comm, NULL, NULL, MDP_OP_SUM, NULL, NULL);
}

static mdp_status meet(job* j) {
  return mdp_barrier(j->comm, NULL);
}

static void* beside_a_communicator(void* argument) {
  job* const j = argument;
  const char* const said = "comm is in use by mdp_barrier on another thread";
  mdp_comm* part = NULL;
  mdp_grid* grid = NULL;
  mdp_buffer* buffer = NULL;
  SIZED(mdp_error_info, info);
  if (!FAILS(MDP_E_STATE, said, repeat_until_refused(reduce_nothing, j))) {
    atomic_store(&seen, 1); /* what follows would be done */
    return NULL;
  }
  FAILS(MDP_E_STATE, said, reduce(j->comm));
  FAILS(MDP_E_STATE, said, mdp_barrier(j->comm, NULL));
  FAILS(MDP_E_STATE, said, mdp_comm_split(j->comm, 0, 0, &part));
  FAILS(MDP_E_STATE, "world is in use by mdp_barrier", mdp_grid_create(j->comm, NULL, &grid));
  FAILS(MDP_E_STATE, said, mdp_buffer_register(j->comm, NULL, NULL, job_params, PARAMS, &buffer));
  CHECK(part == NULL && grid == NULL && buffer == NULL);
  OK(mdp_comm_error_info(j->comm, &info));
  OK(read_first(j->buffer)); /* another object */
  CHECK(mdp_comm_size(j->comm) == 2);
  atomic_store(&seen, 1);
  return NULL;
}

static void meet_beside(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_on(comm_open(id, rank, n, timeout_ns));
  pthread_t thread;
  if (rank == 0) CHECK(pthread_create(&thread, NULL, beside_a_communicator, &j) == 0);
  if (rank == 1) await_seen();
  OK(repeat_while_refused(meet, &j));
  if (rank == 0) CHECK(pthread_join(thread, NULL) == 0);
  OK(reduce(j.comm));
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void a_communicator(void** state) {
  (void)state;
  atomic_store(&seen, 0);
  run_ranks(2, meet_beside, NULL);
}

/* ── This thread, from a function that a call asks ── */

static int32_t ask(void* context) {
  job* const j = *(job**)context;
  if (j == NULL || atomic_load(&seen)) return 0;
  const char* const said = "is in use by mdp_buffer_verify, which has called the function that makes this call";
  FAILS(MDP_E_STATE, said, read_first(j->buffer));
  FAILS(MDP_E_STATE, said, mdp_optimizer_step(j->optimizer, NULL, NULL, NULL));
  FAILS(MDP_E_STATE, said, save(j));
  atomic_store(&seen, 1);
  return 0;
}

static void asked_within(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job* asked = NULL;
  mdp_comm_config config = comm_config_of(rank, n, timeout_ns);
  config.interrupted = ask;
  config.interrupted_context = &asked;
  mdp_comm* comm = NULL;
  if (!OK(mdp_comm_create(&config, id, &comm))) return;
  job j = job_on(comm);
  if (rank == 0) {
    asked = &j;
  } else {
    await_seen();
  }
  OK(mdp_buffer_verify(j.buffer));
  asked = NULL;
  OK(read_first(j.buffer));
  job_close(&j);
}

static void this_thread(void** state) {
  (void)state;
  atomic_store(&seen, 0);
  run_ranks(2, asked_within, NULL);
}

/* ── What goes while a call uses it stays until that has ended: AddressSanitizer would tell ── */

static int32_t destroy_both(void* user, const mdp_update* update) {
  (void)update;
  job* const j = user;
  mdp_optimizer_destroy(j->optimizer);
  mdp_buffer_destroy(j->buffer);
  j->optimizer = NULL;
  j->buffer = NULL;
  return 0;
}

static void destroyed_within(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  mdp_optimizer_destroy(j.optimizer);
  j.optimizer = NULL;
  SIZED(mdp_optimizer_config, config);
  config.rule = MDP_RULE_CALLER;
  OK(mdp_optimizer_create(j.buffer, &config, &j.optimizer));
  OK(mdp_optimizer_set_update(j.optimizer, destroy_both, &j));
  put_all(j.buffer);
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, NULL));
  CHECK(j.optimizer == NULL && j.buffer == NULL);
  job_close(&j);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(a_buffer), TEST(a_communicator), TEST(this_thread), TEST(destroyed_within)};
  return cmocka_run_group_tests(tests, setup, close_folder);
}
