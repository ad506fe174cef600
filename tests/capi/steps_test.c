/* SPDX-License-Identifier: Apache-2.0
 * A step of several ranks and several threads: what a rank adds that has nothing to add, calls that come while another thread puts, whose
 * problem is told, and whose values count. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fixture.h"

static const uint64_t timeout_ns = UINT64_C(20000000000);

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* Three parameters in two arenas: "a" and "c" are f32, "b" between them bf16. Long enough for every rank to own a part of each. */
enum {
  A = 0,
  B = 1,
  C = 2,
  COUNT = 3,
  LENGTH = 4096
};
static const int64_t length = LENGTH;

typedef struct {
  mdp_comm* comm;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

static void describe_params(mdp_param* params, mdp_param_class of_b) {
  static const char* const names[COUNT] = {"a", "b", "c"};
  for (int p = 0; p < COUNT; ++p) {
    params[p] = (mdp_param){.struct_size = sizeof(mdp_param),
                            .dtype = p == B ? MDP_DTYPE_BF16 : MDP_DTYPE_F32,
                            .name = names[p],
                            .shape = &length,
                            .ndim = 1,
                            .param_class = p == B ? of_b : MDP_PARAM_CLASS_DENSE,
                            .placement = MDP_PLACEMENT_REPLICATED};
  }
}

static model model_open(const mdp_unique_id* id, int32_t rank, int32_t n, const mdp_grid_config* cut, const mdp_buffer_config* config) {
  model m = {.comm = comm_open(id, rank, n, timeout_ns)};
  mdp_param params[COUNT];
  describe_params(params, cut != NULL && cut->ep > 1 ? MDP_PARAM_CLASS_EXPERT : MDP_PARAM_CLASS_DENSE);
  OK(mdp_grid_create(m.comm, cut, &m.grid));
  OK(mdp_buffer_register(NULL, m.grid, config, params, COUNT, &m.buffer));
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 1e-3;
  OK(mdp_optimizer_create(m.buffer, &adamw, &m.optimizer));
  return m;
}

static void model_close(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_grid_destroy(m->grid);
  mdp_comm_destroy(m->comm);
}

static void fill(float* values, float value) {
  for (int i = 0; i < LENGTH; ++i) values[i] = value;
}

static void put(mdp_buffer* buffer, size_t param, float value) {
  float values[LENGTH];
  fill(values, value);
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, values, &length);
  OK(mdp_grad_put(buffer, param, &grad, 0, NULL));
}

static void write_param(mdp_buffer* buffer, size_t param, float value) {
  float values[LENGTH];
  fill(values, value);
  const mdp_tensor from = tensor_of(MDP_DTYPE_F32, values, &length);
  OK(mdp_param_write(buffer, param, &from, NULL));
}

/* The number of elements that are not within `margin` of `value`. */
static int params_off(mdp_buffer* buffer, size_t param, float value, float margin) {
  float values[LENGTH];
  const mdp_tensor to = tensor_of(MDP_DTYPE_F32, values, &length);
  int off = 0;
  OK(mdp_param_read(buffer, param, &to, NULL));
  for (int i = 0; i < LENGTH; ++i) off += !(values[i] > value - margin && values[i] < value + margin);
  return off;
}

static int grads_off(mdp_buffer* buffer, size_t param, float value) {
  SIZED(mdp_tensor, view);
  int off = 0;
  OK(mdp_buffer_grad_view(buffer, param, &view));
  for (int i = 0; i < LENGTH; ++i) off += ((const float*)view.data)[i] != value;
  return off;
}

static void a_moment(void) {
  const struct timespec moment = {0, 50000000};
  nanosleep(&moment, NULL);
}

/* ── A rank that has no gradient ── */

