/* SPDX-License-Identifier: Apache-2.0
 * f32 gradients that are sent as bf16: every rank's part is rounded once, sums are f32 and in the one order; with what rounding lost kept
 * for the next step, or not. Beside an oracle, bit for bit: every sharding, several microbatches, instances, buckets of any length. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

enum {
  MOST = 8
};

/* ── The oracle ── */

/* What rounding has lost, of all ranks. */
typedef float residuals[MOST][LAYERS][LONGEST];

static float tree_sum(const float* of, int n) {
  if (n == 1) return of[0];
  int left = 1;
  while (2 * left < n) left *= 2;
  return tree_sum(of, left) + tree_sum(of + left, n - left);
}

/* Which layers a rank has no gradient of: the third one on rank 1 in step 1, the fifth one nowhere in step 2. */
static int is_skipped(int32_t rank, int p, int step) {
  return (p == 2 && rank == 1 && step == 1) || (p == 4 && step == 2);
}

static float sum_of(const kind* k, int ranks, int p, int64_t i, int step, int microbatches, residuals lost) {
  const int in_each = k->sharding == MDP_SHARDING_ZERO_2;
  const int feedback = (k->flags & MDP_BUFFER_ERROR_FEEDBACK) != 0;
  float total = 0;
  for (int reduction = 0; reduction < (in_each ? microbatches : 1); ++reduction) {
    float sent[MOST];
    for (int r = 0; r < ranks; ++r) {
      float mine = gradient(r, p, i, step, reduction);
      for (int b = 1; !in_each && b < microbatches; ++b) mine += gradient(r, p, i, step, b);
      if (feedback) mine += lost[r][p][i];
      const int skipped = is_skipped(r, p, step);
      sent[r] = skipped ? 0 : to_bf16(mine);
      if (!skipped) lost[r][p][i] = mine - sent[r];
    }
    const float sum = tree_sum(sent, ranks) / (float)ranks;
    total = reduction == 0 ? sum : total + sum;
  }
  return total;
}

/* ── Steps beside it ── */

typedef struct {
  kind k;
  int microbatches;
} course;

static void put_or_skip(const model* m, const course* c, int step) {
  for (int b = 0; b < c->microbatches; ++b) {
    if (c->microbatches > 1) OK(mdp_microbatch_begin(m->buffer, b == c->microbatches - 1));
    for (int n = 0; n < LAYERS; ++n) {
      const int p = step % 2 == 0 ? LAYERS - 1 - n : (n * 5 + m->rank) % LAYERS;
      if (is_skipped(m->rank, p, step)) {
        OK(mdp_grad_skip(m->buffer, (size_t)p));
      } else {
        put(m, p, step, b);
      }
    }
  }
}

static void check_sums(const model* m, const course* c, int step, residuals lost) {
  mdp_range ranges[LAYERS * 8];
  const size_t count = owned_ranges(m->buffer, ranges, LAYERS * 8);
  for (size_t n = 0; n < count; ++n) {
    SIZED(mdp_tensor, sum);
    OK(mdp_grad_owned(m->buffer, (size_t)ranges[n].param, &sum));
    for (int64_t i = 0; i < sum.shape[0]; ++i) {
      const int p = (int)ranges[n].param;
      const float wanted = sum_of(&c->k, m->size, p, ranges[n].param_begin + i, step, c->microbatches, lost);
      if (!CHECK(((const float*)sum.data)[i] == wanted)) return;
    }
  }
}

static void follow(mdp_comm* comm, const void* argument) {
  const course* c = argument;
  residuals* const lost = calloc(1, sizeof *lost);
  model m = model_on(comm, &c->k);
  for (int step = 0; step < 4; ++step) {
    put_or_skip(&m, c, step);
    sync_and_wait(m.buffer);
    check_sums(&m, c, step, *lost);
    step_and_wait(m.optimizer);
  }
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
  free(lost);
}

static const mdp_sharding shardings[] = {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2};

