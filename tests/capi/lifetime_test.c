/* SPDX-License-Identifier: Apache-2.0
 * How long things live, and what is left of them: parents destroyed before children, requests, the event descriptor, DLPack tensors, the
 * log callback, and a thousand communicators one after another. */
#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "fixture.h"

static const uint64_t long_ns = UINT64_C(20000000000);

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static void nap(long ms) {
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* ── Parents and children ── */

static void step_once(job* j) {
  put_all(j->buffer);
  OK(mdp_grad_sync(j->buffer, NULL, NULL));
  OK(mdp_optimizer_step(j->optimizer, NULL, NULL, NULL));
}

static void parents_first(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  mdp_comm_destroy(j.comm);
  mdp_grid_destroy(j.grid);
  step_once(&j);
  SIZED(mdp_tensor, state_view);
  mdp_buffer* buffer = j.buffer;
  mdp_request* request = NULL;
  put_all(buffer);
  OK(mdp_grad_sync(buffer, NULL, NULL));
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, &request));
  mdp_buffer_destroy(buffer);
  OK(mdp_optimizer_state(j.optimizer, FIRST, "exp_avg", &state_view));
  CHECK(state_view.ndim == 1 && state_view.shape[0] == 6 && ((const float*)state_view.data)[5] > 0);
  mdp_optimizer_destroy(j.optimizer);
  OK(mdp_request_wait(request, long_ns)); /* the last to go */
  mdp_request_free(request);
}

static void use_after_destroy_is_noticed(void** state) {
  (void)state;
  if (UNDER_SANITIZER) SKIP("sanitizers report it themselves");
  mdp_comm* comm = comm_open(NULL, 0, 1, long_ns);
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, NULL, &grid));
  mdp_grid_destroy(grid);
  mdp_buffer* buffer = NULL;
  FAILS(MDP_E_INVALID, "grid is", mdp_buffer_register(NULL, grid, NULL, job_params, PARAMS, &buffer));
  mdp_comm_destroy(comm);
}

static void* destroy_job(void* argument) {
  job_close(argument);
  return NULL;
}

static void destroyed_by_another_thread(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  step_once(&j);
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, destroy_job, &j) == 0);
  pthread_join(thread, NULL);
}

/* ── Requests: rank 1 comes when rank 0 has seen its request pending ── */

static pthread_barrier_t seen;
static void request_life(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, long_ns);
  float values[4] = {1, 2, 3, 4}, other[4] = {5, 6, 7, 8};
  const int64_t count = 4;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &count), u = tensor_of(MDP_DTYPE_F32, other, &count);
  mdp_request *first = NULL, *second = NULL;
  if (rank == 1) pthread_barrier_wait(&seen);
  OK(mdp_all_reduce(comm, &t, &t, MDP_OP_SUM, NULL, &first));
  OK(mdp_all_reduce(comm, &u, &u, MDP_OP_SUM, NULL, &second));
  if (rank == 0) {
    CHECK(mdp_request_test(first) == MDP_PENDING);
    CHECK(mdp_request_wait(first, 1000000) == MDP_PENDING);
    CHECK(strcmp(mdp_status_name(MDP_PENDING), "MDP_PENDING") == 0);
    pthread_barrier_wait(&seen);
  }
  mdp_request_free(first); /* nobody waits for it, but it happens */
  OK(mdp_request_wait(second, UINT64_MAX));
  OK(mdp_request_test(second));
  CHECK(values[3] == 8 && other[0] == 10);
  mdp_request* last = NULL;
  OK(mdp_broadcast(comm, &t, 0, NULL, &last));
  mdp_comm_destroy(comm); /* a request keeps what it works on */
  OK(mdp_request_wait(last, long_ns));
  mdp_request_free(last);
  mdp_request_free(second);
}

static void requests(void** state) {
  (void)state;
  pthread_barrier_init(&seen, NULL, 2);
  run_ranks(2, request_life, NULL);
  pthread_barrier_destroy(&seen);
}

