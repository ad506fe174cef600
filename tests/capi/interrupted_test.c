/* SPDX-License-Identifier: Apache-2.0
 * mdp_comm_config.interrupted: a rank that waits is asked on its own thread, and gives up when the answer is yes. The ranks are threads. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fixture.h"

static const uint64_t timeout_ns = UINT64_C(60000000000); /* no test gets there */

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void a_moment(void) {
  const struct timespec moment = {0, 20000000};
  nanosleep(&moment, NULL);
}

/* Whom one rank asks: it says no `patience` times, then yes; -1: always no. */
typedef struct {
  pthread_t thread;
  int patience, asked;
  uint64_t first_ns, last_ns;
} asker;

static int32_t ask(void* context) {
  asker* one = context;
  CHECK(pthread_equal(pthread_self(), one->thread));
  /* Not while a call may still turn out to be short, and not more often than said; clocks are read a little apart. */
  if (one->asked > 0) CHECK(now_ns() - one->last_ns > 45000000);
  one->last_ns = now_ns();
  const int yes = one->patience >= 0 && one->asked >= one->patience;
  one->asked += 1;
  return yes;
}

static asker asker_with(int patience) {
  return (asker){.thread = pthread_self(), .patience = patience};
}

static mdp_comm_config config_of(int32_t rank, int32_t n, asker* by) {
  mdp_comm_config config = comm_config_of(rank, n, timeout_ns);
  config.interrupted = ask;
  config.interrupted_context = by;
  return config;
}

static mdp_comm* open_asking(const mdp_unique_id* id, int32_t rank, int32_t n, asker* by) {
  const mdp_comm_config config = config_of(rank, n, by);
  mdp_comm* comm = NULL;
  if (!OK(mdp_comm_create(&config, id, &comm))) abort();
  return comm;
}

/* The news of a failure comes by itself, some time. */
static mdp_error_info news(mdp_comm* comm) {
  SIZED(mdp_error_info, info);
  const uint64_t end_ns = now_ns() + UINT64_C(30000000000);
  do {
    OK(mdp_comm_error_info(comm, &info));
    if (info.status != MDP_OK) return info;
    a_moment();
  } while (now_ns() < end_ns);
  return info;
}

static void check_news(mdp_comm* comm, int32_t rank, const char* part) {
  const mdp_error_info told = news(comm);
  CHECK(told.status == MDP_E_ABORTED);
  CHECK(told.rank == rank);
  if (!CHECK(strstr(told.text, part) != NULL)) fprintf(stderr, "told: %s\n", told.text);
}

/* ── Collective calls: one rank comes, is interrupted, and the other is told ── */

typedef enum {
  BARRIER,
  REDUCE,
  SEND,
  SPLIT,
  GRID,
  REGISTER,
  OPTIMIZER,
  SYNC,
  STEP,
  BROADCAST,
  VERIFY,
  CALLS
} what;

static const char* const name_of[CALLS] = {
    "mdp_barrier",          "mdp_all_reduce", "mdp_recv",           "mdp_comm_split",       "mdp_grid_create",  "mdp_buffer_register",
    "mdp_optimizer_create", "mdp_grad_sync",  "mdp_optimizer_step", "mdp_buffer_broadcast", "mdp_buffer_verify"};

typedef struct {
  what call;
  int32_t victim;
} scene;

