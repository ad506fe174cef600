/* SPDX-License-Identifier: Apache-2.0
 * What is looked for in gradients before they are reduced (MDP_BUFFER_CHECK_FINITE, acceptance vector 27; MDP_BUFFER_CHECK_LARGE, vector
 * 28). */
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "fixture.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

/* ── A model, whose buckets are small enough that there are several ── */

enum {
  PARTS = 4,
  MOST = 3000
};
static const int64_t lengths[PARTS] = {3000, 33, 1, 700};
static const char* const names[PARTS] = {"a", "b", "c", "d"};
static const mdp_dtype dtypes[PARTS] = {MDP_DTYPE_F32, MDP_DTYPE_BF16, MDP_DTYPE_F16, MDP_DTYPE_BF16};

typedef struct {
  mdp_sharding sharding;
  mdp_dtype grads;
  mdp_missing missing;
  mdp_scaling scaling;
  uint64_t flags;
  int32_t uses; /* of parameter 3 */
} kind;

typedef struct {
  const kind* of;
  int32_t rank;
  mdp_comm* comm;
  mdp_buffer* buffer;
  mdp_optimizer* optimizer;
} model;

static model model_of(const mdp_unique_id* id, int32_t rank, int32_t n, const kind* k) {
  model m = {.of = k, .rank = rank, .comm = comm_open(id, rank, n, UINT64_C(20000000000))};
  mdp_param params[PARTS];
  memset(params, 0, sizeof params);
  for (int p = 0; p < PARTS; ++p) {
    params[p] = vector_param(names[p], dtypes[p], &lengths[p]);
  }
  params[3].uses_per_step = k->uses;
  SIZED(mdp_buffer_config, config);
  config.sharding = k->sharding;
  config.grad_dtype = k->grads;
  config.missing = k->missing;
  config.scaling = k->scaling;
  config.flags = k->flags;
  config.bucket_elements = 512;
  config.pool_buckets = k->sharding == MDP_SHARDING_ZERO_2 ? 1 : 0;
  OK(mdp_buffer_register(m.comm, NULL, &config, params, PARTS, &m.buffer));
  OK(mdp_optimizer_create(m.buffer, NULL, &m.optimizer));
  return m;
}

static void model_drop(model* m) {
  mdp_optimizer_destroy(m->optimizer);
  mdp_buffer_destroy(m->buffer);
  mdp_comm_destroy(m->comm);
}

/* ── Gradients: ones, but for one element ── */

typedef struct {
  int part;
  int64_t element;
  double value;
} odd;
static const odd nothing = {-1, 0, 0};

static uint16_t half_bits(mdp_dtype type, double value) {
  if (isnan(value)) return type == MDP_DTYPE_BF16 ? 0x7fc1 : 0xfe01;
  if (isinf(value)) return (uint16_t)((type == MDP_DTYPE_BF16 ? 0x7f80 : 0x7c00) | (value < 0 ? 0x8000 : 0));
  const float one = (float)value;
  uint32_t bits;
  memcpy(&bits, &one, sizeof bits);
  if (type == MDP_DTYPE_BF16) return (uint16_t)(bits >> 16);
  return value == 0 ? 0 : (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
}

static void set(void* data, mdp_dtype type, int64_t i, double value) {
  if (type == MDP_DTYPE_F64) ((double*)data)[i] = value;
  if (type == MDP_DTYPE_F32) ((float*)data)[i] = (float)value;
  if (type == MDP_DTYPE_BF16 || type == MDP_DTYPE_F16) ((uint16_t*)data)[i] = half_bits(type, value);
}

static void fill(void* data, mdp_dtype type, int p, const odd* o) {
  for (int64_t i = 0; i < lengths[p]; ++i) set(data, type, i, 1);
  if (o->part == p) set(data, type, o->element, o->value);
}

static mdp_status put_as(const model* m, int p, const odd* o, mdp_dtype type) {
  double values[MOST];
  fill(values, type, p, o);
  const mdp_tensor t = tensor_of(type, values, &lengths[p]);
  return mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL);
}

