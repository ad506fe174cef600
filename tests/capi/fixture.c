/* SPDX-License-Identifier: Apache-2.0
 * See fixture.h. */
#include "fixture.h"

#include <dlfcn.h>
#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern char** environ;

/* ── Checks ── */

static pthread_mutex_t failures_mutex = PTHREAD_MUTEX_INITIALIZER;
static int failures;

int check_that(int held, const char* what, const char* file, int line) {
  if (!held) {
    pthread_mutex_lock(&failures_mutex);
    ++failures;
    fprintf(stderr, "%s:%d: %s does not hold\n", file, line, what);
    pthread_mutex_unlock(&failures_mutex);
  }
  return held;
}

/* The record that the failed call left says the same as its status and its sentence. */
static int record_agrees(mdp_status status) {
  SIZED(mdp_error_info, info);
  char sentence[4096];
  snprintf(sentence, sizeof sentence, "%s", mdp_last_error());
  if (mdp_last_error_info(&info) != MDP_OK || info.status != status) return 0;
  return strncmp(info.text, sentence, strlen(info.text)) == 0 &&
         strlen(info.text) + 4 > (strlen(sentence) < 1023 ? strlen(sentence) : 1023);
}

int check_status(mdp_status status, mdp_status wanted, const char* part, const char* what, const char* file, int line) {
  const char* sentence = status < 0 ? mdp_last_error() : "";
  int held = status == wanted;
  if (status < 0)
    held = held && (part == NULL || strstr(sentence, part) != NULL) && strlen(sentence) >= strlen("to is NULL") && record_agrees(status);
  if (!held) {
    pthread_mutex_lock(&failures_mutex);
    ++failures;
    fprintf(stderr, "%s:%d: %s: %s \"%s\", wanted %s%s%s\n", file, line, what, mdp_status_name(status), sentence, mdp_status_name(wanted),
            part ? " with " : "", part ? part : "");
    pthread_mutex_unlock(&failures_mutex);
  }
  return held;
}

int all_checks_held(void** state) {
  (void)state;
  pthread_mutex_lock(&failures_mutex);
  const int count = failures;
  failures = 0;
  pthread_mutex_unlock(&failures_mutex);
  return count;
}

/* ── A small job ── */

int on_cuda;
/* Before main(): tests clear their environment. */
__attribute__((constructor)) static void see_backend(void) {
  on_cuda = getenv("TEST_ON_CUDA") != NULL;
}

static void* of_standin(const char* name) {
  void* standin = dlopen("libmegadp_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* found = standin != NULL ? dlsym(standin, name) : NULL;
  CHECK(found != NULL);
  if (standin != NULL) dlclose(standin); /* the library has it open */
  return found;
}

void await_default_stream(void) {
  void (*await)(void) = NULL;
  void* found = on_cuda ? of_standin("standin_await_default_stream") : NULL;
  memcpy(&await, &found, sizeof await);
  if (await != NULL) await();
}

void on_default_stream(void (*work)(void* user), void* user) {
  void (*submit)(void (*)(void*), void*) = NULL;
  void* found = on_cuda ? of_standin("standin_on_default_stream") : NULL;
  memcpy(&submit, &found, sizeof submit);
  if (submit != NULL) {
    submit(work, user);
  } else {
    work(user);
  }
}

/* No launcher's: what the first is for stands in tests/sanitizers/CMakeLists.txt; the second is read by the stand-in for CUDA's plugin. */
static const char* const not_launchers[] = {"OMP_NUM_THREADS=", "STANDIN_COLLECTIVES_AT_ONCE="};

void be_alone(void) {
  static char* kept[3];
  if (environ == kept) return;
  size_t count = 0;
  for (char** variable = environ; *variable != NULL && count < 2; ++variable)
    for (size_t i = 0; i < 2; ++i)
      if (strncmp(*variable, not_launchers[i], strlen(not_launchers[i])) == 0) kept[count++] = *variable;
  kept[count] = NULL;
  environ = kept;
}

mdp_param vector_param(const char* name, mdp_dtype dtype, const int64_t* count) {
  return (mdp_param){.struct_size = sizeof(mdp_param), .name = name, .dtype = dtype, .ndim = 1, .shape = count};
}

mdp_tensor tensor_of(mdp_dtype dtype, void* data, const int64_t* count) {
  SIZED(mdp_tensor, tensor);
  tensor.dtype = dtype;
  tensor.device_type = 1;
  tensor.ndim = 1;
  tensor.data = data;
  tensor.shape = count;
  return tensor;
}

static const int64_t first_shape[] = {2, 3}, second_shape[] = {5}, empty_shape[] = {0, 4}, frozen_shape[] = {2};
const mdp_param job_params[PARAMS] = {
    {.struct_size = sizeof(mdp_param), .dtype = MDP_DTYPE_F32, .name = "first", .shape = first_shape, .ndim = 2},
    {.struct_size = sizeof(mdp_param), .dtype = MDP_DTYPE_BF16, .name = "second", .shape = second_shape, .ndim = 1},
    {.struct_size = sizeof(mdp_param), .dtype = MDP_DTYPE_F16, .name = "empty", .shape = empty_shape, .ndim = 2},
    {.struct_size = sizeof(mdp_param),
     .dtype = MDP_DTYPE_F32,
     .name = "frozen",
     .shape = frozen_shape,
     .ndim = 1,
     .flags = MDP_PARAM_FROZEN},
};

static void need(mdp_status status, const char* call) {
  if (status == MDP_OK) return;
  fprintf(stderr, "cannot set up a test: %s: %s: %s\n", call, mdp_status_name(status), mdp_last_error());
  abort();
}

size_t owned_ranges(mdp_buffer* buffer, mdp_range* ranges, size_t room) {
  memset(ranges, 0, room * sizeof ranges[0]);
  ranges[0].struct_size = sizeof ranges[0];
  size_t count = 0;
  OK(mdp_buffer_owned(buffer, ranges, room, &count));
  return count;
}

mdp_comm_config comm_config_of(int32_t rank, int32_t nranks, uint64_t timeout_ns) {
  SIZED(mdp_comm_config, config);
  config.rank = rank;
  config.size = nranks;
  config.timeout_ns = timeout_ns;
  if (on_cuda) {
    config.backend = MDP_BACKEND_CUDA;
    config.flags = MDP_COMM_EXACT_SUMS; /* the host's */
  }
  return config;
}

mdp_comm* comm_open(const mdp_unique_id* id, int32_t rank, int32_t nranks, uint64_t timeout_ns) {
  const mdp_comm_config config = comm_config_of(rank, nranks, timeout_ns);
  mdp_unique_id own;
  if (id == NULL) {
    need(mdp_unique_id_create(&own), "mdp_unique_id_create");
    id = &own;
  }
  mdp_comm* comm = NULL;
  need(mdp_comm_create(&config, id, &comm), "mdp_comm_create");
  return comm;
}

job job_on(mdp_comm* comm) {
  job j = {.comm = comm};
  need(mdp_grid_create(j.comm, NULL, &j.grid), "mdp_grid_create");
  need(mdp_buffer_register(NULL, j.grid, NULL, job_params, PARAMS, &j.buffer), "mdp_buffer_register");
  need(mdp_optimizer_create(j.buffer, NULL, &j.optimizer), "mdp_optimizer_create");
  return j;
}

job job_open(const mdp_unique_id* id, int32_t rank, int32_t nranks) {
  return job_on(comm_open(id, rank, nranks, UINT64_C(20000000000)));
}

float to_bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000U;
  memcpy(&x, &bits, sizeof x);
  return x;
}

