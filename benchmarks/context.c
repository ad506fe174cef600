/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention, forward and backward, of a sequence that is cut over the ranks, beside what one rank needs for all of it: seconds, by turns in
 * one run, medians. Heads of 64, batch 1, f32, one thread a rank.
 *
 *   alone        rank 0 computes everything, nobody else anything
 *   heads        each rank computes some heads by itself: what its processor gives while the others compute, nothing sent
 *   ring, all_to_all   mdp_cp_attention_fwd and _bwd
 *
 * ring_ratio and all_to_all_ratio are their times divided by alone / ranks. `apart`: the largest relative difference of the sums of squares
 * of results to those of alone. A line of JSON for each mask.
 *
 * usage: megadp run -n RANKS bench_context [SEQUENCE [HEADS [ROUNDS]]]      (8192 8 5) */
#include <math.h>
#include <megadp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention.h"
#include "times.h"

static void must(mdp_status status, const char* call) {
  if (status >= 0) return;
  fprintf(stderr, "bench_context: %s: %s: %s\n", call, mdp_status_name(status), mdp_last_error());
  exit(1);
}
#define MUST(call) must((call), #call)

enum {
  DEPTH = 64
};
typedef enum {
  GIVEN_Q,
  GIVEN_K,
  GIVEN_V,
  GIVEN_GRAD, /* of out */
  GIVEN,
  OUT = GIVEN,
  GRAD_Q,
  GRAD_K,
  GRAD_V,
  LSE,
  ARRAYS
} array;

typedef struct {
  int64_t shape[4], strides[4], lse_strides[3];
  mdp_tensor of[ARRAYS];
} operands;

typedef struct {
  mdp_comm* comm;
  int rank, ranks;
  int64_t sequence, heads;
  float* whole[ARRAYS]; /* the same on all ranks, and what this one makes of them */
  float* part[ARRAYS];
  attention_memory memory;
} bench;

typedef enum {
  ALONE,
  HEADS,
  RING,
  ALL_TO_ALL,
  MEASURED
} what;

static operands operands_of(float* const* data, int64_t positions, int64_t row_heads, int64_t first, int64_t heads) {
  operands o = {.shape = {1, positions, heads, DEPTH},
                .strides = {positions * row_heads * DEPTH, row_heads * DEPTH, DEPTH, 1},
                .lse_strides = {positions * row_heads, row_heads, 1}};
  for (int i = 0; i < ARRAYS; ++i) {
    o.of[i] = (mdp_tensor){.struct_size = sizeof o.of[i], .dtype = MDP_DTYPE_F32, .ndim = i == LSE ? 3 : 4};
    o.of[i].data = data[i] + first * (i == LSE ? 1 : DEPTH);
  }
  return o;
}

/* Where shape and strides lie is known when the operands have come to rest. */
static void point(operands* o) {
  for (int i = 0; i < ARRAYS; ++i) {
    o->of[i].shape = o->shape;
    o->of[i].strides = i == LSE ? o->lse_strides : o->strides;
  }
}

static void by_itself(bench* b, int64_t first, int64_t heads, int causal) {
  operands o = operands_of(b->whole, b->sequence, b->heads, first, heads);
  point(&o);
  mdp_cp_block block = {.struct_size = sizeof block,
                        .mask = causal ? MDP_CP_MASK_CAUSAL : MDP_CP_MASK_NONE,
                        .q = &o.of[GIVEN_Q],
                        .k = &o.of[GIVEN_K],
                        .v = &o.of[GIVEN_V],
                        .out = &o.of[OUT],
                        .lse = &o.of[LSE]};
  int32_t failed = attention_block(&b->memory, &block);
  block.grad_out = &o.of[GIVEN_GRAD];
  block.grad_q = &o.of[GRAD_Q], block.grad_k = &o.of[GRAD_K], block.grad_v = &o.of[GRAD_V];
  failed |= attention_block(&b->memory, &block);
  if (failed) fprintf(stderr, "bench_context: out of memory\n"), exit(1);
}