/* Into the memory that is lent, or the view; the first of a step, so that nothing is to be added. */
static void write_in_place(const model* m, int p, const odd* o, int lent) {
  SIZED(mdp_tensor, to);
  int32_t first = 0;
  if (lent) {
    OK(mdp_grad_acquire(m->buffer, (size_t)p, &to, &first, NULL));
  } else {
    OK(mdp_buffer_grad_view(m->buffer, (size_t)p, &to));
  }
  fill(to.data, to.dtype, p, o);
  OK(mdp_grad_ready(m->buffer, (size_t)p, NULL));
}

typedef enum {
  PUT,
  PUT_F64,
  PUT_BF16,
  PUT_F16,
  VIEW,
  LENT,
  WAYS
} way;
static void give(const model* m, way how, const odd* o) {
  static const mdp_dtype types[WAYS] = {MDP_DTYPE_F32, MDP_DTYPE_F64, MDP_DTYPE_BF16, MDP_DTYPE_F16, MDP_DTYPE_F32, MDP_DTYPE_F32};
  for (int p = PARTS - 1; p >= 0; --p) {
    for (int use = 0; use < (p == 3 && m->of->uses > 1 ? m->of->uses : 1); ++use) {
      if (how < VIEW || use > 0) {
        OK(put_as(m, p, o, types[how]));
      } else {
        write_in_place(m, p, o, how == LENT || m->of->sharding == MDP_SHARDING_ZERO_2);
      }
    }
  }
}

static const char* name_of(double value) {
  return isnan(value) ? "NaN" : value > 0 ? "inf" : "-inf";
}

/* The sync's sentence, which all ranks get. */
static void says(mdp_status status, int32_t rank, const odd* o, int microbatch) {
  char sentence[200];
  snprintf(sentence, sizeof sentence, "mdp_grad_sync: on rank %d the gradient of parameter %d '%s' is %s at element %d in microbatch %d",
           (int)rank, o->part, names[o->part], name_of(o->value), (int)o->element, microbatch);
  FAILS(MDP_E_NUMERIC, sentence, status);
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.rank == rank && info.param == o->part && info.bucket >= 0);
}

/* Every place, value and way in turn; `n` microbatches, of which the second is bad, or the only one. */
static void one_bad_element(const model* m, int n, int turn, int32_t bad_rank) {
  static const double values[] = {NAN, INFINITY, -INFINITY};
  const int p = turn % PARTS;
  const int64_t places[] = {0, lengths[p] / 2, lengths[p] - 1};
  const odd o = {p, places[turn / 2 % 3], values[turn % 3]};
  const int bad = n == 1 ? 1 : 2;
  for (int microbatch = 1; microbatch <= n; ++microbatch) {
    OK(mdp_microbatch_begin(m->buffer, microbatch == n));
    give(m, n == 1 ? (way)(turn % WAYS) : (way)(turn % VIEW), m->rank == bad_rank && microbatch == bad ? &o : &nothing);
  }
  says(mdp_grad_sync(m->buffer, NULL, NULL), bad_rank, &o, bad);
  says(mdp_grad_sync(m->buffer, NULL, NULL), bad_rank, &o, bad); /* the same again */
}

static void find_each(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_of(id, rank, n, argument);
  int turn = 0;
  for (int microbatches = 1; microbatches <= 3; ++microbatches) {
    for (int times = 0; times < (UNDER_SANITIZER ? 4 : 18); ++times, ++turn) one_bad_element(&m, microbatches, turn, turn % n);
  }
  OK(mdp_microbatch_begin(m.buffer, 1)); /* nothing is left of it */
  give(&m, PUT, &nothing);
  sync_and_wait(m.buffer);
  step_and_wait(m.optimizer);
  model_drop(&m);
}

static void every_element_is_found(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    for (int half = 0; half < 2; ++half) {
      kind k = {.sharding = sharding, .grads = half ? MDP_DTYPE_SAME : MDP_DTYPE_F32, .flags = MDP_BUFFER_CHECK_FINITE, .uses = 1 + half};
      run_ranks(1, find_each, &k);
      run_ranks(3, find_each, &k);
    }
  }
}

