/* SPDX-License-Identifier: Apache-2.0
 * The operators between what is replicated and what is cut over tensor-parallel ranks: each, forward and backward, along each dimension,
 * with equal and unequal parts, of arrays of several layouts, against an oracle that knows all elements; what is refused; and the check of
 * what is called replicated. */
#include <string.h>

#include "tp.h"

enum {
  MOST = 4,
  NDIM = 3
};

/* Element `at` of what rank `owner` has; small, so that sums are exact in bf16 too. */
static float value(int32_t owner, const int64_t* at) {
  return (float)((owner * 5 + at[0] * 7 + at[1] * 3 + at[2] * 11) % 9 - 4);
}

enum {
  WHOLE,
  DIM,
  TO_DIM
}; /* along what an array is cut */
typedef struct {
  mdp_tp_region region;
  mdp_tp_grad grad;
  int backward, from, to, partial; /* partial: the output is the sum of what the ranks have */
} direction;
static const direction directions[] = {
    {MDP_TP_COPY, MDP_TP_GRAD_PARTIAL, 0, WHOLE, WHOLE, 0},       {MDP_TP_COPY, MDP_TP_GRAD_PARTIAL, 1, WHOLE, WHOLE, 1},
    {MDP_TP_COPY, MDP_TP_GRAD_REPLICATED, 1, WHOLE, WHOLE, 0},    {MDP_TP_REDUCE, MDP_TP_GRAD_REPLICATED, 0, WHOLE, WHOLE, 1},
    {MDP_TP_REDUCE, MDP_TP_GRAD_REPLICATED, 1, WHOLE, WHOLE, 0},  {MDP_TP_REDUCE, MDP_TP_GRAD_PARTIAL, 1, WHOLE, WHOLE, 1},
    {MDP_TP_SCATTER, MDP_TP_GRAD_UNSET, 0, WHOLE, DIM, 0},        {MDP_TP_SCATTER, MDP_TP_GRAD_UNSET, 1, DIM, WHOLE, 0},
    {MDP_TP_GATHER, MDP_TP_GRAD_PARTIAL, 0, DIM, WHOLE, 0},       {MDP_TP_GATHER, MDP_TP_GRAD_PARTIAL, 1, WHOLE, DIM, 1},
    {MDP_TP_GATHER, MDP_TP_GRAD_REPLICATED, 1, WHOLE, DIM, 0},    {MDP_TP_REDUCE_SCATTER, MDP_TP_GRAD_UNSET, 0, WHOLE, DIM, 1},
    {MDP_TP_REDUCE_SCATTER, MDP_TP_GRAD_UNSET, 1, DIM, WHOLE, 0}, {MDP_TP_EXCHANGE, MDP_TP_GRAD_UNSET, 0, DIM, TO_DIM, 0},
    {MDP_TP_EXCHANGE, MDP_TP_GRAD_UNSET, 1, TO_DIM, DIM, 0},
};
enum {
  DIRECTIONS = sizeof directions / sizeof directions[0]
};

typedef struct { /* how dimension d is cut: the parts, and where each begins */
  uint64_t sizes[MOST];
  int64_t begin[MOST + 1];
} cut;

static cut cut_of(int64_t d, int32_t n, int uneven) {
  cut c = {{0}, {0}};
  for (int32_t r = 0; r < n; ++r) {
    c.sizes[r] = uneven ? (uint64_t)((r * 2 + d) % 4) : 2;
    c.begin[r + 1] = c.begin[r] + (int64_t)c.sizes[r];
  }
  return c;
}

static int next_index(int64_t* at, const int64_t* shape) {
  for (int d = NDIM - 1; d >= 0; --d) {
    if (++at[d] < shape[d]) return 1;
    at[d] = 0;
  }
  return 0;
}

static int has_elements(const int64_t* shape) {
  return shape[0] > 0 && shape[1] > 0 && shape[2] > 0;
}