static void sums_of_rounded_gradients(void** state) {
  (void)state;
  static const int32_t sizes[] = {1, 2, 3, 4, 7, 8};
  static const uint64_t lengths_of_buckets[] = {1, 200, UINT64_MAX};
  int way = 0;
  for (int s = 0; s < 3; ++s) {
    for (int n = 0; n < 6; ++n) {
      for (int b = 0; b < 3; ++b, ++way) {
        if (UNDER_SANITIZER && way % 7 != 0) continue;
        course c = {{.sharding = shardings[s], .wire = MDP_DTYPE_BF16, .bucket_elements = lengths_of_buckets[b], .tp = 1}, 1 + way % 3};
        c.k.flags = way % 4 == 1 ? MDP_BUFFER_NO_OVERLAP : way % 4 == 3 ? MDP_BUFFER_HIGH_BANDWIDTH_PADDING : 0;
        if (c.k.flags == MDP_BUFFER_NO_OVERLAP) c.k.bucket_elements = UINT64_MAX;
        run_on_comms(sizes[n], follow, &c);
        c.k.flags |= MDP_BUFFER_ERROR_FEEDBACK;
        if (shardings[s] != MDP_SHARDING_ZERO_2) run_on_comms(sizes[n], follow, &c);
      }
    }
  }
}

static void instances_change_no_bit(void** state) {
  (void)state;
  for (int s = 1; s < 3; ++s) {
    for (int32_t instances = 2; instances <= 4; instances *= 2) {
      course c = {{.sharding = shardings[s], .wire = MDP_DTYPE_BF16, .tp = 1, .instances = instances}, 2};
      run_on_comms(4, follow, &c);
      run_on_comms(8, follow, &c);
      c.k.flags = MDP_BUFFER_ERROR_FEEDBACK;
      if (s == 1) run_on_comms(8, follow, &c);
    }
  }
}

/* ── Vector 26: a second sync changes nothing, whatever the first one did ── */

static void sync_twice(mdp_comm* comm, const void* argument) {
  const course* c = argument;
  model m = model_on(comm, &c->k);
  float before[LAYERS][LONGEST];
  for (int step = 0; step < 2; ++step) {
    put_all_in(&m, step == 0 ? BACKWARD : MIXED, step, 0);
    for (int again = 0; again < 3; ++again) {
      sync_and_wait(m.buffer);
      for (int p = 0; p < LAYERS; ++p) {
        SIZED(mdp_tensor, sum);
        OK(mdp_grad_owned(m.buffer, (size_t)p, &sum));
        const size_t bytes = (size_t)sum.shape[0] * (sum.dtype == MDP_DTYPE_F32 ? 4 : 2);
        if (bytes == 0) continue;
        if (again > 0) CHECK(memcmp(before[p], sum.data, bytes) == 0);
        memcpy(before[p], sum.data, bytes);
      }
    }
    step_and_wait(m.optimizer);
  }
  model_drop(&m);
}

static void a_second_sync_changes_nothing(void** state) {
  (void)state;
  for (int way = 0; way < 24; ++way) {
    course c = {{.sharding = shardings[way % 3], .tp = 1}, 1};
    c.k.flags = way / 3 % 2 == 0 ? 0 : MDP_BUFFER_NO_OVERLAP;
    if (c.k.flags != 0) c.k.bucket_elements = UINT64_MAX;
    if (way / 6 % 2 == 1) c.k.wire = MDP_DTYPE_BF16;
    if (way / 12 == 1) {
      c.k.dtype = MDP_DTYPE_BF16;
      c.k.grads = MDP_DTYPE_SAME;
    }
    run_on_comms(3, sync_twice, &c);
  }
}

/* ── Vector 21, with f32 gradients ── */

static const int64_t three = 3;

