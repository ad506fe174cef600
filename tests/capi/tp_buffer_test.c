/* SPDX-License-Identifier: Apache-2.0
 * Tensor-parallel layers whose weights are parameters of a buffer, on tp x dp ranks with every sharding: reduced gradients and their norm
 * are those of the whole layers over all batches; saved inputs are for one backward of their own layer. */
#include <math.h>
#include <string.h>

#include "tp.h"

enum {
  SEQ = 12,
  IN = 24,
  OUT = 12
};

/* Small multiples of 1/4: products and sums are exact in f32, and so the same however they are cut. */
static double small(int64_t a, int64_t b, int64_t salt) {
  return (double)((a * 7 + b * 3 + salt * 5) % 9 - 4) / 4;
}

typedef struct {
  mdp_sharding sharding;
  mdp_dtype dtype, grad_dtype;
  int sequence, transposed;
} trained;

enum {
  UP,
  UP_BIAS,
  DOWN,
  DOWN_BIAS,
  MODEL
};

/* Two layers, x -> UP -> DOWN -> y, of a buffer on tp x dp ranks. */
typedef struct {
  tp_rank room; /* its communicator is the tensor-parallel one */
  mdp_comm* world;
  mdp_grid* grid;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
  mdp_tp_linear *up, *down;
  int32_t dp;
} model;

enum {
  HIDDEN = 8
};

static void fill_part(model* m, size_t param, int64_t rows, int64_t columns, int64_t row, int64_t column, int64_t salt, int turned) {
  float values[IN * IN];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) values[turned ? c * rows + r : r * columns + c] = (float)small(row + r, column + c, salt);
  }
  const int64_t shape[] = {turned ? columns : rows, turned ? rows : columns};
  mdp_tensor from = tensor_of(MDP_DTYPE_F32, values, shape);
  from.ndim = param == UP || param == DOWN ? 2 : 1;
  const int64_t flat = rows * columns;
  if (from.ndim == 1) from.shape = &flat;
  OK(mdp_param_write(m->buffer, param, &from, NULL));
}

static mdp_tp_linear* make_layer(model* m, const trained* t, mdp_tp_split split, int64_t in, int64_t out, size_t weight) {
  SIZED(mdp_tp_linear_config, config);
  config.split = split;
  config.in_features = in;
  config.out_features = out;
  config.buffer = m->buffer;
  config.weight = weight;
  config.bias = weight + 1;
  config.dtype = t->dtype;
  config.grad = MDP_TP_GRAD_REPLICATED;
  config.flags = MDP_TP_LINEAR_BIAS | (t->sequence ? MDP_TP_LINEAR_SEQUENCE : 0) | (t->transposed ? MDP_TP_LINEAR_TRANSPOSED : 0);
  mdp_tp_linear* layer = NULL;
  OK(mdp_tp_linear_create(m->room.comm, &config, &layer));
  return layer;
}

static model model_open(const mdp_unique_id* id, int32_t rank, int32_t n, int32_t tp, const trained* t) {
  model m = {.world = comm_open(id, rank, n, UINT64_C(60000000000)), .dp = n / tp};
  SIZED(mdp_grid_config, cut);
  cut.tp = tp;
  OK(mdp_grid_create(m.world, &cut, &m.grid));
  mdp_comm* ranks = NULL;
  OK(mdp_grid_comm(m.grid, MDP_AXIS_TP, &ranks));
  m.room = tp_on(ranks, 1 << 14);
  const int64_t hidden = HIDDEN / tp, out = OUT;
  int64_t up[] = {hidden, IN}, down[] = {OUT, hidden};
  if (t->transposed) up[0] = IN, up[1] = hidden, down[0] = hidden, down[1] = OUT;
  const mdp_placement sum = t->sequence ? MDP_PLACEMENT_PARTIAL_SUM : MDP_PLACEMENT_REPLICATED;
  const mdp_param params[MODEL] = {
      {.struct_size = sizeof *params,
       .dtype = t->dtype,
       .name = "up",
       .shape = up,
       .ndim = 2,
       .placement = MDP_PLACEMENT_SHARDED,
       .shard_dim = t->transposed ? 1 : 0},
      {.struct_size = sizeof *params,
       .dtype = t->dtype,
       .name = "up_bias",
       .shape = &hidden,
       .ndim = 1,
       .placement = MDP_PLACEMENT_SHARDED},
      {.struct_size = sizeof *params,
       .dtype = t->dtype,
       .name = "down",
       .shape = down,
       .ndim = 2,
       .placement = MDP_PLACEMENT_SHARDED,
       .shard_dim = t->transposed ? 0 : 1},
      {.struct_size = sizeof *params, .dtype = t->dtype, .name = "down_bias", .shape = &out, .ndim = 1, .placement = sum},
  };
  SIZED(mdp_buffer_config, config);
  config.sharding = t->sharding;
  config.grad_dtype = t->grad_dtype;
  OK(mdp_buffer_register(NULL, m.grid, &config, params, MODEL, &m.buffer));
  fill_part(&m, UP, hidden, IN, m.room.rank * hidden, 0, 1, t->transposed);
  fill_part(&m, UP_BIAS, hidden, 1, m.room.rank * hidden, 0, 2, 0);
  fill_part(&m, DOWN, OUT, hidden, 0, m.room.rank * hidden, 3, t->transposed);
  fill_part(&m, DOWN_BIAS, OUT, 1, 0, 0, 4, 0);
  SIZED(mdp_optimizer_config, adamw);
  OK(mdp_optimizer_create(m.buffer, &adamw, &m.optimizer));
  m.up = make_layer(&m, t, MDP_TP_COLUMN, IN, HIDDEN, UP);
  m.down = make_layer(&m, t, MDP_TP_ROW, HIDDEN, OUT, DOWN);
  return m;
}

