/* SPDX-License-Identifier: Apache-2.0
 * Halos, forward and backward, against an oracle that knows the whole array: grids of one to three dimensions, uneven and empty parts,
 * halos of any width, every edge, several fields, staggered or not, arrays of several layouts. What is refused. Convolutions: which rank
 * computes what. */
#include <stdlib.h>
#include <string.h>

#include "tp.h"

enum {
  MOST = 3, /* dimensions */
  MOST_PLACES = 8,
  RANKS = 8
};

typedef struct {
  int32_t ndim, fields;
  int64_t grid[MOST], low[MOST], high[MOST], begin[MOST][MOST_PLACES + 1];
  mdp_edge edges[MOST];
  uint64_t flags;
  mdp_dtype dtype;
  int64_t staggered[2][MOST]; /* by field */
} cutting;

/* The same numbers on all ranks. */
static uint32_t draw(uint32_t* state, uint32_t below) {
  *state = *state * 1664525 + 1013904223;
  return (*state >> 16) % below;
}

static cutting draw_cutting(uint32_t* seed, int32_t ranks) {
  cutting c = {.ndim = 1 + (int32_t)draw(seed, MOST), .fields = 1 + (int32_t)draw(seed, 2)};
  int64_t left = ranks;
  for (int32_t d = 0; d < c.ndim; ++d) {
    c.grid[d] = 1;
    while (left > 1 && (d == c.ndim - 1 || draw(seed, 2) == 0)) {
      int64_t factor = 2;
      while (left % factor != 0) ++factor;
      c.grid[d] *= factor;
      left /= factor;
    }
    const uint32_t least = draw(seed, 2);
    for (int64_t place = 0; place < c.grid[d]; ++place) c.begin[d][place + 1] = c.begin[d][place] + least + draw(seed, 4);
    const int64_t whole = c.begin[d][c.grid[d]];
    c.low[d] = draw(seed, 4);
    c.high[d] = draw(seed, 4);
    c.edges[d] = draw(seed, 4);
    const int64_t widest = c.low[d] > c.high[d] ? c.low[d] : c.high[d];
    if (c.edges[d] == MDP_EDGE_REFLECT && widest >= whole) c.edges[d] = MDP_EDGE_ZERO;
    if (c.edges[d] == MDP_EDGE_PERIODIC && whole == 0) c.edges[d] = MDP_EDGE_KEEP;
  }
  c.flags = draw(seed, 2) ? MDP_HALO_FACES : 0;
  c.dtype = draw(seed, 2) ? MDP_DTYPE_F32 : MDP_DTYPE_BF16;
  const uint32_t often = draw(seed, 3); /* 0: nothing */
  for (int32_t f = 0; f < c.fields; ++f) {
    for (int32_t d = 0; d < c.ndim; ++d) c.staggered[f][d] = draw(seed, 2) < often;
  }
  return c;
}

typedef struct { /* a rank's place */
  int64_t begin[MOST], part[MOST], padded[MOST], whole[MOST];
} place;

enum {
  EVEN = -1
}; /* as if no field were staggered */
static place place_of(const cutting* c, int32_t rank, int32_t field) {
  place p = {{0}, {0}, {0}, {0}};
  int64_t left = rank;
  for (int32_t d = c->ndim - 1; d >= 0; --d) {
    const int64_t at = left % c->grid[d], more = field == EVEN ? 0 : c->staggered[field][d];
    left /= c->grid[d];
    p.begin[d] = c->begin[d][at];
    p.part[d] = c->begin[d][at + 1] - p.begin[d];
    p.whole[d] = c->begin[d][c->grid[d]];
    p.padded[d] = c->low[d] + p.part[d] + more + c->high[d];
    if (c->edges[d] == MDP_EDGE_PERIODIC) continue; /* what is more is where it begins */
    p.whole[d] += more;
    if (at == c->grid[d] - 1) p.part[d] += more;
  }
  return p;
}

static int next_index(int64_t* at, const int64_t* shape, int32_t ndim) {
  for (int32_t d = ndim - 1; d >= 0; --d) {
    if (++at[d] < shape[d]) return 1;
    at[d] = 0;
  }
  return 0;
}