/* In two arenas, which without overlap would go at once. */
static void add_few(mdp_comm* comm, const void* argument) {
  mdp_param params[2];
  memset(params, 0, sizeof params);
  for (int p = 0; p < 2; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = names[p];
    params[p].dtype = p == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16;
    params[p].ndim = 1;
    params[p].shape = &three;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = *(const mdp_sharding*)argument;
  config.wire_dtype = MDP_DTYPE_BF16;
  config.scaling = MDP_SCALING_SUM;
  config.flags = MDP_BUFFER_NO_OVERLAP;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, params, 2, &buffer));
  float values[] = {mdp_comm_rank(comm) == 0 ? 256.0F : 1.0F, 1 + 1.0F / 1024, 3};
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &three);
  for (size_t p = 0; p < 2; ++p) OK(mdp_grad_put(buffer, p, &t, 0, NULL));
  sync_and_wait(buffer);
  mdp_range ranges[2];
  const size_t owned = owned_ranges(buffer, ranges, 2);
  for (size_t n = 0; n < owned; ++n) {
    static const float wanted[] = {258, 3, 9};
    SIZED(mdp_tensor, sum);
    OK(mdp_grad_owned(buffer, (size_t)ranges[n].param, &sum));
    for (int64_t i = 0; i < sum.shape[0]; ++i) CHECK(((const float*)sum.data)[i] == wanted[ranges[n].param_begin + i]);
  }
  mdp_buffer_destroy(buffer);
}

static void sums_are_f32(void** state) {
  (void)state;
  for (int s = 0; s < 3; ++s) run_on_comms(3, add_few, &shardings[s]);
}

/* ── What rounding took from gradients that nobody has used is not added to the next ── */

static void sums_are(mdp_buffer* buffer, float value, float wanted) {
  const float values[3] = {value, value, value};
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, (void*)values, &three);
  SIZED(mdp_tensor, sum);
  OK(mdp_grad_put(buffer, 0, &t, 0, NULL));
  sync_and_wait(buffer);
  OK(mdp_grad_owned(buffer, 0, &sum));
  for (int64_t i = 0; i < sum.shape[0]; ++i) CHECK(((const float*)sum.data)[i] == wanted);
}

typedef struct {
  mdp_sharding sharding;
  char directory[256];
} place;

/* Of 1000002 rounding takes 578. Who has an optimizer of his own has used what he syncs. */
static void give_up(mdp_comm* comm, const void* argument) {
  const place* const at = argument;
  SIZED(mdp_param, param);
  param.name = "w";
  param.dtype = MDP_DTYPE_F32;
  param.ndim = 1;
  param.shape = &three;
  SIZED(mdp_buffer_config, config);
  config.sharding = at->sharding;
  config.wire_dtype = MDP_DTYPE_BF16;
  config.scaling = MDP_SCALING_SUM;
  config.flags = MDP_BUFFER_ERROR_FEEDBACK;
  SIZED(mdp_checkpoint_part, part);
  OK(mdp_buffer_register(comm, NULL, &config, &param, 1, &part.buffer));
  SIZED(mdp_checkpoint_config, checkpoint);
  checkpoint.directory = at->directory;
  checkpoint.parts = &part;
  checkpoint.part_count = 1;
  sums_are(part.buffer, 1000002, 2 * 999424);
  OK(mdp_microbatch_begin(part.buffer, 1));
  sums_are(part.buffer, 1, 2 * 580);
  OK(mdp_buffer_zero_grad(part.buffer, NULL));
  OK(mdp_optimizer_create(part.buffer, NULL, &part.optimizer));
  OK(mdp_checkpoint_save(&checkpoint, NULL));
  OK(mdp_checkpoint_load(&checkpoint));
  for (int way = 0; way < 3; ++way) {
    sums_are(part.buffer, 1000002, 2 * 999424);
    if (way == 2) step_and_wait(part.optimizer);
    OK(way == 0   ? mdp_buffer_zero_grad(part.buffer, NULL)
       : way == 1 ? mdp_microbatch_begin(part.buffer, 1)
                  : mdp_checkpoint_load(&checkpoint));
    sums_are(part.buffer, 1, 2);
    OK(mdp_buffer_zero_grad(part.buffer, NULL));
  }
  mdp_optimizer_destroy(part.optimizer);
  mdp_buffer_destroy(part.buffer);
}

static void what_is_given_up_is_forgotten(void** state) {
  (void)state;
  for (int s = 0; s < 2; ++s) {
    place at = {.sharding = shardings[s]};
    CHECK(make_folder(at.directory, sizeof at.directory) == 0);
    run_on_comms(2, give_up, &at);
    CHECK(remove_folder(at.directory) == 0);
  }
}

