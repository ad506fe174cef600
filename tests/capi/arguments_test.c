/* SPDX-License-Identifier: Apache-2.0
 * Values that no function should take: flags, enumerators, numbers out of range, tensors that do not fit. Each gets MDP_E_INVALID (or
 * MDP_E_UNSUPPORTED) and a sentence with the argument's name; nothing changes. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

static job alone;
static float numbers[16], other_numbers[16];
static const int64_t six = 6;
static int not_a_stream;

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

static void names(void** state) {
  (void)state;
  CHECK(mdp_version() == (0 << 16 | 1 << 8 | 0));
  CHECK(strcmp(mdp_status_name(MDP_OK), "MDP_OK") == 0 && strcmp(mdp_status_name(MDP_E_INTERNAL), "MDP_E_INTERNAL") == 0);
  for (mdp_status status = MDP_E_INTERNAL; status <= MDP_PENDING; ++status) CHECK(strncmp(mdp_status_name(status), "MDP_", 4) == 0);
  CHECK(strcmp(mdp_status_name(2), "unknown status") == 0 && strcmp(mdp_status_name(INT32_MIN), "unknown status") == 0);
}

/* A thread that has not failed has nothing to tell; a success or another thread's failure does not change what it has. */
static void* fresh_thread(void* unused) {
  (void)unused;
  SIZED(mdp_error_info, info);
  CHECK(mdp_last_error()[0] == '\0');
  OK(mdp_last_error_info(&info));
  CHECK(info.status == MDP_OK && info.rank == -1 && info.bucket == -1 && info.param == -1 && info.operation == 0 && info.text[0] == '\0');
  FAILS(MDP_E_INVALID, "out is NULL", mdp_unique_id_create(NULL));
  return NULL;
}

static void last_error(void** state) {
  (void)state;
  mdp_unique_id id;
  FAILS(MDP_E_INVALID, "is_last is 5", mdp_microbatch_begin(alone.buffer, 5));
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, fresh_thread, NULL) == 0);
  pthread_join(thread, NULL);
  OK(mdp_unique_id_create(&id));
  CHECK(strstr(mdp_last_error(), "is_last is 5") != NULL);
}

/* A sentence may quote anything, here what somebody put into the environment. What the caller gets is UTF-8 and ends between characters. */
static void text_of_errors(void** state) {
  (void)state;
  static char value[3 * 3000 + 3];
  for (size_t shift = 0; shift < 3; ++shift) {
    memset(value, 'x', shift);
    for (size_t i = 0; i < 3 * 3000; ++i) value[shift + i] = "\xE2\x82\xAC"[i % 3];
    value[shift + 3 * 3000] = '\0';
    setenv("RANK", value, 1);
    mdp_comm* comm = NULL;
    CHECK(mdp_comm_create(NULL, NULL, &comm) == MDP_E_INVALID && comm == NULL);
    const char* sentence = mdp_last_error();
    CHECK(strlen(sentence) < 4096);
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    /* Cut in the middle of the signs, or the sentence is short; either way no sign is broken. */
    const char* texts[] = {sentence, info.text};
    for (size_t t = 0; t < 2; ++t) {
      for (const char* c = texts[t]; *c != '\0'; ++c) {
        if (*c == '\xE2' && CHECK(c[1] == '\x82' && c[2] == '\xAC')) c += 2;
      }
    }
  }
  setenv("RANK", "\xFF\xE2\x82", 1);
  mdp_comm* comm = NULL;
  CHECK(mdp_comm_create(NULL, NULL, &comm) == MDP_E_INVALID && comm == NULL);
  CHECK(strpbrk(mdp_last_error(), "\xFF\xE2\x82") == NULL);
  be_alone();
}

/* ── Communicators ── */