/* An earlier step has left numbers in the slot. Whoever brings nothing in this one adds zero, in whichever way it says so. */
static void bring_nothing(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const mdp_missing missing = *(const mdp_missing*)argument;
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_0;
  config.missing = missing;
  model m = model_open(id, rank, n, NULL, &config);
  for (size_t p = 0; p < COUNT; ++p) put(m.buffer, p, 3);
  sync_and_wait(m.buffer);
  for (size_t p = 0; p < COUNT; ++p) CHECK(grads_off(m.buffer, p, 3) == 0);
  step_and_wait(m.optimizer);
  for (size_t p = 0; p < COUNT; ++p) {
    if (rank == 1) put(m.buffer, p, 8);
    if (rank == 0 && missing == MDP_MISSING_ERROR) OK(mdp_grad_skip(m.buffer, p));
  }
  sync_and_wait(m.buffer);
  for (size_t p = 0; p < COUNT; ++p) CHECK(grads_off(m.buffer, p, 4) == 0);
  step_and_wait(m.optimizer);
  OK(mdp_buffer_verify(m.buffer));
  /* What an earlier microbatch brought stays. */
  OK(mdp_microbatch_begin(m.buffer, 0));
  for (size_t p = 0; p < COUNT; ++p) put(m.buffer, p, 6);
  OK(mdp_microbatch_begin(m.buffer, 1));
  for (size_t p = 0; p < COUNT; ++p) {
    if (rank == 1) put(m.buffer, p, 8);
    if (rank == 0 && missing == MDP_MISSING_ERROR) OK(mdp_grad_skip(m.buffer, p));
  }
  sync_and_wait(m.buffer);
  for (size_t p = 0; p < COUNT; ++p) CHECK(grads_off(m.buffer, p, 10) == 0);
  step_and_wait(m.optimizer);
  /* Also if no rank brings anything in the last one: the step is taken with it. */
  for (size_t p = 0; p < COUNT; ++p) write_param(m.buffer, p, 1);
  OK(mdp_microbatch_begin(m.buffer, 0));
  for (size_t p = 0; p < COUNT; ++p) put(m.buffer, p, 6);
  OK(mdp_microbatch_begin(m.buffer, 1));
  for (size_t p = 0; p < COUNT && missing == MDP_MISSING_ERROR; ++p) OK(mdp_grad_skip(m.buffer, p));
  sync_and_wait(m.buffer);
  for (size_t p = 0; p < COUNT; ++p) CHECK(grads_off(m.buffer, p, 6) == 0);
  step_and_wait(m.optimizer);
  CHECK(params_off(m.buffer, A, 0.999F, 5e-4F) == 0 && params_off(m.buffer, C, 0.999F, 5e-4F) == 0);
  model_close(&m);
}

static void who_brings_nothing_adds_zero(void** state) {
  (void)state;
  for (mdp_missing missing = MDP_MISSING_ERROR; missing <= MDP_MISSING_SKIP; ++missing) run_ranks(2, bring_nothing, &missing);
}

/* The optimizer leaves alone what all ranks skipped, and nothing else: whichever rank it is that skips. */
static void skip_by_turns(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  model m = model_open(id, rank, n, NULL, NULL);
  for (int step = 0; step < 6; ++step) {
    float before[COUNT][LENGTH], after[COUNT][LENGTH];
    for (size_t p = 0; p < COUNT; ++p) {
      const mdp_tensor to = tensor_of(MDP_DTYPE_F32, before[p], &length);
      OK(mdp_param_read(m.buffer, p, &to, NULL));
      const int skipped_by = (step + (int)p) % (n + 2); /* n: by nobody; n + 1: by all */
      if (skipped_by == rank || skipped_by == n + 1) {
        OK(mdp_grad_skip(m.buffer, p));
      } else {
        put(m.buffer, p, 1);
      }
    }
    sync_and_wait(m.buffer);
    step_and_wait(m.optimizer);
    for (size_t p = 0; p < COUNT; ++p) {
      const mdp_tensor to = tensor_of(MDP_DTYPE_F32, after[p], &length);
      OK(mdp_param_read(m.buffer, p, &to, NULL));
      int moved = 0;
      for (int i = 0; i < LENGTH; ++i) moved += after[p][i] < before[p][i];
      CHECK(moved == ((step + (int)p) % (n + 2) == n + 1 ? 0 : LENGTH));
    }
  }
  OK(mdp_buffer_verify(m.buffer));
  model_close(&m);
}

