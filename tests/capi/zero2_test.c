/* SPDX-License-Identifier: Apache-2.0
 * ZeRO-2: gradients pass through a pool of buckets. The bits of ZERO_1, whatever the order of arrival; microbatches; what lies outside the
 * pool; mdp_grad_acquire and mdp_grad_release, which every sharding has; and what is refused. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layers.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* ── One microbatch: the bits of ZERO_1 ── */

static void train_beside(mdp_comm* comm, const void* argument) {
  const kind* k = argument;
  kind other = *k;
  other.sharding = MDP_SHARDING_ZERO_1;
  other.pool_buckets = 0;
  model pooled = model_on(comm, k), whole = model_on(comm, &other);
  for (int step = 0; step < 2 * ORDERS; ++step) {
    put_all_in(&pooled, step % ORDERS, step, 0);
    put_all_in(&whole, step % ORDERS, step, 0);
    step_and_wait(pooled.optimizer);
    step_and_wait(whole.optimizer);
    CHECK(same_params(&pooled, &whole));
  }
  OK(mdp_buffer_verify(pooled.buffer));
  model_drop(&pooled);
  model_drop(&whole);
}

static void one_microbatch_has_the_bits_of_zero_1(void** state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= 4; ++ranks) {
    for (int way = 0; way < 8; ++way) {
      kind k = {.sharding = MDP_SHARDING_ZERO_2, .pool_buckets = (uint64_t)way % 4, .tp = 1, .bucket_elements = way < 4 ? 1 : 200};
      k.dtype = way % 3 == 0 ? MDP_DTYPE_F32 : way % 3 == 1 ? MDP_DTYPE_BF16 : MDP_DTYPE_F16;
      k.grads = way % 2 == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_SAME;
      k.flags = way == 7 ? MDP_BUFFER_NO_OVERLAP : 0;
      if (UNDER_THREAD_SANITIZER && ranks % 2 != 0) continue;
      run_on_comms(ranks, train_beside, &k);
    }
  }
}

/* ── Microbatches: each is summed over the ranks, divided, rounded to the gradient's type; these are added up in f32 ── */

static float sum_of(const kind* k, int p, int64_t i, int step, int microbatches) {
  const int half = k->grads == MDP_DTYPE_SAME;
  float sum = 0;
  for (int b = 0; b < microbatches; ++b) {
    float ranks[2];
    for (int32_t r = 0; r < 2; ++r) {
      ranks[r] = 0; /* both uses are added up in f32 and rounded once */
      for (int use = 0; use < k->uses; ++use) {
        const float one = gradient(r, p, i, step, b * k->uses + use);
        ranks[r] = use == 0 ? one : ranks[r] + one;
      }
      if (half) ranks[r] = to_bf16(ranks[r]);
    }
    float mean = (ranks[0] + ranks[1]) / 2;
    if (half) mean = to_bf16(mean);
    sum = b == 0 ? mean : sum + mean;
  }
  return sum;
}

enum {
  MICROBATCHES = 3
};

static void check_sums(const model* m, int step) {
  for (int p = 0; p < LAYERS; ++p) {
    SIZED(mdp_tensor, owned);
    OK(mdp_grad_owned(m->buffer, (size_t)p, &owned));
    CHECK(owned.dtype == MDP_DTYPE_F32);
    mdp_range ranges[2 * LAYERS];
    const size_t count = owned_ranges(m->buffer, ranges, 2 * LAYERS);
    for (size_t r = 0; r < count; ++r) {
      if (ranges[r].param != p) continue;
      int64_t wrong = 0;
      for (int64_t i = 0; i < owned.shape[0]; ++i) {
        wrong += ((const float*)owned.data)[i] != sum_of(m->of, p, ranges[r].param_begin + i, step, MICROBATCHES);
      }
      CHECK(wrong == 0);
    }
  }
}