static void together(bench* b, mdp_cp_form form, int causal) {
  const mdp_cp_config config = {.struct_size = sizeof config, .form = form, .flags = causal ? MDP_CP_CAUSAL : 0};
  operands o = operands_of(b->part, b->sequence / b->ranks, b->heads, 0, b->heads);
  point(&o);
  const mdp_tensor* const of = o.of;
  MUST(mdp_cp_attention_fwd(b->comm, &config, attention_block, &b->memory, &of[GIVEN_Q], &of[GIVEN_K], &of[GIVEN_V], &of[OUT], &of[LSE],
                            NULL));
  MUST(mdp_cp_attention_bwd(b->comm, &config, attention_block, &b->memory, &of[GIVEN_Q], &of[GIVEN_K], &of[GIVEN_V], &of[OUT], &of[LSE],
                            &of[GIVEN_GRAD], &of[GRAD_Q], &of[GRAD_K], &of[GRAD_V], NULL));
}

static void once(bench* b, what kind, int causal) {
  if (kind == ALONE && b->rank == 0) by_itself(b, 0, b->heads, causal);
  if (kind == HEADS) by_itself(b, b->rank * b->heads / b->ranks, b->heads / b->ranks, causal);
  if (kind == RING || kind == ALL_TO_ALL) together(b, kind == RING ? MDP_CP_RING : MDP_CP_ALL_TO_ALL, causal);
}

static void over_ranks(const bench* b, double* values, int64_t count, mdp_op op) {
  const mdp_tensor all = {.struct_size = sizeof all, .dtype = MDP_DTYPE_F64, .ndim = 1, .shape = &count, .data = values};
  MUST(mdp_all_reduce(b->comm, &all, &all, op, NULL, NULL));
}

/* Seconds on the slowest rank. */
static double time_of(bench* b, what kind, int causal) {
  MUST(mdp_barrier(b->comm, NULL));
  const double begin = now_us();
  once(b, kind, causal);
  double taken = (now_us() - begin) / 1e6;
  over_ranks(b, &taken, 1, MDP_OP_MAX);
  return taken;
}

/* Of out and gradients, over all ranks; positions may lie in any order. */
static void squares(const bench* b, float* const* data, int64_t positions, double* sums) {
  memset(sums, 0, (LSE - OUT) * sizeof *sums);
  for (int64_t i = 0; i < positions * b->heads * DEPTH; ++i) {
    for (int n = OUT; n < LSE; ++n) sums[n - OUT] += (double)data[n][i] * (double)data[n][i];
  }
  over_ranks(b, sums, LSE - OUT, MDP_OP_SUM);
}

/* Also warms up. */
static double compare(bench* b, int causal) {
  double alone[LSE - OUT], cut[LSE - OUT], apart = 0;
  once(b, ALONE, causal);
  squares(b, b->whole, b->rank == 0 ? b->sequence : 0, alone);
  for (what kind = RING; kind <= ALL_TO_ALL; ++kind) {
    once(b, kind, causal);
    squares(b, b->part, b->sequence / b->ranks, cut);
    for (int i = 0; i < LSE - OUT; ++i) apart = fmax(apart, fabs(cut[i] - alone[i]) / alone[i]);
  }
  return apart;
}

static void measure(bench* b, int causal, int rounds, double* medians) {
  double* const times = calloc((size_t)rounds * MEASURED, sizeof *times);
  if (times == NULL) exit(1);
  for (int round = 0; round < rounds; ++round) {
    for (int kind = 0; kind < MEASURED; ++kind) times[kind * rounds + round] = time_of(b, (what)kind, causal);
  }
  for (int kind = 0; kind < MEASURED; ++kind) {
    qsort(times + kind * rounds, (size_t)rounds, sizeof *times, ascending);
    medians[kind] = times[kind * rounds + rounds / 2];
  }
  free(times);
}