/* ── A device's library adds up in its own order, unless told not to ── */

static void follow_inexact(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  SIZED(mdp_comm_config, config);
  config.rank = rank;
  config.size = n;
  config.timeout_ns = UINT64_C(20000000000);
  config.backend = on_cuda ? MDP_BACKEND_CUDA : MDP_BACKEND_HOST;
  mdp_comm* comm = NULL;
  OK(mdp_comm_create(&config, id, &comm));
  follow(comm, argument);
  mdp_comm_destroy(comm);
}

static void sums_are_exact_whatever_the_communicator(void** state) {
  (void)state;
  for (int s = 0; s < 3; ++s) {
    course c = {{.sharding = shardings[s], .wire = MDP_DTYPE_BF16, .tp = 1, .max_grad_norm = -1}, 2};
    run_ranks(7, follow_inexact, &c);
  }
}

/* ── What is not finite, and what is skipped because of it ── */

static void overflow(mdp_comm* comm, const void* argument) {
  (void)argument;
  course c = {{.sharding = MDP_SHARDING_ZERO_1, .wire = MDP_DTYPE_BF16, .flags = MDP_BUFFER_ERROR_FEEDBACK, .tp = 1}, 1};
  model m = model_on(comm, &c.k);
  static const float bad[] = {NAN, INFINITY, -INFINITY, 3.4e38F}; /* the last one rounds to infinity */
  for (int step = 0; step < 4; ++step) {
    for (int p = LAYERS - 1; p >= 0; --p) {
      float values[LONGEST] = {0};
      values[0] = m.rank == 0 && p == 1 ? bad[step] : 1;
      const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
      OK(mdp_grad_put(m.buffer, (size_t)p, &t, 0, NULL));
    }
    SIZED(mdp_step_config, config);
    SIZED(mdp_step_report, report);
    config.loss_scale = 2;
    OK(mdp_optimizer_step(m.optimizer, &config, &report, NULL));
    CHECK(report.flags & MDP_STEPPED_SKIPPED);
  }
  /* Nothing of it is left behind. */
  double norm = 0;
  for (int p = LAYERS - 1; p >= 0; --p) {
    float values[LONGEST] = {0};
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m.buffer, (size_t)p, &t, 0, NULL));
  }
  sync_and_wait(m.buffer);
  OK(mdp_grad_norm(m.buffer, NULL, 0, &norm));
  CHECK(norm == 0);
  model_drop(&m);
}

static void what_is_not_finite_does_not_stay(void** state) {
  (void)state;
  run_on_comms(2, overflow, NULL);
}

/* ── A bucket longer than the window ── */

enum {
  LONG = 17 * 1024 * 1024 + 5
};
static const int64_t long_length = LONG;

static void in_turns(mdp_comm* comm, const void* argument) {
  SIZED(mdp_param, w);
  w.name = "w";
  w.dtype = MDP_DTYPE_BF16;
  w.ndim = 1;
  w.shape = &long_length;
  SIZED(mdp_buffer_config, config);
  config.sharding = *(const mdp_sharding*)argument;
  config.wire_dtype = MDP_DTYPE_BF16;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, &w, 1, &buffer));
  float* const values = malloc(LONG * sizeof *values);
  for (int64_t i = 0; i < LONG; ++i) values[i] = gradient(mdp_comm_rank(comm), 0, i, 0, 0);
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &long_length);
  OK(mdp_grad_put(buffer, 0, &t, 0, NULL));
  sync_and_wait(buffer);
  SIZED(mdp_range, range);
  CHECK(owned_ranges(buffer, &range, 1) == 1);
  SIZED(mdp_tensor, sum);
  OK(mdp_grad_owned(buffer, 0, &sum));
  int wrong = 0;
  for (int64_t i = 0; i < sum.shape[0]; ++i) {
    const int64_t at = range.param_begin + i;
    const float wanted = (to_bf16(gradient(0, 0, at, 0, 0)) + to_bf16(gradient(1, 0, at, 0, 0))) / 2;
    wrong += ((const float*)sum.data)[i] != wanted;
  }
  CHECK(wrong == 0);
  free(values);
  mdp_buffer_destroy(buffer);
}

