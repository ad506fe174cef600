/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints over tensor-parallel sizes: what is saved with one placement over so many ranks is loaded over any other number. Values say
 * where in the whole parameter they belong. And pipeline stages: what is tied is stored once. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
  COUNT = 6,
  ROWS = 24,
  COLUMNS = 8,
  SIZE = ROWS * COLUMNS,
  STATES = 3
};
static const char* const names[COUNT] = {"same", "by row", "by column", "strided", "strided columns", "half"};
static const int dims[COUNT] = {-1, 0, 1, 0, 1, 0}, strides[COUNT] = {1, 1, 1, 3, 2, 1};
static const char* const state_names[STATES] = {"master", "exp_avg", "exp_avg_sq"};

typedef struct {
  int32_t tp, dp;
  mdp_sharding sharding;
  int number;
  const char* model;            /* a file with the parameters alone, instead of the newest checkpoint */
  float (*states)[COUNT][SIZE]; /* of the whole parameters: the parameters themselves, then the states */
} stage;

/* Element i of the part of tensor-parallel rank t is which element of the whole. */
static int in_whole(int p, int t, int tp, int i) {
  if (dims[p] < 0) return i;
  const int columns = dims[p] == 1 ? COLUMNS / tp : COLUMNS, row = i / columns, column = i % columns;
  const int along = dims[p] == 0 ? row : column, size = (dims[p] == 0 ? ROWS : COLUMNS) / tp, run = size / strides[p];
  const int whole = along / run * run * tp + t * run + along % run;
  return dims[p] == 0 ? whole * COLUMNS + column : row * COLUMNS + whole;
}

static int part_elements(int p, int tp) {
  return dims[p] < 0 ? SIZE : SIZE / tp;
}

static job job_of(const mdp_unique_id* id, int32_t rank, const stage* s) {
  job j = {.comm = comm_open(id, rank, s->tp * s->dp, UINT64_C(60000000000))};
  SIZED(mdp_grid_config, grid);
  grid.tp = s->tp;
  OK(mdp_grid_create(j.comm, &grid, &j.grid));
  mdp_param params[COUNT];
  int64_t shapes[COUNT][2];
  memset(params, 0, sizeof params);
  for (int p = 0; p < COUNT; ++p) {
    shapes[p][0] = dims[p] == 0 ? ROWS / s->tp : ROWS;
    shapes[p][1] = dims[p] == 1 ? COLUMNS / s->tp : COLUMNS;
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = p == COUNT - 1 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].ndim = 2;
    params[p].shape = shapes[p];
    params[p].placement = dims[p] < 0 ? MDP_PLACEMENT_REPLICATED : MDP_PLACEMENT_SHARDED;
    params[p].shard_dim = dims[p] < 0 ? 0 : dims[p];
    params[p].shard_stride = strides[p] > 1 ? strides[p] : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = s->sharding;
  config.bucket_elements = 50 + 70 * (uint64_t)s->number;
  OK(mdp_buffer_register(NULL, j.grid, &config, params, COUNT, &j.buffer));
  OK(mdp_optimizer_create(j.buffer, NULL, &j.optimizer));
  return j;
}

static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER; /* replicas have the same */

/* Of what this rank has of the states. write: into them. Otherwise each rank adds it to `all`. */
static void move_states(const job* j, int t, const stage* s, int write) {
  mdp_range ranges[256];
  const size_t count = owned_ranges(j->buffer, ranges, 256);
  for (size_t i = 0; i < count; ++i) {
    const int p = (int)ranges[i].param;
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, (size_t)p, state_names[k], &view));
      float* const values = view.data;
      pthread_mutex_lock(&moving);
      for (int64_t e = 0; e < view.shape[0]; ++e) {
        float* const whole = &s->states[1 + k][p][in_whole(p, t, s->tp, (int)(ranges[i].param_begin + e))];
        if (write) {
          values[e] = *whole;
        } else {
          *whole = values[e];
        }
      }
      pthread_mutex_unlock(&moving);
    }
  }
}

