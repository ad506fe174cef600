/* SPDX-License-Identifier: Apache-2.0
 * ZeRO-2 against an oracle, on models, orders and faults made up from a seed: parameters with and without elements, half width and f32, of
 * one use and two; gradients that are put whole or in parts, by several threads, written where mdp_grad_acquire says, lent in vain,
 * skipped, missing; syncs that fail, steps that are not taken. Values are small whole numbers and ranks a power of two, so that every sum
 * is exact in every type, and the oracle is a plain sum. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fixture.h"

enum {
  MOST = 12,
  LONGEST = 400,
  STEPS = 5,
  THREADS = 2
};

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* A number from 0 to below - 1 that follows from the others. */
static unsigned drawn(uint64_t seed, unsigned what, unsigned a, unsigned b, unsigned c, unsigned below) {
  uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + what * UINT64_C(0xff51afd7ed558ccd) + a * UINT64_C(0xc4ceb9fe1a85ec53) +
               b * UINT64_C(0x2545f4914f6cdd1d) + c * UINT64_C(0xd6e8feb86659fd93);
  for (int i = 0; i < 3; ++i) x = (x ^ (x >> 32)) * UINT64_C(0xd6e8feb86659fd93);
  return (unsigned)((x >> 32) % below);
}

enum {
  LENGTH,
  DTYPE,
  USES,
  OWN,
  GRADS,
  POOL,
  BUCKETS,
  POLICY,
  COUNT,
  ACTION,
  EVERYWHERE,
  PARTS,
  WAY,
  VALUE,
  ORDER,
  USED,
  FAILS_HERE,
  ABANDONED
};

typedef struct {
  uint64_t seed;
  int params;
  int64_t lengths[MOST];
  int32_t uses[MOST];
  mdp_missing missing;
} model;

static unsigned microbatches(const model* m, unsigned step) {
  return 1 + drawn(m->seed, COUNT, step, 0, 0, 3);
}

enum {
  ABSENT,
  SKIPPED,
  PUT
};
/* What a rank does about a parameter in a microbatch. */
static int action(const model* m, unsigned step, unsigned b, unsigned rank, unsigned p) {
  if (drawn(m->seed, EVERYWHERE, step, p, 0, 8) == 0) return SKIPPED; /* on all ranks, in all microbatches */
  const unsigned chance = drawn(m->seed, ACTION, step * 4 + b, rank, p, 10);
  if (chance < 2) return m->missing == MDP_MISSING_ERROR && b + 1 == microbatches(m, step) ? PUT : ABSENT;
  return chance == 2 ? SKIPPED : PUT;
}

static unsigned parts(const model* m, unsigned step, unsigned b, unsigned rank, unsigned p) {
  return 1 + drawn(m->seed, PARTS, step * 4 + b, rank, p, 2);
}

/* Of one part of one use. */
static float value(const model* m, unsigned when, unsigned rank, unsigned p, int64_t i) {
  return (float)drawn(m->seed, VALUE, when, rank * MOST + p, (unsigned)i, 5) - 2;
}
static unsigned when(unsigned step, unsigned b, unsigned use, unsigned part) {
  return ((step * 4 + b) * 2 + use) * 2 + part;
}

typedef struct {
  const model* of;
  mdp_buffer* buffer;
  unsigned rank, step, microbatch;
  int thread, left_out; /* a parameter that does not come here, or -1 */
} backward;

static void lend_in_vain(const backward* w, unsigned p) {
  SIZED(mdp_tensor, lent);
  int32_t first = 0;
  OK(mdp_grad_acquire(w->buffer, p, &lent, &first, NULL));
  CHECK(first == 1);
  memset(lent.data, 0x7f, (size_t)w->of->lengths[p] * (lent.dtype == MDP_DTYPE_F32 ? 4 : 2)); /* not finite */
  OK(mdp_grad_release(w->buffer, p));
}

