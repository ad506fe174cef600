/* SPDX-License-Identifier: Apache-2.0
 * mdp_comm_create by a bootstrap of the caller's: ranks are threads, which gather over a board in their memory, and everything that can go
 * wrong with that goes wrong on one of them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

enum {
  RANKS = 3,
  CALLS = 4,
  ROOM = 4096
};

typedef enum {
  NOTHING,
  START_FAILS,
  TEST_FAILS,
  TEST_IS_ODD,
  NEVER_DONE,
  NEVER_WRITES,
  A_BYTE_CHANGED,
  OWN_BYTES_CHANGED,
  SHIFTED,    /* a gather of another length */
  SWAPPED,    /* not in the order of ranks */
  MORE_RANKS, /* config.size is larger */
  OLD_BYTES   /* what a rank gave for another job */
} fault;

typedef struct {
  fault fault;
  int32_t by; /* the rank it happens to; -1: all */
  int in;     /* the call, from 0 */
  uint64_t timeout_ns;
  mdp_status wanted;
  const char *there, *elsewhere; /* what is said on that rank, and on the others; NULL there: a world is made */
} scene;

static struct {
  pthread_mutex_t mutex;
  unsigned char parts[CALLS][RANKS][ROOM];
  int come[CALLS];
} board = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static unsigned char old_part[ROOM];
static scene now;

typedef struct {
  int32_t rank;
  int calls, starts, frees;
  pthread_t thread;
} caller;

typedef struct {
  int call;
  size_t bytes;
  unsigned char* all;
} pending;

static int strikes(const caller* me, fault which, int call) {
  return now.fault == which && (now.by < 0 || now.by == me->rank) && now.in == call;
}

static int32_t start(void* context, const void* mine, size_t bytes, void* all, void** request) {
  caller* me = context;
  const int call = me->calls++;
  CHECK(pthread_equal(me->thread, pthread_self()) && *request == NULL && bytes <= ROOM && call < CALLS);
  if (strikes(me, START_FAILS, call)) return -77;
  pending* p = calloc(1, sizeof *p);
  p->call = now.fault == START_FAILS && me->rank == now.by ? call - 1 : call; /* what failed has not begun: the next is the first */
  p->bytes = bytes;
  p->all = all;
  pthread_mutex_lock(&board.mutex);
  memcpy(board.parts[p->call][me->rank], mine, bytes);
  ++board.come[p->call];
  pthread_mutex_unlock(&board.mutex);
  ++me->starts;
  *request = p;
  return 0;
}

static void spoil(const caller* me, const pending* p) {
  unsigned char* const all = p->all;
  if (strikes(me, NEVER_WRITES, p->call)) memset(all, 0, RANKS * p->bytes);
  if (strikes(me, A_BYTE_CHANGED, p->call)) all[(size_t)((me->rank + 1) % RANKS) * p->bytes + 40] ^= 1;
  if (strikes(me, OWN_BYTES_CHANGED, p->call)) all[(size_t)me->rank * p->bytes + 40] ^= 1;
  if (strikes(me, SHIFTED, p->call)) memmove(all + 1, all, RANKS * p->bytes - 1);
  if (strikes(me, OLD_BYTES, p->call)) memcpy(all, old_part, p->bytes);
  if (strikes(me, SWAPPED, p->call)) {
    memcpy(all, board.parts[p->call][1], p->bytes);
    memcpy(all + p->bytes, board.parts[p->call][0], p->bytes);
  }
}

static int32_t test(void* context, void* request) {
  const caller* me = context;
  const pending* p = request;
  if (strikes(me, TEST_FAILS, p->call)) return -5;
  if (strikes(me, TEST_IS_ODD, p->call)) return 2;
  if (strikes(me, NEVER_DONE, p->call)) return 0;
  pthread_mutex_lock(&board.mutex);
  const int done = board.come[p->call] == RANKS;
  if (done) {
    for (int r = 0; r < RANKS; ++r) memcpy(p->all + (size_t)r * p->bytes, board.parts[p->call][r], p->bytes);
    spoil(me, p);
  }
  pthread_mutex_unlock(&board.mutex);
  return done;
}