static void model_close(model* m) {
  mdp_tp_linear_destroy(m->up);
  mdp_tp_linear_destroy(m->down);
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  tp_close(&m->room);
  mdp_grid_destroy(m->grid);
  mdp_comm_destroy(m->world);
}

/* The same two layers whole, for the batch of a data-parallel rank: adds to gradients in the order of the parameters. */
typedef struct {
  double up[HIDDEN][IN], up_bias[HIDDEN], down[OUT][HIDDEN], down_bias[OUT];
} gradients;

static double batch_x(int32_t dp, int64_t row, int64_t i) {
  return small(row + dp, i, 5);
}
static double batch_dy(int32_t dp, int64_t row, int64_t o) {
  return small(row, o + dp, 6);
}

static void add_whole(gradients* g, int32_t dp) {
  for (int64_t row = 0; row < SEQ; ++row) {
    double hidden[HIDDEN], back[HIDDEN] = {0};
    for (int64_t h = 0; h < HIDDEN; ++h) {
      hidden[h] = small(h, 0, 2);
      for (int64_t i = 0; i < IN; ++i) hidden[h] += small(h, i, 1) * batch_x(dp, row, i);
    }
    for (int64_t o = 0; o < OUT; ++o) {
      const double dy = batch_dy(dp, row, o);
      g->down_bias[o] += dy;
      for (int64_t h = 0; h < HIDDEN; ++h) {
        g->down[o][h] += dy * hidden[h];
        back[h] += dy * small(o, h, 3);
      }
    }
    for (int64_t h = 0; h < HIDDEN; ++h) {
      g->up_bias[h] += back[h];
      for (int64_t i = 0; i < IN; ++i) g->up[h][i] += back[h] * batch_x(dp, row, i);
    }
  }
}

/* What this rank owns of the reduced gradients, against the whole layers'. */
static int wrong_gradients(model* m, const trained* t, const gradients* whole) {
  mdp_range ranges[4 * MODEL];
  const size_t owned = owned_ranges(m->buffer, ranges, 4 * MODEL);
  const int64_t hidden = HIDDEN / m->room.size, first = m->room.rank * hidden;
  int wrong = 0;
  for (size_t i = 0; i < owned; ++i) {
    const size_t param = (size_t)ranges[i].param;
    SIZED(mdp_tensor, grad);
    OK(mdp_grad_owned(m->buffer, param, &grad));
    tp_array a = {.tensor = grad, .strides = {1}};
    for (int64_t e = 0; e < ranges[i].end - ranges[i].begin; ++e) {
      const int64_t flat = ranges[i].param_begin + e, columns = param == UP ? IN : hidden, rows = param == UP ? hidden : OUT;
      const int64_t row = t->transposed ? flat % rows : flat / columns, column = t->transposed ? flat / rows : flat % columns;
      const double wanted = param == UP        ? whole->up[first + row][column]
                            : param == UP_BIAS ? whole->up_bias[first + flat]
                            : param == DOWN    ? whole->down[row][first + column]
                                               : whole->down_bias[flat];
      const double got = tp_get(&a, &e);
      wrong += fabs(got - wanted / m->dp) > (t->dtype == MDP_DTYPE_BF16 ? 0.05 * fabs(wanted) + 1 : 0);
    }
  }
  return wrong;
}