/* ── Several at once: the lowest rank's, in it the earliest microbatch's, in that the first parameter's and its first element ── */

static void find_first(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_of(id, rank, n, argument);
  const odd late = {0, 5, NAN}, early = {1, 3, INFINITY}, others = {0, 0, -INFINITY};
  for (int microbatch = 1; microbatch <= 3; ++microbatch) {
    OK(mdp_microbatch_begin(m.buffer, microbatch == 3));
    for (int p = PARTS - 1; p >= 0; --p) {
      const odd* here = rank == 0                   ? &nothing
                        : rank == 2                 ? &others
                        : microbatch == 2 && p == 1 ? &early
                        : microbatch == 3           ? &late
                                                    : &nothing;
      OK(put_as(&m, p, here, MDP_DTYPE_F32));
    }
  }
  says(mdp_grad_sync(m.buffer, NULL, NULL), 1, &early, 2);

  /* Of one array the first element, and of two parameters the first, though it comes last. */
  OK(mdp_microbatch_begin(m.buffer, 1));
  for (int p = PARTS - 1; p >= 0; --p) {
    float values[MOST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = rank == 2 && p < 2 && i >= 7 ? (i % 2 ? INFINITY : NAN) : 0;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m.buffer, (size_t)p, &t, 0, NULL));
  }
  const odd first = {0, 7, INFINITY};
  says(mdp_grad_sync(m.buffer, NULL, NULL), 2, &first, 1);

  /* A gradient that is missing is worse; what was found with it is forgotten with its step. */
  OK(mdp_microbatch_begin(m.buffer, 1));
  for (int p = PARTS - 1; p >= (rank == 2 ? 1 : 0); --p) OK(put_as(&m, p, rank == 0 ? &late : &nothing, MDP_DTYPE_F32));
  FAILS(MDP_E_STATE, "on rank 2 parameter 0 'a' never became ready", mdp_grad_sync(m.buffer, NULL, NULL));
  OK(mdp_microbatch_begin(m.buffer, 1));
  give(&m, PUT, &nothing);
  sync_and_wait(m.buffer);
  step_and_wait(m.optimizer);

  model_drop(&m);
}

static void the_first_is_told(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    kind k = {.sharding = sharding, .flags = MDP_BUFFER_CHECK_FINITE};
    run_ranks(3, find_first, &k);
  }
}

static void zeroed_gradients_are_forgotten(void** state) {
  (void)state;
  kind k = {.sharding = MDP_SHARDING_ZERO_1, .flags = MDP_BUFFER_CHECK_FINITE};
  model m = model_of(NULL, 0, 1, &k);
  const odd bad = {0, 9, NAN};
  OK(mdp_microbatch_begin(m.buffer, 0));
  give(&m, PUT, &bad);
  OK(mdp_buffer_zero_grad(m.buffer, NULL));
  give(&m, PUT, &nothing);
  OK(mdp_microbatch_begin(m.buffer, 1));
  give(&m, PUT, &nothing);
  sync_and_wait(m.buffer);
  step_and_wait(m.optimizer);
  model_drop(&m);
}

/* ── The step that follows ── */

static pthread_mutex_t listening = PTHREAD_MUTEX_INITIALIZER;
static int heard, heard_level;
static char last_heard[600];
static const char* listened_for = "";

static void listen_to(void* user, mdp_log_level level, const char* text, size_t length) {
  (void)user;
  pthread_mutex_lock(&listening);
  if (strstr(text, listened_for) != NULL) {
    ++heard;
    heard_level = level;
    snprintf(last_heard, sizeof last_heard, "%.*s", (int)length, text);
  }
  pthread_mutex_unlock(&listening);
}

static void listen_for(const char* part) {
  pthread_mutex_lock(&listening);
  heard = 0;
  listened_for = part;
  last_heard[0] = '\0';
  pthread_mutex_unlock(&listening);
  OK(mdp_log_set(listen_to, NULL));
}

static float element_of(const model* m, size_t param) {
  float values[MOST];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[param]);
  OK(mdp_param_read(m->buffer, param, &t, NULL));
  return values[0];
}