static void finish(void* context, void* request) {
  caller* me = context;
  ++me->frees;
  free(request);
}

static void use(mdp_comm* comm, int32_t rank) {
  int64_t sum = rank;
  const int64_t one = 1;
  const mdp_tensor t = tensor_of(MDP_DTYPE_I64, &sum, &one);
  OK(mdp_all_reduce(comm, &t, &t, MDP_OP_SUM, NULL, NULL));
  CHECK(sum == RANKS * (RANKS - 1) / 2);
  mdp_comm* part = NULL;
  OK(mdp_comm_split(comm, rank % 2, 0, &part));
  CHECK(mdp_comm_size(part) == (rank % 2 ? 1 : 2));
  mdp_comm_destroy(part);
}

static void join(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)id, (void)argument;
  caller me = {.rank = rank, .thread = pthread_self()};
  SIZED(mdp_bootstrap, bootstrap);
  bootstrap.context = &me;
  bootstrap.allgather_start = start;
  bootstrap.allgather_test = test;
  bootstrap.allgather_free = finish;
  SIZED(mdp_comm_config, config);
  config.rank = rank;
  config.size = n + strikes(&me, MORE_RANKS, 0);
  config.timeout_ns = now.timeout_ns;
  config.bootstrap = &bootstrap;
  mdp_comm* comm = NULL;
  const mdp_status status = mdp_comm_create(&config, NULL, &comm);
  if (now.there == NULL) {
    check_status(status, MDP_OK, NULL, "mdp_comm_create", __FILE__, __LINE__);
    const int calls = me.calls;
    if (comm != NULL) use(comm, rank);
    CHECK(me.calls == calls && calls == 2);
  } else {
    const int here = now.by < 0 || now.by == rank;
    check_status(status, now.wanted, here ? now.there : now.elsewhere, "mdp_comm_create", __FILE__, __LINE__);
    CHECK(comm == NULL);
    mdp_error_info info = {.struct_size = sizeof info};
    OK(mdp_last_error_info(&info));
    if (!here && now.wanted != MDP_E_TIMEOUT) CHECK(info.rank >= 0);
  }
  CHECK(me.frees == me.starts);
  mdp_comm_destroy(comm);
}

static void play(scene which) {
  now = which;
  memset(board.come, 0, sizeof board.come);
  run_ranks(RANKS, join, NULL);
  print_message("fault %d of rank %d in call %d\n", (int)which.fault, (int)which.by, which.in);
}

enum {
  SECONDS = 1000000000
};
static const uint64_t long_ns = UINT64_C(60) * SECONDS, short_ns = UINT64_C(1) * SECONDS;

static void worlds(void** state) {
  (void)state;
  for (int i = 0; i < 3; ++i) play((scene){.timeout_ns = long_ns});
  memcpy(old_part, board.parts[0][0], ROOM);
}

