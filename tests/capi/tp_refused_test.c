/* SPDX-License-Identifier: Apache-2.0
 * Tensor-parallel layers: every argument that is refused, with its sentence, which is the same on all ranks where they make a layer
 * together; and the check of what is called replicated. */
#include <string.h>

#include "tp.h"

static void bad_layers(tp_rank* r) {
  SIZED(mdp_tp_linear_config, c);
  mdp_tp_linear* layer = NULL;
#define MAKE() mdp_tp_linear_create(r->comm, &c, &layer)
  FAILS(MDP_E_INVALID, "out is NULL", mdp_tp_linear_create(r->comm, &c, NULL));
  FAILS(MDP_E_INVALID, "comm is NULL", mdp_tp_linear_create(NULL, &c, &layer));
  FAILS(MDP_E_INVALID, "config is NULL", mdp_tp_linear_create(r->comm, NULL, &layer));
  FAILS(MDP_E_INVALID, "config.split is 0; it must be MDP_TP_COLUMN (1) or MDP_TP_ROW (2)", MAKE());
  c.split = MDP_TP_COLUMN;
  FAILS(MDP_E_INVALID, "config.in_features is 0", MAKE());
  c.in_features = 6;
  c.out_features = -2;
  FAILS(MDP_E_INVALID, "config.out_features is -2", MAKE());
  c.out_features = 5;
  FAILS(MDP_E_INVALID, "config.out_features is 5, which 2 ranks cannot share evenly; 4 or 6 would do", MAKE());
  c.out_features = 1;
  FAILS(MDP_E_INVALID, "config.out_features is 1, which 2 ranks cannot share evenly; 2 would do", MAKE());
  c.out_features = 8;
  const int64_t odd[] = {5, 3}, less[] = {4, 2}, none[] = {8, 0}, huge[] = {100, 8};
  c.block_count = 2;
  FAILS(MDP_E_INVALID, "config.blocks is NULL", MAKE());
  c.blocks = odd;
  FAILS(MDP_E_INVALID, "config.blocks[0] is 5, which 2 ranks cannot share evenly; 4 or 6 would do", MAKE());
  c.blocks = less;
  FAILS(MDP_E_INVALID, "the sum of config.blocks is 6; it must be config.out_features, 8", MAKE());
  c.blocks = none;
  FAILS(MDP_E_INVALID, "config.blocks[1] is 0", MAKE());
  c.blocks = huge;
  FAILS(MDP_E_INVALID, "config.blocks[0] is 100, which is more than the layer has features", MAKE());
  c.block_count = 100000;
  FAILS(MDP_E_INVALID, "config.block_count is 100000", MAKE());
  c.blocks = NULL;
  c.block_count = 0;
  c.dtype = MDP_DTYPE_F16;
  FAILS(MDP_E_INVALID, "config.dtype is 4; it must be MDP_DTYPE_F32", MAKE());
  c.dtype = MDP_DTYPE_DEFAULT;
  c.flags = 64;
  FAILS(MDP_E_INVALID, "config.flags", MAKE());
  c.flags = MDP_TP_LINEAR_WHOLE_INPUT;
  FAILS(MDP_E_INVALID, "LINEAR_WHOLE_INPUT (16), which is of MDP_TP_ROW", MAKE());
  c.flags = MDP_TP_LINEAR_GATHER_OUTPUT;
  FAILS(MDP_E_INVALID, "config.grad is MDP_TP_GRAD_UNSET (0), but the output of this layer is the same on all ranks", MAKE());
  c.grad = 9;
  FAILS(MDP_E_INVALID, "config.grad is 9", MAKE());
  c.grad = MDP_TP_GRAD_REPLICATED;
  c.split = MDP_TP_ROW;
  FAILS(MDP_E_INVALID, "LINEAR_GATHER_OUTPUT (8), which is of MDP_TP_COLUMN", MAKE());
  c.flags = MDP_TP_LINEAR_WHOLE_INPUT | MDP_TP_LINEAR_SEQUENCE;
  FAILS(MDP_E_INVALID, "LINEAR_WHOLE_INPUT (16) and LINEAR_SEQUENCE (4)", MAKE());
  c.flags = 0;
  c.weight = 1;
  FAILS(MDP_E_INVALID, "config.buffer is NULL, but config.weight is 1", MAKE());
  c.weight = 0;
  c.out_features = r->rank == 0 ? 8 : 16;
  FAILS(MDP_E_DESYNC, "ranks 0 and 1 create different layers: 'row of 6 to 8 features", MAKE());
  CHECK(layer == NULL);
#undef MAKE
}