static void write_lent(const backward* w, unsigned p, unsigned use) {
  const model* m = w->of;
  SIZED(mdp_tensor, lent);
  int32_t first = -1;
  OK(mdp_grad_acquire(w->buffer, p, &lent, &first, NULL));
  CHECK(first == (use == 0));
  for (int64_t i = 0; i < m->lengths[p]; ++i) {
    const float part = value(m, when(w->step, w->microbatch, use, 0), w->rank, p, i);
    if (lent.dtype == MDP_DTYPE_F32) {
      ((float*)lent.data)[i] = first ? part : ((float*)lent.data)[i] + part;
    } else {
      uint32_t bits;
      memcpy(&bits, &part, sizeof bits);
      ((uint16_t*)lent.data)[i] = (uint16_t)(bits >> 16);
    }
  }
  OK(mdp_grad_ready(w->buffer, p, NULL));
}

static void put_in_parts(const backward* w, unsigned p, unsigned use, unsigned count) {
  float values[LONGEST];
  for (unsigned part = 0; part < count; ++part) {
    for (int64_t i = 0; i < w->of->lengths[p]; ++i) values[i] = value(w->of, when(w->step, w->microbatch, use, part), w->rank, p, i);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &w->of->lengths[p]);
    OK(mdp_grad_put(w->buffer, p, &t, part + 1 < count ? MDP_GRAD_MORE : 0, NULL));
  }
}

static void bring(const backward* w, unsigned p) {
  const model* m = w->of;
  const int what = action(m, w->step, w->microbatch, w->rank, p);
  if (what == ABSENT || (int)p == w->left_out) return;
  const unsigned way = drawn(m->seed, WAY, w->step * 4 + w->microbatch, w->rank, p, 4);
  if (way == 0) lend_in_vain(w, p);
  if (what == SKIPPED) {
    OK(mdp_grad_skip(w->buffer, p));
    return;
  }
  for (unsigned use = 0; use < (unsigned)m->uses[p]; ++use) {
    const unsigned count = parts(m, w->step, w->microbatch, w->rank, p);
    if (count == 1 && way % 2 == 1) {
      write_lent(w, p, use);
    } else {
      put_in_parts(w, p, use, count);
    }
  }
}

/* Half of the parameters, in backward order or in another one. */
static void* run(void* argument) {
  const backward* w = argument;
  const unsigned n = (unsigned)w->of->params;
  const unsigned shift = drawn(w->of->seed, ORDER, w->step * 4 + w->microbatch, w->rank, 0, 3) == 0 ? 0 : 1 + w->rank;
  for (unsigned i = 0; i < n; ++i) {
    const unsigned p = (2 * n - 1 - i + shift * (1 + w->step)) % n;
    if ((int)(p % THREADS) == w->thread) bring(w, p);
  }
  return NULL;
}

/* What this rank owns of the mean over ranks, summed over microbatches. */
static void check_sums(const model* m, mdp_buffer* buffer, unsigned step, unsigned ranks) {
  mdp_range ranges[4 * MOST];
  const size_t count = owned_ranges(buffer, ranges, 4 * MOST);
  for (size_t r = 0; r < count; ++r) {
    const unsigned p = (unsigned)ranges[r].param;
    SIZED(mdp_tensor, owned);
    OK(mdp_grad_owned(buffer, p, &owned));
    CHECK(owned.shape[0] == ranges[r].end - ranges[r].begin && owned.dtype == MDP_DTYPE_F32);
    int64_t wrong = 0;
    for (int64_t i = 0; i < owned.shape[0]; ++i) {
      float sum = 0;
      for (unsigned rank = 0; rank < ranks; ++rank) {
        for (unsigned b = 0; b < microbatches(m, step); ++b) {
          if (action(m, step, b, rank, p) != PUT) continue;
          for (unsigned use = 0; use < (unsigned)m->uses[p]; ++use) {
            for (unsigned part = 0; part < parts(m, step, b, rank, p); ++part)
              sum += value(m, when(step, b, use, part), rank, p, ranges[r].param_begin + i);
          }
        }
      }
      wrong += ((const float*)owned.data)[i] != sum / (float)ranks;
    }
    if (!CHECK(wrong == 0)) printf("seed %u step %u parameter %u: %d elements\n", (unsigned)m->seed, step, p, (int)wrong);
  }
}

