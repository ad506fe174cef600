/* SPDX-License-Identifier: Apache-2.0
 * Every struct that goes into or comes out of a function: NULL, misaligned, sizes that nobody was compiled with, and sizes of a caller
 * that is newer than the library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static job alone;
static char checkpoints[256];
static float numbers[16];
static const int64_t six = 6;
static const uint64_t six_counts[] = {6};

static int open_job(void** state) {
  (void)state;
  be_alone();
  alone = job_open(NULL, 0, 1);
  return make_folder(checkpoints, sizeof checkpoints);
}

static int close_job(void** state) {
  (void)state;
  job_close(&alone);
  return remove_folder(checkpoints);
}

/* ── One entry for each struct argument of each function. `given` is that argument, all others are right. ── */

typedef struct {
  const char* function;
  const char* argument;
  size_t size;
  enum {
    IN,             /* NULL is an error     */
    IN_OR_DEFAULTS, /* NULL: all defaults   */
    OUT,
    OUT_OR_NONE /* NULL: not wanted */
  } kind;
  void (*fill)(void* given); /* an input that is right; NULL: zero but for the size */
  mdp_status (*call)(void* given);
} entry;

static mdp_status last_error_info(void* given) {
  return mdp_last_error_info(given);
}
static void fill_comm_config(void* given) {
  ((mdp_comm_config*)given)->size = 1;
}
static mdp_status comm_create(void* given) {
  mdp_comm *comm = NULL, *untouched = comm;
  const mdp_status status = mdp_comm_create(given, NULL, &comm);
  if (status != MDP_OK) CHECK(comm == untouched);
  if (status == MDP_OK) mdp_comm_destroy(comm);
  return status;
}
static int32_t never_start(void* context, const void* mine, size_t bytes, void* all, void** request) {
  (void)context, (void)mine, (void)bytes, (void)all, (void)request;
  return -1;
}
static int32_t never_test(void* context, void* request) {
  (void)context, (void)request;
  return -1;
}
static void never_free(void* context, void* request) {
  (void)context, (void)request;
}
static void fill_bootstrap(void* given) {
  mdp_bootstrap* bootstrap = given;
  bootstrap->allgather_start = never_start;
  bootstrap->allgather_test = never_test;
  bootstrap->allgather_free = never_free;
}
static mdp_status comm_create_bootstrap(void* given) {
  SIZED(mdp_comm_config, config);
  config.size = 1;
  config.bootstrap = given;
  return comm_create(&config);
}
static mdp_status comm_error_info(void* given) {
  return mdp_comm_error_info(alone.comm, given);
}