static mdp_status call_alone(const job* j, what call, int32_t peer) {
  enum {
    COUNT = 1 << 16
  };
  const int64_t count = COUNT;
  mdp_status status = MDP_OK;
  float* const values = malloc(COUNT * sizeof(float)); /* nothing may touch it once the call has ended */
  memset(values, 0, COUNT * sizeof(float));
  const mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, &count);
  mdp_comm* part = NULL;
  mdp_grid* grid = NULL;
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  switch (call) {
    case BARRIER:
      status = mdp_barrier(j->comm, NULL);
      break;
    case REDUCE:
      status = mdp_all_reduce(j->comm, &array, &array, MDP_OP_SUM, NULL, NULL);
      break;
    case SEND:
      status = mdp_recv(j->comm, &array, peer, NULL, NULL);
      break;
    case SPLIT:
      status = mdp_comm_split(j->comm, 0, 0, &part);
      break;
    case GRID:
      status = mdp_grid_create(j->comm, NULL, &grid);
      break;
    case REGISTER:
      status = mdp_buffer_register(NULL, j->grid, NULL, job_params, PARAMS, &buffer);
      break;
    case OPTIMIZER:
      status = mdp_optimizer_create(j->buffer, NULL, &optimizer);
      break;
    case SYNC:
      status = mdp_grad_sync(j->buffer, NULL, NULL);
      break;
    case STEP:
      status = mdp_optimizer_step(j->optimizer, NULL, NULL, NULL);
      break;
    case BROADCAST:
      status = mdp_buffer_broadcast(j->buffer, 0, NULL);
      break;
    default:
      status = mdp_buffer_verify(j->buffer);
  }
  free(values);
  CHECK(part == NULL && grid == NULL && buffer == NULL && optimizer == NULL);
  return status;
}

static void one_is_interrupted(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const scene* const s = argument;
  asker by = asker_with(-1);
  job j = job_on(open_asking(id, rank, n, &by));
  char said[100];
  snprintf(said, sizeof said, "%s was interrupted on rank %d", name_of[s->call], s->victim);
  put_all(j.buffer);
  OK(mdp_barrier(j.comm, NULL)); /* nobody is interrupted before both have come so far */
  if (rank == s->victim) {
    by.asked = 0;
    by.patience = 2;
    FAILS(MDP_E_ABORTED, said, call_alone(&j, s->call, 1 - rank));
    CHECK(by.asked == 3);
    FAILS(MDP_E_ABORTED, said, mdp_barrier(j.comm, NULL));
  } else {
    check_news(j.comm, s->victim, said);
    FAILS(MDP_E_ABORTED, said, mdp_barrier(j.comm, NULL));
  }
  job_close(&j);
}

static void collective_calls_lose_the_communicator(void** state) {
  (void)state;
  for (what call = BARRIER; call < CALLS; ++call) {
    /* On a device these return when their work is submitted. */
    if (on_cuda && (call == BROADCAST)) continue;
    for (int32_t victim = 0; victim < 2; ++victim) run_ranks(2, one_is_interrupted, &(scene){call, victim});
  }
}

/* The other rank waits as well: it is told while it waits. */
static void both_wait(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  asker by = asker_with(-1);
  mdp_comm* comm = open_asking(id, rank, n, &by);
  const char* const said = "was interrupted on rank 1";
  if (rank == 2) {
    check_news(comm, 1, said);
  } else {
    by.asked = 0;
    by.patience = rank == 1 ? 3 : -1;
    FAILS(MDP_E_ABORTED, said, mdp_barrier(comm, NULL));
    if (rank == 1) CHECK(by.asked == 4);
  }
  mdp_comm_destroy(comm);
}

static void ranks_that_wait_are_told(void** state) {
  (void)state;
  run_ranks(3, both_wait, NULL);
}

/* ── Local waits lose nothing ── */

static atomic_int stage;
static void wait_for_stage(int wanted) {
  while (atomic_load(&stage) < wanted) a_moment();
}