static void only_what_all_skip_is_left_alone(void** state) {
  (void)state;
  run_ranks(2, skip_by_turns, NULL);
  run_ranks(3, skip_by_turns, NULL);
}

/* A framework may have written into the view before: what is put with MDP_GRAD_ADD is added to that, anything else replaces it. */
static void added_to_what_is_in_the_view(void** state) {
  (void)state;
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_0;
  model m = model_open(NULL, 0, 1, NULL, &config);
  float values[LENGTH];
  fill(values, 2);
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, values, &length);
  for (size_t p = 0; p < COUNT; ++p) {
    SIZED(mdp_tensor, view);
    OK(mdp_buffer_grad_view(m.buffer, p, &view));
    for (int i = 0; i < LENGTH; ++i) ((float*)view.data)[i] = 5;
    OK(mdp_grad_put(m.buffer, p, &grad, p == C ? 0 : MDP_GRAD_ADD, NULL));
  }
  sync_and_wait(m.buffer);
  for (size_t p = 0; p < COUNT; ++p) CHECK(grads_off(m.buffer, p, p == C ? 2 : 7) == 0);
  step_and_wait(m.optimizer);
  model_close(&m);
}

/* ── While another thread puts ── */

/* A gradient that cannot be read until the test says so: its memory is closed, and who touches it waits in the handler of the fault. So a
 * put of it is under way for exactly as long as the test wants. */
static struct {
  float* values;
  int reached[2], go[2]; /* pipes */
} held;

static void wait_in_the_fault(int number, siginfo_t* info, void* context) {
  (void)context;
  const char *at = info->si_addr, *begin = (const char*)held.values;
  char byte = 0;
  if (begin == NULL || at < begin || at >= begin + LENGTH * sizeof(float)) {
    signal(number, SIG_DFL); /* somebody else's */
    return;
  }
  if (write(held.reached[1], &byte, 1) != 1 || read(held.go[0], &byte, 1) != 1) _exit(3);
  mprotect(held.values, LENGTH * sizeof(float), PROT_READ | PROT_WRITE);
}

static int open_held(void** state) {
  (void)state;
  void* const memory = mmap(NULL, LENGTH * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || pipe(held.reached) != 0 || pipe(held.go) != 0) return 1;
  held.values = memory;
  return 0;
}

static int close_held(void** state) {
  munmap(held.values, LENGTH * sizeof(float));
  for (int end = 0; end < 2; ++end) {
    close(held.reached[end]);
    close(held.go[end]);
  }
  memset(&held, 0, sizeof held);
  return all_checks_held(state);
}

static void* put_held(void* argument) {
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, held.values, &length);
  OK(mdp_grad_put(argument, A, &grad, 0, NULL));
  return NULL;
}

/* Returns when the put is in the middle of it. */
static struct sigaction before_held;

static pthread_t begin_held_put(mdp_buffer* buffer, float value) {
  pthread_t thread;
  char byte;
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = wait_in_the_fault;
  action.sa_flags = SA_SIGINFO;
  CHECK(sigaction(SIGSEGV, &action, &before_held) == 0); /* while a test runs, cmocka has a handler there */
  fill(held.values, value);
  CHECK(mprotect(held.values, LENGTH * sizeof(float), PROT_NONE) == 0);
  CHECK(pthread_create(&thread, NULL, put_held, buffer) == 0);
  CHECK(read(held.reached[0], &byte, 1) == 1);
  return thread;
}

static void end_held_put(pthread_t thread) {
  const char byte = 0;
  CHECK(write(held.go[1], &byte, 1) == 1);
  pthread_join(thread, NULL);
  sigaction(SIGSEGV, &before_held, NULL);
}