/* In the first call everyone hears of it, and returns long before the timeout. */
static void heard(void** state) {
  (void)state;
  const scene scenes[] = {
      {START_FAILS, 1, 0, long_ns, MDP_E_BACKEND, "config.bootstrap->allgather_start returned -77",
       "rank 1: config.bootstrap->allgather_start"},
      {START_FAILS, 0, 0, long_ns, MDP_E_BACKEND, "allgather_start returned -77", "rank 0: config.bootstrap"},
      {TEST_FAILS, 2, 0, long_ns, MDP_E_BACKEND, "allgather_test returned -5", "rank 2: config.bootstrap->allgather_test returned -5"},
      {TEST_IS_ODD, 0, 0, long_ns, MDP_E_BACKEND, "allgather_test returned 2, which is not 0 (in progress) or 1 (done)", "rank 0: "},
      {NEVER_WRITES, 1, 0, long_ns, MDP_E_CORRUPT, "gave rank 1, in the place of rank 0, bytes that no rank has given",
       "rank 1: the all-gather"},
      {A_BYTE_CHANGED, 1, 0, long_ns, MDP_E_CORRUPT, "gave rank 1, in the place of rank 2, bytes that", "rank 1: the all-gather"},
      {OWN_BYTES_CHANGED, 0, 0, long_ns, MDP_E_CORRUPT, "changed the bytes of rank 0, this one", "rank 0: the all-gather"},
      {SHIFTED, 2, 0, long_ns, MDP_E_CORRUPT, "gave rank 2, in the place of rank 0, bytes that no rank has given: it must return",
       "rank 2: the all-gather"},
      {SHIFTED, -1, 0, long_ns, MDP_E_CORRUPT, "config.bootstrap", NULL},
      {SWAPPED, 2, 0, long_ns, MDP_E_INVALID, "has the bytes of rank 1 in the place of rank 0", "rank 2: the all-gather"},
      {MORE_RANKS, 2, 0, long_ns, MDP_E_INVALID, "rank 0 has config.size 3, and rank 2 has 4",
       "rank 2 has config.size 4, and rank 0 has 3"},
      {OLD_BYTES, 2, 0, long_ns, MDP_E_DESYNC, "gave rank 2 other bytes than rank 0", "gave rank 2 other bytes than rank 0"},
      {OLD_BYTES, 1, 0, long_ns, MDP_E_DESYNC, "gave rank 1 other bytes than rank 0", "gave rank 1 other bytes than rank 0"},
  };
  for (size_t i = 0; i < sizeof scenes / sizeof *scenes; ++i) {
    const time_t begun = time(NULL);
    play(scenes[i]);
    CHECK(time(NULL) - begun < 40);
  }
}

/* Nobody hears of an all-gather that is never done: each waits out its own timeout. */
static void never_done(void** state) {
  (void)state;
  for (int call = 0; call < 2; ++call) {
    play((scene){NEVER_DONE, -1, call, short_ns, MDP_E_TIMEOUT, "allgather_test did not say within", NULL});
  }
}

static void bad_arguments(void** state) {
  (void)state;
  caller me = {.thread = pthread_self()};
  mdp_bootstrap good = {.struct_size = sizeof good, .context = &me};
  good.allgather_start = start;
  good.allgather_test = test;
  good.allgather_free = finish;
  SIZED(mdp_comm_config, config);
  config.size = 1;
  mdp_bootstrap b = good;
  config.bootstrap = &b;
  mdp_comm* comm = NULL;
  mdp_unique_id id;
  OK(mdp_unique_id_create(&id));
  FAILS(MDP_E_INVALID, "there is an id, and a config.bootstrap too", mdp_comm_create(&config, &id, &comm));
  b.struct_size = 8;
  FAILS(MDP_E_INVALID, "config.bootstrap.struct_size is 8", mdp_comm_create(&config, NULL, &comm));
  b = good;
  b.reserved = 1;
  FAILS(MDP_E_INVALID, "config.bootstrap->reserved is 1", mdp_comm_create(&config, NULL, &comm));
  b = good;
  b.allgather_start = NULL;
  FAILS(MDP_E_INVALID, "config.bootstrap->allgather_start is NULL", mdp_comm_create(&config, NULL, &comm));
  b = good;
  b.allgather_test = NULL;
  FAILS(MDP_E_INVALID, "config.bootstrap->allgather_test is NULL", mdp_comm_create(&config, NULL, &comm));
  b = good;
  b.allgather_free = NULL;
  FAILS(MDP_E_INVALID, "config.bootstrap->allgather_free is NULL", mdp_comm_create(&config, NULL, &comm));
  b = good;
  config.size = 0;
  FAILS(MDP_E_INVALID, "config.size is 0; with a bootstrap it must say", mdp_comm_create(&config, NULL, &comm));
  config.size = 2;
  config.rank = 2;
  FAILS(MDP_E_INVALID, "config.rank is 2; with config.size 2 it must be 0 to 1", mdp_comm_create(&config, NULL, &comm));
  CHECK(me.calls == 0);
  config.size = 1;
  config.rank = 0;
  OK(mdp_comm_create(&config, NULL, &comm)); /* one rank asks nobody */
  CHECK(me.calls == 0 && mdp_comm_size(comm) == 1);
  mdp_comm_destroy(comm);
}

int main(void) {
  be_alone();
  const struct CMUnitTest tests[] = {TEST(worlds), TEST(heard), TEST(never_done), TEST(bad_arguments)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