static void step_after(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_of(id, rank, n, argument);
  const odd o = {3, 699, -INFINITY};
  const odd* mine = rank == n - 1 ? &o : &nothing;
  SIZED(mdp_step_config, scaled);
  scaled.loss_scale = 8;
  SIZED(mdp_step_report, report);
  uint64_t steps = 9;
  for (int explicit = 0; explicit < 2; ++explicit) {
    const float before = element_of(&m, 0);
    /* Without a loss scale: what the sync says, or would have said. */
    give(&m, PUT, mine);
    if (explicit) says(mdp_grad_sync(m.buffer, NULL, NULL), n - 1, &o, 1);
    says(mdp_optimizer_step(m.optimizer, NULL, explicit ? &report : NULL, NULL), n - 1, &o, 1);
    OK(mdp_param_wait(m.buffer, SIZE_MAX, NULL));
    CHECK(element_of(&m, 0) == before);
    /* With one: skipped, on all ranks. */
    give(&m, LENT, mine);
    double norm = 0;
    if (explicit) {
      says(mdp_grad_sync(m.buffer, NULL, NULL), n - 1, &o, 1);
      OK(mdp_grad_norm(m.buffer, NULL, 0, &norm));
      CHECK(!isfinite(norm));
    }
    OK(mdp_optimizer_step(m.optimizer, &scaled, &report, NULL));
    CHECK(report.flags == MDP_STEPPED_SKIPPED && report.step == (uint64_t) explicit);
    CHECK(element_of(&m, 0) == before);
    OK(mdp_optimizer_steps(m.optimizer, 3, &steps));
    CHECK(steps == (uint64_t) explicit);
    /* The next one is as if nothing had been. */
    give(&m, PUT, &nothing);
    OK(mdp_optimizer_step(m.optimizer, NULL, &report, NULL));
    CHECK(report.flags == 0 && report.step == (uint64_t) explicit + 1 && element_of(&m, 0) < before);
  }
  /* With requests: the sync's has the outcome, and the step's none. */
  give(&m, PUT, mine);
  mdp_request* request = NULL;
  OK(mdp_grad_sync(m.buffer, NULL, &request));
  says(mdp_request_wait(request, UINT64_MAX), n - 1, &o, 1);
  mdp_request_free(request);
  request = NULL;
  says(mdp_optimizer_step(m.optimizer, NULL, NULL, &request), n - 1, &o, 1);
  CHECK(request == NULL);
  give(&m, PUT, &nothing);
  step_and_wait(m.optimizer);
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
}

static void the_step_follows(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    for (int half = 0; half < 2; ++half) {
      kind k = {.sharding = sharding, .grads = half ? MDP_DTYPE_SAME : MDP_DTYPE_F32, .flags = MDP_BUFFER_CHECK_FINITE};
      listen_for("is -inf at element 699 in microbatch 1; a step with a loss scale is skipped for it");
      run_ranks(2, step_after, &k);
      OK(mdp_log_set(NULL, NULL));
      CHECK(heard == 2 * 2 && heard_level == MDP_LOG_INFO); /* once a step, on each rank */
    }
  }
}

/* Nothing is found: neither in what overflows only as it is added up, nor where nobody asked. */
static void find_nothing(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const kind* k = argument;
  model m = model_of(id, rank, n, k);
  const odd o = {0, 4, k->flags != 0 ? FLT_MAX : NAN};
  give(&m, PUT, &o);
  sync_and_wait(m.buffer);
  SIZED(mdp_step_report, report);
  FAILS(MDP_E_NUMERIC, "mdp_optimizer_step: the reduced gradient has", mdp_optimizer_step(m.optimizer, NULL, &report, NULL));
  model_drop(&m);
}

static void nothing_is_found(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    for (uint64_t flags = 0; flags <= MDP_BUFFER_CHECK_FINITE; flags += MDP_BUFFER_CHECK_FINITE) {
      kind k = {.sharding = sharding, .scaling = MDP_SCALING_SUM, .flags = flags};
      run_ranks(2, find_nothing, &k);
    }
  }
}