static void fill_vector(void* given) {
  *(mdp_tensor*)given = tensor_of(MDP_DTYPE_F32, numbers, &six);
}
static float other_numbers[16];
static mdp_tensor other(void) {
  return tensor_of(MDP_DTYPE_F32, other_numbers, &six);
}
static mdp_status all_reduce_from(void* given) {
  const mdp_tensor to = other();
  return mdp_all_reduce(alone.comm, given, &to, MDP_OP_SUM, NULL, NULL);
}
static mdp_status all_reduce_to(void* given) {
  const mdp_tensor from = other();
  return mdp_all_reduce(alone.comm, &from, given, MDP_OP_SUM, NULL, NULL);
}
static mdp_status reduce_scatter_from(void* given) {
  const mdp_tensor to = other();
  return mdp_reduce_scatter(alone.comm, given, &to, MDP_OP_SUM, NULL, NULL);
}
static mdp_status reduce_scatter_to(void* given) {
  const mdp_tensor from = other();
  return mdp_reduce_scatter(alone.comm, &from, given, MDP_OP_SUM, NULL, NULL);
}
static mdp_status all_gather_from(void* given) {
  const mdp_tensor to = other();
  return mdp_all_gather(alone.comm, given, &to, NULL, NULL);
}
static mdp_status all_gather_to(void* given) {
  const mdp_tensor from = other();
  return mdp_all_gather(alone.comm, &from, given, NULL, NULL);
}
static mdp_status all_to_all_from(void* given) {
  const mdp_tensor to = other();
  return mdp_all_to_all(alone.comm, given, &to, NULL, NULL);
}
static mdp_status all_to_all_to(void* given) {
  const mdp_tensor from = other();
  return mdp_all_to_all(alone.comm, &from, given, NULL, NULL);
}
static mdp_status reduce_scatter_v_from(void* given) {
  const mdp_tensor to = other();
  return mdp_reduce_scatter_v(alone.comm, given, &to, six_counts, MDP_OP_SUM, NULL, NULL);
}
static mdp_status reduce_scatter_v_to(void* given) {
  const mdp_tensor from = other();
  return mdp_reduce_scatter_v(alone.comm, &from, given, six_counts, MDP_OP_SUM, NULL, NULL);
}
static mdp_status all_gather_v_from(void* given) {
  const mdp_tensor to = other();
  return mdp_all_gather_v(alone.comm, given, &to, six_counts, NULL, NULL);
}
static mdp_status all_gather_v_to(void* given) {
  const mdp_tensor from = other();
  return mdp_all_gather_v(alone.comm, &from, given, six_counts, NULL, NULL);
}
static mdp_status all_to_all_v_from(void* given) {
  const mdp_tensor to = other();
  return mdp_all_to_all_v(alone.comm, given, six_counts, &to, six_counts, NULL, NULL);
}
static mdp_status all_to_all_v_to(void* given) {
  const mdp_tensor from = other();
  return mdp_all_to_all_v(alone.comm, &from, six_counts, given, six_counts, NULL, NULL);
}
static mdp_status send_recv_from(void* given) {
  const mdp_tensor to = other();
  return mdp_send_recv(alone.comm, given, 0, &to, 0, NULL, NULL);
}
static mdp_status send_recv_to(void* given) {
  const mdp_tensor from = other();
  return mdp_send_recv(alone.comm, &from, 0, given, 0, NULL, NULL);
}
static mdp_status broadcast(void* given) {
  return mdp_broadcast(alone.comm, given, 0, NULL, NULL);
}

static mdp_status grid_create(void* given) {
  mdp_grid* grid = NULL;
  const mdp_status status = mdp_grid_create(alone.comm, given, &grid);
  CHECK((status == MDP_OK) == (grid != NULL));
  mdp_grid_destroy(grid);
  return status;
}
static mdp_status groups_json_grid(void* given) {
  size_t needed;
  return mdp_grid_groups_json(given, 4, MDP_AXIS_DP, NULL, 0, &needed);
}
static mdp_status plan_grid(void* given) {
  SIZED(mdp_plan_report, report);
  return mdp_plan(given, 4, 0, NULL, job_params, PARAMS, NULL, &report);
}
static mdp_status plan_config(void* given) {
  SIZED(mdp_plan_report, report);
  return mdp_plan(NULL, 4, 0, given, job_params, PARAMS, NULL, &report);
}
static void fill_param(void* given) {
  *(mdp_param*)given = job_params[FIRST];
}
static mdp_status plan_params(void* given) {
  SIZED(mdp_plan_report, report);
  return mdp_plan(NULL, 4, 0, NULL, given, 1, NULL, &report);
}
static mdp_status plan_optimizer(void* given) {
  SIZED(mdp_plan_report, report);
  return mdp_plan(NULL, 4, 0, NULL, job_params, PARAMS, given, &report);
}
static mdp_status plan_out(void* given) {
  return mdp_plan(NULL, 4, 0, NULL, job_params, PARAMS, NULL, given);
}
static mdp_status plan_json_grid(void* given) {
  size_t needed;
  return mdp_plan_json(given, 4, NULL, job_params, PARAMS, NULL, NULL, 0, &needed);
}
static mdp_status plan_json_config(void* given) {
  size_t needed;
  return mdp_plan_json(NULL, 4, given, job_params, PARAMS, NULL, NULL, 0, &needed);
}
static mdp_status plan_json_optimizer(void* given) {
  size_t needed;
  return mdp_plan_json(NULL, 4, NULL, job_params, PARAMS, given, NULL, 0, &needed);
}
static mdp_status plan_json_params(void* given) {
  size_t needed;
  return mdp_plan_json(NULL, 4, NULL, given, 1, NULL, NULL, 0, &needed);
}