/* Whatever one rank asks for otherwise. */
static void different_layers(tp_rank* r) {
  static const int64_t halves[] = {4, 4};
  static const char* const told[] = {
      "'row of 8 to 8", "of 4 to 8",  "blocks 4 4",      "bf16",          ", bias",
      ", transposed",   ", sequence", ", gather output", ", whole input", ", gather output, partial gradient'",
      ", checks"};
  const int other = r->rank == 1;
  for (int way = 0; way < 11; ++way) {
    SIZED(mdp_tp_linear_config, c);
    c.split = way == 8 || (way == 0 && other) ? MDP_TP_ROW : MDP_TP_COLUMN;
    c.in_features = way == 1 && other ? 4 : 8;
    c.out_features = 8;
    c.grad = c.split == MDP_TP_ROW || way >= 7 ? MDP_TP_GRAD_PARTIAL : MDP_TP_GRAD_UNSET;
    if (way == 2 && other) c.blocks = halves;
    if (way == 2 && other) c.block_count = 2;
    if (way == 3 && other) c.dtype = MDP_DTYPE_BF16;
    if (way == 4 && other) c.flags = MDP_TP_LINEAR_BIAS;
    if (way == 5 && other) c.flags = MDP_TP_LINEAR_TRANSPOSED;
    if (way == 6 && other) c.flags = MDP_TP_LINEAR_SEQUENCE;
    if (way == 7 && !other) c.grad = MDP_TP_GRAD_UNSET;
    if ((way == 7 && other) || way == 9) c.flags = MDP_TP_LINEAR_GATHER_OUTPUT;
    if (way == 8 && other) c.flags = MDP_TP_LINEAR_WHOLE_INPUT;
    if (way == 9 && !other) c.grad = MDP_TP_GRAD_REPLICATED;
    if (way == 10) c.grad = MDP_TP_GRAD_UNSET;
    if (way == 10 && other) c.flags = MDP_TP_LINEAR_CHECK_REPLICATED;
    mdp_tp_linear* layer = NULL;
    FAILS(MDP_E_DESYNC, told[way], mdp_tp_linear_create(r->comm, &c, &layer));
    CHECK(layer == NULL && strstr(mdp_last_error(), "ranks 0 and 1 create different layers") != NULL);
  }
}

typedef struct {
  mdp_tp_linear *layer, *other; /* without and with a bias */
  tp_array x, x_odd, y, y_whole, w, vector, b, half, dx, dw;
} operands;

static void take_operands(tp_rank* r, operands* a) {
  SIZED(mdp_tp_linear_config, c);
  c.split = MDP_TP_ROW;
  c.in_features = 4;
  c.out_features = 3;
  c.flags = MDP_TP_LINEAR_SEQUENCE;
  OK(mdp_tp_linear_create(r->comm, &c, &a->layer));
  c.flags = MDP_TP_LINEAR_BIAS;
  c.grad = MDP_TP_GRAD_REPLICATED;
  OK(mdp_tp_linear_create(r->comm, &c, &a->other));
  const int64_t in[] = {4, 2}, odd[] = {3, 2}, out[] = {2, 3}, whole[] = {4, 3}, weight[] = {3, 2}, flat = 2, three = 3;
  tp_take(r, &a->x, MDP_DTYPE_F32, DENSE, 2, in);
  tp_take(r, &a->x_odd, MDP_DTYPE_F32, DENSE, 2, odd);
  tp_take(r, &a->y, MDP_DTYPE_F32, DENSE, 2, out);
  tp_take(r, &a->y_whole, MDP_DTYPE_F32, DENSE, 2, whole);
  tp_take(r, &a->w, MDP_DTYPE_F32, DENSE, 2, weight);
  tp_take(r, &a->vector, MDP_DTYPE_F32, DENSE, 1, &flat);
  tp_take(r, &a->b, MDP_DTYPE_F32, DENSE, 1, &three);
  tp_take(r, &a->half, MDP_DTYPE_BF16, DENSE, 2, in);
  tp_take(r, &a->dx, MDP_DTYPE_F32, DENSE, 2, in);
  tp_take(r, &a->dw, MDP_DTYPE_F32, DENSE, 2, weight);
}

