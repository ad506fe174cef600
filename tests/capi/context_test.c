/* SPDX-License-Identifier: Apache-2.0
 * Context parallelism: forward and backward of a sequence that is cut over ranks against an oracle in double on the whole one; a failing
 * function; what is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "context_reference.h"
#include "tp.h"

typedef struct {
  context_sizes sizes; /* of the whole */
  mdp_cp_form form;
  uint64_t flags;
  const int64_t* bounds;
  uint64_t bound_count;
  mdp_dtype dtype;
  tp_layout layout;
  float allowed;
} a_case;

/* Numbers that all ranks make alike. */
static double number(int64_t which, int64_t index) {
  const uint64_t mixed = (uint64_t)(which * 7919 + index + 1) * UINT64_C(0x9e3779b97f4a7c15);
  return (double)(int64_t)(mixed >> 40 & 0xffff) / 32768.0 - 1.0;
}

static double* numbers(int64_t which, int64_t count, mdp_dtype dtype) {
  double* const all = malloc((size_t)count * sizeof *all);
  for (int64_t i = 0; i < count; ++i) {
    all[i] = number(which, i);
    if (dtype == MDP_DTYPE_BF16) all[i] = to_bf16((float)all[i]);
  }
  return all;
}

enum {
  Q,
  K,
  V,
  OUT,
  LSE,
  GRAD_OUT,
  GRAD_Q,
  GRAD_K,
  GRAD_V,
  ARRAYS
};

/* tp_take knows three dimensions: batch and sequence are one there. */
typedef struct {
  mdp_tensor tensor;
  int64_t shape[4], strides[4];
  tp_array memory; /* [batch * sequence, heads, head_dim] in some layout */
} an_array;

static void take(tp_rank* r, an_array* a, const a_case* c, mdp_dtype dtype, int64_t heads, int64_t last) {
  const int64_t batch = c->sizes.batch, length = c->sizes.sequence / r->size;
  const int64_t shape[3] = {batch * length, heads, last == 0 ? 1 : last};
  tp_take(r, &a->memory, dtype, c->layout, 3, shape);
  const int64_t* const s = a->memory.strides;
  const int64_t full[4] = {batch, length, heads, last}, strides[4] = {s[0] * length, s[0], s[1], s[2]};
  memcpy(a->shape, full, sizeof full);
  memcpy(a->strides, strides, sizeof strides);
  a->tensor = a->memory.tensor;
  a->tensor.ndim = last == 0 ? 3 : 4;
  a->tensor.shape = a->shape;
  a->tensor.strides = a->strides;
}

/* Element (b, position at of this rank, head, d) of an array, and its index in the oracle's dense whole. */
static void move(tp_rank* r, an_array* a, const a_case* c, double* whole, int into, const char* what) {
  SIZED(mdp_cp_config, config);
  config.flags = c->flags;
  int64_t ranges[4];
  OK(mdp_cp_part(&config, r->size, r->rank, c->sizes.sequence, ranges));
  const int64_t heads = a->shape[2], last = a->tensor.ndim == 3 ? 1 : a->shape[3], length = a->shape[1];
  double worst = 0;
  for (int64_t b = 0; b < c->sizes.batch; ++b) {
    for (int64_t at = 0; at < length; ++at) {
      const int64_t first = ranges[1] - ranges[0], position = at < first ? ranges[0] + at : ranges[2] + at - first;
      for (int64_t i = 0; i < heads * last; ++i) {
        const int64_t index[3] = {b * length + at, i / last, i % last};
        double* const its = &whole[(b * c->sizes.sequence + position) * heads * last + i];
        if (into) {
          tp_set(&a->memory, index, (float)*its);
        } else {
          const double off = fabs(tp_get(&a->memory, index) - *its);
          if (!(off <= worst)) worst = off;
        }
      }
    }
  }
  if (!into && !CHECK(worst <= c->allowed)) fprintf(stderr, "%s of rank %d of %d is off by %g\n", what, r->rank, r->size, worst);
}

static int32_t attend(void* user, const mdp_cp_block* block) {
  (void)user;
  if (on_cuda) await_default_stream();
  return context_reference(block);
}