static void train_microbatches(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  for (int step = 0; step < 3; ++step) {
    for (int b = 0; b < MICROBATCHES; ++b) {
      OK(mdp_microbatch_begin(m.buffer, b == MICROBATCHES - 1));
      for (int use = 0; use < m.of->uses; ++use) put_all_in(&m, (step + b) % ORDERS, step, b * m.of->uses + use);
    }
    sync_and_wait(m.buffer);
    check_sums(&m, step);
    step_and_wait(m.optimizer);
  }
  SIZED(mdp_stats_report, stats);
  OK(mdp_buffer_stats(m.buffer, &stats));
  CHECK(stats.buckets == (uint64_t)3 * MICROBATCHES * LAYERS && stats.launched_in_backward == stats.buckets);
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
}

static void microbatches_are_summed_one_by_one(void** state) {
  (void)state;
  for (int way = 0; way < 8; ++way) {
    kind k = {.sharding = MDP_SHARDING_ZERO_2, .pool_buckets = way % 2 == 0 ? 1 : 2, .uses = way < 4 ? 1 : 2, .tp = 1};
    k.dtype = way % 4 < 2 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16;
    k.grads = way % 4 == 3 ? MDP_DTYPE_SAME : MDP_DTYPE_F32;
    run_on_comms(2, train_microbatches, &k);
  }
}

/* Skipped in one microbatch is not so in the step; the last one brings or skips everything. */
static void train_holes(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  model beside = model_on(comm, argument);
  for (int step = 0; step < 2; ++step) {
    OK(mdp_microbatch_begin(m.buffer, 0));
    put(&m, 0, step, 0);
    put(&m, 1, step, 0);
    OK(mdp_grad_skip(m.buffer, 2));
    OK(mdp_grad_skip(m.buffer, 5));
    if (m.rank == 0) put(&m, 4, step, 0);
    OK(mdp_microbatch_begin(m.buffer, 1));
    OK(mdp_grad_skip(m.buffer, 0));
    OK(mdp_grad_skip(m.buffer, 1));
    put(&m, 2, step, 0);
    put(&m, 3, step, 0);
    if (m.rank == 0) {
      OK(mdp_grad_skip(m.buffer, 4));
    } else {
      put(&m, 4, step, 0);
    }
    OK(mdp_grad_skip(m.buffer, 5)); /* on all ranks, in all microbatches */
    sync_and_wait(m.buffer);
    step_and_wait(m.optimizer);
    for (int p = 0; p < LAYERS; ++p) {
      if (p == 5) {
        OK(mdp_grad_skip(beside.buffer, 5));
      } else {
        put(&beside, p, step, 0);
      }
    }
    step_and_wait(beside.optimizer);
    CHECK(m.size > 1 || same_params(&m, &beside));
    uint64_t steps = 9;
    OK(mdp_optimizer_steps(m.optimizer, 5, &steps));
    CHECK(steps == 0);
    OK(mdp_optimizer_steps(m.optimizer, 4, &steps));
    CHECK(steps == (uint64_t)step + 1);
  }
  OK(mdp_microbatch_begin(m.buffer, 0));
  put_all_in(&m, BACKWARD, 0, 0);
  OK(mdp_microbatch_begin(m.buffer, 1)); /* nothing comes in it */
  FAILS(MDP_E_STATE, "never became ready (it came 0 of 1 times), nor did 5 more", mdp_grad_sync(m.buffer, NULL, NULL));
  OK(mdp_microbatch_begin(m.buffer, 0));
  for (int p = 1; p < LAYERS; ++p) put(&m, p, 0, 0);
  OK(mdp_microbatch_begin(m.buffer, 1));
  for (int p = 1; p < LAYERS; ++p) put(&m, p, 0, 1);
  FAILS(MDP_E_STATE, "parameter 0 'layer0' never became ready", mdp_grad_sync(m.buffer, NULL, NULL));
  OK(mdp_microbatch_begin(m.buffer, 1));
  put_all_in(&m, FORWARD, 0, 0);
  step_and_wait(m.optimizer);
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
  model_drop(&beside);
}

static void what_is_skipped_is_judged_over_the_step(void** state) {
  (void)state;
  const kind k = {.sharding = MDP_SHARDING_ZERO_2, .pool_buckets = 1, .tp = 1};
  for (int32_t ranks = 1; ranks <= 2; ++ranks) run_on_comms(ranks, train_holes, &k);
}

/* A part of a gradient is none: neither the first of two uses, nor one of which more is to come; also if an earlier microbatch was whole.
 */