static void a_bucket_longer_than_the_window(void** state) {
  (void)state;
  if (UNDER_SANITIZER) SKIP("too long for a sanitizer");
  for (int s = 0; s < 3; ++s) run_on_comms(2, in_turns, &shardings[s]);
}

/* ── What is planned, counted and refused ── */

static void count_bytes(mdp_comm* comm, const void* argument) {
  (void)argument;
  uint64_t bytes[2];
  for (int way = 0; way < 2; ++way) {
    kind k = {.sharding = MDP_SHARDING_ZERO_1, .wire = way == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_BF16, .tp = 1};
    model m = model_on(comm, &k);
    put_all_in(&m, BACKWARD, 0, 0);
    sync_and_wait(m.buffer);
    SIZED(mdp_stats_report, stats);
    OK(mdp_buffer_stats(m.buffer, &stats));
    bytes[way] = stats.bytes;
    model_drop(&m);
  }
  CHECK(bytes[0] == 2 * bytes[1] && bytes[1] > 0);
}

static void what_is_planned_and_refused(void** state) {
  (void)state;
  run_on_comms(2, count_bytes, NULL);
  SIZED(mdp_param, w);
  w.name = "w";
  w.ndim = 1;
  w.shape = &long_length;
  SIZED(mdp_buffer_config, config);
  SIZED(mdp_plan_report, without);
  SIZED(mdp_plan_report, with);
  OK(mdp_plan(NULL, 2, 0, &config, &w, 1, NULL, &without));
  config.wire_dtype = MDP_DTYPE_BF16;
  OK(mdp_plan(NULL, 2, 0, &config, &w, 1, NULL, &with));
  CHECK(with.scratch_bytes - without.scratch_bytes == 32 << 20 && with.feedback_bytes == 0 && with.grad_bytes == without.grad_bytes);
  CHECK(with.communicator_bytes - without.communicator_bytes == 32 << 20);
  config.flags = MDP_BUFFER_ERROR_FEEDBACK;
  OK(mdp_plan(NULL, 2, 0, &config, &w, 1, NULL, &with));
  CHECK(with.feedback_bytes == with.grad_bytes);
  config.sharding = MDP_SHARDING_ZERO_2;
  FAILS(MDP_E_UNSUPPORTED, "MDP_BUFFER_ERROR_FEEDBACK (16) and sharding is MDP_SHARDING_ZERO_2",
        mdp_plan(NULL, 2, 0, &config, &w, 1, NULL, &with));
  config.sharding = MDP_SHARDING_ZERO_1;
  config.wire_dtype = MDP_DTYPE_F32;
  FAILS(MDP_E_INVALID, "MDP_BUFFER_ERROR_FEEDBACK (16) and wire_dtype is not MDP_DTYPE_BF16",
        mdp_plan(NULL, 2, 0, &config, &w, 1, NULL, &with));
  config.flags = 0;
  for (mdp_dtype wrong = 0; wrong < 9; ++wrong) {
    config.wire_dtype = wrong;
    if (wrong == MDP_DTYPE_DEFAULT || wrong == MDP_DTYPE_F32 || wrong == MDP_DTYPE_BF16) continue;
    FAILS(MDP_E_INVALID, "config.wire_dtype is ", mdp_plan(NULL, 2, 0, &config, &w, 1, NULL, &with));
  }
  /* Half-width gradients are sent as they are. */
  w.dtype = MDP_DTYPE_F16;
  config.wire_dtype = MDP_DTYPE_BF16;
  config.grad_dtype = MDP_DTYPE_SAME;
  OK(mdp_plan(NULL, 2, 0, &config, &w, 1, NULL, &with));
  CHECK(with.scratch_bytes == without.scratch_bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(sums_of_rounded_gradients),        TEST(instances_change_no_bit),
      TEST(a_second_sync_changes_nothing),    TEST(sums_are_f32),
      TEST(what_is_given_up_is_forgotten),    TEST(sums_are_exact_whatever_the_communicator),
      TEST(what_is_not_finite_does_not_stay), TEST(a_bucket_longer_than_the_window),
      TEST(what_is_planned_and_refused),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