static void one_rank(const mdp_unique_id* id, int32_t rank, int32_t size, void* argument) {
  const a_case* const c = argument;
  const context_sizes* const s = &c->sizes;
  tp_rank r = tp_open(id, rank, size, 1 << 20);
  static const char* const names[ARRAYS] = {"q", "k", "v", "out", "lse", "grad_out", "grad_q", "grad_k", "grad_v"};
  double* whole[ARRAYS];
  an_array arrays[ARRAYS];
  for (int i = 0; i < ARRAYS; ++i) {
    const int64_t heads = i == K || i == V || i == GRAD_K || i == GRAD_V ? s->kv_heads : s->heads, last = i == LSE ? 0 : s->head_dim;
    whole[i] = numbers(i, s->batch * s->sequence * heads * (last == 0 ? 1 : last), i == LSE ? MDP_DTYPE_F32 : c->dtype);
    take(&r, &arrays[i], c, i == LSE ? MDP_DTYPE_F32 : c->dtype, heads, last);
    if (i == Q || i == K || i == V || i == GRAD_OUT) move(&r, &arrays[i], c, whole[i], 1, names[i]);
  }
  context_oracle(s, c->flags & MDP_CP_CAUSAL, c->bounds, c->bound_count, whole[Q], whole[K], whole[V], whole[OUT], whole[LSE],
                 whole[GRAD_OUT], whole[GRAD_Q], whole[GRAD_K], whole[GRAD_V]);
  SIZED(mdp_cp_config, config);
  config.form = c->form;
  config.flags = c->flags;
  config.bounds = c->bounds;
  config.bound_count = c->bound_count;
#define T(i) (&arrays[i].tensor)
  OK(mdp_cp_attention_fwd(r.comm, &config, attend, NULL, T(Q), T(K), T(V), T(OUT), T(LSE), NULL));
  tp_settle(&r);
  if (on_cuda) await_default_stream();
  move(&r, &arrays[OUT], c, whole[OUT], 0, "out");
  move(&r, &arrays[LSE], c, whole[LSE], 0, "lse");
  OK(mdp_cp_attention_bwd(r.comm, &config, attend, NULL, T(Q), T(K), T(V), T(OUT), T(LSE), T(GRAD_OUT), T(GRAD_Q), T(GRAD_K), T(GRAD_V),
                          NULL));
  tp_settle(&r);
  if (on_cuda) await_default_stream();
  for (int i = GRAD_Q; i <= GRAD_V; ++i) move(&r, &arrays[i], c, whole[i], 0, names[i]);
  for (int i = 0; i < ARRAYS; ++i) free(whole[i]);
  tp_close(&r);
}

static void of_sizes(int32_t ranks, mdp_cp_form form, int64_t kv_heads) {
  for (uint64_t causal = 0; causal < 2; ++causal) {
    for (tp_layout layout = DENSE; layout < REVERSED; ++layout) {
      a_case c = {{2, 24, ranks == 3 ? 6 : 8, kv_heads, 5}, form, causal, NULL, 0, MDP_DTYPE_F32, layout, 1e-5F};
      run_ranks(ranks, one_rank, &c);
    }
  }
}

static void ring_equals_the_whole(void** state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= 4; ++ranks) {
    of_sizes(ranks, MDP_CP_RING, ranks == 3 ? 6 : 8);
    of_sizes(ranks, MDP_CP_RING, 2);
  }
}

static void all_to_all_equals_the_whole(void** state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= 4; ++ranks) {
    of_sizes(ranks, MDP_CP_ALL_TO_ALL, ranks == 3 ? 6 : 8);
    of_sizes(ranks, MDP_CP_AUTO, ranks == 3 ? 3 : 4);
  }
}

static void packed_sequences(void** state) {
  (void)state;
  static const int64_t bounds[] = {0, 5, 5, 7, 21, 24};
  for (int32_t ranks = 1; ranks <= 4; ++ranks) {
    for (uint64_t causal = 0; causal < 2; ++causal) {
      for (mdp_cp_form form = MDP_CP_RING; form <= MDP_CP_ALL_TO_ALL; ++form) {
        a_case c = {{1, 24, 12, 12, 4}, form, causal, bounds, 6, MDP_DTYPE_F32, DENSE, 1e-5F};
        run_ranks(ranks, one_rank, &c);
      }
    }
  }
}

static void bf16_operands(void** state) {
  (void)state;
  for (mdp_cp_form form = MDP_CP_RING; form <= MDP_CP_ALL_TO_ALL; ++form) {
    a_case c = {{2, 16, 4, 2, 8}, form, MDP_CP_CAUSAL, NULL, 0, MDP_DTYPE_BF16, PADDED, 3e-2F};
    run_ranks(2, one_rank, &c);
  }
}

/* ── failures ── */

typedef struct {
  mdp_comm* comm;
  int calls, fail_at; /* 0: never */
} a_failure;

static int32_t fails_at(void* user, const mdp_cp_block* block) {
  a_failure* const f = user;
  if (on_cuda) await_default_stream();
  FAILS(MDP_E_STATE, "within a function of the caller's", mdp_barrier(f->comm, NULL));
  CHECK(mdp_comm_rank(f->comm) >= 0);
  if (++f->calls == f->fail_at) return 7;
  return context_reference(block);
}

