/* SPDX-License-Identifier: Apache-2.0
 * Every function that takes a handle: NULL, misaligned, a handle of another kind, memory that never was one; in a forked child; and
 * outputs that are NULL or misaligned. */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static job alone;
static float numbers[6];
static const int64_t six = 6;

static int open_job(void** state) {
  (void)state;
  be_alone();
  alone = job_open(NULL, 0, 1);
  return 0;
}

static int close_job(void** state) {
  (void)state;
  job_close(&alone);
  return 0;
}

/* ── One entry for each function: all arguments but the handle are right. ── */

static mdp_tensor vector(void) {
  return tensor_of(MDP_DTYPE_F32, numbers, &six);
}

static mdp_status comm_split(void* h) {
  mdp_comm* out;
  return mdp_comm_split(h, 0, 0, &out);
}
static mdp_status comm_rank(void* h) {
  const int32_t rank = mdp_comm_rank(h);
  SIZED(mdp_error_info, info);
  CHECK(rank == -1);
  return mdp_last_error_info(&info) == MDP_OK ? info.status : MDP_E_INTERNAL;
}
static mdp_status comm_size(void* h) {
  const int32_t size = mdp_comm_size(h);
  SIZED(mdp_error_info, info);
  CHECK(size == -1);
  return mdp_last_error_info(&info) == MDP_OK ? info.status : MDP_E_INTERNAL;
}
static mdp_status comm_error_info(void* h) {
  SIZED(mdp_error_info, info);
  return mdp_comm_error_info(h, &info);
}
static mdp_status comm_event_fd(void* h) {
  int32_t fd;
  return mdp_comm_event_fd(h, &fd);
}
static mdp_status comm_abort(void* h) {
  return mdp_comm_abort(h);
}
static mdp_status all_reduce(void* h) {
  const mdp_tensor t = vector();
  return mdp_all_reduce(h, &t, &t, MDP_OP_SUM, NULL, NULL);
}
static mdp_status reduce_scatter(void* h) {
  const mdp_tensor t = vector();
  return mdp_reduce_scatter(h, &t, &t, MDP_OP_SUM, NULL, NULL);
}
static mdp_status all_gather(void* h) {
  const mdp_tensor t = vector();
  return mdp_all_gather(h, &t, &t, NULL, NULL);
}
static mdp_status all_to_all(void* h) {
  const mdp_tensor t = vector();
  return mdp_all_to_all(h, &t, &t, NULL, NULL);
}
static mdp_status broadcast(void* h) {
  const mdp_tensor t = vector();
  return mdp_broadcast(h, &t, 0, NULL, NULL);
}
static mdp_status barrier(void* h) {
  return mdp_barrier(h, NULL);
}
static mdp_status reduce_scatter_v(void* h) {
  const mdp_tensor t = vector();
  const uint64_t counts[] = {6};
  return mdp_reduce_scatter_v(h, &t, &t, counts, MDP_OP_SUM, NULL, NULL);
}
static mdp_status all_gather_v(void* h) {
  const mdp_tensor t = vector();
  const uint64_t counts[] = {6};
  return mdp_all_gather_v(h, &t, &t, counts, NULL, NULL);
}
static mdp_status all_to_all_v(void* h) {
  const mdp_tensor t = vector();
  const uint64_t counts[] = {6};
  return mdp_all_to_all_v(h, &t, counts, &t, counts, NULL, NULL);
}
static mdp_status send_to(void* h) {
  const mdp_tensor t = vector();
  return mdp_send(h, &t, 0, NULL, NULL);
}
static mdp_status recv_from(void* h) {
  const mdp_tensor t = vector();
  return mdp_recv(h, &t, 0, NULL, NULL);
}
static mdp_status send_recv(void* h) {
  return mdp_send_recv(h, NULL, -1, NULL, -1, NULL, NULL);
}
static mdp_status grid_create(void* h) {
  mdp_grid* out;
  return mdp_grid_create(h, NULL, &out);
}
static mdp_status grid_coords(void* h) {
  int32_t index, size;
  return mdp_grid_coords(h, MDP_AXIS_DP, &index, &size);
}
static mdp_status grid_comm(void* h) {
  mdp_comm* out;
  return mdp_grid_comm(h, MDP_AXIS_DP, &out);
}
static mdp_status register_on_comm(void* h) {
  mdp_buffer* out;
  return mdp_buffer_register(h, NULL, NULL, job_params, PARAMS, &out);
}
static mdp_status register_on_grid(void* h) {
  mdp_buffer* out;
  return mdp_buffer_register(NULL, h, NULL, job_params, PARAMS, &out);
}
static mdp_status buffer_owned(void* h) {
  size_t needed;
  return mdp_buffer_owned(h, NULL, 0, &needed);
}
static mdp_status param_view(void* h) {
  SIZED(mdp_tensor, out);
  return mdp_buffer_param_view(h, FIRST, &out);
}
static mdp_status grad_view(void* h) {
  SIZED(mdp_tensor, out);
  return mdp_buffer_grad_view(h, FIRST, &out);
}
static mdp_status to_dlpack(void* h) {
  struct DLManagedTensorVersioned* out;
  const mdp_tensor t = vector();
  return mdp_buffer_to_dlpack(h, &t, &out);
}
static mdp_status buffer_broadcast(void* h) {
  return mdp_buffer_broadcast(h, 0, NULL);
}
static mdp_status buffer_verify(void* h) {
  return mdp_buffer_verify(h);
}
static mdp_status use_order(void* h) {
  int32_t order[PARAMS];
  return mdp_buffer_use_order(h, order, PARAMS);
}
static mdp_status zero_grad(void* h) {
  return mdp_buffer_zero_grad(h, NULL);
}
static mdp_status buffer_stats(void* h) {
  SIZED(mdp_stats_report, out);
  return mdp_buffer_stats(h, &out);
}
static mdp_status buffer_bucket(void* h) {
  SIZED(mdp_bucket_report, out);
  return mdp_buffer_bucket(h, 0, &out);
}
static mdp_status microbatch_begin(void* h) {
  return mdp_microbatch_begin(h, 1);
}
static mdp_status param_wait(void* h) {
  return mdp_param_wait(h, FIRST, NULL);
}
static mdp_status param_read(void* h) {
  const mdp_tensor t = vector();
  return mdp_param_read(h, FIRST, &t, NULL);
}
static mdp_status param_write(void* h) {
  const mdp_tensor t = vector();
  return mdp_param_write(h, FIRST, &t, NULL);
}
static mdp_status param_changed(void* h) {
  return mdp_param_changed(h);
}
static mdp_status grad_put(void* h) {
  const mdp_tensor t = vector();
  return mdp_grad_put(h, FIRST, &t, 0, NULL);
}
static mdp_status grad_ready(void* h) {
  return mdp_grad_ready(h, FIRST, NULL);
}
static mdp_status grad_skip(void* h) {
  return mdp_grad_skip(h, FIRST);
}
static mdp_status grad_sync(void* h) {
  return mdp_grad_sync(h, NULL, NULL);
}
static mdp_status grad_norm(void* h) {
  double norm;
  return mdp_grad_norm(h, NULL, 0, &norm);
}
static mdp_status grad_scale(void* h) {
  return mdp_grad_scale(h, NULL, 0, 1, NULL);
}
static mdp_status grad_changed(void* h) {
  return mdp_grad_changed(h, NULL);
}
static mdp_status optimizer_create(void* h) {
  mdp_optimizer* out;
  return mdp_optimizer_create(h, NULL, &out);
}
static mdp_status set_group(void* h) {
  SIZED(mdp_param_group, group);
  return mdp_optimizer_set_param_group(h, 0, &group);
}
static mdp_status optimizer_step(void* h) {
  return mdp_optimizer_step(h, NULL, NULL, NULL);
}
static mdp_status step_many(void* h) {
  mdp_optimizer* const optimizers[] = {h};
  return mdp_optimizer_step_many(optimizers, 1, NULL, NULL, NULL);
}
static mdp_status step_begin(void* h) {
  mdp_optimizer* const optimizers[] = {h};
  return mdp_optimizer_step_begin(optimizers, 1, NULL);
}
static mdp_status step_next(void* h) {
  SIZED(mdp_update, out);
  return mdp_optimizer_step_next(h, &out);
}
static mdp_status step_finish(void* h) {
  return mdp_optimizer_step_finish(h, 0, NULL, NULL);
}
static int32_t no_update(void* user, const mdp_update* update) {
  (void)user, (void)update;
  return 1;
}
static mdp_status set_update(void* h) {
  return mdp_optimizer_set_update(h, no_update, NULL);
}
static mdp_status set_scaler(void* h) {
  SIZED(mdp_scaler, scaler);
  return mdp_optimizer_set_scaler(h, &scaler);
}
static mdp_status optimizer_scaler(void* h) {
  SIZED(mdp_scaler, out);
  return mdp_optimizer_scaler(h, &out);
}
static mdp_status optimizer_scale(void* h) {
  SIZED(mdp_tensor, out);
  return mdp_optimizer_scale(h, &out);
}
static mdp_status optimizer_state(void* h) {
  SIZED(mdp_tensor, out);
  return mdp_optimizer_state(h, FIRST, "master", &out);
}
static mdp_status optimizer_steps(void* h) {
  uint64_t steps;
  return mdp_optimizer_steps(h, FIRST, &steps);
}
static mdp_status optimizer_set_steps(void* h) {
  return mdp_optimizer_set_steps(h, 0, NULL, 0);
}
static mdp_status optimizer_info(void* h) {
  size_t needed;
  return mdp_optimizer_info(h, NULL, 0, &needed);
}
static mdp_status request_test(void* h) {
  return mdp_request_test(h);
}
static mdp_status request_wait(void* h) {
  return mdp_request_wait(h, 0);
}