static void longest_parameter(void** state) {
  (void)state;
  const int64_t long_shape[] = {1, INT64_C(1) << 42};
  SIZED(mdp_param, param);
  param.name = "long";
  param.ndim = 2;
  param.shape = long_shape;
  SIZED(mdp_buffer_config, config);
  SIZED(mdp_plan_report, report);
  OK(mdp_plan(NULL, 1, 0, &config, &param, 1, NULL, &report));
  config.flags = MDP_BUFFER_CHECK_FINITE;
  FAILS(MDP_E_INVALID, "parameter 0 'long' has 4398046511104 elements; with MDP_BUFFER_CHECK_FINITE it must have less than 4398046511104",
        mdp_plan(NULL, 1, 0, &config, &param, 1, NULL, &report));
  const uint64_t scratch = report.scratch_bytes;
  param.flags = MDP_PARAM_FROZEN;
  const mdp_param two[] = {param, job_params[FIRST]};
  OK(mdp_plan(NULL, 1, 0, &config, two, 2, NULL, &report));
  config.flags = MDP_BUFFER_CHECK_FINITE | MDP_BUFFER_CHECK_LARGE;
  OK(mdp_plan(NULL, 1, 0, &config, &two[1], 1, NULL, &report));
  CHECK(report.scratch_bytes == scratch + 3 * sizeof(double));
}

/* ── Large gradients ── */

static uint64_t large_of(const model* m) {
  SIZED(mdp_stats_report, stats);
  OK(mdp_buffer_stats(m->buffer, &stats));
  return stats.large_gradients;
}

/* A gradient of this norm. */
static void put_norm(const model* m, int p, double norm) {
  float values[MOST] = {0};
  values[lengths[p] / 2] = (float)norm;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
  OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
}

/* One step; of parameter 3 the one gradient, of the others what is never large. NAN: skipped. */
static void step_with(const model* m, double norm, double of_b) {
  if (isnan(norm)) {
    OK(mdp_grad_skip(m->buffer, 3));
  } else {
    put_norm(m, 3, norm);
  }
  put_norm(m, 2, 0);
  put_norm(m, 1, of_b);
  put_norm(m, 0, 1);
  SIZED(mdp_step_config, scaled);
  scaled.loss_scale = 1;
  SIZED(mdp_step_report, report);
  OK(mdp_optimizer_step(m->optimizer, &scaled, &report, NULL));
}

/* Other ranks' gradients, and sums, are of no account: on rank 1 everything is ten times as much. */
static void measure_large(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  model m = model_of(id, rank, n, argument);
  const double unit = rank == 1 ? 10 : 1;
  for (int sample = 0; sample < 100; ++sample) step_with(&m, unit * (sample == 40 ? 2.0 : 0.5 + sample % 3 / 2.0), sample == 99 ? 64 : 1);
  CHECK(large_of(&m) == 0); /* though the last of "b" was */
  step_with(&m, unit * 19.99, 639);
  step_with(&m, INFINITY, 1);
  CHECK(large_of(&m) == 0 && heard == 0);
  OK(mdp_barrier(m.comm, NULL));
  step_with(&m, unit * 20.0, rank == 0 ? 640 : 1);
  CHECK(large_of(&m) == (rank == 0 ? 2 : 1));
  step_with(&m, unit * 2000.0, 1); /* what was large changes nothing */
  step_with(&m, unit * 19.0, 1);
  CHECK(large_of(&m) == (rank == 0 ? 3 : 2));
  model_drop(&m);
}

static void large_gradients_are_reported(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    kind k = {.sharding = sharding, .flags = MDP_BUFFER_CHECK_LARGE};
    listen_for("(MDP_BUFFER_CHECK_LARGE)");
    run_ranks(2, measure_large, &k);
    OK(mdp_log_set(NULL, NULL));
    CHECK(heard == 5 && heard_level == MDP_LOG_WARNING);
    k.flags |= MDP_BUFFER_NO_OVERLAP;
    listen_for("of parameter 1 'b' has the norm 640; the largest of its first 100 was 64 (MDP");
    run_ranks(2, measure_large, &k);
    OK(mdp_log_set(NULL, NULL));
    CHECK(heard == 1 && strncmp(last_heard, "on rank 0 the gradient", 22) == 0);
  }
}