static void failing_rank(const mdp_unique_id* id, int32_t rank, int32_t size, void* argument) {
  const mdp_cp_form form = *(const mdp_cp_form*)argument;
  const a_case c = {{1, 12, 3, 3, 4}, form, 0, NULL, 0, MDP_DTYPE_F32, DENSE, 0};
  tp_rank r = tp_open(id, rank, size, 1 << 18);
  an_array a[ARRAYS];
  for (int i = 0; i < ARRAYS; ++i) take(&r, &a[i], &c, MDP_DTYPE_F32, 3, i == LSE ? 0 : 4);
  for (int i = 0; i < ARRAYS; ++i) memset(a[i].memory.tensor.data, 0, 64);
  SIZED(mdp_cp_config, config);
  config.form = form;
  for (int backward = 0; backward < 2; ++backward) {
    for (int good = 0; good < 2; ++good) { /* the communicator stays */
      a_failure f = {r.comm, 0, rank == 1 && !good ? (form == MDP_CP_RING ? 2 : 1) : 0};
      const mdp_status status = backward ? mdp_cp_attention_bwd(r.comm, &config, fails_at, &f, &a[Q].tensor, &a[K].tensor, &a[V].tensor,
                                                                &a[OUT].tensor, &a[LSE].tensor, &a[GRAD_OUT].tensor, &a[GRAD_Q].tensor,
                                                                &a[GRAD_K].tensor, &a[GRAD_V].tensor, NULL)
                                         : mdp_cp_attention_fwd(r.comm, &config, fails_at, &f, &a[Q].tensor, &a[K].tensor, &a[V].tensor,
                                                                &a[OUT].tensor, &a[LSE].tensor, NULL);
      if (good) {
        OK(status);
      } else {
        FAILS(MDP_E_ABORTED, "the attention function returned 7 for the block of queries from", status);
        if (rank != 1) CHECK(strstr(mdp_last_error(), "rank 1: ") != NULL);
      }
    }
  }
  tp_settle(&r);
  tp_close(&r);
}

static void a_function_fails_on_one_rank(void** state) {
  (void)state;
  for (mdp_cp_form form = MDP_CP_RING; form <= MDP_CP_ALL_TO_ALL; ++form) run_ranks(3, failing_rank, &form);
}

#define T2(i) (&a[i].tensor)
#define FWD(config) mdp_cp_attention_fwd(r->comm, config, attend, NULL, T2(Q), T2(K), T2(V), T2(OUT), T2(LSE), NULL)
static void refused_arrays(tp_rank* r, an_array* a) {
  a[K].shape[2] = 2;
  FAILS(MDP_E_INVALID, "k has 2 heads and q 3; each head of k serves equally many of q, so its number must divide 3", FWD(NULL));
  a[K].shape[2] = 3;
  a[V].shape[2] = 1;
  FAILS(MDP_E_INVALID, "v has shape [1,3,1,4]; it must be that of k, [1,3,3,4]", FWD(NULL));
  a[V].shape[2] = 3;
  a[K].shape[1] = 2;
  FAILS(MDP_E_INVALID, "only the number of heads, dimension 2, may differ", FWD(NULL));
  a[K].shape[1] = 3;
  a[LSE].shape[1] = 2;
  FAILS(MDP_E_INVALID, "lse has shape [1,2,3]; it goes with q, so it must be [1,3,3]", FWD(NULL));
  a[LSE].shape[1] = 3;
  a[OUT].tensor.data = a[Q].tensor.data;
  FAILS(MDP_E_INVALID, "out.data and q.data are the same memory", FWD(NULL));
  a[OUT].tensor.data = a[OUT].memory.tensor.data;
  a[Q].shape[0] = a[K].shape[0] = a[V].shape[0] = a[OUT].shape[0] = a[LSE].shape[0] = 1;
  if (r->rank == 1) {
    for (int i = Q; i <= LSE; ++i) a[i].shape[1] = 2;
  }
  FAILS(MDP_E_DESYNC,
        "ranks 0 and 1 call different attentions: 'forward of q [1,3,3,4], k [1,3,3,4], f32, ring' and 'forward of q [1,2,3,4]", FWD(NULL));
}