static void bad_forwards(const operands* a) {
#define FWD(x, w, b, y) mdp_tp_linear_fwd(a->layer, x, w, b, y, NULL, NULL)
  FAILS(MDP_E_INVALID, "linear is NULL", mdp_tp_linear_fwd(NULL, &a->x.tensor, &a->w.tensor, NULL, &a->y.tensor, NULL, NULL));
  FAILS(MDP_E_INVALID, "input is NULL", FWD(NULL, &a->w.tensor, NULL, &a->y.tensor));
  FAILS(MDP_E_INVALID, "output is NULL", FWD(&a->x.tensor, &a->w.tensor, NULL, NULL));
  FAILS(MDP_E_INVALID, "weight is NULL; the layer has no buffer", FWD(&a->x.tensor, NULL, NULL, &a->y.tensor));
  FAILS(MDP_E_INVALID, "bias is given, but the layer has no bias", FWD(&a->x.tensor, &a->w.tensor, &a->b.tensor, &a->y.tensor));
  FAILS(MDP_E_INVALID, "bias is NULL", mdp_tp_linear_fwd(a->other, &a->x.tensor, &a->w.tensor, NULL, &a->y_whole.tensor, NULL, NULL));
  FAILS(MDP_E_INVALID, "input has 1 dimensions; it must have 2 or more", FWD(&a->vector.tensor, &a->w.tensor, NULL, &a->y.tensor));
  FAILS(MDP_E_INVALID, "input.dtype is bf16; the layer's is f32", FWD(&a->half.tensor, &a->w.tensor, NULL, &a->y.tensor));
  FAILS(MDP_E_INVALID, "its first dimension is cut over 2 ranks, which cannot share it evenly",
        FWD(&a->x_odd.tensor, &a->w.tensor, NULL, &a->y.tensor));
  FAILS(MDP_E_INVALID, "input has shape [4,3]; its last dimension must be 2, this rank's part of in_features",
        FWD(&a->y_whole.tensor, &a->w.tensor, NULL, &a->y.tensor));
  FAILS(MDP_E_INVALID, "output has shape [4,3]; with input of shape [4,2] it must have [2,3]",
        FWD(&a->x.tensor, &a->w.tensor, NULL, &a->y_whole.tensor));
  FAILS(MDP_E_INVALID, "weight has shape [4,2]; this rank's part has [3,2]", FWD(&a->x.tensor, &a->x.tensor, NULL, &a->y.tensor));
  mdp_tensor same = a->y.tensor;
  same.data = a->x.tensor.data;
  FAILS(MDP_E_INVALID, "output.data and input.data are the same memory", FWD(&a->x.tensor, &a->w.tensor, NULL, &same));
#undef FWD
}