static void move_params(const job* j, int t, const stage* s, int write) {
  for (int p = 0; p < COUNT; ++p) {
    const int64_t count = part_elements(p, s->tp);
    float values[SIZE];
    SIZED(mdp_tensor, view);
    OK(mdp_buffer_param_view(j->buffer, (size_t)p, &view));
    mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, values, &count);
    tensor.ndim = 2;
    tensor.shape = view.shape;
    for (int i = 0; write && i < count; ++i) values[i] = s->states[0][p][in_whole(p, t, s->tp, i)];
    OK((write ? mdp_param_write : mdp_param_read)(j->buffer, (size_t)p, &tensor, NULL));
    pthread_mutex_lock(&moving);
    for (int i = 0; !write && i < count; ++i) s->states[0][p][in_whole(p, t, s->tp, i)] = values[i];
    pthread_mutex_unlock(&moving);
  }
}

static void one_stage(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const stage* s = argument;
  (void)n;
  job j = job_of(id, rank, s);
  int32_t t = 0, tp = 0;
  OK(mdp_grid_coords(j.grid, MDP_AXIS_TP, &t, &tp));
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer, .optimizer = j.optimizer};
  mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = folder, .parts = &part, .part_count = 1};
  /* A frozen weight that is cut, and one that is not. */
  float cut[12], whole[2];
  const int64_t two = 2;
  const int64_t cut_size = 12 / s->tp;
  for (int64_t i = 0; i < cut_size; ++i) cut[i] = s->number == 0 ? (float)(t * cut_size + i) : -1;
  for (int i = 0; i < 2; ++i) whole[i] = s->number == 0 ? (float)i + 0.5F : -1;
  const mdp_tensor cut_tensor = tensor_of(MDP_DTYPE_F32, cut, &cut_size), whole_tensor = tensor_of(MDP_DTYPE_F32, whole, &two);
  const mdp_checkpoint_tensor tensors[2] = {
      {.struct_size = sizeof *tensors, .name = "frozen/cut", .tensor = &cut_tensor, .placement = MDP_PLACEMENT_SHARDED},
      {.struct_size = sizeof *tensors, .name = "frozen/whole", .tensor = &whole_tensor, .placement = MDP_PLACEMENT_REPLICATED}};
  config.tensors = tensors;
  config.tensor_count = 2;
  if (s->number == 0) {
    move_params(&j, t, s, 1);
    move_states(&j, t, s, 1);
    OK(mdp_optimizer_set_steps(j.optimizer, 9, NULL, 0));
  } else {
    if (s->model != NULL) {
      config.directory = s->model;
      FAILS(MDP_E_INVALID, "with MDP_CHECKPOINT_PARAMS_ONLY (1) it begins with zeros", mdp_checkpoint_load(&config));
      config.flags = MDP_CHECKPOINT_PARAMS_ONLY;
    }
    OK(mdp_checkpoint_load(&config));
    for (int64_t i = 0; i < cut_size; ++i) CHECK(cut[i] == (float)(t * cut_size + i));
    CHECK(whole[0] == 0.5F && whole[1] == 1.5F);
    uint64_t steps = 0;
    OK(mdp_optimizer_steps(j.optimizer, 2, &steps));
    CHECK(steps == (s->model != NULL ? 0 : 9));
    move_params(&j, t, s, 0);
    move_states(&j, t, s, 0);
  }
  if (s->model == NULL) OK(mdp_checkpoint_save(&config, NULL));
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void loads_over_any_tensor_parallel_size(void** state) {
  (void)state;
  static float wanted[1 + STATES][COUNT][SIZE], got[1 + STATES][COUNT][SIZE];
  for (int k = 0; k <= STATES; ++k) {
    for (int p = 0; p < COUNT; ++p) {
      for (int i = 0; i < SIZE; ++i)
        wanted[k][p][i] = (float)(i + 1) / 256 * (float)(k < 2 ? 1 : k); /* also as a bf16; f32 are their masters */
    }
  }
  stage stages[] = {{2, 2, MDP_SHARDING_ZERO_1, 0, NULL, wanted}, {1, 3, MDP_SHARDING_ZERO_2, 1, NULL, got},
                    {4, 1, MDP_SHARDING_ZERO_0, 2, NULL, got},    {2, 1, MDP_SHARDING_ZERO_1, 3, NULL, got},
                    {1, 1, MDP_SHARDING_ZERO_1, 4, NULL, got},    {4, 2, MDP_SHARDING_ZERO_1, 5, NULL, got}};
  const int count = UNDER_THREAD_SANITIZER ? 3 : (int)(sizeof stages / sizeof *stages);
  for (int number = 0; number < count; ++number) {
    memset(got, 0, sizeof got);
    run_ranks(stages[number].tp * stages[number].dp, one_stage, &stages[number]);
    CHECK(number == 0 || memcmp(got, wanted, sizeof got) == 0);
  }

  /* Exported from parts, and taken in as other parts: whole in one file, or each array in its own. */
  char path[512];
  stage from_model[] = {{1, 1, MDP_SHARDING_ZERO_1, 1, path, got}, {4, 1, MDP_SHARDING_ZERO_2, 2, path, got}};
  for (int several = 0; several < 2; ++several) {
    snprintf(path, sizeof path, "%s/models/%d.safetensors", folder, several);
    OK(mdp_checkpoint_export(folder, path, (uint64_t)several));
    if (several) strcat(path, ".index.json");
    memset(got, 0, sizeof got);
    run_ranks(from_model[several].tp, one_stage, &from_model[several]);
    CHECK(memcmp(got[0], wanted[0], sizeof got[0]) == 0);
  }
}