static void the_same_parameter_while_it_is_put(void** state) {
  (void)state;
  if (on_cuda) SKIP("the stand-in copies on a thread of its own");
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_0;
  model m = model_open(NULL, 0, 1, NULL, &config);
  const pthread_t thread = begin_held_put(m.buffer, 2);
  FAILS(MDP_E_STATE, "parameter 0 'a' is being put by another thread", mdp_grad_ready(m.buffer, A, NULL));
  FAILS(MDP_E_STATE, "parameter 0 'a' is being put by another thread", mdp_grad_skip(m.buffer, A));
  put(m.buffer, B, 1); /* the others are free */
  OK(mdp_grad_skip(m.buffer, C));
  end_held_put(thread);
  sync_and_wait(m.buffer);
  CHECK(grads_off(m.buffer, A, 2) == 0 && grads_off(m.buffer, B, 1) == 0 && grads_off(m.buffer, C, 0) == 0);
  step_and_wait(m.optimizer);
  model_close(&m);
}

typedef mdp_status (*step_call)(mdp_buffer* buffer);
static mdp_status begin_the_last(mdp_buffer* buffer) {
  return mdp_microbatch_begin(buffer, 1);
}
static mdp_status begin_anew(mdp_buffer* buffer) {
  return mdp_buffer_zero_grad(buffer, NULL);
}
static mdp_status end_backward(mdp_buffer* buffer) {
  return mdp_grad_sync(buffer, NULL, NULL);
}

typedef struct {
  mdp_buffer* buffer;
  step_call call;
  atomic_int begun, returned;
} waiting_call;

static void* make_waiting_call(void* argument) {
  waiting_call* w = argument;
  atomic_store(&w->begun, 1);
  OK(w->call(w->buffer));
  atomic_store(&w->returned, 1);
  return NULL;
}

/* Makes the call in the middle of a put; it returns after the put. */
static void call_during_a_put(mdp_buffer* buffer, step_call call, float value) {
  waiting_call w = {.buffer = buffer, .call = call};
  pthread_t caller;
  const pthread_t thread = begin_held_put(buffer, value);
  CHECK(pthread_create(&caller, NULL, make_waiting_call, &w) == 0);
  while (!atomic_load(&w.begun)) a_moment();
  a_moment(); /* one that does not wait has returned by now */
  CHECK(!atomic_load(&w.returned));
  end_held_put(thread);
  pthread_join(caller, NULL);
  CHECK(atomic_load(&w.returned));
}

static void what_ends_a_step_waits_for_puts(void** state) {
  (void)state;
  if (on_cuda) SKIP("the stand-in copies on a thread of its own");
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_0;
  config.missing = MDP_MISSING_ZERO;
  model m = model_open(NULL, 0, 1, NULL, &config);
  OK(mdp_microbatch_begin(m.buffer, 0));
  call_during_a_put(m.buffer, begin_the_last, 2);
  put(m.buffer, A, 3); /* it came once in each microbatch */
  sync_and_wait(m.buffer);
  CHECK(grads_off(m.buffer, A, 5) == 0);
  step_and_wait(m.optimizer);
  call_during_a_put(m.buffer, end_backward, 7);
  CHECK(grads_off(m.buffer, A, 7) == 0);
  step_and_wait(m.optimizer);
  call_during_a_put(m.buffer, begin_anew, 9); /* what was put is forgotten, all of it */
  sync_and_wait(m.buffer);
  CHECK(grads_off(m.buffer, A, 0) == 0);
  step_and_wait(m.optimizer);
  model_close(&m);
}

/* ── Whose problem is told ── */

typedef struct {
  int32_t tp, ep;
  int32_t without[2]; /* these ranks miss parameter "a"; the first also "b", which may be an expert */
} problems;