static void comm_config(void** state) {
  (void)state;
  mdp_unique_id id;
  OK(mdp_unique_id_create(&id));
  static const struct {
    mdp_comm_config config;
    mdp_status code;
    const char* part;
    int with_id;
  } bad[] = {
      {{.backend = 3, .size = 1}, MDP_E_INVALID, "config.backend is 3", 1},
      {{.backend = 3, .size = 1}, MDP_E_INVALID, "MDP_BACKEND_CUDA (2)", 1},
      {{.device = -1, .size = 1}, MDP_E_INVALID, "config.device is -1", 1},
      {{.size = 0}, MDP_E_INVALID, "config.size is 0", 1},
      {{.size = -2}, MDP_E_INVALID, "config.size is -2", 1},
      {{.size = 2000000000, .rank = 1}, MDP_E_INVALID, "config.size is 2000000000; at most 1048576", 1},
      {{.size = 2, .rank = 2}, MDP_E_INVALID, "config.rank is 2", 1},
      {{.size = 2, .rank = -1}, MDP_E_INVALID, "config.rank is -1", 1},
      {{.size = 1, .device = 1}, MDP_E_INVALID, "config.device is 1", 1},
      {{.size = 1, .host_threads = -1}, MDP_E_INVALID, "config.host_threads is -1", 1},
      {{.size = 1, .host_threads = 1 << 20}, MDP_E_INVALID, "config.host_threads is 1048576", 1},
      {{.size = 1, .flags = 16}, MDP_E_INVALID, "config.flags is 16", 1},
      {{.rank = 1}, MDP_E_INVALID, "config.rank is 1", 0},
      {{.size = -1}, MDP_E_INVALID, "config.size is -1", 0},
      {{.size = 2}, MDP_E_INVALID, "config.size is 2", 0}, /* the environment says 1 */
      {{.flags = 16}, MDP_E_INVALID, "config.flags is 16", 0},
  };
  mdp_comm* comm = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    mdp_comm_config config = bad[i].config;
    config.struct_size = sizeof config;
    FAILS(bad[i].code, bad[i].part, mdp_comm_create(&config, bad[i].with_id ? &id : NULL, &comm));
    CHECK(comm == NULL);
  }
  mdp_unique_id zeros = {{0}};
  SIZED(mdp_comm_config, config);
  config.size = 1;
  FAILS(MDP_E_INVALID, "id", mdp_comm_create(&config, &zeros, &comm));
}

/* No launcher: one rank. Half a launcher: an error that says what was found. */
static void comm_from_environment(void** state) {
  (void)state;
  mdp_comm* comm = NULL;
  OK(mdp_comm_create(NULL, NULL, &comm));
  CHECK(mdp_comm_rank(comm) == 0 && mdp_comm_size(comm) == 1);
  mdp_comm_destroy(comm);
  comm = NULL;
  setenv("RANK", "0", 1);
  setenv("MASTER_ADDR", "localhost", 1);
  FAILS(MDP_E_INVALID, "WORLD_SIZE", mdp_comm_create(NULL, NULL, &comm));
  CHECK(comm == NULL);
  size_t needed = 0;
  OK(mdp_info(NULL, 0, &needed));
  char* json = malloc(needed);
  OK(mdp_info(json, needed, NULL));
  CHECK(strstr(json, "\"ok\":false") != NULL && strstr(json, "RANK=0") != NULL);
  free(json);
  be_alone();
  /* Also where nothing goes between nodes. */
  setenv("MEGADP_TRANSPORT", "tcp", 1);
  FAILS(MDP_E_INVALID, "MEGADP_TRANSPORT is 'tcp'; it must be ucx or sockets", mdp_comm_create(NULL, NULL, &comm));
  CHECK(comm == NULL);
  setenv("MEGADP_TRANSPORT", "sockets", 1);
  OK(mdp_comm_create(NULL, NULL, &comm));
  mdp_comm_destroy(comm);
  be_alone();
}

/* ── Tensors and collectives ── */

static mdp_tensor vector(void) {
  return tensor_of(MDP_DTYPE_F32, numbers, &six);
}

static void tensors(void** state) {
  (void)state;
  if (on_cuda) SKIP("a device takes other tensors, and any stream");
  static const int64_t negative[] = {-1}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, far[] = {INT64_MAX};
  struct {
    mdp_tensor tensor;
    mdp_status code;
    const char* part;
  } bad[16];
  size_t n = 0;
#define BAD(change, status, words)                                                     \
  do {                                                                                 \
    mdp_tensor t = vector();                                                           \
    change;                                                                            \
    bad[n].tensor = t, bad[n].code = MDP_E_##status, bad[n].part = "from." words, ++n; \
  } while (0)
  BAD(t.dtype = MDP_DTYPE_DEFAULT, INVALID, "dtype is 0");
  BAD(t.dtype = MDP_DTYPE_SAME, INVALID, "dtype is 1");
  BAD(t.dtype = 8, INVALID, "dtype is 8");
  BAD(t.device_type = 2, UNSUPPORTED, "device_type is 2");
  BAD(t.device_type = 3, INVALID, "device_type is 3");
  BAD(t.device_type = -1, INVALID, "device_type is -1");
  BAD(t.device_id = 1, INVALID, "device_id is 1");
  BAD(t.reserved = 9, INVALID, "reserved is 9");
  BAD(t.ndim = -1, INVALID, "ndim is -1");
  BAD(t.ndim = 17, INVALID, "ndim is 17");
  BAD(t.shape = NULL, INVALID, "shape is NULL");
  BAD(t.shape = negative, INVALID, "shape[0] is -1");
  BAD((t.shape = huge, t.ndim = 2), INVALID, "shape is [1099511627776,1099511627776]");
  BAD(t.data = NULL, INVALID, "data is NULL");
  BAD(t.data = (char*)numbers + 2, INVALID, "data is");
  BAD(t.strides = far, INVALID, "strides[0] is 9223372036854775807");
#undef BAD
  const mdp_tensor to = tensor_of(MDP_DTYPE_F32, other_numbers, &six);
  for (size_t i = 0; i < n; ++i) FAILS(bad[i].code, bad[i].part, mdp_all_reduce(alone.comm, &bad[i].tensor, &to, MDP_OP_SUM, NULL, NULL));
}