static void come_in_part(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  for (int way = 0; way < 2; ++way) {
    for (int b = 0; b < 2; ++b) {
      OK(mdp_microbatch_begin(m.buffer, b));
      for (int use = 0; use < 2; ++use) {
        for (int p = LAYERS - 1; p >= 0; --p) {
          if (b == 0 || p != 0) put(&m, p, 0, 0);
        }
      }
    }
    float values[LONGEST];
    const mdp_tensor t = values_of(&m, 0, 0, 0, values);
    OK(mdp_grad_put(m.buffer, 0, &t, way == 0 ? 0 : MDP_GRAD_MORE, NULL));
    FAILS(MDP_E_STATE,
          way == 0 ? "'layer0' never became ready (it came 1 of 2 times)" : "'layer0' never became ready (it came 0 of 2 times)",
          mdp_grad_sync(m.buffer, NULL, NULL));
  }
  model_drop(&m);
}

/* What was released leaves nothing of itself behind: three parts of a half-width gradient are added up in f32. */
static void parts_after_a_release(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  SIZED(mdp_tensor, lent);
  int32_t first = -1;
  float values[LONGEST];
  OK(mdp_grad_acquire(m.buffer, 0, &lent, &first, NULL)); /* comes before its turn */
  CHECK(first == 1 && lent.dtype == MDP_DTYPE_BF16);
  OK(mdp_grad_release(m.buffer, 0));
  for (int part = 0; part < 3; ++part) {
    for (int64_t i = 0; i < lengths[0]; ++i) values[i] = part == 0 ? 256 : 1;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[0]);
    OK(mdp_grad_put(m.buffer, 0, &t, part < 2 ? MDP_GRAD_MORE : 0, NULL));
  }
  for (int p = LAYERS - 1; p > 0; --p) put(&m, p, 0, 0);
  sync_and_wait(m.buffer);
  OK(mdp_grad_owned(m.buffer, 0, &lent));
  for (int64_t i = 0; i < lent.shape[0]; ++i) CHECK(((const float*)lent.data)[i] == 258);
  model_drop(&m);
}

static void parts_of_a_gradient(void** state) {
  (void)state;
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  const kind uses = {.sharding = MDP_SHARDING_ZERO_2, .uses = 2, .tp = 1};
  come_in_part(comm, &uses);
  const kind half = {.sharding = MDP_SHARDING_ZERO_2, .dtype = MDP_DTYPE_BF16, .grads = MDP_DTYPE_SAME, .tp = 1};
  parts_after_a_release(comm, &half);
  mdp_comm_destroy(comm);
}

/* A bucket that holds nothing, at either end of the arena. */
static void buckets_without_elements(void** state) {
  (void)state;
  static const int64_t sizes[] = {0, 300, 0};
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  mdp_param params[3];
  memset(params, 0, sizeof params);
  for (int p = 0; p < 3; ++p) {
    params[p] =
        (mdp_param){.struct_size = sizeof params[p], .name = names[p], .shape = &sizes[p], .ndim = 1, .flags = MDP_PARAM_OWN_BUCKET};
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = MDP_SHARDING_ZERO_2;
  mdp_buffer* buffer = NULL;
  mdp_optimizer* optimizer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, 3, &buffer));
  OK(mdp_optimizer_create(buffer, NULL, &optimizer));
  float values[LONGEST];
  for (int i = 0; i < LONGEST; ++i) values[i] = 1;
  for (int b = 0; b < 4; ++b) {
    OK(mdp_microbatch_begin(buffer, b % 2));
    for (size_t p = 0; p < 3; ++p) {
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &sizes[p]);
      OK(mdp_grad_put(buffer, p, &t, 0, NULL));
    }
    if (b % 2 == 1) step_and_wait(optimizer);
  }
  mdp_optimizer_destroy(optimizer);
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

