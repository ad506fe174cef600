/* SPDX-License-Identifier: Apache-2.0
 * Every communicator has an order of its own: collectives on several of them may be begun in orders that differ from rank to rank, and by
 * several threads, one a communicator. On one communicator another order remains an error. */
#include <pthread.h>
#include <string.h>

#include "channels.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* ── Three communicators that share ranks ── */

static void nest(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  enum {
    COMMS = 3,
    CALLS = 8
  };
  static const int lengths[COMMS] = {CALLS, CALLS, CALLS};
  dice d = dice_of(rank, *(const int*)argument);
  mdp_comm* comms[COMMS] = {comm_in_time(id, rank, n)};
  OK(mdp_comm_split(comms[0], rank / 2, rank, &comms[1])); /* the halves */
  OK(mdp_comm_split(comms[0], rank % 2, rank, &comms[2])); /* the pairs across */
  room arrays = room_open(comms[0]);
  for (int round = 0; round < 4 && !lost(comms[0]); ++round) {
    int order[COMMS * CALLS], next[COMMS] = {0};
    call calls[COMMS * CALLS];
    shuffle(&d, lengths, COMMS, order);
    for (int at = 0; at < COMMS * CALLS; ++at) {
      const int which = order[at], i = next[which]++, number = 100 * which + CALLS * round + i;
      a_moment(&d);
      calls[at] = call_begin(comms[which], (kind)((i + which) % BARRIER), number, &arrays, CALLS * which + i, 1);
    }
    for (int at = 0; at < COMMS * CALLS; ++at) call_end(&calls[round % 2 == 0 ? at : COMMS * CALLS - 1 - at]);
  }
  (void)lost(comms[0]);
  room_close(&arrays);
  for (int i = 0; i < COMMS; ++i) mdp_comm_destroy(comms[i]);
}

static void nested_communicators(void** state) {
  (void)state;
  begin_test();
  for (int repetition = 0; repetition < 3 && go_on(); ++repetition) run_ranks(4, nest, &repetition);
}

/* ── Two threads of a rank ── */

typedef struct {
  mdp_comm* comm;
  room* arrays;
  dice d;
} other_thread;

static void* go_its_own_way(void* argument) {
  other_thread* t = argument;
  for (int i = 0; i < 40 && !lost(t->comm); ++i) {
    a_moment(&t->d);
    call c = call_begin(t->comm, (kind)(i % KINDS), i, t->arrays, i % SLOTS, roll(&t->d, 2));
    a_moment(&t->d);
    call_end(&c);
  }
  return NULL;
}

/* One thread trains; the other has collectives on a communicator of its own. */
static void be_two_threads(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int repetition = *(const int*)argument;
  dice d = dice_of(rank, repetition);
  mdp_comm *world = comm_in_time(id, rank, n), *own = NULL;
  mdp_grid* grid = NULL;
  OK(mdp_comm_split(world, 0, -rank, &own));
  OK(mdp_grid_create(world, NULL, &grid));
  room arrays = room_open(world);
  model m = model_open(grid, repetition);
  pthread_t thread;
  other_thread other = {own, &arrays, dice_of(rank, 100 + repetition)};
  if (!CHECK(pthread_create(&thread, NULL, go_its_own_way, &other) == 0)) return;
  for (int step = 0; step < 8 && !lost(world); ++step) {
    put_parts(&m, step % 2, &d);
    if (step % 2 == 0) DID(mdp_grad_sync(m.buffer, NULL, NULL));
    sync_and_check(&m); /* after a sync it gives a request of the same */
    step_and_check(&m);
  }
  pthread_join(thread, NULL);
  (void)lost(world);
  model_close(&m);
  room_close(&arrays);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(own);
  mdp_comm_destroy(world);
}

static void a_thread_trains_while_another_has_collectives(void** state) {
  (void)state;
  begin_test();
  for (int repetition = 0; repetition < 4 && go_on(); ++repetition) run_ranks(2 + repetition % 3, be_two_threads, &repetition);
}

/* ── What remains an error ── */

static void contradict(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int with_requests = *(const int*)argument;
  mdp_comm *world = comm_in_time(id, rank, n), *own = NULL;
  OK(mdp_comm_split(world, 0, rank, &own));
  float values[2][CALL_LENGTH] = {{0}};
  const int64_t length = CALL_LENGTH;
  const mdp_tensor summed = tensor_of(MDP_DTYPE_F32, values[0], &length), sent = tensor_of(MDP_DTYPE_F32, values[1], &length);
  mdp_request* requests[2] = {NULL, NULL};
  mdp_status status = MDP_OK;
  char sentence[sizeof((mdp_error_info*)NULL)->text] = "";
  for (int i = 0; i < 2 && status == MDP_OK; ++i) {
    mdp_request** const out = with_requests ? &requests[i] : NULL;
    status = i == rank % 2 ? mdp_all_reduce(own, &summed, &summed, MDP_OP_SUM, NULL, out) : mdp_broadcast(own, &sent, 0, NULL, out);
  }
  for (int i = 0; i < 2 && status == MDP_OK && with_requests; ++i) status = mdp_request_wait(requests[i], UINT64_MAX);
  snprintf(sentence, sizeof sentence, "%s", status == MDP_OK ? "" : mdp_last_error());
  if (status != MDP_E_TIMEOUT) CHECK(status == MDP_E_DESYNC);
  CHECK(strstr(sentence, "all-reduce") != NULL || strstr(sentence, "broadcast") != NULL);
  SIZED(mdp_error_info, info);
  OK(mdp_comm_error_info(own, &info));
  CHECK(info.status == MDP_E_DESYNC || info.status == MDP_E_TIMEOUT);
  FAILS(info.status, NULL, mdp_barrier(own, NULL));
  for (int i = 0; i < 2; ++i) mdp_request_free(requests[i]);
  mdp_comm_destroy(own);
  mdp_comm_destroy(world);
}

static void another_order_on_one_communicator(void** state) {
  (void)state;
  for (int with_requests = 0; with_requests < 2; ++with_requests) run_ranks(2, contradict, &with_requests);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(nested_communicators),
      TEST(a_thread_trains_while_another_has_collectives),
      TEST(another_order_on_one_communicator),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