static void pairs_of_tensors(void** state) {
  (void)state;
  static const int64_t seven[] = {7}, two_three[] = {2, 3}, spread[] = {2};
  const mdp_tensor to = tensor_of(MDP_DTYPE_F32, other_numbers, &six);
  mdp_tensor t = vector();
  t.strides = spread;
  FAILS(MDP_E_INVALID, "dense row-major", mdp_all_reduce(alone.comm, &t, &to, MDP_OP_SUM, NULL, NULL));
  t = vector();
  t.shape = seven;
  FAILS(MDP_E_INVALID, "from has 7 elements and to has 6", mdp_all_reduce(alone.comm, &t, &to, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "from has 7 elements and to has 6", mdp_all_to_all(alone.comm, &t, &to, NULL, NULL));
  FAILS(MDP_E_INVALID, "from has 7 elements and to has 6", mdp_reduce_scatter(alone.comm, &t, &to, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "from has 7 elements and to has 6", mdp_all_gather(alone.comm, &t, &to, NULL, NULL));
  t = vector();
  t.dtype = MDP_DTYPE_F16;
  FAILS(MDP_E_INVALID, "from.dtype is f16 and to.dtype is f32", mdp_all_reduce(alone.comm, &t, &to, MDP_OP_SUM, NULL, NULL));
  t = vector();
  t.data = other_numbers + 1;
  FAILS(MDP_E_INVALID, "overlap", mdp_all_reduce(alone.comm, &t, &to, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "overlap", mdp_reduce_scatter(alone.comm, &t, &to, MDP_OP_SUM, NULL, NULL));
  FAILS(MDP_E_INVALID, "overlap", mdp_all_gather(alone.comm, &t, &to, NULL, NULL));
  FAILS(MDP_E_INVALID, "overlap", mdp_all_to_all(alone.comm, &t, &to, NULL, NULL));

  /* Right, though unusual. */
  t = vector();
  t.device_type = 0;
  t.ndim = 2;
  t.shape = two_three;
  OK(mdp_all_reduce(alone.comm, &t, &to, MDP_OP_SUM, NULL, NULL));
  const int64_t none = 0;
  const mdp_tensor nothing = tensor_of(MDP_DTYPE_F32, NULL, &none);
  OK(mdp_all_reduce(alone.comm, &nothing, &nothing, MDP_OP_SUM, NULL, NULL));
  OK(mdp_reduce_scatter(alone.comm, &nothing, &nothing, MDP_OP_SUM, NULL, NULL));
  OK(mdp_all_gather(alone.comm, &nothing, &nothing, NULL, NULL));
  OK(mdp_all_to_all(alone.comm, &nothing, &nothing, NULL, NULL));
  OK(mdp_broadcast(alone.comm, &nothing, 0, NULL, NULL));
}

static void collective_arguments(void** state) {
  (void)state;
  const mdp_tensor t = vector();
  const mdp_tensor integers = tensor_of(MDP_DTYPE_U8, numbers, &six);
  FAILS(MDP_E_INVALID, "op is 4", mdp_all_reduce(alone.comm, &t, &t, 4, NULL, NULL));
  FAILS(MDP_E_INVALID, "op is 99", mdp_reduce_scatter(alone.comm, &t, &t, 99, NULL, NULL));
  FAILS(MDP_E_INVALID, "MDP_OP_AVG", mdp_all_reduce(alone.comm, &integers, &integers, MDP_OP_AVG, NULL, NULL));
  FAILS(MDP_E_INVALID, "root is 1", mdp_broadcast(alone.comm, &t, 1, NULL, NULL));
  FAILS(MDP_E_INVALID, "root is -1", mdp_broadcast(alone.comm, &t, -1, NULL, NULL));
  FAILS(MDP_E_INVALID, "root is 1", mdp_buffer_broadcast(alone.buffer, 1, NULL));
  FAILS(MDP_E_INVALID, "root is -1", mdp_buffer_broadcast(alone.buffer, -1, NULL));
}

static void streams(void** state) {
  (void)state;
  if (on_cuda) SKIP("a device takes other tensors, and any stream");
  const mdp_tensor t = vector();
  void* s = &not_a_stream;
  const char* part = "on the host backend a stream is NULL";
  FAILS(MDP_E_INVALID, part, mdp_all_reduce(alone.comm, &t, &t, MDP_OP_SUM, s, NULL));
  FAILS(MDP_E_INVALID, part, mdp_reduce_scatter(alone.comm, &t, &t, MDP_OP_SUM, s, NULL));
  FAILS(MDP_E_INVALID, part, mdp_all_gather(alone.comm, &t, &t, s, NULL));
  FAILS(MDP_E_INVALID, part, mdp_all_to_all(alone.comm, &t, &t, s, NULL));
  FAILS(MDP_E_INVALID, part, mdp_broadcast(alone.comm, &t, 0, s, NULL));
  FAILS(MDP_E_INVALID, part, mdp_buffer_zero_grad(alone.buffer, s));
  FAILS(MDP_E_INVALID, part, mdp_param_wait(alone.buffer, FIRST, s));
  FAILS(MDP_E_INVALID, part, mdp_param_read(alone.buffer, FIRST, &t, s));
  FAILS(MDP_E_INVALID, part, mdp_param_write(alone.buffer, FIRST, &t, s));
  FAILS(MDP_E_INVALID, part, mdp_grad_put(alone.buffer, FIRST, &t, 0, s));
  FAILS(MDP_E_INVALID, part, mdp_grad_ready(alone.buffer, FIRST, s));
  FAILS(MDP_E_INVALID, part, mdp_grad_sync(alone.buffer, s, NULL));
  SIZED(mdp_step_config, config);
  config.stream = s;
  FAILS(MDP_E_INVALID, part, mdp_optimizer_step(alone.optimizer, &config, NULL, NULL));
  FAILS(MDP_E_INVALID, part, mdp_optimizer_step_many(&alone.optimizer, 1, &config, NULL, NULL));
}

/* ── Grids and plans ── */

static mdp_status plan(const mdp_grid_config* grid, int32_t world, int32_t rank, const mdp_buffer_config* config, const mdp_param* params,
                       size_t count) {
  SIZED(mdp_plan_report, report);
  size_t needed = 0;
  const mdp_status status = mdp_plan(grid, world, rank, config, params, count, NULL, &report);
  /* The other two that take the same are of the same opinion; a wrong rank is mdp_plan's alone. */
  if (rank == 0) CHECK(mdp_plan_json(grid, world, config, params, count, NULL, NULL, 0, &needed) == status);
  if (rank == 0 && world == 1 && grid == NULL) {
    mdp_buffer* buffer = NULL;
    CHECK(mdp_buffer_register(NULL, alone.grid, config, params, count, &buffer) == status);
    CHECK((buffer != NULL) == (status == MDP_OK));
    mdp_buffer_destroy(buffer);
  }
  return status;
}

static void grid_config(void** state) {
  (void)state;
  static const struct {
    mdp_grid_config config;
    mdp_status code;
    const char* part;
  } bad[] = {
      {{.tp = -1}, MDP_E_INVALID, "tp is -1"},
      {{.cp = -1}, MDP_E_INVALID, "cp is -1"},
      {{.ep = -7}, MDP_E_INVALID, "ep is -7"},
      {{.pp = -1}, MDP_E_INVALID, "pp is -1"},
      {{.expert_tp = -1}, MDP_E_INVALID, "expert_tp is -1"},
      {{.instances = -1}, MDP_E_INVALID, "instances is -1"},
      {{.reserved = 1}, MDP_E_INVALID, "reserved is 1"},
      {{.flags = 4}, MDP_E_INVALID, "flags is 4"},
      {{.tp = 3}, MDP_E_INVALID, "tp 3"},
      {{.ep = 3}, MDP_E_INVALID, "ep 3"},
      {{.tp = INT32_MAX, .cp = INT32_MAX}, MDP_E_INVALID, "tp 2147483647"},
      {{.order = ""}, MDP_E_INVALID, "order"},
      {{.order = "tp-dp-tp"}, MDP_E_INVALID, "twice"},
      {{.order = "tp-xx-dp"}, MDP_E_INVALID, "xx"},
      {{.order = "tp-cp-ep-dp-pp-tp-cp-ep-dp-pp-tp-cp-ep-dp-pp-tp-cp-ep-dp-pp-tp-cp"}, MDP_E_INVALID, "order"},
      {{.tp = 2, .order = "cp-ep-dp-pp"}, MDP_E_INVALID, "leaves out tp"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    mdp_grid_config config = bad[i].config;
    config.struct_size = sizeof config;
    mdp_grid* grid = NULL;
    size_t needed = 0;
    FAILS(bad[i].code, bad[i].part, mdp_grid_groups_json(&config, 4, MDP_AXIS_DP, NULL, 0, &needed));
    FAILS(bad[i].code, bad[i].part, plan(&config, 4, 0, NULL, job_params, PARAMS));
    if (config.tp != 2) FAILS(bad[i].code, NULL, mdp_grid_create(alone.comm, &config, &grid));
    CHECK(grid == NULL && needed == 0);
  }
  size_t needed;
  FAILS(MDP_E_INVALID, "0 ranks", mdp_grid_groups_json(NULL, 0, MDP_AXIS_DP, NULL, 0, &needed));
  FAILS(MDP_E_INVALID, "-4 ranks", mdp_grid_groups_json(NULL, -4, MDP_AXIS_DP, NULL, 0, &needed));
  FAILS(MDP_E_INVALID, "rank is 4", plan(NULL, 4, 4, NULL, job_params, PARAMS));
  FAILS(MDP_E_INVALID, "rank is -1", plan(NULL, 4, -1, NULL, job_params, PARAMS));
}

static void axes(void** state) {
  (void)state;
  const uint32_t bad[] = {0, 32, 1u << 31, MDP_AXIS_EXPERT_GRID, MDP_AXIS_EP, MDP_AXIS_CP | MDP_AXIS_EXPERT_GRID};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    int32_t index = -5, size = -5;
    size_t needed;
    mdp_comm* comm = NULL;
    FAILS(MDP_E_INVALID, "axes", mdp_grid_coords(alone.grid, bad[i], &index, &size));
    FAILS(MDP_E_INVALID, "axes", mdp_grid_comm(alone.grid, bad[i], &comm));
    FAILS(MDP_E_INVALID, "axes", mdp_grid_groups_json(NULL, 4, bad[i], NULL, 0, &needed));
    CHECK(index == -5 && size == -5 && comm == NULL);
  }
}

static void buffer_config(void** state) {
  (void)state;
  static const struct {
    mdp_buffer_config config;
    const char* part;
  } bad[] = {
      {{.grad_dtype = MDP_DTYPE_BF16}, "grad_dtype is 3"},
      {{.grad_dtype = 77}, "grad_dtype is 77"},
      {{.sharding = 5}, "sharding is 5"},
      {{.pool_buckets = 1}, "pool_buckets is 1"},
      {{.spill_limit = 1}, "spill_limit is 1"},
      {{.missing = 3}, "missing is 3"},
      {{.flags = 128}, "flags is 128"},
      {{.flags = 1U << 31}, "flags is 2147483648"},
      {{.bucket_elements = 1, .bucket_count = 1}, "bucket_count is 1"},
      {{.bucket_elements = 1, .flags = MDP_BUFFER_REFERENCE_BUCKETS}, "bucket_elements is 1"},
      {{.bucket_count = 1, .flags = MDP_BUFFER_REFERENCE_BUCKETS}, "bucket_count is 1"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    mdp_buffer_config config = bad[i].config;
    config.struct_size = sizeof config;
    FAILS(MDP_E_INVALID, bad[i].part, plan(NULL, 1, 0, &config, job_params, PARAMS));
  }
}

static void params(void** state) {
  (void)state;
  static char bad_name[] = "a\xC3(", cut_name[] = "\xE2\x82";
  static char long_name[257];
  memset(long_name, 'n', 256);
  static const int64_t negative[] = {2, -3}, huge[] = {INT64_C(1) << 40, INT64_C(1) << 40}, four[] = {4};
  static const uint64_t crooked[2];
  const struct {
    mdp_param change;
    const char* part;
  } bad[] = {
      {{.name = NULL}, "name is NULL"},
      {{.name = ""}, "empty name"},
      {{.name = long_name}, "at most 255"},
      {{.name = bad_name}, "not valid UTF-8 from byte 1"},
      {{.name = cut_name}, "not valid UTF-8 from byte 0"},
      {{.name = "second"}, "same name as parameter 1"},
      {{.name = "p", .dtype = MDP_DTYPE_SAME}, "dtype is 1"},
      {{.name = "p", .dtype = MDP_DTYPE_F64}, "dtype is 5"},
      {{.name = "p", .dtype = 1000}, "dtype is 1000"},
      {{.name = "p", .ndim = -1}, "ndim is -1"},
      {{.name = "p", .ndim = 17, .shape = four}, "ndim is 17"},
      {{.name = "p", .ndim = 1}, "shape is NULL"},
      {{.name = "p", .ndim = 1, .shape = (const int64_t*)(const void*)((const char*)crooked + 4)}, "misaligned"},
      {{.name = "p", .ndim = 2, .shape = negative}, "shape[1] is -3"},
      {{.name = "p", .ndim = 2, .shape = huge}, "more elements"},
      {{.name = "p", .uses_per_step = -1}, "uses_per_step"},
      {{.name = "p", .param_class = 2}, "param_class is 2"},
      {{.name = "p", .placement = 5}, "placement is 5"},
      {{.name = "p", .placement = MDP_PLACEMENT_SHARDED, .shard_dim = 1, .ndim = 1, .shape = four}, "dimension 1"},
      {{.name = "p", .placement = MDP_PLACEMENT_SHARDED, .shard_dim = -1, .ndim = 1, .shape = four}, "dimension -1"},
      {{.name = "p", .placement = MDP_PLACEMENT_SHARDED, .shard_stride = -2, .ndim = 1, .shape = four}, "shard_stride -2"},
      {{.name = "p", .placement = MDP_PLACEMENT_SHARDED, .shard_stride = 3, .ndim = 1, .shape = four}, "shard_stride 3"},
      {{.name = "p", .shard_dim = 1, .ndim = 1, .shape = four}, "shard_dim 1"},
      {{.name = "p", .param_group = -1}, "group -1"},
      {{.name = "p", .flags = 4}, "flags is 4"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    mdp_param list[3] = {job_params[FIRST], job_params[SECOND], bad[i].change};
    list[2].struct_size = sizeof list[2];
    FAILS(MDP_E_INVALID, bad[i].part, plan(NULL, 1, 0, NULL, list, 3));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.param == 2);
  }
  FAILS(MDP_E_INVALID, "no parameters", plan(NULL, 1, 0, NULL, NULL, 0));
  FAILS(MDP_E_INVALID, "no parameters", plan(NULL, 1, 0, NULL, job_params, 0));
  FAILS(MDP_E_INVALID, "params is NULL", plan(NULL, 1, 0, NULL, NULL, 2));
  FAILS(MDP_E_INVALID, "count of params", plan(NULL, 1, 0, NULL, job_params, SIZE_MAX));
  FAILS(MDP_E_INVALID, "frozen", plan(NULL, 1, 0, NULL, &job_params[FROZEN], 1));
  /* With tensor parallelism a placement must be said. */
  SIZED(mdp_grid_config, two);
  two.tp = 2;
  FAILS(MDP_E_INVALID, "has no placement", plan(&two, 4, 0, NULL, job_params, PARAMS));
}

/* The longest one, and one with characters of every length. */
static void unusual_names(void** state) {
  (void)state;
  static char long_name[256];
  memset(long_name, 'n', 255);
  mdp_param good[2] = {job_params[FIRST], job_params[SECOND]};
  good[0].name = long_name;
  good[1].name = "w\xC3\xA4\xE2\x82\xAC\xF0\x9D\x84\x9E";
  OK(plan(NULL, 1, 0, NULL, good, 2));
}

/* ── Text and arrays out ── */

static void text_protocol(void** state) {
  (void)state;
  char text[4096];
  size_t needed = 0, again = 0;
#define PROTOCOL(call)                                                                                        \
  do {                                                                                                        \
    char* json = NULL;                                                                                        \
    size_t capacity = 0, *out = &needed;                                                                      \
    needed = 0;                                                                                               \
    OK(call);                                                                                                 \
    CHECK(needed > 2 && needed < sizeof text);                                                                \
    capacity = 1, out = &again;                                                                               \
    FAILS(MDP_E_INVALID, "json is NULL, but capacity is 1", call);                                            \
    capacity = 0, out = NULL;                                                                                 \
    FAILS(MDP_E_INVALID, "json and needed are both NULL", call);                                              \
    out = (size_t*)(void*)((char*)text + 1);                                                                  \
    FAILS(MDP_E_INVALID, "misaligned", call);                                                                 \
    json = text, capacity = needed - 1, out = &again, again = 0, text[0] = '?';                               \
    FAILS(MDP_E_INVALID, "the text and its NUL take", call);                                                  \
    CHECK(again == needed && text[0] == '?');                                                                 \
    capacity = needed, again = 0;                                                                             \
    OK(call);                                                                                                 \
    CHECK(again == needed && strlen(text) + 1 == needed && text[needed - 2] != ' ' && strchr("{[", text[0])); \
    capacity = sizeof text, out = NULL;                                                                       \
    OK(call);                                                                                                 \
  } while (0)
  PROTOCOL(mdp_info(json, capacity, out));
  CHECK(strstr(text, "\"version\":\"0.1.0\"") != NULL && strstr(text, "\"backends\":[{\"name\":\"host\",\"available\":true") != NULL);
  PROTOCOL(mdp_grid_groups_json(NULL, 4, MDP_AXIS_DP, json, capacity, out));
  CHECK(strcmp(text, "[[0,1,2,3]]") == 0);
  PROTOCOL(mdp_plan_json(NULL, 2, NULL, job_params, PARAMS, NULL, json, capacity, out));
  CHECK(strstr(text, "\"dp\":2") != NULL);
  PROTOCOL(mdp_optimizer_info(alone.optimizer, json, capacity, out));
#undef PROTOCOL
}

static void room_for_ranges(void** state) {
  (void)state;
  size_t needed = 0;
  OK(mdp_buffer_owned(alone.buffer, NULL, 0, &needed));
  CHECK(needed == 2); /* empty and frozen parameters have no elements to own */
  mdp_range ranges[2];
  memset(ranges, 0xEE, sizeof ranges);
  ranges[0].struct_size = sizeof ranges[0];
  needed = 0;
  FAILS(MDP_E_INVALID, "this rank owns 2 ranges", mdp_buffer_owned(alone.buffer, ranges, 1, &needed));
  CHECK(needed == 2 && ranges[0].begin != 0);
  FAILS(MDP_E_INVALID, "ranges[0] is NULL", mdp_buffer_owned(alone.buffer, NULL, 2, &needed));
  OK(mdp_buffer_owned(alone.buffer, ranges, 2, &needed));
}

/* ── Steps ── */

static void step_arguments(void** state) {
  (void)state;
  static const int64_t other_shape[] = {3, 2}, zeros[] = {0, 1};
  mdp_tensor right = vector(), t;
  right.ndim = 2;
  right.shape = job_params[FIRST].shape;
  SIZED(mdp_tensor, view);
  SIZED(mdp_bucket_report, bucket);
  const size_t beyond[] = {PARAMS, SIZE_MAX - 1};
  for (size_t i = 0; i < 2; ++i) {
    FAILS(MDP_E_INVALID, "param is", mdp_buffer_param_view(alone.buffer, beyond[i], &view));
    FAILS(MDP_E_INVALID, "param is", mdp_buffer_grad_view(alone.buffer, beyond[i], &view));
    FAILS(MDP_E_INVALID, "param is", mdp_param_wait(alone.buffer, beyond[i], NULL));
    FAILS(MDP_E_INVALID, "param is", mdp_param_read(alone.buffer, beyond[i], &right, NULL));
    FAILS(MDP_E_INVALID, "param is", mdp_param_write(alone.buffer, beyond[i], &right, NULL));
    FAILS(MDP_E_INVALID, "param is", mdp_grad_put(alone.buffer, beyond[i], &right, 0, NULL));
    FAILS(MDP_E_INVALID, "param is", mdp_grad_ready(alone.buffer, beyond[i], NULL));
    FAILS(MDP_E_INVALID, "param is", mdp_grad_skip(alone.buffer, beyond[i]));
    FAILS(MDP_E_INVALID, "param is", mdp_optimizer_state(alone.optimizer, beyond[i], "master", &view));
    FAILS(MDP_E_INVALID, "bucket is", mdp_buffer_bucket(alone.buffer, beyond[i] + 100, &bucket));
    FAILS(MDP_E_INVALID, "group is",
          mdp_optimizer_set_param_group(alone.optimizer, beyond[i], &(mdp_param_group){.struct_size = sizeof(mdp_param_group)}));
  }
  FAILS(MDP_E_INVALID, "is_last is 2", mdp_microbatch_begin(alone.buffer, 2));
  FAILS(MDP_E_INVALID, "is_last is -1", mdp_microbatch_begin(alone.buffer, -1));
  FAILS(MDP_E_INVALID, "flags is 4", mdp_grad_put(alone.buffer, FIRST, &right, 4, NULL));
  t = right;
  t.shape = other_shape;
  FAILS(MDP_E_INVALID, "has shape [3,2]; parameter 0 'first' has [2,3]", mdp_grad_put(alone.buffer, FIRST, &t, 0, NULL));
  FAILS(MDP_E_INVALID, "has shape [3,2]", mdp_param_read(alone.buffer, FIRST, &t, NULL));
  FAILS(MDP_E_INVALID, "has shape [3,2]", mdp_param_write(alone.buffer, FIRST, &t, NULL));
  t = right;
  t.dtype = MDP_DTYPE_I64;
  FAILS(MDP_E_INVALID, "grad.dtype is i64", mdp_grad_put(alone.buffer, FIRST, &t, 0, NULL));
  FAILS(MDP_E_INVALID, "to.dtype is i64", mdp_param_read(alone.buffer, FIRST, &t, NULL));
  FAILS(MDP_E_INVALID, "from.dtype is i64", mdp_param_write(alone.buffer, FIRST, &t, NULL));
  t = right;
  t.strides = zeros;
  FAILS(MDP_E_INVALID, "share memory", mdp_param_read(alone.buffer, FIRST, &t, NULL));
  FAILS(MDP_E_INVALID, "view is not a view", mdp_buffer_to_dlpack(alone.buffer, &right, &(struct DLManagedTensorVersioned*){NULL}));
}

static void optimizer_arguments(void** state) {
  (void)state;
  static const mdp_param_group group = {.struct_size = sizeof(mdp_param_group)};
  const struct {
    mdp_optimizer_config config;
    const char* part;
  } bad[] = {
      {{.rule = 7},
       "config.rule is 7; it must be 0 (AdamW), 1 (Adam), 2 (SGD), 3 (SGD with momentum), 4 (SGD with Nesterov momentum), 5 (Lion) or 6 "
       "(the caller's rule)"},
      {{.state = "mine"}, "config.state names arrays of the caller's rule; AdamW has its own"},
      {{.rule = UINT32_MAX}, "config.rule is 4294967295"},
      {{.flags = UINT64_C(1) << 40}, "config.flags is 1099511627776"},
      {{.first_param_group = 1}, "config.first_param_group is 1; without MDP_OPTIMIZER_SOME_GROUPS (16)"},
      {{.flags = MDP_OPTIMIZER_SOME_GROUPS, .first_param_group = 1U << 31}, "config.first_param_group is 2147483648"},
      {{.lr = -1}, "config.lr is -1"},
      {{.lr = NAN}, "config.lr is"},
      {{.lr = INFINITY}, "config.lr is inf"},
      {{.beta1 = 1}, "config.beta1 is 1"},
      {{.beta1 = -0.5}, "config.beta1 is -0.5"},
      {{.beta2 = 1.5}, "config.beta2 is 1.5"},
      {{.beta2 = NAN}, "config.beta2 is"},
      {{.eps = -1}, "config.eps is -1"},
      {{.eps = INFINITY}, "config.eps is inf"},
      {{.eps = 1e-50}, "config.eps is 1e-50; it must be between"}, /* 0 as a float: a gradient of 0 would be divided by it */
      {{.eps = 1e300}, "config.eps is 1e+300; as a float"},
      {{.lr = 1e300}, "config.lr is 1e+300; as a float"},
      {{.weight_decay = -0.1}, "config.weight_decay is -0.1"},
      {{.max_grad_norm = -1}, "config.max_grad_norm is -1"},
      {{.max_grad_norm = INFINITY}, "config.max_grad_norm is inf"},
      {{.param_groups = &group, .param_group_count = 0}, "config.param_group_count is 0"},
      {{.param_groups = NULL, .param_group_count = 1}, "config.param_groups is NULL"},
      {{.param_groups = &group, .param_group_count = SIZE_MAX}, "count of config.param_groups"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    mdp_optimizer_config config = bad[i].config;
    config.struct_size = sizeof config;
    mdp_optimizer* optimizer = NULL;
    FAILS(MDP_E_INVALID, bad[i].part, mdp_optimizer_create(alone.buffer, &config, &optimizer));
    CHECK(optimizer == NULL);
  }
  SIZED(mdp_tensor, view);
  FAILS(MDP_E_INVALID, "name is NULL", mdp_optimizer_state(alone.optimizer, FIRST, NULL, &view));
  FAILS(MDP_E_INVALID, "name is 'momentum'", mdp_optimizer_state(alone.optimizer, FIRST, "momentum", &view));
  FAILS(MDP_E_INVALID, "name is ''", mdp_optimizer_state(alone.optimizer, FIRST, "", &view));
}

static void groups_and_steps(void** state) {
  (void)state;
  const struct {
    mdp_param_group group;
    const char* part;
  } bad_groups[] = {{{.reserved = 1}, ".reserved is 1"},
                    {{.flags = 32}, ".flags is 32"},
                    {{.lr = -1}, ".lr is -1"},
                    {{.weight_decay = NAN}, ".weight_decay is"}};
  for (size_t i = 0; i < sizeof bad_groups / sizeof bad_groups[0]; ++i) {
    mdp_param_group g = bad_groups[i].group;
    g.struct_size = sizeof g;
    SIZED(mdp_optimizer_config, config);
    config.param_groups = &g;
    config.param_group_count = 1;
    mdp_optimizer* optimizer = NULL;
    FAILS(MDP_E_INVALID, bad_groups[i].part, mdp_optimizer_create(alone.buffer, &config, &optimizer));
    FAILS(MDP_E_INVALID, bad_groups[i].part, mdp_optimizer_set_param_group(alone.optimizer, 0, &g));
  }
  const struct {
    mdp_step_config config;
    const char* part;
  } bad_steps[] = {{{.reserved = 1}, "config.reserved is 1"},
                   {{.flags = 4}, "config.flags is 4"},
                   {{.lr = -1}, "config.lr is -1"},
                   {{.lr = NAN}, "config.lr is"},
                   {{.loss_scale = -1}, "config.loss_scale is"},
                   {{.loss_scale = 1e-39}, "config.loss_scale is 1e-39; it must be between"}, /* its inverse is no float */
                   {{.loss_scale = 1e300}, "config.loss_scale is 1e+300"},
                   {{.loss_scale = INFINITY}, "config.loss_scale is inf"}};
  for (size_t i = 0; i < sizeof bad_steps / sizeof bad_steps[0]; ++i) {
    mdp_step_config config = bad_steps[i].config;
    config.struct_size = sizeof config;
    FAILS(MDP_E_INVALID, bad_steps[i].part, mdp_optimizer_step(alone.optimizer, &config, NULL, NULL));
    FAILS(MDP_E_INVALID, bad_steps[i].part, mdp_optimizer_step_many(&alone.optimizer, 1, &config, NULL, NULL));
    FAILS(MDP_E_INVALID, bad_steps[i].part, mdp_optimizer_step_begin(&alone.optimizer, 1, &config));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(names),
      TEST(last_error),
      TEST(text_of_errors),
      TEST(comm_config),
      TEST(comm_from_environment),
      TEST(tensors),
      TEST(pairs_of_tensors),
      TEST(collective_arguments),
      TEST(streams),
      TEST(grid_config),
      TEST(axes),
      TEST(buffer_config),
      TEST(params),
      TEST(unusual_names),
      TEST(text_protocol),
      TEST(room_for_ranges),
      TEST(step_arguments),
      TEST(optimizer_arguments),
      TEST(groups_and_steps),
  };
  return cmocka_run_group_tests(tests, open_job, close_job);
}
