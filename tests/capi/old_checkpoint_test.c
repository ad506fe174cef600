/* SPDX-License-Identifier: Apache-2.0
 * Checkpoints that earlier versions have written load for ever. Those below tests/data are never written anew: a version that writes
 * another format adds one, by `capi_old_checkpoint write DIRECTORY`.
 *
 * Two tensor-parallel ranks; values say which element of the whole parameter, and which state, they are. */
#include <pthread.h>
#include <string.h>

#include "fixture.h"

enum {
  EMBED, /* f32[6,4], cut along dimension 0 */
  NORM,  /* bf16[5], on all ranks */
  HEAD,  /* bf16[4,6], cut along dimension 1 in runs */
  COUNT,
  MOST = 24,
  STATES = 3,
  STEPS = 7
};
static const char* const names[COUNT] = {"embed", "norm", "head"};
static const char* const state_names[STATES] = {"master", "exp_avg", "exp_avg_sq"};
static const mdp_dtype dtypes[COUNT] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_BF16};
static const int64_t shapes[COUNT][2] = {{6, 4}, {5, 1}, {4, 6}};
static const char* directory;

static float value_of(int p, int whole) {
  return (float)(8 * p + whole + 1) / 8;
}

/* Also one that a bf16 does not hold. */
static float state_of(int k, int p, int whole) {
  return k == 0 && p == EMBED ? value_of(p, whole) : value_of(p, whole) + (float)(k + 1) / 4096;
}

/* Element i of the part of tensor-parallel rank t is which element of the whole. */
static int in_whole(int p, int t, int tp, int i) {
  if (p == EMBED) return t * MOST / tp + i;
  if (p == NORM || tp == 1) return i;
  const int row = i / 3, column = i % 3; /* runs of 1 take turns */
  return row * 6 + column * 2 + t;
}

static job job_of(const mdp_unique_id* id, int32_t rank, int32_t n, int32_t tp) {
  job j = {.comm = comm_open(id, rank, n, UINT64_C(60000000000))};
  SIZED(mdp_grid_config, grid);
  grid.tp = tp;
  OK(mdp_grid_create(j.comm, &grid, &j.grid));
  mdp_param params[COUNT];
  int64_t parts[COUNT][2];
  memset(params, 0, sizeof params);
  memcpy(parts, shapes, sizeof parts);
  parts[EMBED][0] /= tp;
  parts[HEAD][1] /= tp;
  for (int p = 0; p < COUNT; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = dtypes[p];
    params[p].ndim = p == NORM ? 1 : 2;
    params[p].shape = parts[p];
    params[p].placement = p == NORM ? MDP_PLACEMENT_REPLICATED : MDP_PLACEMENT_SHARDED;
    params[p].shard_dim = p == HEAD;
    params[p].shard_stride = p == HEAD ? 3 : 0;
  }
  OK(mdp_buffer_register(NULL, j.grid, NULL, params, COUNT, &j.buffer));
  SIZED(mdp_optimizer_config, adamw);
  adamw.lr = 0.5;
  OK(mdp_optimizer_create(j.buffer, &adamw, &j.optimizer));
  return j;
}

/* A byte for each of three heads, and a count: as module buffers are. */
typedef struct {
  uint8_t mask[3];
  int64_t count;
  mdp_tensor views[2];
  mdp_checkpoint_tensor tensors[2];
} module_buffers;

static void describe(module_buffers* all) {
  static const int64_t three = 3;
  all->views[0] = tensor_of(MDP_DTYPE_U8, all->mask, &three);
  all->views[1] = tensor_of(MDP_DTYPE_I64, &all->count, &three);
  all->views[1].ndim = 0;
  for (int i = 0; i < 2; ++i) {
    const mdp_checkpoint_tensor one = {
        .struct_size = sizeof one, .placement = MDP_PLACEMENT_REPLICATED, .name = i == 0 ? "mask" : "count", .tensor = &all->views[i]};
    all->tensors[i] = one;
  }
}