static void miss_parameters(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const problems* of = argument;
  SIZED(mdp_grid_config, cut);
  cut.tp = of->tp;
  cut.ep = of->ep;
  model m = model_open(id, rank, n, &cut, NULL);
  const int32_t lower = of->without[0] < of->without[1] ? of->without[0] : of->without[1];
  char sentence[64];
  snprintf(sentence, sizeof sentence, "on rank %d parameter", (int)lower);
  for (int round = 0; round < 2; ++round) {
    for (size_t p = 0; p < COUNT; ++p) {
      const int missed = (rank == of->without[0] && p < C) || (rank == of->without[1] && p == (round == 0 ? A : B));
      if (!missed) put(m.buffer, p, 1);
    }
    FAILS(MDP_E_STATE, sentence, mdp_grad_sync(m.buffer, NULL, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.rank == lower && info.param == (lower == of->without[1] && round == 0 ? A : B));
    CHECK((strstr(mdp_last_error(), ", nor did 1 more") != NULL) == (lower == of->without[0]));
    OK(mdp_microbatch_begin(m.buffer, 1));
  }
  model_close(&m);
}

static void the_lowest_ranks_problem_is_told(void** state) {
  (void)state;
  static problems of[] = {
      {1, 1, {1, 2}}, {1, 1, {3, 1}}, {2, 1, {1, 2}}, {2, 1, {3, 0}}, {2, 1, {3, 2}}, {1, 2, {3, 2}}, {1, 2, {1, 2}},
  };
  for (size_t i = 0; i < sizeof of / sizeof of[0]; ++i) run_ranks(4, miss_parameters, &of[i]);
}

/* ── Whose values count ── */

/* Rank 1's masters follow what it received, though it wrote nothing itself. */
static void broadcast_between_steps(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  model m = model_open(id, rank, n, NULL, NULL);
  for (size_t p = 0; p < COUNT; ++p) write_param(m.buffer, p, 1);
  for (size_t p = 0; p < COUNT; ++p) put(m.buffer, p, 1);
  sync_and_wait(m.buffer);
  step_and_wait(m.optimizer);
  if (rank == 0) write_param(m.buffer, B, 5);
  OK(mdp_buffer_broadcast(m.buffer, 0, NULL));
  CHECK(params_off(m.buffer, B, 5, 0.001F) == 0);
  for (size_t p = 0; p < COUNT; ++p) put(m.buffer, p, 1);
  sync_and_wait(m.buffer);
  step_and_wait(m.optimizer);
  CHECK(params_off(m.buffer, B, 5, 0.1F) == 0);
  CHECK(params_off(m.buffer, A, 1, 0.1F) == 0);
  OK(mdp_buffer_verify(m.buffer));
  model_close(&m);
}

static void masters_follow_a_broadcast(void** state) {
  (void)state;
  run_ranks(2, broadcast_between_steps, NULL);
}

/* A step comes after broadcasts that nobody has waited for: its parameters are not undone. */
static void step_behind_broadcasts(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  enum {
    MANY = 1 << 20,
    BROADCASTS = 32 /* so many take much longer than a step that does not wait */
  };
  const int64_t shape = MANY;
  const mdp_param param = {.struct_size = sizeof param, .dtype = MDP_DTYPE_F32, .name = "large", .shape = &shape, .ndim = 1};
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_buffer_register(comm, NULL, NULL, &param, 1, &buffer));
  SIZED(mdp_optimizer_config, descent);
  descent.rule = MDP_RULE_SGD;
  descent.lr = 0.5;
  OK(mdp_optimizer_create(buffer, &descent, &optimizer));
  float* values = malloc(MANY * sizeof *values);
  const mdp_tensor array = tensor_of(MDP_DTYPE_F32, values, &shape);
  for (int i = 0; i < MANY; ++i) values[i] = (float)(8 + rank);
  OK(mdp_param_write(buffer, 0, &array, NULL));
  for (int i = 0; i < MANY; ++i) values[i] = 1;
  OK(mdp_grad_put(buffer, 0, &array, 0, NULL));
  sync_and_wait(buffer);
  mdp_request* requests[BROADCASTS] = {NULL};
  for (int k = 0; k < BROADCASTS; ++k) OK(mdp_buffer_broadcast(buffer, 0, &requests[k]));
  OK(mdp_optimizer_step(optimizer, NULL, NULL, NULL));
  for (int k = 0; k < BROADCASTS; ++k) {
    OK(mdp_request_wait(requests[k], UINT64_MAX));
    mdp_request_free(requests[k]);
  }
  OK(mdp_param_read(buffer, 0, &array, NULL));
  int off = 0;
  for (int i = 0; i < MANY; ++i) off += values[i] != 7.5F;
  CHECK(off == 0);
  free(values);
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void a_step_waits_for_a_broadcast(void** state) {
  (void)state;
  run_ranks(2, step_behind_broadcasts, NULL);
}

/* What is written between steps counts, in whichever way: the next step goes on from there. */
static void write_between_steps(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  model m = model_open(id, rank, n, NULL, NULL);
  const uint16_t seven = 0x40e0; /* as bf16 */
  for (int round = 0; round < 4; ++round) {
    for (size_t p = 0; p < COUNT; ++p) put(m.buffer, p, 1);
    sync_and_wait(m.buffer);
    step_and_wait(m.optimizer);
    const float now = round == 0 ? 0 : round == 3 ? 7 : 5;
    CHECK(params_off(m.buffer, A, round == 0 ? 0 : 3, 0.1F) == 0);
    CHECK(params_off(m.buffer, B, now, 0.1F) == 0);
    if (round == 0) write_param(m.buffer, A, 3);
    if (round == 0) write_param(m.buffer, B, 5);
    if (round == 2) {
      SIZED(mdp_tensor, view);
      OK(mdp_buffer_param_view(m.buffer, B, &view));
      for (int i = 0; i < LENGTH; ++i) ((uint16_t*)view.data)[i] = seven;
      OK(mdp_param_changed(m.buffer));
    }
  }
  OK(mdp_buffer_verify(m.buffer));
  model_close(&m);
}

static void masters_follow_what_is_written(void** state) {
  (void)state;
  run_ranks(1, write_between_steps, NULL);
  run_ranks(2, write_between_steps, NULL);
}

/* By its index, whichever arena it lies in. */
static void differ_in_one(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  static const char* const sentences[COUNT] = {"parameter 0 'a' differs", "parameter 1 'b' differs", "parameter 2 'c' differs"};
  model m = model_open(id, rank, n, NULL, NULL);
  for (size_t p = 0; p < COUNT; ++p) {
    if (rank == 1) write_param(m.buffer, p, 1);
    FAILS(MDP_E_DESYNC, sentences[p], mdp_buffer_verify(m.buffer));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.param == (int64_t)p && info.rank == 1);
    if (n == 2) FAILS(MDP_E_INVALID, "root is 2; the data-parallel group has ranks 0 to 1", mdp_buffer_broadcast(m.buffer, 2, NULL));
    FAILS(MDP_E_INVALID, "root is -1", mdp_buffer_broadcast(m.buffer, -1, NULL));
    OK(mdp_buffer_broadcast(m.buffer, 0, NULL));
    OK(mdp_buffer_verify(m.buffer));
  }
  model_close(&m);
}