static void a_request(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  asker by = asker_with(-1);
  mdp_comm* comm = open_asking(id, rank, n, &by);
  mdp_request* request = NULL;
  if (rank == 0) {
    OK(mdp_barrier(comm, &request));
    for (int again = 0; again < 3; ++again) {
      by.asked = by.patience = 0;
      FAILS(MDP_PENDING, NULL, mdp_request_wait(request, UINT64_MAX));
      CHECK(by.asked == 1);
    }
    FAILS(MDP_PENDING, NULL, mdp_request_wait(request, 1000));
    FAILS(MDP_PENDING, NULL, mdp_request_test(request));
    CHECK(by.asked == 1);
    atomic_store(&stage, 1);
    by.patience = -1;
    OK(mdp_request_wait(request, UINT64_MAX));
    OK(mdp_request_wait(request, UINT64_MAX));
    mdp_request_free(request);
  } else {
    wait_for_stage(1);
    OK(mdp_barrier(comm, NULL));
  }
  OK(mdp_barrier(comm, NULL)); /* nothing is lost */
  mdp_comm_destroy(comm);
}

static void a_request_is_waited_for_again(void** state) {
  (void)state;
  atomic_store(&stage, 0);
  run_ranks(2, a_request, NULL);
}

/* Rank 0 has begun its step; rank 1 comes to its own later. */
static void local_waits(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  asker by = asker_with(-1);
  job j = job_on(open_asking(id, rank, n, &by));
  mdp_request* request = NULL;
  put_all(j.buffer);
  sync_and_wait(j.buffer);
  if (rank == 1) wait_for_stage(1);
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, &request));
  float values[6] = {1, 2, 3, 4, 5, 6};
  const int64_t shape[] = {2, 3};
  mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, shape);
  array.ndim = 2;
  SIZED(mdp_tensor, view);
  uint64_t steps = 0;
  if (rank == 0) {
    for (int again = 0; again < 2; ++again) {
      by.patience = 0;
      FAILS(MDP_E_ABORTED, "mdp_optimizer_steps was interrupted on rank 0", mdp_optimizer_steps(j.optimizer, FIRST, &steps));
      FAILS(MDP_E_ABORTED, "mdp_optimizer_state was interrupted on rank 0", mdp_optimizer_state(j.optimizer, FIRST, "master", &view));
      if (!on_cuda) { /* a caller's stream waits on a device, not the caller */
        FAILS(MDP_E_ABORTED, "mdp_param_wait was interrupted on rank 0", mdp_param_wait(j.buffer, SIZE_MAX, NULL));
        FAILS(MDP_E_ABORTED, "mdp_grad_put was interrupted on rank 0", mdp_grad_put(j.buffer, FIRST, &array, 0, NULL));
        int32_t first = 0;
        FAILS(MDP_E_ABORTED, "mdp_grad_acquire was interrupted on rank 0", mdp_grad_acquire(j.buffer, FIRST, &view, &first, NULL));
      }
      FAILS(MDP_E_ABORTED, "mdp_param_read was interrupted on rank 0", mdp_param_read(j.buffer, FIRST, &array, NULL));
    }
    by.patience = -1;
    atomic_store(&stage, 1);
  }
  OK(mdp_param_wait(j.buffer, SIZE_MAX, NULL));
  OK(mdp_optimizer_steps(j.optimizer, FIRST, &steps));
  CHECK(steps == 1);
  OK(mdp_optimizer_state(j.optimizer, FIRST, "master", &view));
  OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  put_all(j.buffer); /* the interrupted put counts for nothing, and nothing is lent */
  step_and_wait(j.optimizer);
  OK(mdp_optimizer_steps(j.optimizer, FIRST, &steps));
  CHECK(steps == 2);
  job_close(&j);
}

static void local_waits_are_repeated(void** state) {
  (void)state;
  atomic_store(&stage, 0);
  run_ranks(2, local_waits, NULL);
}

/* ── Creating ── */

static void creating_alone(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int32_t victim = *(const int32_t*)argument;
  if (rank != victim) return; /* it never comes */
  asker by = asker_with(2);
  const mdp_comm_config config = config_of(rank, n, &by);
  mdp_comm* comm = NULL;
  char said[100];
  snprintf(said, sizeof said, "mdp_comm_create was interrupted on rank %d", rank);
  FAILS(MDP_E_ABORTED, said, mdp_comm_create(&config, id, &comm));
  CHECK(by.asked == 3);
  CHECK(comm == NULL);
}