/* Another number of microbatches on one rank: every rank is told, with both numbers. */
static void count_differently(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  const int count = m.rank == 1 ? 2 : 3;
  mdp_status status = MDP_OK;
  for (int b = 0; b < count && status == MDP_OK; ++b) {
    status = mdp_microbatch_begin(m.buffer, b == count - 1);
    for (int p = LAYERS - 1; p >= 0 && status == MDP_OK; --p) status = try_put(&m, p, 0, b);
  }
  if (status == MDP_OK) status = mdp_grad_sync(m.buffer, NULL, NULL);
  if (status == MDP_OK) status = mdp_optimizer_step(m.optimizer, NULL, NULL, NULL);
  SIZED(mdp_error_info, info);
  OK(mdp_comm_error_info(comm, &info));
  CHECK(status == MDP_E_DESYNC && info.status == MDP_E_DESYNC);
  CHECK(strstr(mdp_last_error(), "microbatch") != NULL && strchr(mdp_last_error(), '2') != NULL && strchr(mdp_last_error(), '3') != NULL);
  model_drop(&m);
}

static void numbers_of_microbatches_agree(void** state) {
  (void)state;
  const kind k = {.sharding = MDP_SHARDING_ZERO_2, .tp = 1};
  run_on_comms(2, count_differently, &k);
}

/* ── Outside the pool ── */

/* In the order of the forward pass all but what the first bucket holds comes before its turn; no put waits for the other rank. */
static void put_backwards(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  for (int step = 0; step < 2; ++step) {
    if (m.rank == 0) put_all_in(&m, FORWARD, step, 0); /* all, before the other rank has put one */
    OK(mdp_barrier(comm, NULL));
    if (m.rank == 1) put_all_in(&m, FORWARD, step, 0);
    step_and_wait(m.optimizer);
  }
  uint64_t bytes = 0;
  for (int p = 0; p < LAYERS - 1; ++p) bytes += (uint64_t)lengths[p] * sizeof(float);
  CHECK(spill_peak(&m) >= bytes && spill_peak(&m) <= 2 * bytes); /* a device may still hold the first step's */
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
}

static void no_put_waits_for_another_rank(void** state) {
  (void)state;
  const kind k = {.sharding = MDP_SHARDING_ZERO_2, .pool_buckets = 1, .tp = 1};
  run_on_comms(2, put_backwards, &k);
}

/* Ranks 0 and 3 put and then all-reduce with their tensor-parallel peer, ranks 1 and 2 the other way round. */
static void cross(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  mdp_comm* tp = NULL;
  OK(mdp_grid_comm(m.grid, MDP_AXIS_TP, &tp));
  const int first = m.rank == 0 || m.rank == 3;
  for (int step = 0; step < 3; ++step) {
    for (int b = 0; b < 2; ++b) {
      OK(mdp_microbatch_begin(m.buffer, b));
      for (int p = LAYERS - 1; p >= 0; --p) {
        const int64_t one = 1;
        float activation = 1;
        const mdp_tensor t = tensor_of(MDP_DTYPE_F32, &activation, &one);
        if (first) put(&m, p, step, b);
        if (on_cuda) {
          OK(mdp_barrier(tp, NULL));
        } else {
          OK(mdp_all_reduce(tp, &t, &t, MDP_OP_SUM, NULL, NULL));
          CHECK(activation == 2);
        }
        if (!first) put(&m, p, step, b);
      }
    }
    step_and_wait(m.optimizer);
  }
  OK(mdp_buffer_verify(m.buffer));
  mdp_comm_destroy(tp);
  model_drop(&m);
}

static void mixed_orders_on_a_grid(void** state) {
  (void)state;
  for (uint64_t slots = 1; slots <= 2; ++slots) {
    const kind k = {.sharding = MDP_SHARDING_ZERO_2, .pool_buckets = slots, .tp = 2};
    run_on_comms(4, cross, &k);
  }
}

/* A put beyond the limit is refused, and may come again when there is room. */
static void limited_spill(void** state) {
  (void)state;
  const kind k = {.sharding = MDP_SHARDING_ZERO_2, .pool_buckets = 1, .spill_limit = 600, .tp = 1};
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  model m = model_on(comm, &k);
  for (int step = 0; step < 3; ++step) { /* what has been copied in is given back, and counts no more */
    put(&m, 0, step, 0);                 /* 520 bytes */
    FAILS(MDP_E_MEMORY, "mdp_grad_put of parameter 1 'layer1'", try_put(&m, 1, step, 0));
    FAILS(MDP_E_MEMORY, "776 bytes, and mdp_buffer_config.spill_limit is 600; register parameters in the order", try_put(&m, 1, step, 0));
    for (int p = LAYERS - 1; p > 0; --p) {
      mdp_status status = MDP_E_MEMORY;
      for (int wait = 0; wait < 20000 && status == MDP_E_MEMORY; ++wait) { /* until the bucket before has been reduced */
        status = try_put(&m, p, step, 0);
        if (status == MDP_E_MEMORY) usleep(1000);
      }
      OK(status);
    }
    step_and_wait(m.optimizer);
  }
  CHECK(spill_peak(&m) >= 520 && spill_peak(&m) <= 600);
  model_drop(&m);
  mdp_comm_destroy(comm);
}