float to_f16(float x) {
  uint32_t bits;
  if (fabsf(x) < 1.0F / 16384) return copysignf((fabsf(x) + 0.5F) - 0.5F, x); /* the unit of the last place of 0.5 is the least f16 */
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000U;
  memcpy(&x, &bits, sizeof x);
  return x;
}

void sync_and_wait(mdp_buffer* buffer) {
  mdp_request* synced = NULL;
  OK(mdp_grad_sync(buffer, NULL, &synced));
  OK(mdp_request_wait(synced, UINT64_MAX));
  mdp_request_free(synced);
}

void step_and_wait(mdp_optimizer* optimizer) {
  mdp_request* stepped = NULL;
  OK(mdp_optimizer_step(optimizer, NULL, NULL, &stepped));
  OK(mdp_request_wait(stepped, UINT64_MAX));
  mdp_request_free(stepped);
}

void job_close(job* j) {
  mdp_optimizer_destroy(j->optimizer);
  mdp_buffer_destroy(j->buffer);
  mdp_grid_destroy(j->grid);
  mdp_comm_destroy(j->comm);
  memset(j, 0, sizeof *j);
}

void put_all(mdp_buffer* buffer) {
  float values[6] = {1, 2, 3, 4, 5, 6};
  SIZED(mdp_tensor, grad);
  grad.dtype = MDP_DTYPE_F32;
  grad.data = values;
  for (size_t i = 0; i < FROZEN; ++i) {
    grad.ndim = job_params[i].ndim;
    grad.shape = job_params[i].shape;
    OK(mdp_grad_put(buffer, i, &grad, 0, NULL));
  }
}

/* ── Ranks ── */

typedef struct {
  const mdp_unique_id* id;
  rank_body body;
  void* argument;
  int32_t rank, nranks;
} rank_start;

static void* run_one(void* argument) {
  const rank_start* start = argument;
  start->body(start->id, start->rank, start->nranks, start->argument);
  return NULL;
}

void run_ranks(int32_t nranks, rank_body body, void* argument) {
  enum {
    MOST = 8
  };
  pthread_t threads[MOST];
  rank_start starts[MOST];
  mdp_unique_id id;
  if (nranks > MOST) abort();
  need(mdp_unique_id_create(&id), "mdp_unique_id_create");
  for (int32_t r = 0; r < nranks; ++r) {
    starts[r] = (rank_start){&id, body, argument, r, nranks};
    if (pthread_create(&threads[r], NULL, run_one, &starts[r]) != 0) abort();
  }
  for (int32_t r = 0; r < nranks; ++r) pthread_join(threads[r], NULL);
}

int make_folder(char* path, size_t room) {
  const char* const in = getenv("TMPDIR");
  snprintf(path, room, "%s/megadp-test-XXXXXX", in != NULL ? in : "/tmp");
  return mkdtemp(path) == NULL;
}

static int remove_one(const char* at, const struct stat* about, int kind, struct FTW* where) {
  (void)about;
  (void)kind;
  (void)where;
  return remove(at);
}

int remove_folder(const char* path) {
  return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

char folder[256];

int open_folder(void** state) {
  (void)state;
  be_alone();
  return make_folder(folder, sizeof folder);
}

int close_folder(void** state) {
  (void)state;
  return remove_folder(folder);
}