static int is_empty(const int64_t* shape, int32_t ndim) {
  for (int32_t d = 0; d < ndim; ++d) {
    if (shape[d] == 0) return 1;
  }
  return 0;
}

typedef enum {
  OWN,
  FROM, /* *source, of the whole */
  ZERO,
  KEPT
} origin;

static origin origin_of(const cutting* c, const place* p, const int64_t* at, int64_t* source) {
  int outside = 0, beyond = 0, kept = 0, zero = 0; /* the face that the next part begins with lies outside, and not beyond */
  for (int32_t d = 0; d < c->ndim; ++d) {
    const int64_t whole = p->whole[d];
    int64_t i = p->begin[d] + at[d] - c->low[d];
    outside += at[d] < c->low[d] || at[d] >= c->low[d] + p->part[d];
    beyond += at[d] < c->low[d] || at[d] >= p->padded[d] - c->high[d];
    if (i < 0 || i >= whole) {
      kept |= c->edges[d] == MDP_EDGE_KEEP;
      zero |= c->edges[d] == MDP_EDGE_ZERO;
      if (c->edges[d] == MDP_EDGE_PERIODIC) {
        while (i < 0) i += whole;
        i %= whole;
      }
      if (c->edges[d] == MDP_EDGE_REFLECT) i = i < 0 ? -i : 2 * whole - 2 - i;
    }
    source[d] = i;
  }
  if (outside == 0) return OWN;
  if (beyond > 1 && c->flags & MDP_HALO_FACES) return KEPT;
  return kept ? KEPT : zero ? ZERO : FROM;
}

static float whole_value(const int64_t* i, int32_t ndim, int32_t field) {
  float value = (float)(field * 1000 + 1);
  for (int32_t d = 0; d < ndim; ++d) value = value * 7 + (float)i[d];
  return value;
}

/* Gradients whose sums depend on their order. */
static float grad_value(int32_t rank, const int64_t* at, int32_t ndim, int32_t field) {
  uint32_t state = (uint32_t)(rank * 31 + field * 7);
  for (int32_t d = 0; d < ndim; ++d) state = state * 1664525 + (uint32_t)at[d] + 1013904223;
  return ((float)(int)(draw(&state, 2001)) - 1000) / 77.0F;
}

static float rounded(float value, mdp_dtype dtype) {
  return dtype == MDP_DTYPE_BF16 ? to_bf16(value) : value;
}

/* On a device: what is on the default stream has happened. */
static void settle(tp_rank* r) {
  if (!on_cuda) return;
  const int64_t none = 1;
  mdp_tensor last = r->view; /* the last element of the room, which no test uses */
  last.ndim = 1;
  last.shape = &none;
  last.strides = NULL;
  last.data = (float*)r->view.data + r->room / sizeof(float) - 1;
  OK(mdp_all_reduce(r->comm, &last, &last, MDP_OP_MAX, NULL, NULL));
  await_default_stream();
  OK(mdp_barrier(r->comm, NULL));
}

static mdp_halo* halo_of(mdp_comm* comm, const cutting* c, const place* p) {
  SIZED(mdp_halo_config, config);
  config.dtype = c->dtype;
  config.ndim = c->ndim;
  config.fields = (uint32_t)c->fields;
  config.grid = c->grid;
  config.shape = p->part;
  config.low = c->low;
  config.high = c->high;
  config.edges = c->edges;
  config.flags = c->flags;
  int64_t staggered[2 * MOST];
  int32_t any = 0;
  for (int32_t i = 0; i < c->fields * c->ndim; ++i) any += (int32_t)(staggered[i] = c->staggered[i / c->ndim][i % c->ndim]);
  if (any > 0) config.staggered = staggered;
  mdp_halo* halo = NULL;
  OK(mdp_halo_create(comm, &config, &halo));
  return halo;
}

static int forward_wrong(const cutting* c, const place* p, const tp_array* field, int32_t f) {
  int wrong = 0;
  int64_t at[MOST] = {0}, source[MOST];
  do {
    const origin from = origin_of(c, p, at, source);
    const float wanted = from == ZERO ? 0 : from == KEPT ? 5 : rounded(whole_value(source, c->ndim, f), c->dtype);
    wrong += tp_get(field, at) != wanted;
  } while (next_index(at, p->padded, c->ndim));
  return wrong;
}