/* ── mdp_grad_acquire ── */

static void write_lent(const model* m, int p, int step, int microbatch, int expected_first) {
  SIZED(mdp_tensor, lent);
  int32_t first = -1;
  OK(mdp_grad_acquire(m->buffer, (size_t)p, &lent, &first, NULL));
  CHECK(first == expected_first && lent.ndim == 1 && lent.shape[0] == lengths[p] && lent.strides[0] == 1 && lent.dtype == MDP_DTYPE_F32);
  for (int64_t i = 0; i < lengths[p]; ++i) {
    float* const at = (float*)lent.data + i;
    *at = first ? gradient(m->rank, p, i, step, microbatch) : *at + gradient(m->rank, p, i, step, microbatch);
  }
}

static void acquire_beside(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument), beside = model_on(comm, argument);
  const int pooled = m.of->sharding == MDP_SHARDING_ZERO_2;
  for (int step = 0; step < 3; ++step) {
    for (int b = 0; b < 2; ++b) {
      OK(mdp_microbatch_begin(m.buffer, b));
      OK(mdp_microbatch_begin(beside.buffer, b));
      for (int use = 0; use < 2; ++use) {
        for (int n = 0; n < LAYERS; ++n) {
          const int p = step == 1 ? n : LAYERS - 1 - n;
          write_lent(&m, p, step, 2 * b + use, use == 0 && (pooled || b == 0));
          if (n == 2) { /* as if nothing had been written */
            OK(mdp_grad_release(m.buffer, (size_t)p));
            if (use == 0 && (pooled || b == 0)) {
              write_lent(&m, p, step, 2 * b + use, 1);
              OK(mdp_grad_ready(m.buffer, (size_t)p, NULL));
            } else {
              SIZED(mdp_tensor, lent);
              int32_t first = -1;
              OK(mdp_grad_acquire(m.buffer, (size_t)p, &lent, &first, NULL));
              OK(mdp_grad_ready(m.buffer, (size_t)p, NULL));
            }
          } else {
            OK(mdp_grad_ready(m.buffer, (size_t)p, NULL));
          }
          put(&beside, p, step, 2 * b + use);
        }
      }
    }
    step_and_wait(m.optimizer);
    step_and_wait(beside.optimizer);
    CHECK(same_params(&m, &beside));
  }
  model_drop(&m);
  model_drop(&beside);
}

static void what_is_lent_is_a_gradient(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    const kind k = {.sharding = sharding, .uses = 2, .tp = 1};
    for (int32_t ranks = 1; ranks <= 2; ++ranks) run_on_comms(ranks, acquire_beside, &k);
  }
}