static mdp_status register_with(const mdp_buffer_config* config, const mdp_param* params, size_t count) {
  mdp_buffer* buffer = NULL;
  const mdp_status status = mdp_buffer_register(NULL, alone.grid, config, params, count, &buffer);
  CHECK((status == MDP_OK) == (buffer != NULL));
  mdp_buffer_destroy(buffer);
  return status;
}
static mdp_status register_config(void* given) {
  return register_with(given, job_params, PARAMS);
}
static mdp_status register_params(void* given) {
  return register_with(NULL, given, 1);
}
static mdp_status owned(void* given) {
  size_t needed;
  return mdp_buffer_owned(alone.buffer, given, 3, &needed);
}
static mdp_status param_view(void* given) {
  return mdp_buffer_param_view(alone.buffer, FIRST, given);
}
static mdp_status grad_view(void* given) {
  return mdp_buffer_grad_view(alone.buffer, FIRST, given);
}
static void fill_view(void* given) {
  ((mdp_tensor*)given)->struct_size = sizeof(mdp_tensor);
  OK(mdp_buffer_param_view(alone.buffer, FIRST, given));
}
/* The leading part of DLPack's managed tensor, enough to give it back. */
struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void* context;
  void (*deleter)(struct DLManagedTensorVersioned* self);
};
static mdp_status to_dlpack(void* given) {
  struct DLManagedTensorVersioned* lent = NULL;
  const mdp_status status = mdp_buffer_to_dlpack(alone.buffer, given, &lent);
  CHECK((status == MDP_OK) == (lent != NULL));
  if (lent != NULL) lent->deleter(lent);
  return status;
}
static mdp_status stats(void* given) {
  return mdp_buffer_stats(alone.buffer, given);
}
static mdp_status bucket(void* given) {
  return mdp_buffer_bucket(alone.buffer, 0, given);
}
static mdp_checkpoint_part own_part(void) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = alone.buffer, .optimizer = alone.optimizer};
  return part;
}
static void fill_part(void* given) {
  ((mdp_checkpoint_part*)given)->buffer = alone.buffer;
}
static void fill_tensor_to_store(void* given) {
  static const float value = 1;
  static const mdp_tensor tensor = {.struct_size = sizeof tensor, .dtype = MDP_DTYPE_F32, .data = (void*)&value};
  ((mdp_checkpoint_tensor*)given)->name = "t";
  ((mdp_checkpoint_tensor*)given)->tensor = &tensor;
}
static mdp_status checkpoint_save(void* given) {
  return mdp_checkpoint_save(given, NULL);
}
static mdp_status checkpoint_load(void* given) {
  return mdp_checkpoint_load(given);
}
static void fill_checkpoint(void* given) {
  static mdp_checkpoint_part part;
  part = own_part();
  ((mdp_checkpoint_config*)given)->directory = checkpoints;
  ((mdp_checkpoint_config*)given)->parts = &part;
  ((mdp_checkpoint_config*)given)->part_count = 1;
  ((mdp_checkpoint_config*)given)->keep = 1;
  ((mdp_checkpoint_config*)given)->optional = "t"; /* what another entry has saved */
}
static mdp_status checkpoint_parts(void* given) {
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = checkpoints, .parts = given, .part_count = 1};
  return mdp_checkpoint_save(&config, NULL);
}
static mdp_status checkpoint_tensors(void* given) {
  const mdp_checkpoint_part part = own_part();
  mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = checkpoints, .parts = &part, .part_count = 1};
  config.tensors = given;
  config.tensor_count = 1;
  return mdp_checkpoint_save(&config, NULL);
}
static void fill_first(void* given) {
  fill_vector(given);
  ((mdp_tensor*)given)->ndim = job_params[FIRST].ndim;
  ((mdp_tensor*)given)->shape = job_params[FIRST].shape;
}
static mdp_status param_read(void* given) {
  return mdp_param_read(alone.buffer, FIRST, given, NULL);
}
static mdp_status param_write(void* given) {
  return mdp_param_write(alone.buffer, FIRST, given, NULL);
}
static mdp_status grad_put(void* given) {
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
  return mdp_grad_put(alone.buffer, FIRST, given, MDP_GRAD_MORE, NULL);
}
static mdp_status optimizer_create(void* given) {
  mdp_optimizer* optimizer = NULL;
  const mdp_status status = mdp_optimizer_create(alone.buffer, given, &optimizer);
  CHECK((status == MDP_OK) == (optimizer != NULL));
  mdp_optimizer_destroy(optimizer);
  return status;
}
static mdp_status optimizer_groups(void* given) {
  SIZED(mdp_optimizer_config, config);
  config.param_groups = given;
  config.param_group_count = 1;
  return optimizer_create(&config);
}
static void fill_kept(void* given) {
  static const uint64_t bytes[PARAMS] = {0};
  *(mdp_param_state*)given = (mdp_param_state){.name = "rows", .bytes = bytes};
}
static mdp_status optimizer_kept(void* given) {
  SIZED(mdp_optimizer_config, config);
  config.rule = MDP_RULE_CALLER;
  config.param_states = given;
  config.param_state_count = 1;
  return optimizer_create(&config);
}
static mdp_status set_group(void* given) {
  return mdp_optimizer_set_param_group(alone.optimizer, 0, given);
}
static void get_ready_to_step(void) {
  OK(mdp_buffer_zero_grad(alone.buffer, NULL));
  put_all(alone.buffer);
  OK(mdp_grad_sync(alone.buffer, NULL, NULL));
}
static mdp_status step_config(void* given) {
  get_ready_to_step();
  return mdp_optimizer_step(alone.optimizer, given, NULL, NULL);
}
static mdp_status step_report(void* given) {
  get_ready_to_step();
  return mdp_optimizer_step(alone.optimizer, NULL, given, NULL);
}
static mdp_status many_config(void* given) {
  get_ready_to_step();
  return mdp_optimizer_step_many(&alone.optimizer, 1, given, NULL, NULL);
}
static mdp_status step_finish(void* given) {
  return mdp_optimizer_step_finish(alone.optimizer, 0, given, NULL);
}
static mdp_status many_report(void* given) {
  get_ready_to_step();
  return mdp_optimizer_step_many(&alone.optimizer, 1, NULL, given, NULL);
}
static mdp_status begin_config(void* given) {
  get_ready_to_step();
  const mdp_status status = mdp_optimizer_step_begin(&alone.optimizer, 1, given);
  if (status == MDP_OK) OK(mdp_optimizer_step_finish(alone.optimizer, 0, NULL, NULL));
  return status;
}
/* A step that the struct is the wrong one for stays under way. */
static mdp_status in_a_step(mdp_status (*call)(void* given), void* given) {
  get_ready_to_step();
  OK(mdp_optimizer_step_begin(&alone.optimizer, 1, NULL));
  const mdp_status status = call(given);
  if (status != MDP_OK || call != step_finish) OK(mdp_optimizer_step_finish(alone.optimizer, 0, NULL, NULL));
  return status;
}
static mdp_status step_next(void* given) {
  return mdp_optimizer_step_next(alone.optimizer, given);
}
static mdp_status next_out(void* given) {
  return in_a_step(step_next, given);
}
static mdp_status finish_report(void* given) {
  return in_a_step(step_finish, given);
}
static mdp_status state_out(void* given) {
  return mdp_optimizer_state(alone.optimizer, FIRST, "master", given);
}
static mdp_status set_scaler(void* given) {
  const mdp_status status = mdp_optimizer_set_scaler(alone.optimizer, given);
  OK(mdp_optimizer_set_scaler(alone.optimizer, NULL));
  return status;
}
/* Asks an optimizer that has one. The sentence of the call is that of the last failure, which a success leaves as it is. */
static mdp_status with_a_scaler(mdp_status (*call)(mdp_optimizer* optimizer, void* given), void* given) {
  SIZED(mdp_scaler, scaler);
  OK(mdp_optimizer_set_scaler(alone.optimizer, &scaler));
  const mdp_status status = call(alone.optimizer, given);
  OK(mdp_optimizer_set_scaler(alone.optimizer, NULL));
  return status;
}
static mdp_status ask_scaler(mdp_optimizer* optimizer, void* given) {
  return mdp_optimizer_scaler(optimizer, given);
}
static mdp_status scaler_out(void* given) {
  return with_a_scaler(ask_scaler, given);
}
static mdp_status ask_scale(mdp_optimizer* optimizer, void* given) {
  return mdp_optimizer_scale(optimizer, given);
}
static mdp_status scale_out(void* given) {
  return with_a_scaler(ask_scale, given);
}