static void one(tp_rank* r, const direction* way, int32_t dim, int32_t to_dim, int uneven, mdp_dtype dtype, tp_layout from_layout,
                tp_layout to_layout) {
  const cut along[] = {cut_of(0, r->size, 0), cut_of(dim, r->size, uneven), cut_of(to_dim, r->size, uneven)};
  int64_t whole[NDIM] = {3, 5, 4}, offset[2][NDIM] = {{0}}, shapes[2][NDIM];
  whole[dim] = along[DIM].begin[r->size];
  whole[to_dim] = along[TO_DIM].begin[r->size];
  const int cuts[2] = {way->from, way->to};
  for (int side = 0; side < 2; ++side) {
    memcpy(shapes[side], whole, sizeof whole);
    if (cuts[side] == WHOLE) continue;
    const int32_t d = cuts[side] == DIM ? dim : to_dim;
    shapes[side][d] = (int64_t)along[cuts[side]].sizes[r->rank];
    offset[side][d] = along[cuts[side]].begin[r->rank];
  }
  tp_reset(r);
  tp_array from, to;
  tp_take(r, &from, dtype, from_layout, NDIM, shapes[0]);
  tp_take(r, &to, dtype, to_layout, NDIM, shapes[1]);
  int64_t at[NDIM] = {0};
  if (has_elements(shapes[0])) {
    do {
      const int64_t in_whole[] = {at[0] + offset[0][0], at[1] + offset[0][1], at[2] + offset[0][2]};
      tp_set(&from, at, value(way->partial ? r->rank : 0, in_whole));
    } while (next_index(at, shapes[0]));
  }
  SIZED(mdp_tp_region_config, config);
  config.region = way->region;
  config.grad = way->grad;
  config.dim = dim;
  config.to_dim = to_dim;
  config.parts = uneven ? along[DIM].sizes : NULL;
  config.to_parts = uneven ? along[TO_DIM].sizes : NULL;
  OK((way->backward ? mdp_tp_region_bwd : mdp_tp_region_fwd)(r->comm, &config, &from.tensor, &to.tensor, NULL));
  tp_settle(r);
  int wrong = 0;
  if (has_elements(shapes[1])) {
    do {
      const int64_t in_whole[] = {at[0] + offset[1][0], at[1] + offset[1][1], at[2] + offset[1][2]};
      float wanted = 0;
      for (int32_t owner = 0; owner < (way->partial ? r->size : 1); ++owner) wanted += value(owner, in_whole);
      wrong += tp_get(&to, at) != wanted;
    } while (next_index(at, shapes[1]));
  }
  if (!CHECK(wrong == 0)) {
    printf("rank %d of %d: region %u backward %d grad %u dim %d to_dim %d uneven %d dtype %u layouts %d %d: %d wrong\n", r->rank, r->size,
           way->region, way->backward, way->grad, dim, to_dim, uneven, dtype, from_layout, to_layout, wrong);
  }
}

static void all_of_them(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 16);
  int turn = 0;
  for (int d = 0; d < DIRECTIONS; ++d) {
    for (int32_t dim = 0; dim < NDIM; ++dim) {
      for (int32_t step = 1; step < NDIM; ++step) {
        for (int uneven = 0; uneven < 2; ++uneven) {
          for (tp_layout from = DENSE; from < TP_LAYOUTS; ++from) {
            for (tp_layout to = DENSE; to < TP_LAYOUTS; ++to) {
              one(&r, &directions[d], dim, (dim + step) % NDIM, uneven, ++turn % 2 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16, from, to);
            }
          }
        }
      }
    }
  }
  tp_close(&r);
}

static void every_region(void** state) {
  (void)state;
  for (int32_t n = 1; n <= MOST; ++n) run_ranks(n, all_of_them, NULL);
}

/* Vector 41 of the acceptance vectors: what comes back of a gathered sequence. */
static void gathered_gradients(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  tp_array from, to;
  const int64_t two[] = {2, 1}, half[] = {1, 1}, first[] = {0, 0}, second[] = {1, 0};
  tp_take(&r, &from, MDP_DTYPE_F32, DENSE, 2, two);
  tp_take(&r, &to, MDP_DTYPE_F32, DENSE, 2, half);
  tp_set(&from, first, rank == 0 ? 1 : 10);
  tp_set(&from, second, rank == 0 ? 2 : 20);
  SIZED(mdp_tp_region_config, config);
  config.region = MDP_TP_GATHER;
  config.grad = MDP_TP_GRAD_PARTIAL;
  OK(mdp_tp_region_bwd(r.comm, &config, &from.tensor, &to.tensor, NULL));
  tp_settle(&r);
  CHECK(tp_get(&to, first) == (rank == 0 ? 11 : 22));
  config.grad = MDP_TP_GRAD_REPLICATED;
  OK(mdp_tp_region_bwd(r.comm, &config, &from.tensor, &to.tensor, NULL));
  tp_settle(&r);
  CHECK(tp_get(&to, first) == (rank == 0 ? 1 : 20));

  /* Here it is not the same on both: whoever asks for the check is told, on both ranks. */
  config.flags = MDP_TP_REGION_CHECK_REPLICATED;
  FAILS(MDP_E_INVALID, "from is not the same on ranks 0 and 1", mdp_tp_region_bwd(r.comm, &config, &from.tensor, &to.tensor, NULL));
  config.grad = MDP_TP_GRAD_PARTIAL;
  OK(mdp_tp_region_bwd(r.comm, &config, &from.tensor, &to.tensor, NULL));
  config.region = MDP_TP_SCATTER;
  FAILS(MDP_E_INVALID, "from is not the same on ranks 0 and 1", mdp_tp_region_fwd(r.comm, &config, &from.tensor, &to.tensor, NULL));
  tp_settle(&r);
  tp_close(&r);
}