static void bad_backwards(const operands* a) {
#define BWD(saved, x, w, dy, dx, dw, db, flags) mdp_tp_linear_bwd(a->layer, saved, x, w, dy, dx, dw, db, flags, NULL)
  FAILS(MDP_E_INVALID, "linear is NULL",
        mdp_tp_linear_bwd(NULL, NULL, &a->x.tensor, &a->w.tensor, &a->y.tensor, NULL, NULL, NULL, 0, NULL));
  FAILS(MDP_E_INVALID, "grad_output is NULL", BWD(NULL, &a->x.tensor, &a->w.tensor, NULL, NULL, NULL, NULL, 0));
  FAILS(MDP_E_INVALID, "saved and input are both NULL; the gradient of the weight needs the input",
        BWD(NULL, NULL, &a->w.tensor, &a->y.tensor, NULL, &a->dw.tensor, NULL, 0));
  FAILS(MDP_E_INVALID, "flags", BWD(NULL, &a->x.tensor, &a->w.tensor, &a->y.tensor, NULL, &a->dw.tensor, NULL, 2));
  FAILS(MDP_E_INVALID, "grad_output has shape [4,3]; with an input of shape [4,2] it must have [2,3]",
        BWD(NULL, &a->x.tensor, &a->w.tensor, &a->y_whole.tensor, NULL, &a->dw.tensor, NULL, 0));
  FAILS(MDP_E_INVALID, "grad_input has shape [3,2]; the input has [4,2]",
        BWD(NULL, &a->x.tensor, &a->w.tensor, &a->y.tensor, &a->x_odd.tensor, NULL, NULL, 0));
  FAILS(MDP_E_INVALID, "weight is NULL", BWD(NULL, &a->x.tensor, NULL, &a->y.tensor, &a->dx.tensor, NULL, NULL, 0));
  FAILS(MDP_E_INVALID, "grad_weight has shape [4,2]; this rank's part has [3,2]",
        BWD(NULL, &a->x.tensor, &a->w.tensor, &a->y.tensor, NULL, &a->dx.tensor, NULL, 0));
  FAILS(MDP_E_INVALID, "grad_bias is given, but the layer has no bias",
        BWD(NULL, &a->x.tensor, &a->w.tensor, &a->y.tensor, NULL, NULL, &a->b.tensor, 0));
  FAILS(MDP_E_INVALID, "grad_input.data and grad_output.data are the same memory",
        BWD(NULL, &a->x.tensor, &a->w.tensor, &a->y.tensor, &a->y.tensor, NULL, NULL, 0));
  mdp_tp_saved* saved = NULL;
  OK(mdp_tp_linear_fwd(a->layer, &a->x.tensor, &a->w.tensor, NULL, &a->y.tensor, NULL, &saved));
  FAILS(MDP_E_INVALID, "saved and input are both given",
        BWD(saved, &a->x.tensor, &a->w.tensor, &a->y.tensor, &a->dx.tensor, NULL, NULL, 0));
  FAILS(MDP_E_INVALID, "linear is an mdp_tp_saved",
        mdp_tp_linear_fwd((mdp_tp_linear*)saved, &a->x.tensor, NULL, NULL, &a->y.tensor, NULL, NULL));
#undef BWD
  /* In any order. */
  mdp_tp_linear_destroy(a->layer);
  mdp_tp_saved_free(saved);
  mdp_tp_saved_free(NULL);
  mdp_tp_linear_destroy(NULL);
  mdp_tp_linear_destroy(a->other);
}

/* Blocks that the weight's placement does not know. */
static void bad_pieces(tp_rank* r, mdp_tp_linear_config c) {
  mdp_tp_linear* layer = NULL;
  const int64_t halves[] = {4, 4}, uneven[] = {6, 2};
  c.block_count = 2;
  c.blocks = halves;
  FAILS(MDP_E_INVALID, "config.weight: parameter 0 'w' has 1 pieces a rank (shard_stride); in this layer it has 2",
        mdp_tp_linear_create(r->comm, &c, &layer));
  c.blocks = uneven;
  FAILS(MDP_E_INVALID, "config.blocks has sizes that differ", mdp_tp_linear_create(r->comm, &c, &layer));
}