/* What all have, and of it this rank's part. */
static void fill(bench* b, int causal) {
  const mdp_cp_config config = {.struct_size = sizeof config, .flags = causal ? MDP_CP_CAUSAL : 0};
  const int64_t row = b->heads * DEPTH;
  int64_t ranges[4];
  uint32_t state = 1;
  MUST(mdp_cp_part(&config, b->ranks, b->rank, b->sequence, ranges));
  for (int n = 0; n < GIVEN; ++n) {
    for (int64_t i = 0; i < b->sequence * row; ++i) {
      state = state * 1664525 + 1013904223;
      b->whole[n][i] = (float)(state >> 8) / (1 << 23) - 1;
    }
    const int64_t first = ranges[1] - ranges[0], second = ranges[3] - ranges[2];
    memcpy(b->part[n], b->whole[n] + ranges[0] * row, (size_t)(first * row) * sizeof(float));
    memcpy(b->part[n] + first * row, b->whole[n] + ranges[2] * row, (size_t)(second * row) * sizeof(float));
  }
}

/* Products of forward are two, of backward five. */
static double gflops(const bench* b, int causal, double seconds) {
  return 7 * 2e-9 * (double)b->sequence * (double)b->sequence * (double)(b->heads * DEPTH) / (causal ? 2 : 1) / seconds;
}

static void take_memory(bench* b) {
  for (int n = 0; n < ARRAYS; ++n) {
    const size_t count = (size_t)(b->sequence * b->heads * (n == LSE ? 1 : DEPTH));
    b->whole[n] = calloc(count, sizeof(float));
    b->part[n] = calloc(count / (size_t)b->ranks, sizeof(float));
    if (b->whole[n] == NULL || b->part[n] == NULL) fprintf(stderr, "bench_context: out of memory\n"), exit(1);
  }
}

int main(int argc, char** argv) {
  bench b = {.sequence = argc > 1 ? atoll(argv[1]) : 8192, .heads = argc > 2 ? atoll(argv[2]) : 8};
  const int rounds = argc > 3 ? atoi(argv[3]) : 5;
  MUST(mdp_comm_create(NULL, NULL, &b.comm));
  b.rank = mdp_comm_rank(b.comm), b.ranks = mdp_comm_size(b.comm);
  const int64_t multiple = 2 * ATTENTION_TILE * (int64_t)b.ranks;
  if (b.sequence < 1 || b.sequence % multiple || b.heads < 1 || b.heads % b.ranks || rounds < 1) {
    fprintf(stderr, "bench_context: SEQUENCE %lld must be a multiple of %lld, HEADS %lld of %d, ROUNDS %d at least 1\n",
            (long long)b.sequence, (long long)multiple, (long long)b.heads, b.ranks, rounds);
    return 2;
  }
  take_memory(&b);
  for (int causal = 1; causal >= 0; --causal) {
    double t[MEASURED];
    fill(&b, causal);
    const double apart = compare(&b, causal);
    measure(&b, causal, rounds, t);
    if (b.rank != 0) continue;
    printf("{\"ranks\": %d, \"sequence\": %lld, \"causal\": %s, \"alone_s\": %.3f, \"alone_gflops\": %.1f, \"heads_s\": %.3f, ", b.ranks,
           (long long)b.sequence, causal ? "true" : "false", t[ALONE], gflops(&b, causal, t[ALONE]), t[HEADS]);
    printf("\"ring_s\": %.3f, \"all_to_all_s\": %.3f, \"heads_ratio\": %.3f, \"ring_ratio\": %.3f, \"all_to_all_ratio\": %.3f, ", t[RING],
           t[ALL_TO_ALL], t[HEADS] * b.ranks / t[ALONE], t[RING] * b.ranks / t[ALONE], t[ALL_TO_ALL] * b.ranks / t[ALONE]);
    printf("\"apart\": %.1e}\n", apart);
    fflush(stdout);
  }
  for (int n = 0; n < ARRAYS; ++n) free(b.whole[n]), free(b.part[n]);
  free(b.memory.scratch);
  mdp_comm_destroy(b.comm);
  return 0;
}