static const entry entries[] = {
    {"mdp_last_error_info", "out", sizeof(mdp_error_info), OUT, NULL, last_error_info},
    {"mdp_comm_create", "config", sizeof(mdp_comm_config), IN_OR_DEFAULTS, fill_comm_config, comm_create},
    {"mdp_comm_create", "config.bootstrap", sizeof(mdp_bootstrap), IN_OR_DEFAULTS, fill_bootstrap, comm_create_bootstrap},
    {"mdp_comm_error_info", "out", sizeof(mdp_error_info), OUT, NULL, comm_error_info},
    {"mdp_all_reduce", "from", sizeof(mdp_tensor), IN, fill_vector, all_reduce_from},
    {"mdp_all_reduce", "to", sizeof(mdp_tensor), IN, fill_vector, all_reduce_to},
    {"mdp_reduce_scatter", "from", sizeof(mdp_tensor), IN, fill_vector, reduce_scatter_from},
    {"mdp_reduce_scatter", "to", sizeof(mdp_tensor), IN, fill_vector, reduce_scatter_to},
    {"mdp_all_gather", "from", sizeof(mdp_tensor), IN, fill_vector, all_gather_from},
    {"mdp_all_gather", "to", sizeof(mdp_tensor), IN, fill_vector, all_gather_to},
    {"mdp_all_to_all", "from", sizeof(mdp_tensor), IN, fill_vector, all_to_all_from},
    {"mdp_all_to_all", "to", sizeof(mdp_tensor), IN, fill_vector, all_to_all_to},
    {"mdp_reduce_scatter_v", "from", sizeof(mdp_tensor), IN, fill_vector, reduce_scatter_v_from},
    {"mdp_reduce_scatter_v", "to", sizeof(mdp_tensor), IN, fill_vector, reduce_scatter_v_to},
    {"mdp_all_gather_v", "from", sizeof(mdp_tensor), IN, fill_vector, all_gather_v_from},
    {"mdp_all_gather_v", "to", sizeof(mdp_tensor), IN, fill_vector, all_gather_v_to},
    {"mdp_all_to_all_v", "from", sizeof(mdp_tensor), IN, fill_vector, all_to_all_v_from},
    {"mdp_all_to_all_v", "to", sizeof(mdp_tensor), IN, fill_vector, all_to_all_v_to},
    {"mdp_send_recv", "from", sizeof(mdp_tensor), IN, fill_vector, send_recv_from},
    {"mdp_send_recv", "to", sizeof(mdp_tensor), IN, fill_vector, send_recv_to},
    {"mdp_broadcast", "tensor", sizeof(mdp_tensor), IN, fill_vector, broadcast},
    {"mdp_grid_create", "config", sizeof(mdp_grid_config), IN_OR_DEFAULTS, NULL, grid_create},
    {"mdp_grid_groups_json", "grid", sizeof(mdp_grid_config), IN_OR_DEFAULTS, NULL, groups_json_grid},
    {"mdp_plan", "grid", sizeof(mdp_grid_config), IN_OR_DEFAULTS, NULL, plan_grid},
    {"mdp_plan", "config", sizeof(mdp_buffer_config), IN_OR_DEFAULTS, NULL, plan_config},
    {"mdp_plan", "params", sizeof(mdp_param), IN, fill_param, plan_params},
    {"mdp_plan", "optimizer: config", sizeof(mdp_optimizer_config), IN_OR_DEFAULTS, NULL, plan_optimizer},
    {"mdp_plan", "out", sizeof(mdp_plan_report), OUT, NULL, plan_out},
    {"mdp_plan_json", "grid", sizeof(mdp_grid_config), IN_OR_DEFAULTS, NULL, plan_json_grid},
    {"mdp_plan_json", "config", sizeof(mdp_buffer_config), IN_OR_DEFAULTS, NULL, plan_json_config},
    {"mdp_plan_json", "optimizer: config", sizeof(mdp_optimizer_config), IN_OR_DEFAULTS, NULL, plan_json_optimizer},
    {"mdp_plan_json", "params", sizeof(mdp_param), IN, fill_param, plan_json_params},
    {"mdp_buffer_register", "config", sizeof(mdp_buffer_config), IN_OR_DEFAULTS, NULL, register_config},
    {"mdp_buffer_register", "params", sizeof(mdp_param), IN, fill_param, register_params},
    {"mdp_buffer_owned", "ranges", sizeof(mdp_range), OUT, NULL, owned},
    {"mdp_buffer_param_view", "out", sizeof(mdp_tensor), OUT, NULL, param_view},
    {"mdp_buffer_grad_view", "out", sizeof(mdp_tensor), OUT, NULL, grad_view},
    {"mdp_buffer_to_dlpack", "view", sizeof(mdp_tensor), IN, fill_view, to_dlpack},
    {"mdp_buffer_stats", "out", sizeof(mdp_stats_report), OUT, NULL, stats},
    {"mdp_buffer_bucket", "out", sizeof(mdp_bucket_report), OUT, NULL, bucket},
    {"mdp_param_read", "to", sizeof(mdp_tensor), IN, fill_first, param_read},
    {"mdp_param_write", "from", sizeof(mdp_tensor), IN, fill_first, param_write},
    {"mdp_grad_put", "grad", sizeof(mdp_tensor), IN, fill_first, grad_put},
    {"mdp_optimizer_create", "config", sizeof(mdp_optimizer_config), IN_OR_DEFAULTS, NULL, optimizer_create},
    {"mdp_optimizer_create", "config.param_groups", sizeof(mdp_param_group), IN, NULL, optimizer_groups},
    {"mdp_optimizer_create", "config.param_states", sizeof(mdp_param_state), IN, fill_kept, optimizer_kept},
    {"mdp_optimizer_set_param_group", "value", sizeof(mdp_param_group), IN, NULL, set_group},
    {"mdp_optimizer_step", "config", sizeof(mdp_step_config), IN_OR_DEFAULTS, NULL, step_config},
    {"mdp_optimizer_step", "report", sizeof(mdp_step_report), OUT_OR_NONE, NULL, step_report},
    {"mdp_optimizer_step_many", "config", sizeof(mdp_step_config), IN_OR_DEFAULTS, NULL, many_config},
    {"mdp_optimizer_step_many", "report", sizeof(mdp_step_report), OUT_OR_NONE, NULL, many_report},
    {"mdp_optimizer_step_begin", "config", sizeof(mdp_step_config), IN_OR_DEFAULTS, NULL, begin_config},
    {"mdp_optimizer_step_next", "out", sizeof(mdp_update), OUT, NULL, next_out},
    {"mdp_optimizer_step_finish", "report", sizeof(mdp_step_report), OUT_OR_NONE, NULL, finish_report},
    {"mdp_optimizer_set_scaler", "scaler", sizeof(mdp_scaler), IN_OR_DEFAULTS, NULL, set_scaler},
    {"mdp_optimizer_scaler", "out", sizeof(mdp_scaler), OUT, NULL, scaler_out},
    {"mdp_optimizer_scale", "out", sizeof(mdp_tensor), OUT, NULL, scale_out},
    {"mdp_optimizer_state", "out", sizeof(mdp_tensor), OUT, NULL, state_out},
    {"mdp_checkpoint_save", "config", sizeof(mdp_checkpoint_config), IN, fill_checkpoint, checkpoint_save},
    {"mdp_checkpoint_load", "config", sizeof(mdp_checkpoint_config), IN, fill_checkpoint, checkpoint_load},
    {"mdp_checkpoint_save", "config.parts", sizeof(mdp_checkpoint_part), IN, fill_part, checkpoint_parts},
    {"mdp_checkpoint_save", "config.tensors", sizeof(mdp_checkpoint_tensor), IN, fill_tensor_to_store, checkpoint_tensors},
};
enum {
  ENTRIES = sizeof entries / sizeof entries[0]
};