/* Parameters that are not the layer's: the same sentence on all ranks, whichever has the wrong one. */
static void bad_parameters(tp_rank* r) {
  SIZED(mdp_grid_config, cut);
  cut.tp = 2;
  mdp_grid* grid = NULL;
  mdp_buffer* buffer = NULL;
  OK(mdp_grid_create(r->comm, &cut, &grid));
  const int64_t shape[] = {4, 6}, other[] = {4, 5}, four = 4;
  const mdp_param params[] = {
      {.struct_size = sizeof *params, .name = "w", .shape = shape, .ndim = 2, .placement = MDP_PLACEMENT_SHARDED},
      {.struct_size = sizeof *params, .name = "b", .shape = &four, .ndim = 1, .placement = MDP_PLACEMENT_SHARDED},
      {.struct_size = sizeof *params, .name = "odd", .shape = other, .ndim = 2, .placement = MDP_PLACEMENT_SHARDED},
      {.struct_size = sizeof *params, .name = "whole", .shape = shape, .ndim = 2, .placement = MDP_PLACEMENT_REPLICATED},
      {.struct_size = sizeof *params, .name = "turned", .shape = shape, .ndim = 2, .placement = MDP_PLACEMENT_SHARDED, .shard_dim = 1},
      {.struct_size = sizeof *params,
       .name = "half",
       .shape = shape,
       .ndim = 2,
       .placement = MDP_PLACEMENT_SHARDED,
       .dtype = MDP_DTYPE_BF16},
  };
  OK(mdp_buffer_register(NULL, grid, NULL, params, sizeof params / sizeof *params, &buffer));
  SIZED(mdp_tp_linear_config, c);
  c.split = MDP_TP_COLUMN;
  c.in_features = 6;
  c.out_features = 8;
  c.buffer = buffer;
  c.bias = 1;
  c.flags = MDP_TP_LINEAR_BIAS;
  mdp_tp_linear* layer = NULL;
  const struct {
    uint64_t weight, bias;
    const char* sentence;
  } bad[] = {
      {6, 1, "config.weight is 6; the buffer has parameters 0 to 5"},
      {2, 1, "config.weight: parameter 2 'odd' has shape [4,5]; this rank's part has [4,6]"},
      {3, 1, "config.weight: parameter 3 'whole' has placement replicated; in this layer it must be sharded"},
      {4, 1, "config.weight: parameter 4 'turned' is cut along dimension 1 (shard_dim); in this layer it is 0"},
      {5, 1, "config.weight: parameter 5 'half' is bf16; config.dtype is f32"},
      {0, 3, "config.bias: parameter 3 'whole' has shape [4,6]; this rank's part has [4]"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
    c.weight = bad[i].weight;
    c.bias = bad[i].bias;
    FAILS(MDP_E_INVALID, bad[i].sentence, mdp_tp_linear_create(r->comm, &c, &layer));
    c.weight = r->rank == 1 ? bad[i].weight : 0; /* wrong on one rank only: the other learns why */
    c.bias = r->rank == 1 ? bad[i].bias : 1;
    FAILS(MDP_E_INVALID, bad[i].sentence, mdp_tp_linear_create(r->comm, &c, &layer));
  }
  c.weight = 0;
  c.bias = 1;
  bad_pieces(r, c);
  OK(mdp_tp_linear_create(r->comm, &c, &layer));
  mdp_tp_linear_destroy(layer);
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
}

static void refuse(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 13);
  bad_layers(&r);
  different_layers(&r);
  operands a;
  take_operands(&r, &a);
  bad_forwards(&a);
  bad_backwards(&a);
  bad_parameters(&r);
  tp_close(&r);
}

static void refused(void** state) {
  (void)state;
  run_ranks(2, refuse, NULL);
}

/* The check of what is called replicated. */
static void differ(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  SIZED(mdp_tp_linear_config, c);
  c.split = MDP_TP_COLUMN;
  c.in_features = c.out_features = 2;
  c.flags = MDP_TP_LINEAR_CHECK_REPLICATED | MDP_TP_LINEAR_GATHER_OUTPUT;
  c.grad = MDP_TP_GRAD_REPLICATED;
  mdp_tp_linear* layer = NULL;
  OK(mdp_tp_linear_create(r.comm, &c, &layer));
  const int64_t in[] = {1, 2}, weight[] = {1, 2}, at[] = {0, 1};
  tp_array x, w, y, dx;
  tp_take(&r, &x, MDP_DTYPE_F32, DENSE, 2, in);
  tp_take(&r, &w, MDP_DTYPE_F32, DENSE, 2, weight);
  tp_take(&r, &y, MDP_DTYPE_F32, DENSE, 2, in);
  tp_take(&r, &dx, MDP_DTYPE_F32, DENSE, 2, in);
  OK(mdp_tp_linear_fwd(layer, &x.tensor, &w.tensor, NULL, &y.tensor, NULL, NULL));
  tp_settle(&r);
  tp_set(&x, at, (float)rank);
  FAILS(MDP_E_INVALID, "input is not the same on ranks 0 and 1",
        mdp_tp_linear_fwd(layer, &x.tensor, &w.tensor, NULL, &y.tensor, NULL, NULL));
  tp_set(&x, at, 0);
  tp_set(&y, at, (float)rank);
  FAILS(MDP_E_INVALID, "grad_output is not the same on ranks 0 and 1",
        mdp_tp_linear_bwd(layer, NULL, &x.tensor, &w.tensor, &y.tensor, &dx.tensor, NULL, NULL, 0, NULL));
  mdp_tp_linear_destroy(layer);
  tp_close(&r);
}

static void not_replicated(void** state) {
  (void)state;
  run_ranks(2, differ, NULL);
}

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(refused), TEST(not_replicated)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