static void creating_without_a_rank(void** state) {
  (void)state;
  for (int32_t victim = 0; victim < 2; ++victim) run_ranks(2, creating_alone, &victim);
}

/* Of three ranks the last does not come; one of the two others is interrupted, and the other learns that, as does whoever comes then. */
static void creating_with_a_witness(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int32_t victim = *(const int32_t*)argument;
  if (rank == 2) return;
  asker by = asker_with(rank == victim ? 10 : -1);
  const mdp_comm_config config = config_of(rank, n, &by);
  mdp_comm* comm = NULL;
  char said[100];
  snprintf(said, sizeof said, "mdp_comm_create was interrupted on rank %d", victim);
  FAILS(MDP_E_ABORTED, said, mdp_comm_create(&config, id, &comm));
}

static void creating_with_others(void** state) {
  (void)state;
  for (int32_t victim = 0; victim < 2; ++victim) run_ranks(3, creating_with_a_witness, &victim);
}

static int32_t gather_start(void* context, const void* mine, size_t bytes, void* all, void** request) {
  (void)context, (void)mine, (void)bytes, (void)all;
  *request = NULL;
  return 0;
}

static int32_t gather_test(void* context, void* request) {
  (void)context, (void)request;
  return 0; /* for ever in progress */
}

static void gather_free(void* context, void* request) {
  (void)request;
  *(int*)context += 1;
}

static void creating_by_a_bootstrap(void** state) {
  (void)state;
  asker by = asker_with(1);
  mdp_comm_config config = config_of(0, 2, &by);
  int freed = 0;
  SIZED(mdp_bootstrap, bootstrap);
  bootstrap.context = &freed;
  bootstrap.allgather_start = gather_start;
  bootstrap.allgather_test = gather_test;
  bootstrap.allgather_free = gather_free;
  config.bootstrap = &bootstrap;
  mdp_comm* comm = NULL;
  FAILS(MDP_E_ABORTED, "mdp_comm_create was interrupted on rank 0", mdp_comm_create(&config, NULL, &comm));
  CHECK(freed == 1);
}

/* ── What is made from the communicator asks too; who gives no function is not asked ── */

static void parts_ask(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  asker by = asker_with(-1);
  mdp_comm* comm = open_asking(id, rank, n, &by);
  mdp_comm* part = NULL;
  OK(mdp_comm_split(comm, 0, 1 - rank, &part));
  OK(mdp_barrier(comm, NULL));
  mdp_comm_destroy(comm);
  if (rank == 1) {
    by.patience = 0;
    FAILS(MDP_E_ABORTED, "mdp_barrier was interrupted on rank 1", mdp_barrier(part, NULL)); /* 0 there, 1 in the world */
  } else {
    check_news(part, 1, "mdp_barrier was interrupted on rank 1");
  }
  mdp_comm_destroy(part);
}

static void a_split_asks_too(void** state) {
  (void)state;
  run_ranks(2, parts_ask, NULL);
}

static void without_a_function(void** state) {
  (void)state;
  asker by = asker_with(0);
  mdp_comm_config config = config_of(0, 1, &by);
  config.interrupted = NULL;
  mdp_unique_id id;
  mdp_comm* comm = NULL;
  OK(mdp_unique_id_create(&id));
  OK(mdp_comm_create(&config, &id, &comm));
  OK(mdp_barrier(comm, NULL));
  mdp_comm_destroy(comm);
  CHECK(by.asked == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(collective_calls_lose_the_communicator),
      TEST(ranks_that_wait_are_told),
      TEST(a_request_is_waited_for_again),
      TEST(local_waits_are_repeated),
      TEST(creating_without_a_rank),
      TEST(creating_with_others),
      TEST(creating_by_a_bootstrap),
      TEST(a_split_asks_too),
      TEST(without_a_function),
  };
  return cmocka_run_group_tests_name("interrupted", tests, setup, NULL);
}