/* What the first release had of structs that have grown since. */
static size_t first_size(const entry* e) {
  if (e->call == optimizer_create || e->call == plan_optimizer || e->call == plan_json_optimizer) return 96;
  if (e->call == plan_params || e->call == plan_json_params || e->call == register_params) return 72;
  if (e->call == plan_out) return 104;
  if (e->call == optimizer_groups || e->call == set_group) return 32;
  return e->size;
}

/* Room for the largest struct the library would look at, on a multiple of 8. */
enum {
  ROOM = 72 * 1024
};
static uint64_t room[ROOM / 8];

static void* fresh(const entry* e, uint32_t struct_size) {
  memset(room, 0, sizeof room);
  if (e->fill != NULL) e->fill(room);
  memcpy(room, &struct_size, sizeof struct_size);
  return room;
}

#define FOR_EACH(e) for (const entry* e = entries; e < entries + ENTRIES; ++e)
#define ENTRY_FAILS(e, code, part, given) check_status((e)->call(given), (code), (part), (e)->function, __FILE__, __LINE__)
#define ENTRY_OK(e, given) check_status((e)->call(given), MDP_OK, NULL, (e)->function, __FILE__, __LINE__)

static void right_size(void** state) {
  (void)state;
  FOR_EACH(e) ENTRY_OK(e, fresh(e, (uint32_t)e->size));
}