/* Everything is dropped while a collective waits for a rank that is not there: destroying waits for nobody. */
static pthread_barrier_t over;
static void drop_in_flight(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  if (rank == 0) {
    float values[4] = {0};
    const int64_t count = 4;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &count);
    mdp_request *request = NULL, *sync = NULL;
    OK(mdp_all_reduce(j.comm, &t, &t, MDP_OP_SUM, NULL, &request));
    put_all(j.buffer);
    OK(mdp_grad_sync(j.buffer, NULL, &sync));
    mdp_request_free(sync);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    job_close(&j);
    mdp_request_free(request);
    clock_gettime(CLOCK_MONOTONIC, &end);
    CHECK(end.tv_sec - begin.tv_sec < 10); /* the timeout is 20 s */
  }
  pthread_barrier_wait(&over);
  if (rank == 1) job_close(&j);
}

static void dropped_in_flight(void** state) {
  (void)state;
  pthread_barrier_init(&over, NULL, 2);
  run_ranks(2, drop_in_flight, NULL);
  pthread_barrier_destroy(&over);
}

/* Rank 0 drops everything while its step waits for rank 1, which comes then: the step is taken, into memory that is still there. */
static void drop_a_step(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  put_all(j.buffer);
  OK(mdp_grad_sync(j.buffer, NULL, NULL));
  mdp_request* request = NULL;
  if (rank == 1) pthread_barrier_wait(&over);
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, &request));
  if (rank == 0) {
    mdp_request_free(request);
    mdp_optimizer_destroy(j.optimizer);
    mdp_buffer_destroy(j.buffer);
    pthread_barrier_wait(&over);
    OK(mdp_barrier(j.comm, NULL)); /* behind the step */
    mdp_grid_destroy(j.grid);
    mdp_comm_destroy(j.comm);
    return;
  }
  OK(mdp_request_wait(request, long_ns));
  mdp_request_free(request);
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void step_dropped_in_flight(void** state) {
  (void)state;
  pthread_barrier_init(&over, NULL, 2);
  run_ranks(2, drop_a_step, NULL);
  pthread_barrier_destroy(&over);
}

/* ── The event descriptor ── */

static int readable(int fd, int timeout_ms) {
  struct pollfd ready = {fd, POLLIN, 0};
  return poll(&ready, 1, timeout_ms) == 1 && (ready.revents & POLLIN) != 0;
}

static void put_not_a_number(mdp_buffer* buffer) {
  float values[6] = {1, NAN, 3, 4, 5, 6};
  SIZED(mdp_tensor, grad);
  grad.dtype = MDP_DTYPE_F32;
  grad.data = values;
  grad.ndim = job_params[FIRST].ndim;
  grad.shape = job_params[FIRST].shape;
  OK(mdp_grad_put(buffer, FIRST, &grad, 0, NULL));
  OK(mdp_grad_skip(buffer, SECOND));
  OK(mdp_grad_skip(buffer, EMPTY));
}

static void event_descriptor(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  float values[3][4] = {{0}};
  const int64_t count = 4;
  int32_t fd = -1, again = -1;
  mdp_request* early = NULL; /* made before the descriptor was asked for: does not count */
  const mdp_tensor e = tensor_of(MDP_DTYPE_F32, values[0], &count);
  OK(mdp_broadcast(j.comm, &e, 0, NULL, &early));
  OK(mdp_comm_event_fd(j.comm, &fd));
  OK(mdp_comm_event_fd(j.comm, &again));
  CHECK(fd >= 0 && fd == again && !readable(fd, 0));
  OK(mdp_request_wait(early, long_ns));
  mdp_request_free(early);
  CHECK(!readable(fd, 0));

  mdp_request* requests[3];
  if (rank == 1) nap(100);
  for (int i = 0; i < 3; ++i) {
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values[i], &count);
    OK(mdp_all_reduce(j.comm, &t, &t, MDP_OP_SUM, NULL, &requests[i]));
  }
  /* As an event loop does it: when readable, test what is pending. */
  int finished = 0;
  while (finished < 3 && CHECK(readable(fd, 10000))) {
    for (int i = finished; i < 3 && mdp_request_test(requests[i]) == MDP_OK; ++i) ++finished;
  }
  CHECK(finished == 3 && !readable(fd, 0));
  for (int i = 0; i < 3; ++i) OK(mdp_request_test(requests[i])); /* seen before: takes nothing off */
  for (int i = 0; i < 3; ++i) mdp_request_free(requests[i]);

  /* Freed unseen, and waited for: nothing is left to be found either. */
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values[0], &count);
  OK(mdp_all_reduce(j.comm, &t, &t, MDP_OP_SUM, NULL, &requests[0]));
  OK(mdp_all_reduce(j.comm, &t, &t, MDP_OP_SUM, NULL, &requests[1]));
  mdp_request_free(requests[0]);
  OK(mdp_request_wait(requests[1], long_ns));
  CHECK(!readable(fd, 0));
  mdp_request_free(requests[1]);

  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