/* What this rank's part of the gradient becomes: its own, and what all ranks have in their halos, in the order of ranks. */
static int backward_wrong(const cutting* c, int32_t rank, int32_t ranks, const tp_array* field, int32_t f) {
  const place p = place_of(c, rank, f);
  int wrong = 0;
  int64_t at[MOST] = {0}, source[MOST], other[MOST], wanted_source[MOST];
  do {
    const origin from = origin_of(c, &p, at, source);
    float wanted = from == OWN || from == KEPT ? rounded(grad_value(rank, at, c->ndim, f), c->dtype) : 0;
    for (int32_t r = 0; r < ranks && from == OWN; ++r) {
      const place q = place_of(c, r, f);
      if (is_empty(q.padded, c->ndim)) continue;
      memset(other, 0, sizeof other);
      do {
        if (origin_of(c, &q, other, wanted_source) != FROM) continue;
        if (memcmp(source, wanted_source, (size_t)c->ndim * sizeof source[0]) != 0) continue;
        wanted = rounded(wanted + rounded(grad_value(r, other, c->ndim, f), c->dtype), c->dtype);
      } while (next_index(other, q.padded, c->ndim));
    }
    wrong += tp_get(field, at) != wanted;
  } while (next_index(at, p.padded, c->ndim));
  return wrong;
}

static void exchange(tp_rank* r, mdp_halo* halo, const tp_array* fields, int32_t count, uint64_t flags) {
  mdp_tensor tensors[2];
  for (int32_t f = 0; f < count; ++f) tensors[f] = fields[f].tensor;
  OK(mdp_halo_start(halo, tensors, (size_t)count, flags, NULL));
  OK(mdp_halo_finish(halo, NULL));
  settle(r);
}

static void one(tp_rank* r, const cutting* c, uint32_t number) {
  const place even = place_of(c, r->rank, EVEN), places[] = {place_of(c, r->rank, 0), place_of(c, r->rank, 1)};
  mdp_halo* const halo = halo_of(r->comm, c, &even);
  int64_t coords[MOST], begins[MOST], whole[MOST];
  OK(mdp_halo_place(halo, coords, begins, whole));
  for (int32_t d = 0; d < c->ndim; ++d) CHECK(begins[d] == even.begin[d] && whole[d] == even.whole[d]);
  for (int turn = 0; turn < 3; ++turn) { /* the third forward again, which the gradients must not disturb */
    tp_reset(r);
    tp_array fields[2];
    int64_t at[MOST] = {0}, source[MOST];
    for (int32_t f = 0; f < c->fields; ++f) {
      const place* const p = &places[f];
      tp_take(r, &fields[f], c->dtype, (tp_layout)((number + (uint32_t)f + (uint32_t)turn) % TP_LAYOUTS), c->ndim, p->padded);
      if (is_empty(p->padded, c->ndim)) continue;
      do {
        const int own = origin_of(c, p, at, source) == OWN;
        const float forward = own ? whole_value(source, c->ndim, f) : 5;
        tp_set(&fields[f], at, turn == 1 ? grad_value(r->rank, at, c->ndim, f) : forward);
      } while (next_index(at, p->padded, c->ndim));
    }
    exchange(r, halo, fields, c->fields, turn == 1 ? MDP_HALO_BACKWARD : 0);
    for (int32_t f = 0; f < c->fields; ++f) {
      if (is_empty(places[f].padded, c->ndim)) continue;
      const int wrong = turn == 1 ? backward_wrong(c, r->rank, r->size, &fields[f], f) : forward_wrong(c, &places[f], &fields[f], f);
      if (!CHECK(wrong == 0)) printf("case %u, turn %d, rank %d of %d, field %d: %d wrong\n", number, turn, r->rank, r->size, f, wrong);
    }
  }
  mdp_halo_destroy(halo);
}

static void all_of_them(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const uint32_t cases = *(const uint32_t*)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 18);
  uint32_t seed = (uint32_t)n;
  for (uint32_t number = 0; number < cases; ++number) {
    const cutting c = draw_cutting(&seed, n);
    one(&r, &c, number);
  }
  tp_close(&r);
}