static void refused_rank(const mdp_unique_id* id, int32_t rank, int32_t size, void* argument) {
  (void)argument;
  const a_case c = {{1, 6, 3, 3, 4}, MDP_CP_RING, 0, NULL, 0, MDP_DTYPE_F32, DENSE, 0};
  tp_rank opened = tp_open(id, rank, size, 1 << 16), *const r = &opened;
  an_array a[ARRAYS];
  for (int i = 0; i < ARRAYS; ++i) take(r, &a[i], &c, MDP_DTYPE_F32, 3, i == LSE ? 0 : 4);
  SIZED(mdp_cp_config, config);
  FAILS(MDP_E_INVALID, "comm is NULL", mdp_cp_attention_fwd(NULL, &config, attend, NULL, T2(Q), T2(K), T2(V), T2(OUT), T2(LSE), NULL));
  FAILS(MDP_E_INVALID, "fn is NULL", mdp_cp_attention_fwd(r->comm, &config, NULL, NULL, T2(Q), T2(K), T2(V), T2(OUT), T2(LSE), NULL));
  config.form = 3;
  FAILS(MDP_E_INVALID, "config.form is 3; it must be MDP_CP_AUTO (0), MDP_CP_RING (1) or MDP_CP_ALL_TO_ALL (2)", FWD(&config));
  config.form = rank == 1 ? 3 : MDP_CP_RING; /* on one rank alone */
  FAILS(MDP_E_INVALID, "config.form is 3", FWD(&config));
  config.form = MDP_CP_ALL_TO_ALL;
  FAILS(MDP_E_INVALID, "q has 3 heads, which 2 ranks cannot share evenly in MDP_CP_ALL_TO_ALL (2); 2 or 4 would do, or MDP_CP_RING",
        FWD(&config));
  config.form = MDP_CP_RING;
  config.flags = 2;
  FAILS(MDP_E_INVALID, "config.flags", FWD(&config));
  config.flags = MDP_CP_CAUSAL;
  FAILS(MDP_E_INVALID,
        "the sequence of all ranks (q has 3 each) is 6, which 2 ranks cannot share in 4 equal chunks, two each; 4 or 8 would do",
        FWD(&config));
  config.flags = 0;
  const int64_t from_one[] = {1, 6}, down[] = {0, 4, 3, 6}, less[] = {0, 4};
  config.bound_count = 2;
  FAILS(MDP_E_INVALID, "config.bounds is NULL", FWD(&config));
  config.bounds = from_one;
  FAILS(MDP_E_INVALID, "config.bounds[0] is 1; it must be 0", FWD(&config));
  config.bounds = less;
  FAILS(MDP_E_INVALID, "config.bounds[1] is 4; the last one must be the length of the whole sequence, 6", FWD(&config));
  config.bound_count = 1;
  FAILS(MDP_E_INVALID, "config.bound_count is 1", FWD(&config));
  config.bound_count = 0;
  FAILS(MDP_E_INVALID, "config.bound_count is 0", FWD(&config));
  config.bounds = down;
  config.bound_count = 4;
  FAILS(MDP_E_INVALID, "config.bounds[2] is 3, after 4; they must not go down", FWD(&config));
  config.bounds = NULL;
  config.bound_count = 0;
  refused_arrays(r, a);
  tp_close(r);
}

static void refused(void** state) {
  (void)state;
  run_ranks(2, refused_rank, NULL);
}

static void parts(void** state) {
  (void)state;
  SIZED(mdp_cp_config, config);
  int64_t at[4];
  OK(mdp_cp_part(&config, 3, 1, 12, at));
  CHECK(at[0] == 4 && at[1] == 8 && at[2] == 8 && at[3] == 8);
  config.flags = MDP_CP_CAUSAL;
  OK(mdp_cp_part(&config, 3, 1, 12, at));
  CHECK(at[0] == 2 && at[1] == 4 && at[2] == 8 && at[3] == 10);
  OK(mdp_cp_part(&config, 3, 0, 12, at));
  CHECK(at[0] == 0 && at[1] == 2 && at[2] == 10 && at[3] == 12);
  OK(mdp_cp_part(&config, 1, 0, 7, at));
  CHECK(at[0] == 0 && at[1] == 7 && at[2] == 7 && at[3] == 7);
  FAILS(MDP_E_INVALID, "sequence is 15, which 3 ranks cannot share in 6 equal chunks, two each; 12 or 18 would do",
        mdp_cp_part(&config, 3, 1, 15, at));
  FAILS(MDP_E_INVALID, "sequence is 0", mdp_cp_part(&config, 3, 1, 0, at));
  FAILS(MDP_E_INVALID, "size is 0", mdp_cp_part(&config, 0, 0, 12, at));
  FAILS(MDP_E_INVALID, "rank is 3; it must be between 0 and 2", mdp_cp_part(&config, 3, 3, 12, at));
  FAILS(MDP_E_INVALID, "ranges is NULL", mdp_cp_part(&config, 3, 1, 12, NULL));
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(parts),
                                     TEST(ring_equals_the_whole),
                                     TEST(all_to_all_equals_the_whole),
                                     TEST(packed_sequences),
                                     TEST(bf16_operands),
                                     TEST(a_function_fails_on_one_rank),
                                     TEST(refused)};
  return cmocka_run_group_tests_name("context", tests, NULL, NULL);
}