/* Dropped before its end, a request tells nobody, neither now, in another's place, nor when it ends. */
static void event_descriptor_of_dropped(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  float values[2][4] = {{0}};
  const int64_t count = 4;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values[0], &count), u = tensor_of(MDP_DTYPE_F32, values[1], &count);
  int32_t fd = -1;
  OK(mdp_comm_event_fd(j.comm, &fd));
  mdp_comm* apart[2];
  for (int i = 0; i < 2; ++i) OK(mdp_comm_split(j.comm, 0, rank, &apart[i]));
  mdp_request *dropped = NULL, *seen = NULL, *unseen = NULL;
  if (rank == 0) {
    OK(mdp_all_reduce(apart[0], &t, &t, MDP_OP_SUM, NULL, &dropped)); /* the other comes to it at the end */
    mdp_request_free(dropped);
  }
  OK(mdp_all_reduce(apart[1], &u, &u, MDP_OP_SUM, NULL, &unseen));
  OK(mdp_all_reduce(apart[1], &u, &u, MDP_OP_SUM, NULL, &seen));
  OK(mdp_request_wait(seen, long_ns));
  CHECK(readable(fd, 10000)); /* the one that nobody has seen */
  OK(mdp_request_wait(unseen, long_ns));
  CHECK(!readable(fd, 0));
  mdp_request_free(seen);
  mdp_request_free(unseen);
  OK(mdp_barrier(j.comm, NULL));
  if (rank == 1) OK(mdp_all_reduce(apart[0], &t, &t, MDP_OP_SUM, NULL, NULL));
  OK(mdp_barrier(apart[0], NULL)); /* after it */
  CHECK(!readable(fd, 0));
  for (int i = 0; i < 2; ++i) mdp_comm_destroy(apart[i]);
  job_close(&j);
}

static void event_descriptor_of_steps(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  int32_t fd = -1;
  mdp_request* requests[2];
  OK(mdp_comm_event_fd(j.comm, &fd));
  put_all(j.buffer);
  OK(mdp_grad_sync(j.buffer, NULL, &requests[0]));
  mdp_request_free(requests[0]);
  OK(mdp_grad_sync(j.buffer, NULL, &requests[1])); /* the same sync, notified anew */
  CHECK(readable(fd, 10000));
  OK(mdp_request_wait(requests[1], long_ns));
  CHECK(!readable(fd, 0));
  mdp_request_free(requests[1]);
  OK(mdp_optimizer_step(j.optimizer, NULL, NULL, &requests[0]));
  OK(mdp_request_wait(requests[0], long_ns));
  CHECK(!readable(fd, 0));
  mdp_request_free(requests[0]);

  /* A step that fails hands out no request, so there is nothing to be found. */
  put_not_a_number(j.buffer);
  OK(mdp_grad_sync(j.buffer, NULL, NULL));
  SIZED(mdp_step_report, report);
  FAILS(MDP_E_NUMERIC, NULL, mdp_optimizer_step(j.optimizer, NULL, &report, &requests[0]));
  OK(mdp_param_wait(j.buffer, SIZE_MAX, NULL));
  OK(mdp_barrier(j.comm, NULL));
  CHECK(!readable(fd, 0));
  job_close(&j);
}

static void event_descriptors(void** state) {
  (void)state;
  for (int i = 0; i < 20; ++i) run_ranks(2, event_descriptor, NULL);
  for (int i = 0; i < 20; ++i) run_ranks(2, event_descriptor_of_steps, NULL);
  for (int i = 0; i < 5; ++i) run_ranks(2, event_descriptor_of_dropped, NULL);
}

/* ── DLPack ── */

struct DLManagedTensorVersioned {
  struct {
    uint32_t major, minor;
  } version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  struct {
    void* data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
  } dl_tensor;
};

static void* give_back(void* lent) {
  ((struct DLManagedTensorVersioned*)lent)->deleter(lent);
  return NULL;
}