typedef struct {
  const char* function;
  const char* argument;
  const char* kind;
  mdp_status (*call)(void* handle);
} entry;

static const entry entries[] = {
    {"mdp_comm_split", "comm", "mdp_comm", comm_split},
    {"mdp_comm_rank", "comm", "mdp_comm", comm_rank},
    {"mdp_comm_size", "comm", "mdp_comm", comm_size},
    {"mdp_comm_error_info", "comm", "mdp_comm", comm_error_info},
    {"mdp_comm_event_fd", "comm", "mdp_comm", comm_event_fd},
    {"mdp_comm_abort", "comm", "mdp_comm", comm_abort},
    {"mdp_all_reduce", "comm", "mdp_comm", all_reduce},
    {"mdp_reduce_scatter", "comm", "mdp_comm", reduce_scatter},
    {"mdp_all_gather", "comm", "mdp_comm", all_gather},
    {"mdp_all_to_all", "comm", "mdp_comm", all_to_all},
    {"mdp_broadcast", "comm", "mdp_comm", broadcast},
    {"mdp_barrier", "comm", "mdp_comm", barrier},
    {"mdp_reduce_scatter_v", "comm", "mdp_comm", reduce_scatter_v},
    {"mdp_all_gather_v", "comm", "mdp_comm", all_gather_v},
    {"mdp_all_to_all_v", "comm", "mdp_comm", all_to_all_v},
    {"mdp_send", "comm", "mdp_comm", send_to},
    {"mdp_recv", "comm", "mdp_comm", recv_from},
    {"mdp_send_recv", "comm", "mdp_comm", send_recv},
    {"mdp_grid_create", "world", "mdp_comm", grid_create},
    {"mdp_grid_coords", "grid", "mdp_grid", grid_coords},
    {"mdp_grid_comm", "grid", "mdp_grid", grid_comm},
    {"mdp_buffer_register", "comm", "mdp_comm", register_on_comm},
    {"mdp_buffer_register", "grid", "mdp_grid", register_on_grid},
    {"mdp_buffer_owned", "buffer", "mdp_buffer", buffer_owned},
    {"mdp_buffer_param_view", "buffer", "mdp_buffer", param_view},
    {"mdp_buffer_grad_view", "buffer", "mdp_buffer", grad_view},
    {"mdp_buffer_to_dlpack", "owner", "mdp_buffer", to_dlpack},
    {"mdp_buffer_broadcast", "buffer", "mdp_buffer", buffer_broadcast},
    {"mdp_buffer_verify", "buffer", "mdp_buffer", buffer_verify},
    {"mdp_buffer_use_order", "buffer", "mdp_buffer", use_order},
    {"mdp_buffer_zero_grad", "buffer", "mdp_buffer", zero_grad},
    {"mdp_buffer_stats", "buffer", "mdp_buffer", buffer_stats},
    {"mdp_buffer_bucket", "buffer", "mdp_buffer", buffer_bucket},
    {"mdp_microbatch_begin", "buffer", "mdp_buffer", microbatch_begin},
    {"mdp_param_wait", "buffer", "mdp_buffer", param_wait},
    {"mdp_param_read", "buffer", "mdp_buffer", param_read},
    {"mdp_param_write", "buffer", "mdp_buffer", param_write},
    {"mdp_param_changed", "buffer", "mdp_buffer", param_changed},
    {"mdp_grad_put", "buffer", "mdp_buffer", grad_put},
    {"mdp_grad_ready", "buffer", "mdp_buffer", grad_ready},
    {"mdp_grad_skip", "buffer", "mdp_buffer", grad_skip},
    {"mdp_grad_sync", "buffer", "mdp_buffer", grad_sync},
    {"mdp_grad_norm", "buffer", "mdp_buffer", grad_norm},
    {"mdp_grad_scale", "buffer", "mdp_buffer", grad_scale},
    {"mdp_grad_changed", "buffer", "mdp_buffer", grad_changed},
    {"mdp_optimizer_create", "buffer", "mdp_buffer", optimizer_create},
    {"mdp_optimizer_set_param_group", "optimizer", "mdp_optimizer", set_group},
    {"mdp_optimizer_step", "optimizer", "mdp_optimizer", optimizer_step},
    {"mdp_optimizer_step_many", "optimizers[0]", "mdp_optimizer", step_many},
    {"mdp_optimizer_step_begin", "optimizers[0]", "mdp_optimizer", step_begin},
    {"mdp_optimizer_step_next", "optimizer", "mdp_optimizer", step_next},
    {"mdp_optimizer_step_finish", "optimizer", "mdp_optimizer", step_finish},
    {"mdp_optimizer_set_update", "optimizer", "mdp_optimizer", set_update},
    {"mdp_optimizer_set_scaler", "optimizer", "mdp_optimizer", set_scaler},
    {"mdp_optimizer_scaler", "optimizer", "mdp_optimizer", optimizer_scaler},
    {"mdp_optimizer_scale", "optimizer", "mdp_optimizer", optimizer_scale},
    {"mdp_optimizer_state", "optimizer", "mdp_optimizer", optimizer_state},
    {"mdp_optimizer_steps", "optimizer", "mdp_optimizer", optimizer_steps},
    {"mdp_optimizer_set_steps", "optimizer", "mdp_optimizer", optimizer_set_steps},
    {"mdp_optimizer_info", "optimizer", "mdp_optimizer", optimizer_info},
    {"mdp_request_test", "request", "mdp_request", request_test},
    {"mdp_request_wait", "request", "mdp_request", request_wait},
};
#define FOR_EACH(e) for (const entry* e = entries; e < entries + sizeof entries / sizeof entries[0]; ++e)