static void move_states(const job* j, int t, int tp, int write) {
  mdp_range ranges[64];
  const size_t count = owned_ranges(j->buffer, ranges, 64);
  for (size_t i = 0; i < count; ++i) {
    const int p = (int)ranges[i].param;
    for (int k = 0; k < STATES; ++k) {
      SIZED(mdp_tensor, view);
      OK(mdp_optimizer_state(j->optimizer, (size_t)p, state_names[k], &view));
      float* const values = view.data;
      for (int64_t e = 0; e < view.shape[0]; ++e) {
        const float wanted = state_of(k, p, in_whole(p, t, tp, (int)(ranges[i].param_begin + e)));
        if (write) values[e] = wanted;
        CHECK(values[e] == wanted);
      }
    }
  }
}

static void move_params(const job* j, int t, int tp, int write) {
  for (int p = 0; p < COUNT; ++p) {
    const int count = (int)(shapes[p][0] * shapes[p][1]) / (p == NORM ? 1 : tp);
    float values[MOST], wanted[MOST];
    SIZED(mdp_tensor, view);
    OK(mdp_buffer_param_view(j->buffer, (size_t)p, &view));
    mdp_tensor tensor = tensor_of(MDP_DTYPE_F32, write ? wanted : values, view.shape);
    tensor.ndim = view.ndim;
    for (int i = 0; i < count; ++i) wanted[i] = value_of(p, in_whole(p, t, tp, i));
    OK((write ? mdp_param_write : mdp_param_read)(j->buffer, (size_t)p, &tensor, NULL));
    for (int i = 0; i < count && !write; ++i) CHECK(values[i] == wanted[i]);
  }
}

static void one_rank(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int writes = *(const int*)argument;
  int32_t t = 0, tp = n == 2 ? 2 : 1;
  job j = job_of(id, rank, n, tp);
  OK(mdp_grid_coords(j.grid, MDP_AXIS_TP, &t, &tp));
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = j.buffer, .optimizer = j.optimizer};
  module_buffers all = {.mask = {1, 0, 1}, .count = -9};
  describe(&all);
  mdp_checkpoint_config config = {
      .struct_size = sizeof config, .directory = directory, .parts = &part, .part_count = 1, .tensors = all.tensors, .tensor_count = 2};
  if (writes) {
    config.shared_data = "epoch 3";
    config.shared_bytes = 7;
    config.rank_data = &rank;
    config.rank_bytes = sizeof rank;
    move_params(&j, t, tp, 1);
    move_states(&j, t, tp, 1);
    OK(mdp_optimizer_set_steps(j.optimizer, STEPS, NULL, 0));
    OK(mdp_checkpoint_save(&config, NULL));
  } else {
    memset(all.mask, 9, sizeof all.mask);
    all.count = 0;
    OK(mdp_checkpoint_load(&config));
    move_params(&j, t, tp, 0);
    move_states(&j, t, tp, 0);
    CHECK(all.mask[0] == 1 && all.mask[1] == 0 && all.mask[2] == 1 && all.count == -9);
    uint64_t steps = 0;
    OK(mdp_optimizer_steps(j.optimizer, HEAD, &steps));
    CHECK(steps == STEPS);
  }
  OK(mdp_barrier(j.comm, NULL));
  job_close(&j);
}

static void is_written(void** state) {
  (void)state;
  int writes = 1;
  run_ranks(2, one_rank, &writes);
}

static void loads(void** state) {
  (void)state;
  int writes = 0;
  be_alone();
  for (int32_t n = 1; n <= 3; ++n) run_ranks(n, one_rank, &writes);
  OK(mdp_checkpoint_verify(directory, NULL, 0, NULL));
  char text[8] = "";
  int32_t told = 0;
  size_t needed = 0;
  OK(mdp_checkpoint_data(directory, -1, text, sizeof text, &needed));
  OK(mdp_checkpoint_data(directory, 1, &told, sizeof told, &needed));
  CHECK(memcmp(text, "epoch 3", 7) == 0 && told == 1);
}

int main(int argc, char** argv) {
  const struct CMUnitTest writing[] = {TEST(is_written)}, loading[] = {TEST(loads)};
  if (argc < 2) return 2;
  directory = argv[argc - 1];
  return argc == 3 && strcmp(argv[1], "write") == 0 ? cmocka_run_group_tests(writing, NULL, NULL)
                                                    : cmocka_run_group_tests(loading, NULL, NULL);
}