static void like_the_whole_array(void** state) {
  (void)state;
  for (int32_t n = 1; n <= RANKS; ++n) {
    uint32_t cases = UNDER_THREAD_SANITIZER ? 4 : UNDER_SANITIZER || on_cuda ? 12 : 40;
    run_ranks(n, all_of_them, &cases);
  }
}

/* <P x, y> = <x, P' y>, in f64. */
static void adjoint(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 14);
  const cutting c = {.ndim = 2,
                     .fields = 1,
                     .grid = {2, 2},
                     .low = {2, 1},
                     .high = {1, 3},
                     .begin = {{0, 4, 7}, {0, 3, 8}},
                     .edges = {MDP_EDGE_REFLECT, MDP_EDGE_PERIODIC},
                     .dtype = MDP_DTYPE_F64};
  const place p = place_of(&c, rank, EVEN);
  mdp_halo* const halo = halo_of(r.comm, &c, &p);
  const int64_t count = p.padded[0] * p.padded[1];
  double* const x = r.view.data;
  double *const y = x + count, *const kept = y + count, *const sums = kept + 2 * count;
  uint32_t seed = (uint32_t)rank;
  for (int64_t i = 0; i < count; ++i) {
    x[i] = kept[i] = draw(&seed, 1000) / 333.0 - 1.5;
    y[i] = kept[count + i] = draw(&seed, 1000) / 333.0 - 1.5;
  }
  mdp_tensor field = r.view;
  field.dtype = MDP_DTYPE_F64;
  field.ndim = 2;
  field.shape = p.padded;
  field.strides = NULL;
  field.data = x;
  OK(mdp_halo_start(halo, &field, 1, 0, NULL));
  OK(mdp_halo_finish(halo, NULL));
  field.data = y;
  OK(mdp_halo_start(halo, &field, 1, MDP_HALO_BACKWARD, NULL));
  OK(mdp_halo_finish(halo, NULL));
  settle(&r);
  sums[0] = sums[1] = 0;
  for (int64_t i = 0; i < count; ++i) {
    sums[0] += x[i] * kept[count + i];
    sums[1] += kept[i] * y[i];
  }
  const int64_t two = 2;
  mdp_tensor both = field;
  both.ndim = 1;
  both.shape = &two;
  both.data = sums;
  OK(mdp_all_reduce(r.comm, &both, &both, MDP_OP_SUM, NULL, NULL));
  settle(&r);
  const double off = sums[0] - sums[1];
  CHECK(sums[0] != 0 && off < 1e-12 && off > -1e-12);
  mdp_halo_destroy(halo);
  tp_close(&r);
}

static void backward_is_the_adjoint(void** state) {
  (void)state;
  run_ranks(4, adjoint, NULL);
}

/* Of one dimension. */
static mdp_halo* line_of(mdp_comm* comm, int64_t shape, int64_t low, int64_t high) {
  const int64_t grid = mdp_comm_size(comm);
  SIZED(mdp_halo_config, config);
  config.ndim = 1;
  config.grid = &grid;
  config.shape = &shape;
  config.low = &low;
  config.high = &high;
  mdp_halo* halo = NULL;
  OK(mdp_halo_create(comm, &config, &halo));
  return halo;
}

/* Neighbours may be one exchange apart, and a rank that is no neighbour any number. */
static void apart(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 14);
  const int64_t three = 3;
  mdp_halo* const halo = line_of(r.comm, 1, 1, 1);
  tp_array field;
  tp_take(&r, &field, MDP_DTYPE_F32, DENSE, 1, &three);
  int wrong = 0;
  for (int round = 0; round < 200; ++round) {
    const int64_t low = 0, own = 1, high = 2;
    tp_set(&field, &own, (float)(round * 10 + rank));
    OK(mdp_halo_start(halo, &field.tensor, 1, 0, NULL));
    OK(mdp_halo_finish(halo, NULL));
    settle(&r);
    wrong += rank > 0 && tp_get(&field, &low) != (float)(round * 10 + rank - 1);
    wrong += rank < n - 1 && tp_get(&field, &high) != (float)(round * 10 + rank + 1);
  }
  CHECK(wrong == 0);
  /* Started, and never finished: the others have what they need. */
  OK(mdp_halo_start(halo, &field.tensor, 1, 0, NULL));
  FAILS(MDP_E_STATE, "mdp_halo_finish comes first", mdp_halo_start(halo, &field.tensor, 1, 0, NULL));
  OK(mdp_halo_finish(halo, NULL));
  FAILS(MDP_E_STATE, "mdp_halo_start has not been called", mdp_halo_finish(halo, NULL));
  mdp_halo_destroy(halo);
  tp_close(&r);
}