/* What is no sample: a skipped gradient, one that is not finite, one of zeros; and what lies in a slot unused. */
static void only_samples_count(void** state) {
  (void)state;
  kind k = {.sharding = MDP_SHARDING_ZERO_1, .missing = MDP_MISSING_ZERO, .flags = MDP_BUFFER_CHECK_LARGE | MDP_BUFFER_CHECK_FINITE};
  model m = model_of(NULL, 0, 1, &k);
  listen_for("(MDP_BUFFER_CHECK_LARGE)");
  for (int sample = 0; sample < 99; ++sample) step_with(&m, 1, 1);
  step_with(&m, NAN, 1); /* skipped */
  step_with(&m, INFINITY, 1);
  step_with(&m, 0, 1);
  put_norm(&m, 0, 1);
  OK(mdp_optimizer_step(m.optimizer, NULL, NULL, NULL)); /* three are missing */
  step_with(&m, 30, 1);                                  /* the 100th */
  CHECK(large_of(&m) == 0);
  step_with(&m, 299, 1);
  CHECK(large_of(&m) == 0);
  step_with(&m, 300, 1);
  CHECK(large_of(&m) == 1 && heard == 1);
  OK(mdp_log_set(NULL, NULL));
  model_drop(&m);
}

/* Over microbatches the sum is sent; with ZERO_2 each of them. */
static void microbatches_are_measured(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_1; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    const int each = sharding == MDP_SHARDING_ZERO_2;
    kind k = {.sharding = sharding, .flags = MDP_BUFFER_CHECK_LARGE};
    model m = model_of(NULL, 0, 1, &k);
    listen_for("of parameter 3 'd' has the norm ");
    const int steps = each ? 51 : 101; /* of two microbatches: then one more, with the first that may be large */
    for (int step = 0; step < steps; ++step) {
      for (int microbatch = 1; microbatch <= 2; ++microbatch) {
        OK(mdp_microbatch_begin(m.buffer, microbatch == 2));
        for (int p = PARTS - 1; p >= 0; --p) put_norm(&m, p, step == steps - 1 && p == 3 && microbatch == 2 ? 25 : 1);
      }
      OK(mdp_optimizer_step(m.optimizer, NULL, NULL, NULL));
      if (step < steps - 1) CHECK(large_of(&m) == 0);
    }
    OK(mdp_param_wait(m.buffer, SIZE_MAX, NULL));
    CHECK(large_of(&m) == (each ? 1 : 1 * 1));
    CHECK(strstr(last_heard, each ? "norm 25 in microbatch 2; the largest of its first 100 was 1 "
                                  : "norm 26; the largest of its first 100 was 2 ") != NULL);
    OK(mdp_log_set(NULL, NULL));
    model_drop(&m);
  }
}

/* ── Whether what should be equal is: over tensor-parallel ranks, and stages ── */

typedef struct {
  int32_t tp, pp, expert_tp;
  mdp_sharding sharding;
} cut;
enum {
  HELD = 5
};
static const int64_t held_length[] = {40};
static const struct {
  const char* name;
  mdp_placement placement;
  mdp_param_class class;
  const char* tie;
} held[HELD] = {{"cut", MDP_PLACEMENT_SHARDED, MDP_PARAM_CLASS_DENSE, NULL},
                {"same", MDP_PLACEMENT_REPLICATED, MDP_PARAM_CLASS_DENSE, NULL},
                {"part", MDP_PLACEMENT_PARTIAL_SUM, MDP_PARAM_CLASS_DENSE, NULL},
                {"expert", MDP_PLACEMENT_REPLICATED, MDP_PARAM_CLASS_EXPERT, NULL},
                {"tied", MDP_PLACEMENT_SHARDED, MDP_PARAM_CLASS_DENSE, "tied"}};