static void the_parameter_that_differs(void** state) {
  (void)state;
  run_ranks(2, differ_in_one, NULL);
  run_ranks(4, differ_in_one, NULL);
}

/* ── Registrations ── */

enum {
  REGISTRATIONS = 12
};

static void differ_in_one_word(mdp_buffer_config* config, mdp_param* params, int which) {
  static const int64_t pair[2] = {LENGTH / 2, 2};
  if (which == 0) config->grad_dtype = MDP_DTYPE_SAME;
  if (which == 1) config->sharding = MDP_SHARDING_ZERO_0;
  if (which == 2) config->missing = MDP_MISSING_SKIP;
  if (which == 3) config->bucket_elements = 128;
  if (which == 4) config->flags = MDP_BUFFER_NO_OVERLAP;
  if (which == 5) config->flags = MDP_BUFFER_HIGH_BANDWIDTH_PADDING;
  if (which == 6) params[C].uses_per_step = 2;
  if (which == 7) params[C].param_group = 1;
  if (which == 8) params[C].flags = MDP_PARAM_OWN_BUCKET;
  if (which == 9) params[C].flags = MDP_PARAM_FROZEN;
  if (which == 10) params[C].dtype = MDP_DTYPE_F16;
  if (which == 11) {
    params[C].ndim = 2;
    params[C].shape = pair;
  }
}