static void many_times(void** state) {
  (void)state;
  run_ranks(4, apart, NULL);
}

/* Arrays of the library's, which neighbours read where they lie, and any others: the same bits, again and again, forward and backward. */
typedef struct {
  mdp_halo* halo;
  mdp_tensor own[4];
  int64_t padded[2][2], count[2]; /* by field */
  int staggered;                  /* the second field is, along the first dimension */
} lending;

static lending lending_of(mdp_comm* comm, int32_t rank, int32_t n, int staggered) {
  /* Rows are read where they lie; columns too, or packed, if they are narrow. */
  const int64_t grid[] = {n == 4 ? 2 : n, n == 4 ? 2 : 1}, shape[] = {20 + rank / (n == 4 ? 2 : 1), 1500}, low[] = {9, staggered ? 30 : 12},
                high[] = {24, 0}, all[] = {0, 0, staggered, 0};
  const mdp_edge edges[] = {MDP_EDGE_PERIODIC, MDP_EDGE_ZERO};
  SIZED(mdp_halo_config, config);
  config.ndim = 2;
  config.fields = 2;
  config.grid = grid;
  config.shape = shape;
  config.low = low;
  config.high = high;
  config.edges = edges;
  config.arrays = 4;
  config.staggered = all;
  lending l = {.staggered = staggered};
  for (int f = 0; f < 2; ++f) {
    l.padded[f][0] = low[0] + shape[0] + high[0] + all[2 * f];
    l.padded[f][1] = low[1] + shape[1];
    l.count[f] = l.padded[f][0] * l.padded[f][1];
  }
  OK(mdp_halo_create(comm, &config, &l.halo));
  for (uint64_t i = 0; i < 4; ++i) {
    l.own[i].struct_size = sizeof l.own[i];
    OK(mdp_halo_array(l.halo, i, &l.own[i]));
  }
  CHECK(l.own[3].ndim == 2 && l.own[3].shape[0] == l.padded[1][0] && l.own[3].shape[1] == l.padded[1][1]);
  CHECK(((const float*)l.own[2].data)[l.count[0] - 1] == 0);
  FAILS(MDP_E_INVALID, "index is 4; this halo has 4 arrays", mdp_halo_array(l.halo, 4, &l.own[3]));
  return l;
}

/* Which arrays a rank uses in a round, as it likes: neighbours among the library's, or not. */
static void choose(const lending* l, int32_t rank, int round, mdp_tensor used[2]) {
  used[0] = l->own[round % 3];
  used[1] = l->own[round % 3 + 1];
  if (round % 5 == 4) used[1] = l->own[round % 3 == 0 ? 3 : 0];
  if (l->staggered) { /* each array is shaped for one of the fields */
    used[0] = l->own[round % 3 == 0 ? 2 : 0];
    used[1] = l->own[round % 2 == 0 ? 1 : 3];
  }
  if (rank == 0 && round % 4 == 3) {
    used[0] = l->own[0];
    used[1] = l->own[1];
  }
}