static void dlpack(void** state) {
  (void)state;
  job j = job_open(NULL, 0, 1);
  static const struct { uint8_t code, bits; } types[] = {{2, 32}, {4, 16}, {2, 16}};
  struct DLManagedTensorVersioned* lent[3];
  for (size_t param = 0; param < 3; ++param) {
    SIZED(mdp_tensor, view);
    OK(mdp_buffer_param_view(j.buffer, param, &view));
    OK(mdp_buffer_to_dlpack(j.buffer, &view, &lent[param]));
    CHECK(lent[param]->version.major == 1 && lent[param]->flags == 0 && lent[param]->dl_tensor.byte_offset == 0);
    CHECK(lent[param]->dl_tensor.data == view.data && lent[param]->dl_tensor.device_type == (on_cuda ? 2 : 1) &&
          lent[param]->dl_tensor.device_id == 0);
    CHECK(lent[param]->dl_tensor.code == types[param].code && lent[param]->dl_tensor.bits == types[param].bits);
    CHECK(lent[param]->dl_tensor.lanes == 1 && lent[param]->dl_tensor.ndim == view.ndim);
    for (int32_t d = 0; d < view.ndim; ++d) CHECK(lent[param]->dl_tensor.shape[d] == view.shape[d]);
    for (int32_t d = 0; d < view.ndim; ++d) CHECK(lent[param]->dl_tensor.strides[d] == view.strides[d]);
  }
  /* A part of a view: the second row; and what reaches beyond it. */
  SIZED(mdp_tensor, row);
  OK(mdp_buffer_grad_view(j.buffer, FIRST, &row));
  static const int64_t three = 3, sixteen = 1 << 20;
  row.ndim = 1;
  row.shape = &three;
  row.strides = NULL;
  row.data = (float*)row.data + 3;
  struct DLManagedTensorVersioned* part = NULL;
  OK(mdp_buffer_to_dlpack(j.buffer, &row, &part));
  row.shape = &sixteen;
  FAILS(MDP_E_INVALID, "not a view", mdp_buffer_to_dlpack(j.buffer, &row, &part));
  static const int64_t two = 2, below_zero = -(INT64_C(1) << 57);
  row.shape = &two;
  row.strides = &below_zero;
  FAILS(MDP_E_INVALID, "not a view", mdp_buffer_to_dlpack(j.buffer, &row, &part));
  row.strides = NULL;
  row.shape = &three;
  row.dtype = MDP_DTYPE_BF16;
  FAILS(MDP_E_INVALID, "as bf16", mdp_buffer_to_dlpack(j.buffer, &row, &part));

  job_close(&j); /* the consumers keep the memory */
  float* values = lent[0]->dl_tensor.data;
  for (int i = 0; i < 6; ++i) values[i] = (float)i;
  CHECK(values[5] == 5 && ((float*)part->dl_tensor.data)[2] == 0);
  pthread_t thread;
  for (size_t i = 0; i < 3; ++i) {
    CHECK(pthread_create(&thread, NULL, give_back, lent[i]) == 0);
    pthread_join(thread, NULL);
  }
  give_back(part);
}

/* ── The log callback ── */

typedef struct {
  int calls;
  pthread_t thread; /* the last call's */
} heard;

static void listen_to(void* user, int32_t level, const char* text, size_t length) {
  heard* h = user;
  ++h->calls;
  h->thread = pthread_self();
  CHECK(level >= 0 && level <= 3 && length > 0 && strlen(text) == length);
  SIZED(mdp_plan_report, report); /* it may call the library, and fail there */
  OK(mdp_plan(NULL, 1, 0, NULL, job_params, PARAMS, NULL, &report));
  FAILS(MDP_E_INVALID, "rank is 7", mdp_plan(NULL, 1, 7, NULL, job_params, PARAMS, NULL, &report));
}

static void* wait_in_vain(void* id) {
  SIZED(mdp_comm_config, config);
  config.size = 2;
  config.timeout_ns = UINT64_C(4000000000);
  mdp_comm* comm = NULL;
  FAILS(MDP_E_TIMEOUT, "rank 1", mdp_comm_create(&config, id, &comm));
  return NULL;
}

/* The address where a rank of this process listens for others. */
static int find_listener(struct sockaddr_un* address, socklen_t* length) {
  for (int fd = 3; fd < 256; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens) continue;
    *length = sizeof *address;
    if (getsockname(fd, (struct sockaddr*)address, length) == 0 && address->sun_family == AF_UNIX) return 1;
  }
  return 0;
}