static mdp_buffer* registered(mdp_comm* comm, const cut* c, mdp_grid** grid) {
  SIZED(mdp_grid_config, sizes);
  sizes.tp = c->tp;
  sizes.pp = c->pp;
  sizes.expert_tp = c->expert_tp;
  OK(mdp_grid_create(comm, &sizes, grid));
  mdp_param params[HELD];
  memset(params, 0, sizeof params);
  for (int p = 0; p < HELD; ++p) {
    params[p].struct_size = sizeof params[p];
    params[p].name = held[p].name;
    params[p].ndim = 1;
    params[p].shape = held_length;
    params[p].placement = held[p].placement;
    params[p].param_class = held[p].class;
    params[p].tie = held[p].tie;
  }
  SIZED(mdp_buffer_config, config);
  config.sharding = c->sharding;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, *grid, &config, params, HELD, &buffer));
  return buffer;
}

static void put_values(mdp_buffer* buffer, int p, float value, float last) {
  float values[40];
  for (int i = 0; i < 40; ++i) values[i] = i == 39 ? last : value;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, held_length);
  OK(mdp_grad_put(buffer, (size_t)p, &t, 0, NULL));
}

/* One step up to the sync: `odd_rank` puts one more into the last element of `part`. */
static void sync_with(mdp_buffer* buffer, int32_t rank, int32_t odd_rank, int part) {
  OK(mdp_microbatch_begin(buffer, 1));
  for (int p = HELD - 1; p >= 0; --p) put_values(buffer, p, 1, rank == odd_rank && p == part ? 2 : 1);
  sync_and_wait(buffer);
}

/* owned: which ranks are told depends on who owns the element. */
static void differ(mdp_buffer* buffer, const char* what, int owned) {
  char sentence[200];
  snprintf(sentence, sizeof sentence, "mdp_buffer_verify: %s differs between ranks %s", what,
           owned ? "" : "0 and 1, which should hold the same");
  FAILS(MDP_E_DESYNC, sentence, mdp_buffer_verify(buffer));
}

static void verify_tp(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const cut* c = argument;
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  mdp_grid* grid = NULL;
  mdp_buffer* buffer = registered(comm, c, &grid);
  float values[40] = {0};
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, held_length);
  const int stage = n / c->pp, expert_same = c->expert_tp == 1;
  /* Parameters: written differently on rank 1, and on those that hold replicas of its. */
  for (int p = 0; p < 4; ++p) {
    const int tp = p == 3 ? c->expert_tp : c->tp;
    values[7] = rank < stage && rank % tp == 1 ? -0.0F : 0;
    OK(mdp_param_write(buffer, (size_t)p, &t, NULL));
    char what[40];
    snprintf(what, sizeof what, "parameter %d '%s'", p, held[p].name);
    if (p == 0 || (p == 3 && expert_same)) {
      OK(mdp_buffer_verify(buffer));
    } else {
      differ(buffer, what, 0);
    }
    values[7] = 0;
    OK(mdp_param_write(buffer, (size_t)p, &t, NULL));
    OK(mdp_buffer_verify(buffer));
  }
  /* Reduced gradients; before that nothing is compared, nor where some ranks have begun anew. */
  for (int p = HELD - 1; p >= 0; --p) put_values(buffer, p, 1, (float)rank);
  OK(mdp_buffer_verify(buffer));
  sync_and_wait(buffer);
  for (int p = 0; p < 4; ++p) {
    sync_with(buffer, rank, 1, p);
    char what[60];
    snprintf(what, sizeof what, "the reduced gradient of parameter %d '%s'", p, held[p].name);
    if (p == 0 || p == 2 || (p == 3 && expert_same)) { /* a partial one is summed: it cannot differ */
      OK(mdp_buffer_verify(buffer));
      continue;
    }
    differ(buffer, what, 1);
    if (rank != 0) OK(mdp_microbatch_begin(buffer, 1));
    OK(mdp_buffer_verify(buffer));
  }
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void tensor_parallel_replicas_are_compared(void** state) {
  (void)state;
  const cut cuts[] = {{2, 1, 2, 0}, {2, 1, 1, 0}, {2, 2, 2, 0}, {4, 1, 2, 0}};
  for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; ++i) {
    for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
      cut c = cuts[i];
      c.sharding = sharding;
      run_ranks(4, verify_tp, &c);
      if (c.tp * c.pp == 2) run_ranks(2, verify_tp, &c);
    }
  }
}