static void partial_or_replicated(void** state) {
  (void)state;
  run_ranks(2, gathered_gradients, NULL);
}

/* COPY and REDUCE may work in place. */
static void where_it_lies(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  const int64_t shape[] = {3, 1, 2}, at[] = {2, 0, 1};
  for (tp_layout layout = DENSE; layout < TP_LAYOUTS; ++layout) {
    tp_array a;
    tp_take(&r, &a, MDP_DTYPE_F32, layout, 3, shape);
    for (int64_t i = 0; i < 6; ++i) {
      const int64_t to[] = {i / 2, 0, i % 2};
      tp_set(&a, to, (float)(rank + 1));
    }
    SIZED(mdp_tp_region_config, config);
    config.region = MDP_TP_REDUCE;
    config.grad = MDP_TP_GRAD_REPLICATED;
    OK(mdp_tp_region_fwd(r.comm, &config, &a.tensor, &a.tensor, NULL));
    tp_settle(&r);
    CHECK(tp_get(&a, at) == (float)(n * (n + 1) / 2));
    OK(mdp_tp_region_bwd(r.comm, &config, &a.tensor, &a.tensor, NULL));
    tp_settle(&r);
    CHECK(tp_get(&a, at) == (float)(n * (n + 1) / 2));
  }
  tp_close(&r);
}

static void in_place(void** state) {
  (void)state;
  for (int32_t n = 1; n <= 3; ++n) run_ranks(n, where_it_lies, NULL);
}

static void what_is_refused(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  const int64_t shape[] = {4, 3, 2}, half[] = {2, 3, 2}, odd[] = {4, 3, 1};
  tp_array whole, part, other, halves;
  tp_take(&r, &whole, MDP_DTYPE_F32, DENSE, 3, shape);
  tp_take(&r, &part, MDP_DTYPE_F32, DENSE, 3, half);
  tp_take(&r, &other, MDP_DTYPE_F32, DENSE, 3, odd);
  tp_take(&r, &halves, MDP_DTYPE_BF16, DENSE, 3, half);
  SIZED(mdp_tp_region_config, config);
#define FWD(from, to) mdp_tp_region_fwd(r.comm, &config, from, to, NULL)
  FAILS(MDP_E_INVALID, "comm is NULL", mdp_tp_region_fwd(NULL, &config, &whole.tensor, &part.tensor, NULL));
  FAILS(MDP_E_INVALID, "config is NULL", mdp_tp_region_bwd(r.comm, NULL, &whole.tensor, &part.tensor, NULL));
  FAILS(MDP_E_INVALID, "config.region is 0; it must be MDP_TP_COPY (1) to MDP_TP_EXCHANGE (6)", FWD(&whole.tensor, &part.tensor));
  config.region = 7;
  FAILS(MDP_E_INVALID, "config.region is 7", FWD(&whole.tensor, &part.tensor));
  config.region = MDP_TP_GATHER;
  FAILS(MDP_E_INVALID, "config.grad is MDP_TP_GRAD_UNSET (0), but what this region gives is the same on all ranks",
        FWD(&part.tensor, &whole.tensor));
  config.grad = 3;
  FAILS(MDP_E_INVALID, "config.grad is 3", FWD(&part.tensor, &whole.tensor));
  config.grad = MDP_TP_GRAD_PARTIAL;
  config.reserved = 1;
  FAILS(MDP_E_INVALID, "config.reserved", FWD(&part.tensor, &whole.tensor));
  config.reserved = 0;
  config.flags = 2;
  FAILS(MDP_E_INVALID, "config.flags", FWD(&part.tensor, &whole.tensor));
  config.flags = 0;
  config.dim = -1;
  FAILS(MDP_E_INVALID, "config.dim is -1", FWD(&part.tensor, &whole.tensor));
  config.dim = 3;
  FAILS(MDP_E_INVALID, "config.dim is 3; to has dimensions 0 to 2", FWD(&part.tensor, &part.tensor));
  config.dim = 0;
  config.to_dim = -2;
  FAILS(MDP_E_INVALID, "config.to_dim is -2", FWD(&part.tensor, &whole.tensor));
  config.to_dim = 0;
  FAILS(MDP_E_INVALID, "from is NULL", FWD(NULL, &whole.tensor));
  FAILS(MDP_E_INVALID, "to is NULL", FWD(&part.tensor, NULL));
  FAILS(MDP_E_INVALID, "from.dtype is bf16 and to.dtype is f32", FWD(&halves.tensor, &whole.tensor));
  FAILS(MDP_E_INVALID, "dimension 2 must be the same", FWD(&part.tensor, &other.tensor));
  FAILS(MDP_E_INVALID, "dimension 0 of from is 4; this rank's part of 4 is 2", FWD(&whole.tensor, &whole.tensor));
#undef FWD
  tp_close(&r);
}