static void lending_is_refused(void** state) {
  (void)state;
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_1; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    const kind k = {.sharding = sharding, .tp = 1};
    model m = model_on(comm, &k);
    SIZED(mdp_tensor, lent);
    int32_t first = -1;
    FAILS(MDP_E_INVALID, "out is NULL", mdp_grad_acquire(m.buffer, 0, NULL, &first, NULL));
    FAILS(MDP_E_INVALID, "first is NULL", mdp_grad_acquire(m.buffer, 0, &lent, NULL, NULL));
    FAILS(MDP_E_INVALID, "param is 6", mdp_grad_acquire(m.buffer, LAYERS, &lent, &first, NULL));
    FAILS(MDP_E_INVALID, "param is 6", mdp_grad_release(m.buffer, LAYERS));
    FAILS(MDP_E_INVALID, "param is 6", mdp_grad_owned(m.buffer, LAYERS, &lent));
    FAILS(MDP_E_STATE, "parameter 2 'layer2' is not lent", mdp_grad_release(m.buffer, 2));
    FAILS(MDP_E_STATE, "call mdp_grad_sync first", mdp_grad_owned(m.buffer, 2, &lent));
    if (sharding == MDP_SHARDING_ZERO_2) FAILS(MDP_E_STATE, "was not acquired", mdp_grad_ready(m.buffer, 2, NULL));
    OK(mdp_grad_acquire(m.buffer, 2, &lent, &first, NULL));
    const char* const sentence = "parameter 2 'layer2' is lent by mdp_grad_acquire; call mdp_grad_ready or mdp_grad_release first";
    FAILS(MDP_E_STATE, sentence, mdp_grad_acquire(m.buffer, 2, &lent, &first, NULL));
    FAILS(MDP_E_STATE, sentence, try_put(&m, 2, 0, 0));
    FAILS(MDP_E_STATE, sentence, mdp_grad_skip(m.buffer, 2));
    FAILS(MDP_E_STATE, sentence, mdp_microbatch_begin(m.buffer, 1));
    FAILS(MDP_E_STATE, sentence, mdp_buffer_zero_grad(m.buffer, NULL));
    FAILS(MDP_E_STATE, "on rank 0 parameter 2 'layer2' is lent by mdp_grad_acquire; call mdp_grad_ready or mdp_grad_release first",
          mdp_grad_sync(m.buffer, NULL, NULL));
    FAILS(MDP_E_STATE, "comes after mdp_grad_sync", mdp_grad_ready(m.buffer, 2, NULL)); /* what is refused gives nothing back */
    FAILS(MDP_E_STATE, sentence, mdp_microbatch_begin(m.buffer, 1));                    /* nor does a step begin anew meanwhile */
    FAILS(MDP_E_STATE, sentence, mdp_buffer_zero_grad(m.buffer, NULL));
    OK(mdp_grad_release(m.buffer, 2));
    for (int b = 0; b < 2; ++b) { /* also if it came in an earlier microbatch */
      OK(mdp_microbatch_begin(m.buffer, b));
      for (int p = 0; p < LAYERS; ++p) {
        if (b == 0 || p != 2) put(&m, p, 0, b);
      }
    }
    OK(mdp_grad_acquire(m.buffer, 2, &lent, &first, NULL));
    FAILS(MDP_E_STATE, "on rank 0 parameter 2 'layer2' is lent by mdp_grad_acquire", mdp_grad_sync(m.buffer, NULL, NULL));
    OK(mdp_grad_release(m.buffer, 2));
    OK(mdp_microbatch_begin(m.buffer, 1));
    put_all_in(&m, BACKWARD, 0, 0);
    sync_and_wait(m.buffer);
    OK(mdp_grad_owned(m.buffer, 2, &lent));
    CHECK(lent.shape[0] == lengths[2]);
    step_and_wait(m.optimizer);
    model_drop(&m);
  }
  mdp_comm_destroy(comm);
}

/* ── What else is refused, and the plan ── */