/* ── What tensor-parallel ranks hold alike ── */

/* What the checkpoint does not have stays as it is: there the last tensor-parallel rank may have another moment, of a parameter that is not
 * sharded (then all are told of it), or of its own part of one. */
typedef struct {
  stage how;
  int param;
  const char* name;
  mdp_placement same_as; /* of what is not sharded */
} another_moment;

static void load_beside_a_moment(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const another_moment* const a = argument;
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  SIZED(mdp_grid_config, grid);
  grid.tp = a->how.tp;
  OK(mdp_grid_create(j.comm, &grid, &j.grid));
  const int64_t eight = 8;
  mdp_param params[3];
  for (int p = 0; p < 3; ++p) {
    params[p] = (mdp_param){.struct_size = sizeof *params,
                            .name = names[p],
                            .dtype = p == 2 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32,
                            .ndim = 1,
                            .shape = &eight,
                            .placement = p == 1 ? MDP_PLACEMENT_SHARDED : a->same_as};
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = a->how.sharding;
  OK(mdp_buffer_register(NULL, j.grid, &config, params, 3, &j.buffer));
  OK(mdp_optimizer_create(j.buffer, NULL, &j.optimizer));
  int32_t t = 0, tp = 0;
  OK(mdp_grid_coords(j.grid, MDP_AXIS_TP, &t, &tp));
  SIZED(mdp_tensor, view);
  if (t == tp - 1) {
    OK(mdp_optimizer_state(j.optimizer, (size_t)a->param, a->name, &view));
    if (view.shape[0] > 0) ((float*)view.data)[0] += 1; /* on all data-parallel ranks, where they hold the same */
  }
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer, .optimizer = j.optimizer};
  float values[2];
  const int64_t two = 2;
  const mdp_tensor whole = tensor_of(MDP_DTYPE_F32, values, &two);
  const mdp_checkpoint_tensor tensor = {
      .struct_size = sizeof tensor, .name = "frozen/whole", .tensor = &whole, .placement = MDP_PLACEMENT_REPLICATED};
  char directory[600];
  snprintf(directory, sizeof directory, "%s/alike", folder);
  const mdp_checkpoint_config wanted = {.struct_size = sizeof wanted,
                                        .directory = directory,
                                        .parts = &part,
                                        .part_count = 1,
                                        .tensors = &tensor,
                                        .tensor_count = 1,
                                        .optional = "*"};
  if (a->param == 1) {
    OK(mdp_checkpoint_load(&wanted));
  } else {
    char sentence[200];
    snprintf(sentence, sizeof sentence, "mdp_checkpoint_load: %s of parameter %d '%s' differs between ranks ", a->name, a->param,
             names[a->param]);
    FAILS(MDP_E_DESYNC, sentence, mdp_checkpoint_load(&wanted));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(strstr(info.text, "which should hold the same") != NULL && info.param == a->param && info.rank >= tp - 1);
  }
  job_close(&j);
}