/* Tied gradients are summed; afterwards one stage writes into its own. */
static void verify_ties(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  mdp_comm* comm = comm_open(id, rank, n, UINT64_C(20000000000));
  mdp_grid* grid = NULL;
  mdp_buffer* buffer = registered(comm, argument, &grid);
  sync_with(buffer, rank, 1, 4);
  OK(mdp_buffer_verify(buffer));
  if (rank == n / 2) { /* which owns the first elements */
    SIZED(mdp_tensor, own);
    OK(mdp_grad_owned(buffer, 4, &own));
    ((float*)own.data)[3] += 1;
    OK(mdp_grad_changed(buffer, NULL));
  }
  char sentence[200];
  snprintf(sentence, sizeof sentence, "the reduced gradient of parameter 4 'tied' differs between ranks 0 and %d", (int)(n / 2));
  FAILS(MDP_E_DESYNC, sentence, mdp_buffer_verify(buffer));
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
  mdp_comm_destroy(comm);
}

static void tied_gradients_are_compared(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    cut c = {1, 2, 1, sharding};
    run_ranks(2, verify_ties, &c);
    run_ranks(4, verify_ties, &c);
  }
}

/* ── A name as long as may be: all the rest is told still ── */

static void a_long_name(void** state) {
  (void)state;
  char name[256];
  for (int i = 0; i < 254; i += 2) memcpy(name + i, "\xC3\xA4", 2); /* two bytes a letter */
  name[254] = 'n';
  name[255] = '\0';
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  SIZED(mdp_param, w);
  w.name = name;
  w.ndim = 1;
  w.shape = &lengths[1];
  SIZED(mdp_buffer_config, config);
  config.flags = MDP_BUFFER_CHECK_FINITE;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, &w, 1, &buffer));
  float values[33] = {0};
  values[32] = -INFINITY;
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[1]);
  OK(mdp_grad_put(buffer, 0, &t, 0, NULL));
  FAILS(MDP_E_NUMERIC, "\xC3\xA4...' is -inf at element 32 in microbatch 1", mdp_grad_sync(buffer, NULL, NULL));
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

/* ── Two threads bring a use of the same parameter each: a search is in no one's way ── */

static void* bring(void* buffer) {
  return mdp_grad_ready(buffer, 0, NULL) == MDP_OK ? NULL : buffer;
}

static void uses_of_two_threads(void** state) {
  (void)state;
  static const int64_t long_enough = 1 << 18;
  mdp_comm* const comm = comm_open(NULL, 0, 1, UINT64_C(20000000000));
  SIZED(mdp_param, w);
  w.name = "w";
  w.ndim = 1;
  w.shape = &long_enough;
  w.uses_per_step = 2;
  SIZED(mdp_buffer_config, config);
  config.flags = MDP_BUFFER_CHECK_FINITE;
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(comm, NULL, &config, &w, 1, &buffer));
  for (int round = 0; round < 10; ++round) {
    pthread_t other;
    void* refused = NULL;
    CHECK(pthread_create(&other, NULL, bring, buffer) == 0);
    CHECK(bring(buffer) == NULL);
    CHECK(pthread_join(other, &refused) == 0 && refused == NULL);
    sync_and_wait(buffer);
    OK(mdp_buffer_zero_grad(buffer, NULL));
  }
  mdp_buffer_destroy(buffer);
  mdp_comm_destroy(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(every_element_is_found),
                                     TEST(the_first_is_told),
                                     TEST(zeroed_gradients_are_forgotten),
                                     TEST(the_step_follows),
                                     TEST(nothing_is_found),
                                     TEST(longest_parameter),
                                     TEST(large_gradients_are_reported),
                                     TEST(only_samples_count),
                                     TEST(microbatches_are_measured),
                                     TEST(tensor_parallel_replicas_are_compared),
                                     TEST(tied_gradients_are_compared),
                                     TEST(a_long_name),
                                     TEST(uses_of_two_threads)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