static void register_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, NULL, &grid));
  for (int which = 0; which <= REGISTRATIONS; ++which) {
    mdp_param params[COUNT];
    SIZED(mdp_buffer_config, config);
    describe_params(params, MDP_PARAM_CLASS_DENSE);
    if (rank == 1) differ_in_one_word(&config, params, which);
    mdp_buffer* buffer = NULL;
    if (which == REGISTRATIONS) {
      OK(mdp_buffer_register(NULL, grid, &config, params, COUNT, &buffer)); /* as they are, they agree */
    } else {
      FAILS(MDP_E_DESYNC, "ranks 0 and 1 registered different parameters",
            mdp_buffer_register(NULL, grid, &config, params, COUNT, &buffer));
      CHECK(buffer == NULL);
    }
    mdp_buffer_destroy(buffer);
  }
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void every_word_of_a_registration_is_compared(void** state) {
  (void)state;
  run_ranks(3, register_differently, NULL);
}

/* ── Grids ── */

enum {
  CUTS = 7
};

static void cut_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  for (int which = 0; which <= CUTS; ++which) {
    SIZED(mdp_grid_config, config);
    if (rank == 1) {
      int32_t* const sizes[] = {&config.tp, &config.cp, &config.ep, &config.pp, &config.expert_tp, &config.instances};
      if (which < 6) *sizes[which] = 2;
      if (which == 6) config.order = "dp-tp-cp-ep-pp";
    }
    mdp_grid* grid = NULL;
    if (which == CUTS) {
      OK(mdp_grid_create(comm, &config, &grid));
    } else {
      FAILS(MDP_E_DESYNC, "cut the world differently", mdp_grid_create(comm, &config, &grid));
      CHECK(grid == NULL);
    }
    mdp_grid_destroy(grid);
  }
  mdp_comm_destroy(comm);
}

static void every_value_of_a_grid_is_compared(void** state) {
  (void)state;
  run_ranks(2, cut_differently, NULL);
}

/* Each communicator of a grid has the ranks that differ in its axes alone, whatever was asked for before. */
static void ask_for_communicators(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  mdp_comm* comm = comm_open(id, rank, n, timeout_ns);
  SIZED(mdp_grid_config, config);
  config.tp = config.pp = 2; /* so dp is 2: rank = tp + 2 dp + 4 pp */
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &config, &grid));
  static const uint32_t axes[3] = {MDP_AXIS_TP, MDP_AXIS_DP, MDP_AXIS_PP};
  for (int which = 1; which < 8; ++which) {
    uint32_t asked = 0;
    for (int axis = 0; axis < 3; ++axis) asked |= (which >> axis & 1) != 0 ? axes[axis] : 0;
    mdp_comm* part = NULL;
    OK(mdp_grid_comm(grid, asked, &part));
    int64_t members = INT64_C(1) << rank, expected = 0;
    const int64_t one = 1;
    const mdp_tensor t = tensor_of(MDP_DTYPE_I64, &members, &one);
    OK(mdp_all_reduce(part, &t, &t, MDP_OP_SUM, NULL, NULL));
    for (int32_t other = 0; other < n; ++other) {
      if (((other ^ rank) & ~which) == 0) expected |= INT64_C(1) << other;
    }
    CHECK(members == expected);
    mdp_comm_destroy(part);
  }
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void communicators_of_a_grid(void** state) {
  (void)state;
  run_ranks(8, ask_for_communicators, NULL);
}