/* Arrays of the library's, which neighbours read where they lie, and any others: the same bits, again and again, forward and backward. */
static void lent(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  tp_rank r = tp_open(id, rank, n, 4 << 20);
  const lending l = lending_of(r.comm, rank, n, *(const int*)argument);
  const size_t bytes[] = {(size_t)l.count[0] * sizeof(float), (size_t)l.count[1] * sizeof(float)};
  tp_array mine[2];
  for (int f = 0; f < 2; ++f) tp_take(&r, &mine[f], MDP_DTYPE_F32, DENSE, 2, l.padded[f]);
  uint32_t seed = (uint32_t)rank + 1;
  int wrong = 0;
  float* const result = malloc(bytes[1]);
  for (int round = 0; round < 12; ++round) {
    mdp_tensor used[2], others[2] = {mine[0].tensor, mine[1].tensor};
    choose(&l, rank, round, used);
    for (int f = 0; f < 2; ++f) {
      for (int64_t i = 0; i < l.count[f]; ++i) ((float*)used[f].data)[i] = ((float*)others[f].data)[i] = (float)draw(&seed, 20001) / 77.0F;
    }
    const uint64_t flags = round % 2 ? MDP_HALO_BACKWARD : 0;
    OK(mdp_halo_start(l.halo, others, 2, flags, NULL));
    OK(mdp_halo_finish(l.halo, NULL));
    OK(mdp_halo_start(l.halo, used, 2, flags, NULL));
    OK(mdp_halo_finish(l.halo, NULL));
    settle(&r);
    for (int f = 0; f < 2; ++f) { /* whoever is done may write at once, whatever the others still do */
      memcpy(result, used[f].data, bytes[f]);
      memset(used[f].data, 0xff, bytes[f]);
      wrong += memcmp(result, others[f].data, bytes[f]) != 0;
    }
  }
  free(result);
  CHECK(wrong == 0);
  mdp_halo_destroy(l.halo);
  tp_close(&r);
}

static void arrays_of_the_library(void** state) {
  (void)state;
  for (int staggered = 0; staggered < 2; ++staggered) {
    for (int32_t n = 1; n <= 4; ++n) run_ranks(n, lent, &staggered);
  }
}

/* Fields of the halo of refused_alike(), whose parts are of `shape`. */
static void fields_refused(tp_rank* r, mdp_halo* halo, const int64_t* shape) {
  tp_array field, other;
  const int64_t padded[] = {2, 4};
  tp_take(r, &field, MDP_DTYPE_F32, DENSE, 2, padded);
  tp_take(r, &other, MDP_DTYPE_BF16, DENSE, 2, padded);
  mdp_tensor two[] = {field.tensor, field.tensor};
  FAILS(MDP_E_INVALID, "count is 2; this halo was created for 1 fields", mdp_halo_start(halo, two, 2, 0, NULL));
  FAILS(MDP_E_INVALID, "fields[0].dtype is bf16; this halo was created for f32", mdp_halo_start(halo, &other.tensor, 1, 0, NULL));
  FAILS(MDP_E_INVALID, "fields[0] has shape [2,3]; this rank's part with its halo has [2,4]",
        (two[0].shape = shape, mdp_halo_start(halo, two, 1, 0, NULL)));
  FAILS(MDP_E_INVALID, "flags", mdp_halo_start(halo, &field.tensor, 1, 2, NULL));
  OK(mdp_halo_start(halo, &field.tensor, 1, 0, NULL)); /* nothing of that was begun */
  OK(mdp_halo_finish(halo, NULL));
  settle(r);
}