static void train(model* m, const trained* t) {
  tp_rank* const memory = &m->room;
  int32_t dp = 0, size = 0;
  OK(mdp_grid_coords(m->grid, MDP_AXIS_DP, &dp, &size));
  const int64_t part = t->sequence ? SEQ / m->room.size : SEQ, begin = t->sequence ? m->room.rank * part : 0;
  const int64_t in[] = {part, IN}, hidden[] = {SEQ, HIDDEN / m->room.size}, out[] = {part, OUT};
  tp_array x, h, y, dy, dh;
  tp_reset(memory);
  tp_take(memory, &x, t->dtype, DENSE, 2, in);
  tp_take(memory, &h, t->dtype, DENSE, 2, hidden);
  tp_take(memory, &y, t->dtype, DENSE, 2, out);
  tp_take(memory, &dy, t->dtype, DENSE, 2, out);
  tp_take(memory, &dh, t->dtype, DENSE, 2, hidden);
  int64_t at[2];
  for (at[0] = 0; at[0] < part; ++at[0]) {
    for (at[1] = 0; at[1] < IN; ++at[1]) tp_set(&x, at, (float)batch_x(dp, begin + at[0], at[1]));
    for (at[1] = 0; at[1] < OUT; ++at[1]) tp_set(&dy, at, (float)batch_dy(dp, begin + at[0], at[1]));
  }
  mdp_tp_saved *first = NULL, *second = NULL;
  OK(mdp_tp_linear_fwd(m->up, &x.tensor, NULL, NULL, &h.tensor, NULL, &first));
  OK(mdp_tp_linear_fwd(m->down, &h.tensor, NULL, NULL, &y.tensor, NULL, &second));
  FAILS(MDP_E_STATE, "saved was made by the forward of another layer",
        mdp_tp_linear_bwd(m->down, first, NULL, NULL, &dy.tensor, &dh.tensor, NULL, NULL, 0, NULL));
  OK(mdp_tp_linear_bwd(m->down, second, NULL, NULL, &dy.tensor, &dh.tensor, NULL, NULL, 0, NULL));
  FAILS(MDP_E_STATE, "saved was used by an earlier mdp_tp_linear_bwd",
        mdp_tp_linear_bwd(m->down, second, NULL, NULL, &dy.tensor, &dh.tensor, NULL, NULL, 0, NULL));
  OK(mdp_tp_linear_bwd(m->up, first, NULL, NULL, &dh.tensor, NULL, NULL, NULL, 0, NULL));
  mdp_tp_saved_free(first);
  mdp_tp_saved_free(second);
  sync_and_wait(m->buffer);

  gradients whole = {{{0}}, {0}, {{0}}, {0}};
  for (int32_t d = 0; d < m->dp; ++d) add_whole(&whole, d);
  CHECK(wrong_gradients(m, t, &whole) == 0);
  double squares = 0;
  const double* all = &whole.up[0][0];
  for (size_t i = 0; i < sizeof whole / sizeof *all; ++i) squares += (all[i] / m->dp) * (all[i] / m->dp);
  double norm = 0;
  OK(mdp_grad_norm(m->buffer, NULL, 0, &norm));
  if (!CHECK(fabs(norm - sqrt(squares)) <= (t->dtype == MDP_DTYPE_BF16 ? 0.02 : 1e-6) * sqrt(squares))) {
    printf("norm %.9g, of the whole layers %.9g\n", norm, sqrt(squares));
  }
  step_and_wait(m->optimizer);
}

static void two_layers(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int32_t tp = *(const int32_t*)argument;
  mdp_unique_id own;
  for (int kind = 0; kind < 16; ++kind) {
    const trained t = {kind % 4 == 3 ? MDP_SHARDING_ZERO_2 : (mdp_sharding)(kind % 4), kind >= 8 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32,
                       kind % 2 ? MDP_DTYPE_F32 : MDP_DTYPE_SAME, kind / 2 % 2, kind / 4 % 2};
    model m = model_open(id, rank, n, tp, &t);
    train(&m, &t);
    const int64_t bytes = sizeof own;
    mdp_tensor next = tensor_of(MDP_DTYPE_U8, &own, &bytes);
    OK(mdp_unique_id_create(&own)); /* of the next job: it goes round in this one's world */
    OK(mdp_broadcast(m.world, &next, 0, NULL, NULL));
    model_close(&m);
    static _Thread_local mdp_unique_id kept;
    kept = own;
    id = &kept;
  }
}

static void in_a_buffer(void** state) {
  (void)state;
  const int32_t cuts[][2] = {{1, 1}, {2, 2}, {4, 2}, {4, 4}};
  for (int i = 0; i < 4; ++i) run_ranks(cuts[i][0], two_layers, (void*)&cuts[i][1]);
}

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(in_a_buffer)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