static mdp_buffer* open_buffer(mdp_comm* comm, model* m) {
  static const char* const names[MOST] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"};
  const uint64_t seed = m->seed;
  m->params = 2 + (int)drawn(seed, COUNT, 99, 0, 0, MOST - 1);
  m->missing = drawn(seed, POLICY, 0, 0, 0, 3);
  mdp_param params[MOST];
  memset(params, 0, sizeof params);
  for (unsigned p = 0; p < (unsigned)m->params; ++p) {
    m->lengths[p] = drawn(seed, LENGTH, p, 0, 0, 8) == 0 ? 0 : 1 + (int64_t)drawn(seed, LENGTH, p, 1, 0, LONGEST);
    m->uses[p] = 1 + (drawn(seed, USES, p, 0, 0, 3) == 0);
    params[p] = (mdp_param){.struct_size = sizeof params[p], .name = names[p], .shape = &m->lengths[p], .ndim = 1};
    params[p].uses_per_step = m->uses[p];
    params[p].dtype = drawn(seed, DTYPE, p, 0, 0, 3) == 0 ? MDP_DTYPE_BF16 : MDP_DTYPE_F32;
    params[p].use_order = drawn(seed, USED, MOST, 0, 0, 2) == 0 ? 0 : (int32_t)drawn(seed, USED, p, 0, 0, 5) - 2;
    params[p].flags = drawn(seed, OWN, p, 0, 0, 6) == 0 ? MDP_PARAM_OWN_BUCKET : 0;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_2;
  config.grad_dtype = drawn(seed, GRADS, 0, 0, 0, 2) == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_SAME;
  config.missing = m->missing;
  config.pool_buckets = drawn(seed, POOL, 0, 0, 0, 4);
  config.bucket_elements = 1 + drawn(seed, BUCKETS, 0, 0, 0, 2) * drawn(seed, BUCKETS, 1, 0, 0, 800);
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, (size_t)m->params, &buffer));
  return buffer;
}

/* Rank 0 leaves out a parameter that all others bring in some microbatch: MDP_E_STATE where that is an error. */
static int chosen_to_fail(const model* m, unsigned step) {
  if (m->missing != MDP_MISSING_ERROR || drawn(m->seed, FAILS_HERE, step, 0, 0, 4) != 0) return -1;
  const unsigned p = drawn(m->seed, FAILS_HERE, step, 1, 0, (unsigned)m->params);
  return action(m, step, 0, 0, p) == SKIPPED ? -1 : (int)p;
}

static mdp_status sync(mdp_buffer* buffer) {
  mdp_request* request = NULL;
  mdp_status status = mdp_grad_sync(buffer, NULL, &request);
  if (status >= 0) status = mdp_request_wait(request, UINT64_MAX);
  mdp_request_free(request);
  return status;
}

static void body(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = {.seed = *(const uint64_t*)argument};
  mdp_comm* const comm = comm_open(id, rank, n, UINT64_C(60000000000));
  mdp_buffer* const buffer = open_buffer(comm, &m);
  mdp_optimizer* optimizer = NULL;
  OK(mdp_optimizer_create(buffer, NULL, &optimizer));
  for (unsigned step = 0; step < STEPS; ++step) {
    const int fails = chosen_to_fail(&m, step);
    for (unsigned b = 0; b < microbatches(&m, step); ++b) {
      OK(mdp_microbatch_begin(buffer, b + 1 == microbatches(&m, step)));
      backward work[THREADS];
      pthread_t threads[THREADS];
      for (int t = 0; t < THREADS; ++t) {
        work[t] = (backward){&m, buffer, (unsigned)rank, step, b, t, rank == 0 ? fails : -1};
        CHECK(pthread_create(&threads[t], NULL, run, &work[t]) == 0);
      }
      for (int t = 0; t < THREADS; ++t) CHECK(pthread_join(threads[t], NULL) == 0);
    }
    const mdp_status synced = sync(buffer);
    if (fails >= 0) {
      CHECK(synced == MDP_E_STATE);
      continue;
    }
    CHECK(synced == MDP_OK);
    check_sums(&m, buffer, step, (unsigned)n);
    if (drawn(m.seed, ABANDONED, step, 0, 0, 4) != 0) step_and_wait(optimizer); /* otherwise the next one begins anew */
  }
  OK(mdp_buffer_verify(buffer));
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

static void sums_are_the_oracles(void** state) {
  (void)state;
  const uint64_t seeds = UNDER_SANITIZER ? 12 : 60;
  for (uint64_t seed = 0; seed < seeds; ++seed) run_ranks(1 << (seed % 3), body, &seed);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(sums_are_the_oracles)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