static void refused_alike(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  (void)argument;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  int64_t grid[] = {1, n}, shape[] = {2, 3}, low[] = {0, 1};
  mdp_edge edges[] = {MDP_EDGE_KEEP, MDP_EDGE_ZERO};
  SIZED(mdp_halo_config, config);
  config.ndim = 2;
  config.grid = grid;
  config.shape = shape;
  config.low = low;
  config.edges = edges;
  mdp_halo* halo = NULL;
  FAILS(MDP_E_INVALID, "config.grid is [1,3], which is not the grid of 2 ranks", (grid[1] = 3, mdp_halo_create(r.comm, &config, &halo)));
  FAILS(MDP_E_INVALID, "config.grid[1] is 0", (grid[1] = 0, mdp_halo_create(r.comm, &config, &halo)));
  grid[1] = n;
  FAILS(MDP_E_INVALID, "config.ndim is 0", (config.ndim = 0, mdp_halo_create(r.comm, &config, &halo)));
  FAILS(MDP_E_INVALID, "config.ndim is 17", (config.ndim = 17, mdp_halo_create(r.comm, &config, &halo)));
  config.ndim = 2;
  FAILS(MDP_E_INVALID, "config.low[1] is -1", (low[1] = -1, mdp_halo_create(r.comm, &config, &halo)));
  low[1] = 1;
  FAILS(MDP_E_INVALID, "config.shape[0] is -2", (shape[0] = -2, mdp_halo_create(r.comm, &config, &halo)));
  shape[0] = 2;
  FAILS(MDP_E_INVALID, "config.edges[0] is 4", (edges[0] = 4, mdp_halo_create(r.comm, &config, &halo)));
  edges[0] = MDP_EDGE_KEEP;
  FAILS(MDP_E_INVALID, "config.flags", (config.flags = 2, mdp_halo_create(r.comm, &config, &halo)));
  config.flags = 0;
  FAILS(MDP_E_INVALID, "config.fields is 5000", (config.fields = 5000, mdp_halo_create(r.comm, &config, &halo)));
  config.fields = 2;
  const int64_t staggered[] = {0, 0, 0, 2};
  FAILS(MDP_E_INVALID, "config.staggered[3], dimension 1 of field 1, is 2; it must be 0 or 1",
        (config.staggered = staggered, mdp_halo_create(r.comm, &config, &halo)));
  config.staggered = NULL;
  config.fields = 0;
  FAILS(MDP_E_INVALID, "the halo along dimension 1 is 6 wide; with reflecting edges of a whole array of 6 it may be 5",
        (low[1] = 6, edges[1] = MDP_EDGE_REFLECT, mdp_halo_create(r.comm, &config, &halo)));
  for (int edge = MDP_EDGE_KEEP; edge <= MDP_EDGE_REFLECT; ++edge) {
    FAILS(MDP_E_INVALID, "the halo along dimension 1 is 1099511627776 wide; of a whole array of 6 it may be 6000 at most",
          (low[1] = (int64_t)1 << 40, edges[1] = (mdp_edge)edge, mdp_halo_create(r.comm, &config, &halo)));
  }
  FAILS(MDP_E_INVALID, "is 6001 wide", (low[1] = 6001, edges[1] = MDP_EDGE_ZERO, mdp_halo_create(r.comm, &config, &halo)));
  FAILS(MDP_E_INVALID, "the whole array has no elements along dimension 1",
        (shape[1] = 0, edges[1] = MDP_EDGE_PERIODIC, mdp_halo_create(r.comm, &config, &halo)));
  shape[1] = 3;
  low[1] = 1;
  edges[1] = MDP_EDGE_ZERO;
  FAILS(MDP_E_INVALID, "config.shape[0] is 2 on rank 0 and 3 on rank 1, which are at the same place along dimension 0",
        (shape[0] = 2 + rank, mdp_halo_create(r.comm, &config, &halo)));
  shape[0] = 2;
  OK(mdp_halo_create(r.comm, &config, &halo));
  fields_refused(&r, halo, shape);
  mdp_halo_destroy(halo);
  const int64_t mine[] = {0, rank}, none[] = {0, 0};
  config.staggered = rank == 0 ? NULL : none;
  OK(mdp_halo_create(r.comm, &config, &halo)); /* the same */
  mdp_halo_destroy(halo);
  FAILS(MDP_E_DESYNC, "staggered [0,1]", (config.staggered = mine, mdp_halo_create(r.comm, &config, &halo)));
  config.staggered = NULL;
  FAILS(MDP_E_DESYNC, "create different halos", (low[1] = 1 + rank, mdp_halo_create(r.comm, &config, &halo)));
  tp_close(&r);
}

static void what_is_refused(void** state) {
  (void)state;
  run_ranks(2, refused_alike, NULL);
}

static void two_ways(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int64_t low = *(const int*)argument, padded = low + 3 + 1;
  tp_rank r = tp_open(id, rank, n, 1 << 12);
  mdp_halo* const halo = line_of(r.comm, 3, low, 1);
  tp_array field;
  tp_take(&r, &field, MDP_DTYPE_F32, DENSE, 1, &padded);
  OK(mdp_halo_start(halo, &field.tensor, 1, rank == 0 ? MDP_HALO_BACKWARD : 0, NULL));
  mdp_status status = mdp_halo_finish(halo, NULL);
  for (int i = 0; on_cuda && status == MDP_OK && i < 1000; ++i) status = mdp_barrier(r.comm, NULL); /* found as it is launched */
  check_status(status, MDP_E_DESYNC, NULL, "an exchange in two directions", __FILE__, __LINE__);
  mdp_halo_destroy(halo);
  tp_close(&r);
}

static void ways_that_differ_are_noticed(void** state) {
  (void)state;
  for (int low = 0; low < 2; ++low) run_ranks(2, two_ways, &low); /* 0: neither rank gets anything in the way that it goes */
}