/* ── Optimizers ── */

enum {
  DIFFERENCES = 10
};

static void differ_in_one_value(mdp_optimizer_config* config, mdp_param_group* groups, int which) {
  config->param_groups = groups;
  config->param_group_count = 2;
  groups[0].weight_decay = which == 9 ? 0.25 : 0.5;
  if (which == 0) config->eps = 1e-7;
  if (which == 1) config->beta1 = 0.8;
  if (which == 2) config->beta2 = 0.99;
  if (which == 3) config->max_grad_norm = 1;
  if (which == 4) config->param_group_count = 1;
  if (which == 5) groups[1].weight_decay = 0.125;
  if (which == 6) groups[1].lr = 0.125;
  if (which == 7) groups[0].flags = MDP_PARAM_GROUP_SET_LR; /* 0, literally */
  if (which == 8) config->flags = MDP_OPTIMIZER_SET_BETA1;
}

static void configure_differently(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  model m = model_open(id, rank, n, NULL, NULL);
  for (int which = 0; which < DIFFERENCES; ++which) {
    mdp_param_group groups[2] = {{.struct_size = sizeof(mdp_param_group)}, {.struct_size = sizeof(mdp_param_group)}};
    SIZED(mdp_optimizer_config, config);
    differ_in_one_value(&config, groups, rank == 1 ? which : DIFFERENCES);
    mdp_optimizer* optimizer = NULL;
    FAILS(MDP_E_DESYNC, "ranks 0 and 1 configure the optimizer differently", mdp_optimizer_create(m.buffer, &config, &optimizer));
    CHECK(optimizer == NULL);
  }
  model_close(&m);
}

static void every_value_of_an_optimizer_is_compared(void** state) {
  (void)state;
  run_ranks(3, configure_differently, NULL);
}

/* Rank 0's step cannot end before rank 1 comes to its own. */
static atomic_int stepping;
static void ask_during_a_step(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  model m = model_open(id, rank, n, NULL, NULL);
  for (size_t p = 0; p < COUNT; ++p) put(m.buffer, p, 1);
  sync_and_wait(m.buffer);
  mdp_request* request = NULL;
  if (rank == 1) {
    while (!atomic_load(&stepping)) a_moment();
    a_moment(); /* who does not wait has its answer by now */
  }
  OK(mdp_optimizer_step(m.optimizer, NULL, NULL, &request));
  atomic_store(&stepping, 1);
  SIZED(mdp_tensor, moment);
  OK(mdp_optimizer_state(m.optimizer, B, "exp_avg", &moment)); /* each rank has half of it */
  CHECK(moment.data != NULL && ((const float*)moment.data)[0] > 0.09F);
  OK(mdp_request_wait(request, UINT64_MAX));
  mdp_request_free(request);
  model_close(&m);
}

static void state_is_that_after_the_step(void** state) {
  (void)state;
  atomic_store(&stepping, 0);
  run_ranks(2, ask_during_a_step, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(who_brings_nothing_adds_zero),
      TEST(only_what_all_skip_is_left_alone),
      TEST(added_to_what_is_in_the_view),
      cmocka_unit_test_setup_teardown(the_same_parameter_while_it_is_put, open_held, close_held),
      cmocka_unit_test_setup_teardown(what_ends_a_step_waits_for_puts, open_held, close_held),
      TEST(the_lowest_ranks_problem_is_told),
      TEST(masters_follow_a_broadcast),
      TEST(a_step_waits_for_a_broadcast),
      TEST(masters_follow_what_is_written),
      TEST(the_parameter_that_differs),
      TEST(every_word_of_a_registration_is_compared),
      TEST(every_value_of_a_grid_is_compared),
      TEST(communicators_of_a_grid),
      TEST(every_value_of_an_optimizer_is_compared),
      TEST(state_is_that_after_the_step),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
