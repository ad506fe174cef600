/* SPDX-License-Identifier: Apache-2.0
 *
 * What a sharded step costs beside what its bytes must cost: reduction, norm, AdamW and gather of NUMEL fp32 parameters over the ranks,
 * in turns with the same in one pass (MDP_STEP_UNCHECKED) and with a triad (a = b + s c) of all ranks at the same time, which says what the
 * memory gives. The gradients lie in the buffer; the clock runs from the step, which syncs, on all ranks until all parameters have been
 * waited for, on the slowest rank.
 *
 *   megadp run -n 2 bench_sharded_step [NUMEL [ROUNDS [THREADS]]]
 *
 * Bytes an owned element: 4 n read and 4 written by the reduction, 4 + 24 for the update, 4 (n - 1) into the other windows, in one pass
 * 4 n + 24 + 4 (n - 1); what a cache fetches only to overwrite it is not counted, neither here nor in the triad's 12. */
#define _GNU_SOURCE /* madvise */
#include <megadp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "times.h"

enum {
  PARAMS = 16,
  MOST_ROUNDS = 1000,
  WARM_UPS = 2
};

static void need(mdp_status status) {
  if (status == MDP_OK) return;
  fprintf(stderr, "%s\n", mdp_last_error());
  exit(1);
}

static mdp_comm* comm;

static void meet(void) {
  need(mdp_barrier(comm, NULL));
}

/* The slowest rank's. */
static double slowest(double us) {
  const int64_t one = 1;
  const mdp_tensor t = {.struct_size = sizeof t, .dtype = MDP_DTYPE_F64, .ndim = 1, .shape = &one, .data = &us};
  need(mdp_all_reduce(comm, &t, &t, MDP_OP_MAX, NULL, NULL));
  return us;
}

/* With stores past the caches, where there are any: what is written is not fetched first. */
static double triad(float* a, const float* b, const float* c, int64_t n) {
  meet();
  const double begin = now_us();
#ifdef __SSE2__
  const __m128 half = _mm_set1_ps(0.5F);
  for (int64_t i = 0; i < n; i += 4) _mm_stream_ps(a + i, _mm_add_ps(_mm_load_ps(b + i), _mm_mul_ps(half, _mm_load_ps(c + i))));
  _mm_sfence();
#else
  for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 0.5F * c[i];
#endif
  return slowest(now_us() - begin);
}

/* In large pages, where the system has them: as the library's own arrays. */
static float* array_of(int64_t n) {
  const size_t page = (size_t)2 << 20, bytes = ((size_t)n * sizeof(float) + page - 1) / page * page;
  void* memory = NULL;
  if (posix_memalign(&memory, page, bytes) != 0) exit(1);
  float* const data = memory;
  (void)madvise(data, bytes, MADV_HUGEPAGE);
  for (int64_t i = 0; i < n; ++i) data[i] = (float)(i % 5);
  return data;
}

static double step(mdp_buffer* buffer, mdp_optimizer* optimizer, uint64_t flags, int round) {
  for (size_t p = 0; p < PARAMS; ++p) {
    mdp_tensor grad = {.struct_size = sizeof grad};
    int32_t first = 0;
    need(mdp_grad_acquire(buffer, p, &grad, &first, NULL));
    for (int64_t i = 0; i < grad.shape[0]; ++i) ((float*)grad.data)[i] = (float)((i + round) % 7 - 3) / 64;
    need(mdp_grad_ready(buffer, p, NULL));
  }
  meet();
  const double begin = now_us();
  const mdp_step_config config = {.struct_size = sizeof config, .flags = flags};
  need(mdp_optimizer_step(optimizer, &config, NULL, NULL));
  for (size_t p = 0; p < PARAMS; ++p) need(mdp_param_wait(buffer, p, NULL));
  return slowest(now_us() - begin);
}

static double median(double* values, int n) {
  qsort(values, (size_t)n, sizeof *values, ascending);
  return values[n / 2];
}

int main(int argc, char** argv) {
  const int64_t numel = argc > 1 ? atoll(argv[1]) : 60000000, each = numel / PARAMS;
  const int rounds = argc > 2 ? atoi(argv[2]) : 15;
  if (each < 1 || rounds < 1 || rounds > MOST_ROUNDS) return fprintf(stderr, "usage: bench_sharded_step [NUMEL [ROUNDS [THREADS]]]\n"), 2;
  const mdp_comm_config config = {.struct_size = sizeof config, .host_threads = argc > 3 ? atoi(argv[3]) : 0};
  need(mdp_comm_create(&config, NULL, &comm));
  const int32_t ranks = mdp_comm_size(comm);
  mdp_param params[PARAMS] = {{0}};
  char names[PARAMS][16];
  for (int p = 0; p < PARAMS; ++p) {
    snprintf(names[p], sizeof names[p], "p%d", p);
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = names[p], .dtype = MDP_DTYPE_F32, .ndim = 1, .shape = &each};
  }
  const mdp_buffer_config layout = {.struct_size = sizeof layout, .flags = MDP_BUFFER_NO_OVERLAP};
  mdp_buffer* buffer = NULL;
  need(mdp_buffer_register(comm, NULL, &layout, params, PARAMS, &buffer));
  const mdp_optimizer_config rule = {.struct_size = sizeof rule, .lr = 1e-3};
  mdp_optimizer* optimizer = NULL;
  need(mdp_optimizer_create(buffer, &rule, &optimizer));
  const int64_t n = (numel + 15) / 16 * 4;
  float *const a = array_of(n), *const b = array_of(n), *const c = array_of(n);

  static double steps[2][MOST_ROUNDS], triads[MOST_ROUNDS], ratios[2][MOST_ROUNDS];
  const double owned = (double)each * PARAMS / ranks, others = ranks > 1 ? 4.0 * (ranks - 1) : 0;
  const double bytes[2] = {owned * (28 + (ranks > 1 ? 4.0 * ranks + 4 : 0) + others), owned * (24 + 4.0 * ranks + others)};
  for (int round = -WARM_UPS; round < rounds; ++round) {
    const double triad_us = triad(a, b, c, n);
    for (int i = 0; i < 2; ++i) {
      const double step_us = step(buffer, optimizer, i == 1 ? MDP_STEP_UNCHECKED : 0, round + WARM_UPS);
      if (round < 0) continue;
      steps[i][round] = step_us;
      ratios[i][round] = step_us / (triad_us * bytes[i] / (12.0 * (double)n));
    }
    if (round >= 0) triads[round] = triad_us;
  }
  if (mdp_comm_rank(comm) == 0) {
    printf("%lld parameters over %d ranks: triad %.1f GB/s a rank\n", (long long)(each * PARAMS), ranks,
           12.0 * (double)n / median(triads, rounds) / 1e3);
    for (int i = 0; i < 2; ++i) {
      const double step_us = median(steps[i], rounds);
      printf("  %s: %.1f ms, %.0f bytes an owned element at %.1f GB/s a rank; step / ideal %.2f\n",
             i == 1 ? "step in one pass" : "step            ", step_us / 1e3, bytes[i] / owned, bytes[i] / step_us / 1e3,
             median(ratios[i], rounds));
    }
  }
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
  free(a);
  free(b);
  free(c);
  return 0;
}