static void save_one_tensor(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  const int64_t one = 1, two = 2;
  const mdp_param param = {.struct_size = sizeof param, .name = "unused", .ndim = 1, .shape = &one};
  OK(mdp_buffer_register(j.comm, NULL, NULL, &param, 1, &j.buffer));
  float values[2] = {1, 2};
  const mdp_tensor whole = tensor_of(MDP_DTYPE_F32, values, &two);
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer};
  const mdp_checkpoint_tensor tensor = {.struct_size = sizeof tensor, .name = "frozen/whole", .tensor = &whole};
  char directory[600];
  snprintf(directory, sizeof directory, "%s/alike", folder);
  const mdp_checkpoint_config config = {
      .struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1, .tensors = &tensor, .tensor_count = 1};
  OK(mdp_checkpoint_save(&config, NULL));
  job_close(&j);
}

static void compares_moments_of_tensor_parallel_ranks(void** state) {
  (void)state;
  run_ranks(1, save_one_tensor, NULL);
  another_moment cases[] = {{{2, 1, MDP_SHARDING_ZERO_1, 0, NULL, NULL}, 0, "exp_avg_sq", MDP_PLACEMENT_REPLICATED},
                            {{2, 2, MDP_SHARDING_ZERO_2, 0, NULL, NULL}, 0, "exp_avg", MDP_PLACEMENT_PARTIAL_SUM},
                            {{2, 1, MDP_SHARDING_ZERO_1, 0, NULL, NULL}, 2, "master", MDP_PLACEMENT_REPLICATED},
                            {{4, 1, MDP_SHARDING_ZERO_0, 0, NULL, NULL}, 2, "exp_avg", MDP_PLACEMENT_PARTIAL_MEAN},
                            {{2, 1, MDP_SHARDING_ZERO_1, 0, NULL, NULL}, 1, "exp_avg", MDP_PLACEMENT_REPLICATED}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) run_ranks(cases[i].how.tp * cases[i].how.dp, load_beside_a_moment, &cases[i]);
}

/* ── Names ── */