static void null(void** state) {
  (void)state;
  FOR_EACH(e) {
    if (e->kind == IN_OR_DEFAULTS || e->kind == OUT_OR_NONE) {
      ENTRY_OK(e, NULL);
    } else {
      ENTRY_FAILS(e, MDP_E_INVALID, "is NULL", NULL);
      CHECK(strstr(mdp_last_error(), e->argument) != NULL);
    }
  }
}

static void misaligned(void** state) {
  (void)state;
  FOR_EACH(e) {
    char* given = fresh(e, (uint32_t)e->size);
    memmove(given + 4, given, e->size);
    ENTRY_FAILS(e, MDP_E_INVALID, "misaligned", given + 4);
    CHECK(strstr(mdp_last_error(), e->argument) != NULL);
  }
}

/* The sentence names the argument, the value, and what would be right. */
static void sizes_that_nobody_has(void** state) {
  (void)state;
  FOR_EACH(e) {
    const uint32_t wrong[] = {0, 4, (uint32_t)first_size(e) - 8, (uint32_t)e->size - 1, (uint32_t)e->size + 4, 64 * 1024 + 8, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
      char value[32], right[32];
      snprintf(value, sizeof value, ".struct_size is %u;", wrong[i]);
      snprintf(right, sizeof right, "which is %zu", e->size);
      ENTRY_FAILS(e, MDP_E_INVALID, value, fresh(e, wrong[i]));
      CHECK(strstr(mdp_last_error(), e->argument) != NULL);
      CHECK(strstr(mdp_last_error(), right) != NULL);
    }
  }
}