/* A stranger, who is refused; the library has something to say about that. */
static void knock(void) {
  struct sockaddr_un address;
  socklen_t length = 0;
  for (int i = 0; i < 300 && !find_listener(&address, &length); ++i) nap(10);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (CHECK(length > 0 && connect(fd, (struct sockaddr*)&address, length) == 0)) {
    char garbage[512], answer[512];
    memset(garbage, 'g', sizeof garbage);
    (void)!send(fd, garbage, sizeof garbage, MSG_NOSIGNAL);
    while (recv(fd, answer, sizeof answer, 0) > 0) continue;
  }
  close(fd);
  nap(100);
}

static void log_callback(void** state) {
  (void)state;
  heard h = {.calls = 0};
  job j = job_open(NULL, 0, 1);
  mdp_unique_id id;
  OK(mdp_unique_id_create(&id));
  OK(mdp_log_set(listen_to, &h));
  pthread_t waiting;
  CHECK(pthread_create(&waiting, NULL, wait_in_vain, &id) == 0);
  knock();
  /* These are called by finalizers, where a callback may not run. */
  OK(mdp_grad_skip(j.buffer, EMPTY));
  OK(mdp_grad_ready(j.buffer, SECOND, NULL));
  FAILS(MDP_E_STATE, NULL, mdp_grad_sync(j.buffer, NULL, NULL));
  mdp_optimizer_destroy(j.optimizer);
  j.optimizer = NULL;
  /* And these are called by callbacks that want to know more. */
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  OK(mdp_comm_error_info(j.comm, &info));
  CHECK(mdp_comm_rank(j.comm) == 0 && mdp_comm_size(j.comm) == 1);
  CHECK(h.calls == 0);
  /* An ordinary call hands the message over; its own failure is not lost by what the callback does. */
  for (int i = 0; i < 200 && h.calls == 0; ++i) {
    FAILS(MDP_E_INVALID, "root is 77", mdp_buffer_broadcast(j.buffer, 77, NULL));
    nap(10);
  }
  CHECK(h.calls == 1 && pthread_equal(h.thread, pthread_self()));
  OK(mdp_log_set(NULL, NULL));
  knock();
  OK(mdp_barrier(j.comm, NULL)); /* to stderr */
  CHECK(h.calls == 1);
  pthread_join(waiting, NULL);
  job_close(&j);
}

/* ── Again and again ── */

static long entries_of(const char* folder) {
  DIR* dir = opendir(folder);
  long count = 0;
  while (dir != NULL && readdir(dir) != NULL) ++count;
  if (dir != NULL) closedir(dir);
  return count;
}

static long resident_kib(void) {
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  long kib = -1;
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  }
  if (file != NULL) fclose(file);
  return kib;
}

static void cycle(void) {
  job j = job_open(NULL, 0, 1);
  int32_t fd;
  OK(mdp_comm_event_fd(j.comm, &fd));
  step_once(&j);
  job_close(&j);
}

static void thousand_cycles(void** state) {
  (void)state;
  for (int i = 0; i < 50; ++i) cycle(); /* caches of the C library fill up */
  const long fds = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task"), kib = resident_kib();
  const int cycles = UNDER_THREAD_SANITIZER ? 50 : 1000;
  for (int i = 0; i < cycles; ++i) cycle();
  CHECK(entries_of("/proc/self/fd") == fds);
  /* A joined thread's entry may outlive the join by a moment, as those may have done that were counted before. */
  for (int i = 0; i < 100 && entries_of("/proc/self/task") > threads; ++i) nap(20);
  CHECK(entries_of("/proc/self/task") <= threads);
  const long grown = resident_kib() - kib;
  printf("%d cycles: %ld KiB more resident, %ld descriptors, %ld threads\n", cycles, grown, fds, threads);
  CHECK(UNDER_SANITIZER || grown < 2048);
}

/* The same on two ranks, every other time with a registration that fails half way. */
static void cycle_of_two(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int fails = *(const int*)argument;
  job j = job_open(id, rank, n);
  mdp_param params[1] = {job_params[FIRST]};
  if (rank == 1) params[0].name = "other";
  mdp_buffer* buffer = NULL;
  if (fails) FAILS(MDP_E_DESYNC, NULL, mdp_buffer_register(NULL, j.grid, NULL, params, 1, &buffer));
  step_once(&j);
  job_close(&j);
}