static void what_is_refused_of_shapes(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  const int64_t shape[] = {4, 3, 2}, half[] = {2, 3, 2};
  tp_array whole, part;
  tp_take(&r, &whole, MDP_DTYPE_F32, DENSE, 3, shape);
  tp_take(&r, &part, MDP_DTYPE_F32, DENSE, 3, half);
  SIZED(mdp_tp_region_config, config);
  config.region = MDP_TP_GATHER;
  config.grad = MDP_TP_GRAD_PARTIAL;
#define FWD(from, to) mdp_tp_region_fwd(r.comm, &config, from, to, NULL)
  mdp_tensor flat = whole.tensor;
  flat.ndim = 2;
  FAILS(MDP_E_INVALID, "from has 3 dimensions and to 2", FWD(&part.tensor, &flat));
  config.dim = 1;
  config.region = MDP_TP_SCATTER;
  FAILS(MDP_E_INVALID, "dimension 1 of from is 3, which 2 ranks cannot share evenly; give config.parts, or a size such as 4",
        FWD(&whole.tensor, &whole.tensor));
  const uint64_t wrong[] = {1, 1}, huge[] = {UINT64_MAX, 2};
  config.parts = wrong;
  FAILS(MDP_E_INVALID, "the sum of config.parts is 2; dimension 1 of from is 3", FWD(&whole.tensor, &whole.tensor));
  config.parts = huge;
  FAILS(MDP_E_INVALID, "config.parts[0] is 18446744073709551615", FWD(&whole.tensor, &whole.tensor));
  config.parts = NULL;
  config.region = MDP_TP_EXCHANGE;
  config.to_dim = 1;
  FAILS(MDP_E_INVALID, "config.to_dim is 1, and so is config.dim", FWD(&whole.tensor, &part.tensor));
  config.region = MDP_TP_SCATTER;
  config.dim = config.to_dim = 0;
  mdp_tensor overlapping = part.tensor;
  overlapping.data = whole.tensor.data;
  FAILS(MDP_E_INVALID, "from.data and to.data are the same memory", FWD(&whole.tensor, &overlapping));
  int64_t none[] = {0, 3, 2};
  mdp_tensor crowded = whole.tensor;
  crowded.strides = none;
  config.region = MDP_TP_COPY;
  FAILS(MDP_E_INVALID, "share memory", FWD(&whole.tensor, &crowded));
  int64_t otherwise[] = {1, 8, 4}; /* the same memory, in another order: what is written is still to be read */
  mdp_tensor mixed = whole.tensor;
  mixed.strides = otherwise;
  for (config.region = MDP_TP_COPY; config.region <= MDP_TP_REDUCE; ++config.region) {
    FAILS(MDP_E_INVALID, "only COPY and REDUCE work in place, with equal strides", FWD(&whole.tensor, &mixed));
    OK(FWD(&whole.tensor, &whole.tensor));
  }
#undef FWD
  tp_close(&r);
}

static void refused(void** state) {
  (void)state;
  run_ranks(2, what_is_refused, NULL);
  run_ranks(2, what_is_refused_of_shapes, NULL);
}

/* Another region on another rank: both learn it. */
static void different_calls(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  const int64_t shape[] = {4, 2}, half[] = {2, 2};
  tp_array whole, part;
  tp_take(&r, &whole, MDP_DTYPE_F32, DENSE, 2, shape);
  tp_take(&r, &part, MDP_DTYPE_F32, DENSE, 2, half);
  SIZED(mdp_tp_region_config, config);
  config.region = rank == 0 ? MDP_TP_REDUCE_SCATTER : MDP_TP_REDUCE;
  config.grad = MDP_TP_GRAD_REPLICATED;
  const mdp_status status = mdp_tp_region_fwd(r.comm, &config, &whole.tensor, rank == 0 ? &part.tensor : &whole.tensor, NULL);
  if (!on_cuda || status != MDP_OK) FAILS(MDP_E_DESYNC, "a tensor-parallel region, forward", status);
  tp_close(&r);
}

static void another_region(void** state) {
  (void)state;
  run_ranks(2, different_calls, NULL);
}

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(every_region), TEST(partial_or_replicated), TEST(in_place), TEST(refused), TEST(another_region),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