/* A caller compiled with an older header: what it does not know of is zero, whatever comes behind its struct. */
static void older_caller(void** state) {
  (void)state;
  int grown = 0;
  FOR_EACH(e) {
    const uint32_t size = (uint32_t)first_size(e);
    unsigned char* given = fresh(e, size);
    memset(given + size, 0xA5, e->size + 8 - size);
    ENTRY_OK(e, given);
    grown += size < e->size;
  }
  CHECK(grown == 9);
}

/* A caller compiled with a newer header: what the library does not know must be zero on the way in, and is left alone on the way out. */
static void newer_caller(void** state) {
  (void)state;
  FOR_EACH(e) {
    const uint32_t size = (uint32_t)e->size + 24;
    unsigned char* given = fresh(e, size);
    const int is_input = e->kind == IN || e->kind == IN_OR_DEFAULTS;
    if (is_input) {
      ENTRY_OK(e, given);
      given = fresh(e, size);
      given[e->size + 9] = 1;
      char offset[48];
      snprintf(offset, sizeof offset, "at offset %zu", e->size + 9);
      ENTRY_FAILS(e, MDP_E_UNSUPPORTED, offset, given);
    } else {
      memset(given + e->size, 0xA5, 24);
      ENTRY_OK(e, given);
      /* An array's elements lie further apart then; the first one's tail is what is looked at. */
      for (size_t i = 0; i < 24; ++i) CHECK(given[e->size + i] == 0xA5);
      CHECK(memcmp(given, &size, sizeof size) == 0);
    }
  }
}