static void cycles_of_two(void** state) {
  (void)state;
  for (int i = 0; i < 20; ++i) run_ranks(2, cycle_of_two, &(int){i % 2});
  nap(200);
  const long fds = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task"), kib = resident_kib();
  const int cycles = UNDER_THREAD_SANITIZER ? 20 : 200;
  for (int i = 0; i < cycles; ++i) run_ranks(2, cycle_of_two, &(int){i % 2});
  /* Rank 0's monitor stays until the others have left, a moment longer than its handles. */
  for (int i = 0; i < 200 && (entries_of("/proc/self/fd") > fds || entries_of("/proc/self/task") > threads); ++i) nap(20);
  CHECK(entries_of("/proc/self/fd") <= fds);
  CHECK(entries_of("/proc/self/task") <= threads);
  const long grown = resident_kib() - kib;
  printf("%d cycles of two ranks: %ld KiB more resident\n", cycles, grown);
  CHECK(UNDER_SANITIZER || grown < 2048);
}

/* ── An operation that nobody holds on to any more ── */

enum {
  COMES,
  LEAVES
};

/* Rank 1 drops the request of a collective that rank 0 has not come to yet. It goes on all the same: with rank 0 if that comes, and if it
 * leaves instead, what waits for it has lost a rank, and says what that was, though the communicator is dropped too. In the first case one
 * more collective of the communicator comes after it, so that its memory is left alone until it has ended. */
static void operation_goes_on(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int what = *(const int*)argument;
  mdp_comm* comm = comm_open(id, rank, n, long_ns);
  const int64_t count = 16;
  const mdp_param param = {.struct_size = sizeof param, .name = "memory", .shape = &count, .ndim = 1};
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, NULL, &param, 1, &buffer));
  SIZED(mdp_tensor, t);
  OK(mdp_buffer_param_view(buffer, 0, &t));
  float* const values = t.data;
  for (int i = 0; i < 16; ++i) values[i] = (float)(rank + 1);
  mdp_comm* part = NULL;
  OK(mdp_comm_split(comm, 0, rank, &part));
  mdp_request* request = NULL;
  if (rank == 1) OK(mdp_all_reduce(part, &t, &t, MDP_OP_SUM, NULL, &request));
  if (rank == 1) mdp_request_free(request);
  if (rank == 1 && what == LEAVES) mdp_comm_destroy(part);
  OK(mdp_barrier(comm, NULL));
  SIZED(mdp_error_info, info);
  for (int more = rank; what == COMES && more < 2; ++more) {
    OK(mdp_all_reduce(part, &t, &t, MDP_OP_SUM, NULL, &request));
    OK(mdp_request_wait(request, UINT64_MAX));
    mdp_request_free(request);
  }
  for (int i = 0; i < 16 && what == COMES; ++i) CHECK(values[i] == 6);
  if (rank == 0 || what == COMES) mdp_comm_destroy(part);
  if (what == COMES) OK(mdp_barrier(comm, NULL));
  if (rank == 1 && what == LEAVES) {
    for (int i = 0; i < 1000 && info.status == MDP_OK; ++i) {
      nap(10);
      OK(mdp_comm_error_info(comm, &info));
    }
    CHECK(info.status == MDP_E_PEER && info.rank == 0);
    if (!CHECK(strstr(info.text, "all_reduce of 16 f32 (all-reduce, operation 1 of the group)") != NULL))
      fprintf(stderr, "%s\n", info.text);
  }
  OK(mdp_comm_error_info(comm, &info));
  CHECK((info.status == MDP_OK) == (rank == 0 || what == COMES));
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void dropped_before_the_other_has_come(void** state) {
  (void)state;
  for (int what = COMES; what <= LEAVES; ++what) run_ranks(2, operation_goes_on, &what);
}

int main(void) {
  mallopt(M_ARENA_MAX, 2); /* the C library's arenas grow with the cores, and each has to fill up before a leak can be told */
  const struct CMUnitTest tests[] = {
      TEST(parents_first),
      TEST(use_after_destroy_is_noticed),
      TEST(destroyed_by_another_thread),
      TEST(requests),
      TEST(dropped_in_flight),
      TEST(step_dropped_in_flight),
      TEST(dropped_before_the_other_has_come),
      TEST(event_descriptors),
      TEST(dlpack),
      TEST(log_callback),
      TEST(thousand_cycles),
      TEST(cycles_of_two),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