static void entry_fails(const entry* e, void* handle, mdp_status code, const char* part) {
  check_status(e->call(handle), code, part, e->function, __FILE__, __LINE__);
}

static void null(void** state) {
  (void)state;
  FOR_EACH(e) {
    char part[64];
    snprintf(part, sizeof part, "%s is NULL", e->argument);
    entry_fails(e, NULL, MDP_E_INVALID, part);
  }
}

static void misaligned(void** state) {
  (void)state;
  uint64_t memory[8] = {0};
  FOR_EACH(e) {
    entry_fails(e, (char*)memory + 3, MDP_E_INVALID, "misaligned");
    CHECK(strncmp(mdp_last_error(), e->argument, strlen(e->argument)) == 0);
  }
}

static void never_was_a_handle(void** state) {
  (void)state;
  uint64_t memory[8] = {0};
  FOR_EACH(e) {
    entry_fails(e, memory, MDP_E_INVALID, "is not a live");
    entry_fails(e, memory, MDP_E_INVALID, "destroyed, or never was one");
  }
}

static void of_another_kind(void** state) {
  (void)state;
  const struct {
    void* handle;
    const char* kind;
  } others[] = {{alone.comm, "mdp_comm"}, {alone.grid, "mdp_grid"}, {alone.buffer, "mdp_buffer"}, {alone.optimizer, "mdp_optimizer"}};
  FOR_EACH(e) {
    for (size_t i = 0; i < 4; ++i) {
      if (strcmp(others[i].kind, e->kind) == 0) continue;
      char part[64];
      snprintf(part, sizeof part, "this call takes an %s", e->kind);
      entry_fails(e, others[i].handle, MDP_E_INVALID, part);
      CHECK(strstr(mdp_last_error(), others[i].kind) != NULL);
    }
  }
  /* Destroying one as another destroys nothing. */
  mdp_comm_destroy((mdp_comm*)alone.grid);
  mdp_grid_destroy((mdp_grid*)alone.buffer);
  mdp_buffer_destroy((mdp_buffer*)alone.optimizer);
  mdp_optimizer_destroy((mdp_optimizer*)alone.comm);
  mdp_request_free((mdp_request*)alone.comm);
  OK(mdp_barrier(alone.comm, NULL));
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
}