/* Against windows that are counted one by one. */
static void convolutions(void** state) {
  (void)state;
  uint32_t seed = 1;
  int wrong = 0, compared = 0;
  for (int number = 0; number < 3000; ++number) {
    SIZED(mdp_conv_config, config);
    config.kernel = 1 + draw(&seed, 5);
    config.stride = 1 + draw(&seed, 4);
    config.dilation = 1 + draw(&seed, 3);
    config.padding_low = draw(&seed, 4);
    config.padding_high = draw(&seed, 4);
    const size_t count = 1 + draw(&seed, 4);
    int64_t parts[4], whole = 0;
    for (size_t p = 0; p < count; ++p) whole += parts[p] = draw(&seed, 7);
    SIZED(mdp_conv_part, out);
    const int64_t reach = config.dilation * (config.kernel - 1), room = whole + config.padding_low + config.padding_high - reach - 1;
    if (room < 0) {
      FAILS(MDP_E_INVALID, "the window of config reaches over", mdp_conv_split(&config, parts, count, 0, &out));
      continue;
    }
    int64_t begin = 0, next = 0, low = 0, high = 0;
    mdp_conv_part all[4] = {{0}};
    for (size_t p = 0; p < count; ++p) {
      all[p].struct_size = sizeof all[p];
      OK(mdp_conv_split(&config, parts, count, (int32_t)p, &all[p]));
      wrong += all[p].whole_output != room / config.stride + 1;
      wrong += all[p].output_begin != next || all[p].low != all[0].low || all[p].high != all[0].high;
      next += all[p].output_size;
    }
    wrong += next != all[0].whole_output;
    for (size_t p = 0; p < count; begin += parts[p++]) {
      int64_t inside = 0, first_inside = 0;
      for (int64_t o = 0; o < all[p].output_size; ++o) {
        const int64_t from = (all[p].output_begin + o) * config.stride - config.padding_low, to = from + reach + 1;
        if (o == 0) wrong += all[p].first != from - begin + all[p].low;
        if (begin - from > low) low = begin - from;
        if (to - begin - parts[p] > high) high = to - begin - parts[p];
        if (from < begin || to > begin + parts[p]) continue;
        if (inside++ == 0) first_inside = o;
      }
      wrong += all[p].inside_size != inside || all[p].inside_begin != first_inside;
    }
    wrong += low != all[0].low || high != all[0].high;
    compared += 1;
  }
  CHECK(wrong == 0);
  CHECK(compared > 2000);
  SIZED(mdp_conv_config, config);
  SIZED(mdp_conv_part, out);
  const int64_t parts[] = {4, -1};
  FAILS(MDP_E_INVALID, "parts[1] is -1", mdp_conv_split(&config, parts, 2, 0, &out));
  FAILS(MDP_E_INVALID, "part is 1; it must be between 0 and 0", mdp_conv_split(&config, parts, 1, 1, &out));
  FAILS(MDP_E_INVALID, "count is 0", mdp_conv_split(&config, parts, 0, 0, &out));
  FAILS(MDP_E_INVALID, "config.stride is -1", (config.stride = -1, mdp_conv_split(&config, parts, 1, 0, &out)));
}

/* As one rank of several that a launcher has started, here or on other hosts. */
static int launched(void) {
  mdp_comm* comm = NULL;
  if (!OK(mdp_comm_create(NULL, NULL, &comm))) return 1;
  tp_rank r = tp_on(comm, 1 << 18);
  uint32_t seed = (uint32_t)r.size;
  for (uint32_t number = 0; number < 40; ++number) {
    const cutting c = draw_cutting(&seed, r.size);
    one(&r, &c, number);
  }
  tp_close(&r);
  return all_checks_held(NULL);
}

int main(int argc, char** argv) {
  if (argc > 1 && strcmp(argv[1], "launched") == 0) return launched();
  const struct CMUnitTest tests[] = {
      TEST(arrays_of_the_library),
      TEST(like_the_whole_array),
      TEST(backward_is_the_adjoint),
      TEST(many_times),
      TEST(what_is_refused),
      TEST(ways_that_differ_are_noticed),
      TEST(convolutions),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