static void refused(void** state) {
  (void)state;
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  kind k = {.sharding = MDP_SHARDING_ZERO_1, .pool_buckets = 2, .tp = 1};
  model m;
  FAILS(MDP_E_INVALID, "pool_buckets is 2; only MDP_SHARDING_ZERO_2 has a pool, leave it 0", model_try(comm, &k, &m));
  model_drop(&m);
  k.pool_buckets = 0;
  k.spill_limit = 7;
  FAILS(MDP_E_INVALID, "spill_limit is 7; only MDP_SHARDING_ZERO_2", model_try(comm, &k, &m));
  model_drop(&m);
  k.sharding = 5;
  FAILS(MDP_E_INVALID, "sharding is 5; it must be MDP_SHARDING_ZERO_0 (1), ZERO_1 (2), ZERO_2 (3), WHOLE (4)", model_try(comm, &k, &m));
  model_drop(&m);
  k = (kind){.sharding = MDP_SHARDING_ZERO_2, .tp = 1};
  m = model_on(comm, &k);
  SIZED(mdp_tensor, view);
  FAILS(MDP_E_UNSUPPORTED, "write it where mdp_grad_acquire says", mdp_buffer_grad_view(m.buffer, 0, &view));
  float values[LONGEST];
  const mdp_tensor t = values_of(&m, 0, 0, 0, values);
  FAILS(MDP_E_UNSUPPORTED, "flags has MDP_GRAD_ADD (1)", mdp_grad_put(m.buffer, 0, &t, MDP_GRAD_ADD, NULL));
  put_all_in(&m, BACKWARD, 0, 0);
  FAILS(MDP_E_STATE, "6 of 6 buckets of this step are launched already", mdp_buffer_zero_grad(m.buffer, NULL));
  step_and_wait(m.optimizer);
  OK(mdp_microbatch_begin(m.buffer, 0));
  put(&m, 0, 0, 0);
  OK(mdp_buffer_zero_grad(m.buffer, NULL));
  OK(mdp_microbatch_begin(m.buffer, 1));
  FAILS(MDP_E_STATE, "launched already", mdp_buffer_zero_grad(m.buffer, NULL));
  put_all_in(&m, BACKWARD, 0, 0);
  FAILS(MDP_E_STATE, "of the last microbatch have come already", mdp_microbatch_begin(m.buffer, 1));
  step_and_wait(m.optimizer);
  model_drop(&m);
  mdp_comm_destroy(comm);
}

static mdp_plan_report planned(mdp_sharding sharding, mdp_dtype dtype, uint64_t pool_buckets, uint64_t spill_limit) {
  static const int64_t length = 1280;
  static const char* const of[4] = {"a", "b", "c", "d"};
  mdp_param params[4];
  memset(params, 0, sizeof params);
  for (int p = 0; p < 4; ++p) {
    params[p] = (mdp_param){.struct_size = sizeof params[p], .dtype = dtype, .name = of[p], .shape = &length, .ndim = 1};
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = sharding;
  config.bucket_elements = 1;
  config.pool_buckets = pool_buckets;
  config.spill_limit = spill_limit;
  SIZED(mdp_plan_report, report);
  OK(mdp_plan(NULL, 4, 0, &config, params, 4, NULL, &report));
  return report;
}

/* With d ranks and bf16 parameters 2 + 16/d bytes an element, the pool apart. */
static void bytes(void** state) {
  (void)state;
  const uint64_t n = 4 * 1280;
  for (uint64_t slots = 0; slots <= 5; ++slots) {
    const mdp_plan_report r = planned(MDP_SHARDING_ZERO_2, MDP_DTYPE_BF16, slots, 0);
    const uint64_t pool = slots == 0 ? 2 : slots > 4 ? 4 : slots;
    CHECK(r.grad_bytes == pool * 1280 * 4 && r.grad_shard_bytes == n * 4 / 4 && r.spill_bytes == n * 4);
    CHECK(r.param_bytes + r.grad_shard_bytes + r.master_bytes + r.state_bytes == 2 * n + 16 * n / 4);
  }
  CHECK(planned(MDP_SHARDING_ZERO_2, MDP_DTYPE_F32, 1, 100).spill_bytes == 100);
  const mdp_plan_report wide = planned(MDP_SHARDING_ZERO_2, MDP_DTYPE_F32, 1, 0);
  CHECK(wide.param_bytes + wide.grad_shard_bytes + wide.master_bytes + wide.state_bytes == 4 * n + 12 * n / 4);
  const mdp_plan_report one = planned(MDP_SHARDING_ZERO_1, MDP_DTYPE_F32, 0, 0);
  CHECK(one.grad_bytes == 4 * n && one.grad_shard_bytes == 0 && one.spill_bytes == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(one_microbatch_has_the_bits_of_zero_1),
      TEST(microbatches_are_summed_one_by_one),
      TEST(what_is_skipped_is_judged_over_the_step),
      TEST(parts_of_a_gradient),
      TEST(buckets_without_elements),
      TEST(numbers_of_microbatches_agree),
      TEST(no_put_waits_for_another_rank),
      TEST(mixed_orders_on_a_grid),
      TEST(limited_spill),
      TEST(what_is_lent_is_a_gradient),
      TEST(lending_is_refused),
      TEST(refused),
      TEST(bytes),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