static void conflicts(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  SIZED(mdp_grid_config, grid);
  grid.pp = 2;
  OK(mdp_grid_create(j.comm, &grid, &j.grid));
  int32_t pp = 0, size = 0;
  OK(mdp_grid_coords(j.grid, MDP_AXIS_PP, &pp, &size));
  const int64_t four = 4;
  mdp_param param = {.struct_size = sizeof param, .name = "w", .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &four};
  OK(mdp_buffer_register(NULL, j.grid, NULL, &param, 1, &j.buffer));
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer};
  char directory[512];
  snprintf(directory, sizeof directory, "%s/names", folder);
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1};
  FAILS(MDP_E_INVALID, "ranks 0 and 1 both have 'w', which are different arrays", mdp_checkpoint_save(&config, NULL));

  /* Tied it is one, under two names. */
  mdp_buffer_destroy(j.buffer);
  param.name = pp == 0 ? "embedding" : "head";
  param.tie = "embedding";
  OK(mdp_buffer_register(NULL, j.grid, NULL, &param, 1, &j.buffer));
  float values[4] = {1, 2, 3, 4};
  const mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, values, &four);
  OK(mdp_param_write(j.buffer, 0, &tensor, NULL));
  const mdp_checkpoint_part tied = {.struct_size = sizeof tied, .buffer = j.buffer};
  mdp_checkpoint_config of_tied = config;
  of_tied.parts = &tied;
  OK(mdp_checkpoint_save(&of_tied, NULL));
  char json[4096];
  OK(mdp_checkpoint_info(directory, json, sizeof json, NULL));
  CHECK(strstr(json, "\"aliases\":[\"head\"]") != NULL && strstr(json, "\"name\":\"head\"") == NULL);
  char model[600];
  snprintf(model, sizeof model, "%s/model.safetensors", directory);
  if (pp == 0) OK(mdp_checkpoint_export(directory, model, 0));
  OK(mdp_barrier(j.comm, NULL));
  memset(values, 0, sizeof values);
  OK(mdp_param_write(j.buffer, 0, &tensor, NULL));
  OK(mdp_checkpoint_load(&of_tied));
  OK(mdp_param_read(j.buffer, 0, &tensor, NULL));
  for (int i = 0; i < 4; ++i) CHECK(values[i] == (float)i + 1);
  memset(values, 0, sizeof values);
  OK(mdp_param_write(j.buffer, 0, &tensor, NULL));
  of_tied.directory = model;
  OK(mdp_checkpoint_load(&of_tied));
  OK(mdp_param_read(j.buffer, 0, &tensor, NULL));
  for (int i = 0; i < 4; ++i) CHECK(values[i] == (float)i + 1);
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

/* Expert-parallel ranks have different experts: of the same name they are two arrays, unlike the replicas of one. */
static void save_experts(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int same_name = *(const int*)argument;
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  SIZED(mdp_grid_config, grid);
  grid.ep = 2;
  OK(mdp_grid_create(j.comm, &grid, &j.grid));
  int32_t ep = 0, size = 0;
  OK(mdp_grid_coords(j.grid, MDP_AXIS_EP | MDP_AXIS_EXPERT_GRID, &ep, &size));
  const int64_t four = 4;
  const mdp_param param = {.struct_size = sizeof param,
                           .name = same_name ? "expert"
                                   : ep == 0 ? "expert 0"
                                             : "expert 1",
                           .dtype = MDP_DTYPE_F32,
                           .ndim = 1,
                           .shape = &four,
                           .param_class = MDP_PARAM_CLASS_EXPERT,
                           .placement = MDP_PLACEMENT_REPLICATED};
  OK(mdp_buffer_register(NULL, j.grid, NULL, &param, 1, &j.buffer));
  float values[4];
  for (int i = 0; i < 4; ++i) values[i] = (float)(10 * ep + i);
  const mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, values, &four);
  OK(mdp_param_write(j.buffer, 0, &tensor, NULL));
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer};
  char directory[512];
  snprintf(directory, sizeof directory, "%s/experts", folder);
  const mdp_checkpoint_config config = {.struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1};
  if (same_name) {
    FAILS(MDP_E_INVALID, "both have 'expert', which are different arrays", mdp_checkpoint_save(&config, NULL));
  } else {
    OK(mdp_checkpoint_save(&config, NULL));
    memset(values, 0, sizeof values);
    OK(mdp_param_write(j.buffer, 0, &tensor, NULL));
    OK(mdp_checkpoint_load(&config));
    OK(mdp_param_read(j.buffer, 0, &tensor, NULL));
    for (int i = 0; i < 4; ++i) CHECK(values[i] == (float)(10 * ep + i));
  }
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void names_are_unique_or_tied(void** state) {
  (void)state;
  run_ranks(2, conflicts, NULL);
  for (int same_name = 0; same_name < 2; ++same_name) {
    run_ranks(2, save_experts, &same_name);
    run_ranks(4, save_experts, &same_name); /* each expert twice */
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(loads_over_any_tensor_parallel_size), TEST(compares_moments_of_tensor_parallel_ranks),
                                     TEST(names_are_unique_or_tied)};
  return cmocka_run_group_tests(tests, open_folder, close_folder);
}