static void elements_of_one_array_have_one_size(void** state) {
  (void)state;
  mdp_param params[2] = {job_params[FIRST], job_params[SECOND]};
  params[1].struct_size = 0;
  FAILS(MDP_E_INVALID, "params[1].struct_size is 0", register_with(NULL, params, 2));
  params[1].struct_size = sizeof(mdp_param) + 8;
  FAILS(MDP_E_INVALID, "all elements of an array carry the same", register_with(NULL, params, 2));
  mdp_param_group groups[2] = {{.struct_size = sizeof(mdp_param_group)}, {.struct_size = 8}};
  SIZED(mdp_optimizer_config, config);
  config.param_groups = groups;
  config.param_group_count = 2;
  FAILS(MDP_E_INVALID, "config.param_groups[1].struct_size is 8", optimizer_create(&config));
}

/* The stride of an array is the caller's size, in and out. */
static void arrays_of_a_newer_caller(void** state) {
  (void)state;
  struct {
    mdp_param known;
    uint64_t later[2];
  } params[2] = {{job_params[FIRST], {0, 0}}, {job_params[SECOND], {0, 0}}};
  params[0].known.struct_size = params[1].known.struct_size = sizeof params[0];
  OK(register_with(NULL, &params[0].known, 2));
  params[1].later[1] = 7;
  FAILS(MDP_E_UNSUPPORTED, "params[1]", register_with(NULL, &params[0].known, 2));

  struct {
    mdp_range known;
    uint64_t later;
  } ranges[3];
  memset(ranges, 0xEE, sizeof ranges);
  ranges[0].known.struct_size = sizeof ranges[0];
  size_t needed = 0;
  OK(mdp_buffer_owned(alone.buffer, &ranges[0].known, 3, &needed));
  if (CHECK(needed == 2)) {
    CHECK(ranges[0].known.param == FIRST && ranges[0].known.end - ranges[0].known.begin == 6);
    CHECK(ranges[1].known.param == SECOND && ranges[1].known.end - ranges[1].known.begin == 5);
    CHECK(ranges[1].known.struct_size == sizeof ranges[0] && ranges[0].later == UINT64_C(0xEEEEEEEEEEEEEEEE));
    CHECK(ranges[2].known.struct_size == 0xEEEEEEEE);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(right_size),
      TEST(null),
      TEST(misaligned),
      TEST(sizes_that_nobody_has),
      TEST(older_caller),
      TEST(newer_caller),
      TEST(elements_of_one_array_have_one_size),
      TEST(arrays_of_a_newer_caller),
  };
  return cmocka_run_group_tests(tests, open_job, close_job);
}