static void nothing_to_destroy(void** state) {
  (void)state;
  mdp_comm_destroy(NULL);
  mdp_grid_destroy(NULL);
  mdp_buffer_destroy(NULL);
  mdp_optimizer_destroy(NULL);
  mdp_request_free(NULL);
}

/* In a child of fork() every call says so, and no destroy does anything: the parent goes on as if nothing had happened. */
static void forked_child(void** state) {
  (void)state;
  const mdp_tensor t = vector();
  mdp_request* request = NULL;
  OK(mdp_broadcast(alone.comm, &t, 0, NULL, &request));
  const pid_t child = fork();
  if (child == 0) {
    FOR_EACH(e) {
      void* handle = strcmp(e->kind, "mdp_comm") == 0      ? (void*)alone.comm
                     : strcmp(e->kind, "mdp_grid") == 0    ? (void*)alone.grid
                     : strcmp(e->kind, "mdp_buffer") == 0  ? (void*)alone.buffer
                     : strcmp(e->kind, "mdp_request") == 0 ? (void*)request
                                                           : (void*)alone.optimizer;
      entry_fails(e, handle, MDP_E_STATE, "forked child");
    }
    mdp_request_free(request);
    job_close(&alone);
    /* What needs no handle works, and so does a communicator of the child's own; not on a device: a child has no CUDA, and not the
     * stand-in's threads, which may have held its locks. */
    SIZED(mdp_plan_report, report);
    OK(mdp_plan(NULL, 1, 0, NULL, job_params, PARAMS, NULL, &report));
    if (!UNDER_THREAD_SANITIZER && !on_cuda) {
      job own = job_open(NULL, 0, 1);
      OK(mdp_barrier(own.comm, NULL));
      job_close(&own);
    }
    _exit(all_checks_held(NULL) == 0 ? 0 : 1);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  OK(mdp_request_wait(request, UINT64_C(5000000000)));
  mdp_request_free(request);
  put_all(alone.buffer);
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
  OK(mdp_optimizer_step(alone.optimizer, NULL, NULL, NULL));
}

/* What a child writes to parameters and gradients that it has a view of is its own. */
static void write_in_child(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = job_open(id, rank, n);
  SIZED(mdp_tensor, param);
  OK(mdp_buffer_param_view(j.buffer, 0, &param));
  SIZED(mdp_tensor, grad);
  OK(mdp_buffer_grad_view(j.buffer, 0, &grad));
  float* const values[] = {param.data, grad.data};
  for (int i = 0; i < 2; ++i) values[i][0] = 3;
  const pid_t child = fork();
  if (child == 0) {
    int wrong = 0;
    for (int i = 0; i < 2; ++i) {
      wrong |= values[i][0] != 3;
      values[i][0] = 5;
    }
    const pid_t of_child = fork(); /* to which the same applies */
    if (of_child == 0) _exit(values[0][0] == 5 ? 0 : 1);
    int status = -1;
    wrong |= of_child < 0 || waitpid(of_child, &status, 0) != of_child || status != 0;
    _exit(wrong);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  for (int i = 0; i < 2; ++i) CHECK(values[i][0] == 3);
  job_close(&j);
}

static void writing_in_a_forked_child(void** state) {
  (void)state;
  if (on_cuda) SKIP("a child has no memory of a device");
  run_ranks(2, write_in_child, NULL);
}

/* ── Outputs that are not structs ── */

static void outputs(void** state) {
  (void)state;
  static uint64_t room[4];
  mdp_unique_id id;
  OK(mdp_unique_id_create(&id));
  const mdp_tensor t = vector();
  for (int pass = 0; pass < 2; ++pass) {
    void* bad = pass == 0 ? NULL : (char*)room + 1;
    const char* part = pass == 0 ? "out is NULL" : "misaligned";
    FAILS(MDP_E_INVALID, part, mdp_comm_create(NULL, NULL, bad));
    FAILS(MDP_E_INVALID, part, mdp_comm_split(alone.comm, 0, 0, bad));
    FAILS(MDP_E_INVALID, part, mdp_comm_event_fd(alone.comm, bad));
    FAILS(MDP_E_INVALID, part, mdp_grid_create(alone.comm, NULL, bad));
    FAILS(MDP_E_INVALID, part, mdp_grid_comm(alone.grid, MDP_AXIS_DP, bad));
    FAILS(MDP_E_INVALID, part, mdp_buffer_register(NULL, alone.grid, NULL, job_params, PARAMS, bad));
    FAILS(MDP_E_INVALID, part, mdp_buffer_to_dlpack(alone.buffer, &t, bad));
    FAILS(MDP_E_INVALID, part, mdp_optimizer_create(alone.buffer, NULL, bad));
    int32_t number;
    FAILS(MDP_E_INVALID, pass == 0 ? "index is NULL" : part, mdp_grid_coords(alone.grid, MDP_AXIS_DP, bad, &number));
    FAILS(MDP_E_INVALID, pass == 0 ? "size is NULL" : part, mdp_grid_coords(alone.grid, MDP_AXIS_DP, &number, bad));
    FAILS(MDP_E_INVALID, pass == 0 ? "needed is NULL" : part, mdp_buffer_owned(alone.buffer, NULL, 0, bad));
  }
  FAILS(MDP_E_INVALID, "out is NULL", mdp_unique_id_create(NULL));
  /* A request is not wanted when out is NULL, so only a misaligned one is wrong. */
  mdp_request** crooked = (mdp_request**)(void*)((char*)room + 1);
  FAILS(MDP_E_INVALID, "misaligned", mdp_all_reduce(alone.comm, &t, &t, MDP_OP_SUM, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_reduce_scatter(alone.comm, &t, &t, MDP_OP_SUM, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_all_gather(alone.comm, &t, &t, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_all_to_all(alone.comm, &t, &t, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_broadcast(alone.comm, &t, 0, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_send(alone.comm, &t, 0, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_recv(alone.comm, &t, 0, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_send_recv(alone.comm, &t, -1, &t, -1, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_grad_sync(alone.buffer, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_optimizer_step(alone.optimizer, NULL, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_optimizer_step_many(&alone.optimizer, 1, NULL, NULL, crooked));
  FAILS(MDP_E_INVALID, "misaligned", mdp_optimizer_step_finish(alone.optimizer, 0, NULL, crooked));
  for (size_t i = 0; i < 4; ++i) CHECK(room[i] == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(null),         TEST(misaligned), TEST(never_was_a_handle),        TEST(of_another_kind), TEST(nothing_to_destroy),
      TEST(forked_child), TEST(outputs),    TEST(writing_in_a_forked_child),
  };
  return cmocka_run_group_tests(tests, open_job, close_job);
}
