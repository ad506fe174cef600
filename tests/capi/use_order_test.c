/* SPDX-License-Identifier: Apache-2.0
 * Parameters that are used in another order than they are registered in: the order that a step shows, a registration with it, and what is
 * said where no order helps. Layer 0 is the first that is used, as it is registered, unless the gradients come FORWARD: then the model
 * has been registered backwards. */
#include <pthread.h>
#include <string.h>

#include "layers.h"

static pthread_mutex_t told_mutex = PTHREAD_MUTEX_INITIALIZER;
static int told;
static char last_told[512];

static void listen(void* user, mdp_log_level level, const char* text, size_t length) {
  (void)user;
  if (level != MDP_LOG_WARNING || strstr(text, "mdp_buffer_use_order") == NULL) return;
  pthread_mutex_lock(&told_mutex);
  ++told;
  snprintf(last_told, sizeof last_told, "%.*s", (int)length, text);
  pthread_mutex_unlock(&told_mutex);
}

static int setup(void** state) {
  (void)state;
  be_alone();
  return mdp_log_set(listen, NULL) == MDP_OK ? 0 : -1;
}

static int teardown(void** state) {
  (void)state;
  return mdp_log_set(NULL, NULL) == MDP_OK ? 0 : -1;
}

static const int32_t registered[LAYERS] = {0, 1, 2, 3, 4, 5}, reversed[LAYERS] = {5, 4, 3, 2, 1, 0};

static void shows(const model* m, const int32_t* wanted) {
  int32_t order[LAYERS];
  OK(mdp_buffer_use_order(m->buffer, order, LAYERS));
  for (int p = 0; p < LAYERS; ++p) CHECK(order[p] == wanted[p]);
}

static uint64_t launched(const model* m) {
  SIZED(mdp_stats_report, stats);
  OK(mdp_buffer_stats(m->buffer, &stats));
  return stats.buckets;
}

static void finish(const model* m) {
  OK(mdp_grad_sync(m->buffer, NULL, NULL));
  step_and_wait(m->optimizer);
}

/* ── A model that is registered backwards ── */

static void backwards(mdp_comm* comm, const void* argument) {
  kind k = *(const kind*)argument;
  model late = model_on(comm, &k);
  k.use_order = reversed;
  model soon = model_on(comm, &k);
  for (int step = 0; step < 3; ++step) {
    const uint64_t late_before = launched(&late), soon_before = launched(&soon);
    for (int p = 0; p < LAYERS; ++p) {
      put(&late, p, step, 0);
      put(&soon, p, step, 0);
      CHECK(launched(&late) - late_before == (p + 1 < LAYERS ? 0 : LAYERS));
      CHECK(launched(&soon) - soon_before == (uint64_t)p + 1);
    }
    finish(&late);
    shows(&late, reversed);
    finish(&soon);
    shows(&soon, reversed); /* and so the next registration would be like this one */
    CHECK(same_params(&late, &soon));
  }
  SIZED(mdp_stats_report, stats);
  OK(mdp_buffer_stats(soon.buffer, &stats));
  CHECK(stats.launched_in_backward == stats.buckets);
  CHECK(spill_peak(&late) > 0 || k.sharding != MDP_SHARDING_ZERO_2);
  OK(mdp_buffer_verify(soon.buffer));
  /* Everything is still called by its index at registration. */
  mdp_range ranges[LAYERS];
  const size_t count = owned_ranges(soon.buffer, ranges, LAYERS);
  for (size_t i = 0; i < count; ++i)
    CHECK(ranges[i].bucket == ranges[i].param && ranges[i].end - ranges[i].begin <= lengths[ranges[i].param]);
  model_drop(&soon);
  model_drop(&late);
}

static void a_model_registered_backwards(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    const kind whole = {.sharding = sharding, .tp = 1, .max_grad_norm = -1};
    run_on_comms(3, backwards, &whole);
    if (UNDER_THREAD_SANITIZER) continue;
    const kind half = {.sharding = sharding, .tp = 1, .dtype = MDP_DTYPE_BF16, .grads = MDP_DTYPE_SAME, .max_grad_norm = -1};
    run_on_comms(2, backwards, &half);
    const kind rounded = {.sharding = sharding,
                          .tp = 1,
                          .wire = MDP_DTYPE_BF16,
                          .flags = sharding == MDP_SHARDING_ZERO_2 ? 0 : MDP_BUFFER_ERROR_FEEDBACK,
                          .max_grad_norm = -1};
    run_on_comms(2, backwards, &rounded);
    const kind cut = {.sharding = sharding, .tp = 1, .ep = 2, .instances = 2, .max_grad_norm = -1};
    run_on_comms(4, backwards, &cut);
  }
}

/* ── What is seen ── */

static void other_orders_on_each_rank(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  put_all_in(&m, MIXED, 0, 0); /* on rank 0, whose word it is: 0 5 4 3 2 1 */
  finish(&m);
  static const int32_t of_rank_0[LAYERS] = {5, 0, 1, 2, 3, 4};
  shows(&m, of_rank_0);
  put_all_in(&m, MIXED, 1, 0); /* 1 0 5 4 3 2 */
  shows(&m, of_rank_0);        /* of the last step that was synced */
  mdp_request* synced = NULL;
  OK(mdp_grad_sync(m.buffer, NULL, &synced));
  static const int32_t of_next[LAYERS] = {4, 5, 0, 1, 2, 3};
  shows(&m, of_next); /* also of a sync that nobody has waited for */
  OK(mdp_request_wait(synced, UINT64_MAX));
  mdp_request_free(synced);
  step_and_wait(m.optimizer);
  shows(&m, of_next);
  model_drop(&m);
}

static void of_microbatches(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  for (int last = 0; last < 2; ++last) {
    OK(mdp_microbatch_begin(m.buffer, last));
    put_all_in(&m, last ? FORWARD : BACKWARD, 0, last);
  }
  finish(&m);
  shows(&m, reversed);
  model_drop(&m);
}

/* What only an earlier microbatch has brought has not come in the last. */
static void of_the_last_microbatch_alone(mdp_comm* comm, const void* argument) {
  kind k = *(const kind*)argument;
  k.missing = MDP_MISSING_ZERO;
  model m = model_on(comm, &k);
  OK(mdp_microbatch_begin(m.buffer, 0));
  put_all_in(&m, FORWARD, 0, 0);
  OK(mdp_microbatch_begin(m.buffer, 1));
  for (int p = 2; p >= 0; --p) put(&m, p, 0, 1);
  finish(&m);
  shows(&m, registered);
  model_drop(&m);
}

/* The last use of each counts: only then can its bucket be full. */
static void of_two_uses(mdp_comm* comm, const void* argument) {
  kind k = *(const kind*)argument;
  k.uses = 2;
  model m = model_on(comm, &k);
  put_all_in(&m, FORWARD, 0, 0);
  put_all_in(&m, BACKWARD, 0, 1);
  finish(&m);
  shows(&m, registered);
  model_drop(&m);
}

/* Of what did not come nothing is known: it stays with the one that it follows in backward. */
static void what_does_not_come_keeps_its_place(mdp_comm* comm, const void* argument) {
  kind k = *(const kind*)argument;
  k.missing = MDP_MISSING_ZERO;
  model m = model_on(comm, &k);
  static const int come[] = {0, 1, 3, 5};
  for (size_t i = 0; i < sizeof come / sizeof come[0]; ++i) {
    put(&m, come[i], 0, 0);
    if (i == 1) OK(mdp_grad_skip(m.buffer, 2));
  }
  finish(&m); /* in backward: 0 1 3(2) 5(4) */
  static const int32_t beside[LAYERS] = {5, 4, 2, 3, 0, 1};
  shows(&m, beside);
  put(&m, 1, 1, 0);
  put(&m, 4, 1, 0); /* 5 has none before it: first. Then 1(0) 4(3 2) */
  finish(&m);
  static const int32_t first[LAYERS] = {3, 4, 0, 1, 2, 5};
  shows(&m, first);
  finish(&m); /* nothing came at all */
  shows(&m, registered);
  model_drop(&m);
}

/* A step that fails shows nothing, and hides nothing that was seen before. */
static void after_a_failure(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  int32_t order[LAYERS] = {9, 9, 9, 9, 9, 9};
  FAILS(MDP_E_STATE, "mdp_buffer_use_order: no mdp_grad_sync has succeeded yet", mdp_buffer_use_order(m.buffer, order, LAYERS));
  put(&m, 3, 0, 0);
  FAILS(MDP_E_STATE, "never became ready", mdp_grad_sync(m.buffer, NULL, NULL));
  FAILS(MDP_E_STATE, "no mdp_grad_sync has succeeded yet", mdp_buffer_use_order(m.buffer, order, LAYERS));
  CHECK(order[0] == 9);
  OK(mdp_buffer_zero_grad(m.buffer, NULL));
  put_all_in(&m, FORWARD, 0, 0);
  finish(&m);
  put(&m, 3, 1, 0);
  mdp_request* synced = NULL;
  OK(mdp_grad_sync(m.buffer, NULL, &synced));
  if (m.rank == 0) FAILS(MDP_E_STATE, "never became ready", mdp_request_wait(synced, UINT64_MAX)); /* the others do not know yet */
  shows(&m, reversed);
  mdp_request_free(synced);
  model_drop(&m);
}

static void wrong_arguments(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  int32_t order[LAYERS + 1];
  put_all_in(&m, BACKWARD, 0, 0);
  finish(&m);
  FAILS(MDP_E_INVALID, "use_order is NULL", mdp_buffer_use_order(m.buffer, NULL, LAYERS));
  FAILS(MDP_E_INVALID, "count is 5; this buffer has 6 parameters", mdp_buffer_use_order(m.buffer, order, LAYERS - 1));
  FAILS(MDP_E_INVALID, "count is 7; this buffer has 6 parameters", mdp_buffer_use_order(m.buffer, order, LAYERS + 1));
  shows(&m, registered);
  model_drop(&m);
}

static void what_a_step_shows(void** state) {
  (void)state;
  static const comm_body bodies[] = {
      other_orders_on_each_rank, of_microbatches, of_the_last_microbatch_alone, of_two_uses, what_does_not_come_keeps_its_place,
      after_a_failure,           wrong_arguments};
  const mdp_sharding last = UNDER_THREAD_SANITIZER ? MDP_SHARDING_ZERO_0 : MDP_SHARDING_ZERO_2;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= last; ++sharding) {
    const kind k = {.sharding = sharding, .tp = 1};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; ++i) run_on_comms(3, bodies[i], &k);
  }
}

/* Ranks that registered different orders are told. */
static void different_orders(mdp_comm* comm, const void* argument) {
  kind k = *(const kind*)argument;
  int32_t order[LAYERS] = {0};
  order[2] = mdp_comm_rank(comm);
  k.use_order = order;
  model m;
  FAILS(MDP_E_DESYNC,
        "parameter 2: 'layer2' f32[300] sharded on dimension 0 by 1 here, 'layer2' f32[300] sharded on dimension 0 by 1 use order 1 on "
        "rank 1",
        model_try(comm, &k, &m));
  model_drop(&m);
}

static void orders_that_differ(void** state) {
  (void)state;
  const kind k = {.sharding = MDP_SHARDING_ZERO_1, .tp = 1};
  run_on_comms(2, different_orders, &k);
}

/* ── Stages, and ranks with other experts ── */

typedef struct {
  int32_t pp, ep;
  const char* classes[4]; /* of each rank's parameters: d, e, or f, which is frozen */
  const char* sentence;   /* what all ranks are told; NULL: each what is below */
  int32_t orders[4][4];
} cut;

static mdp_buffer* register_cut(mdp_grid* grid, const char* classes) {
  static const int64_t length = 70;
  static const char* const dense_names[] = {"a", "b", "c", "d"};
  static const char* const expert_names[] = {"ea", "eb", "ec", "ed"};
  mdp_param params[4];
  memset(params, 0, sizeof params);
  const size_t count = strlen(classes);
  size_t dense = 0, experts = 0;
  for (size_t p = 0; p < count; ++p) {
    const int expert = classes[p] == 'e';
    params[p].struct_size = sizeof params[p];
    params[p].name = expert ? expert_names[experts++] : dense_names[dense++];
    params[p].shape = &length;
    params[p].ndim = 1;
    params[p].placement = MDP_PLACEMENT_REPLICATED;
    params[p].param_class = expert ? MDP_PARAM_CLASS_EXPERT : MDP_PARAM_CLASS_DENSE;
    params[p].flags = classes[p] == 'f' ? MDP_PARAM_FROZEN : 0;
  }
  mdp_buffer* buffer = NULL;
  OK(mdp_buffer_register(NULL, grid, NULL, params, count, &buffer));
  return buffer;
}

/* Gradients come forward, on odd ranks of a stage backward: it is the even, lower one that says how. */
static void on_a_cut(mdp_comm* comm, const void* argument) {
  const cut* const c = argument;
  const int32_t rank = mdp_comm_rank(comm);
  const char* const classes = c->classes[rank];
  const size_t count = strlen(classes);
  SIZED(mdp_grid_config, config);
  config.pp = c->pp;
  config.ep = c->ep;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &config, &grid));
  mdp_buffer* const buffer = register_cut(grid, classes);
  float values[70] = {1};
  const int64_t length = 70;
  const mdp_tensor grad = tensor_of(MDP_DTYPE_F32, values, &length);
  int32_t order[4] = {9, 9, 9, 9};
  FAILS(c->sentence == NULL ? MDP_E_STATE : MDP_E_UNSUPPORTED, c->sentence, mdp_buffer_use_order(buffer, order, count));
  for (size_t i = 0; i < count; ++i) {
    const size_t p = rank % 2 == 0 ? i : count - 1 - i;
    if (classes[p] != 'f') OK(mdp_grad_put(buffer, p, &grad, 0, NULL));
  }
  OK(mdp_grad_sync(buffer, NULL, NULL));
  if (c->sentence != NULL) {
    FAILS(MDP_E_UNSUPPORTED, c->sentence, mdp_buffer_use_order(buffer, order, count));
    CHECK(order[0] == 9);
  } else {
    OK(mdp_buffer_use_order(buffer, order, count));
    for (size_t p = 0; p < count; ++p) CHECK(order[p] == c->orders[rank][p]);
  }
  mdp_buffer_destroy(buffer);
  mdp_grid_destroy(grid);
}

static void stages_and_experts(void** state) {
  (void)state;
  static const cut cuts[] = {
      {.pp = 2, .ep = 1, .classes = {"ddd", "ddd", "dfdd", "dfdd"}, .orders = {{2, 1, 0}, {2, 1, 0}, {3, 1, 2, 0}, {3, 1, 2, 0}}},
      {.pp = 1, .ep = 2, .classes = {"ded", "ded", "ded", "ded"}, .orders = {{2, 1, 0}, {2, 1, 0}, {2, 1, 0}, {2, 1, 0}}},
      {.pp = 1,
       .ep = 4,
       .classes = {"de", "de", "dee", "de"},
       .sentence = "rank 0 holds 2 parameters, 1 of them experts, rank 2 3 parameters, 2 of them experts; one order"},
      {.pp = 1,
       .ep = 4,
       .classes = {"ded", "dde", "ded", "ded"},
       .sentence = "rank 0 holds 3 parameters, 1 of them experts, rank 1 3 parameters, 1 of them experts at other places"},
  };
  for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; ++i) run_on_comms(4, on_a_cut, &cuts[i]);
}

/* ── What is logged ── */

typedef struct {
  kind of;
  int32_t ranks;
  int orders[LAYERS]; /* in which gradients come in each step, layer by layer */
  int times;
  const char* sentence;
} habit;

static void live(mdp_comm* comm, const void* argument) {
  const habit* const h = argument;
  model m = model_on(comm, &h->of);
  for (int step = 0; step < 3; ++step) {
    for (int i = 0; i < LAYERS; ++i) {
      if (h->orders[i] >= 0) put(&m, h->orders[i], step, 0);
    }
    finish(&m);
  }
  (void)launched(&m); /* an ordinary call: what is to be told is told at its end */
  model_drop(&m);
}

static void a_warning_where_nothing_overlaps(void** state) {
  (void)state;
  const kind one = {.sharding = MDP_SHARDING_ZERO_1, .tp = 1}, zero = {.sharding = MDP_SHARDING_ZERO_0, .tp = 1};
  const kind pool = {.sharding = MDP_SHARDING_ZERO_2, .tp = 1}, right = {.sharding = MDP_SHARDING_ZERO_1, .tp = 1, .use_order = reversed};
  const kind together = {.sharding = MDP_SHARDING_ZERO_1, .tp = 1, .flags = MDP_BUFFER_NO_OVERLAP};
  const kind two = {.sharding = MDP_SHARDING_ZERO_1, .tp = 1, .bucket_elements = 400};
  const kind lenient = {.sharding = MDP_SHARDING_ZERO_1, .tp = 1, .missing = MDP_MISSING_ZERO};
  const char* const all = "6 of 6 buckets waited for others";
  const habit habits[] = {
      {one, 3, {0, 1, 2, 3, 4, 5}, 1, all},
      {zero, 3, {0, 1, 2, 3, 4, 5}, 1, all},
      {one, 2, {4, 3, 2, 1, 0, 5}, 1, all}, /* the last layer is used at the front too */
      {one, 2, {5, 3, 2, 1, 0, 4}, 1, "5 of 6"},
      {one, 2, {5, 4, 3, 2, 1, 0}, 0, NULL},
      {one, 2, {4, 5, 2, 3, 0, 1}, 0, NULL}, /* nearly in order */
      {one, 2, {5, 4, 3, 1, 2, 0}, 0, NULL},
      {one, 2, {5, 4, 1, 2, 3, 0}, 1, "4 of 6"},
      {right, 2, {0, 1, 2, 3, 4, 5}, 0, NULL},
      {right, 2, {5, 4, 3, 2, 1, 0}, 1, all},
      {one, 1, {0, 1, 2, 3, 4, 5}, 0, NULL}, /* there is nothing to overlap with */
      {together, 2, {0, 1, 2, 3, 4, 5}, 0, NULL},
      {two, 2, {0, 1, 2, 3, 4, 5}, 0, NULL},
      {lenient, 2, {0, 1, 2, 3, 4, -1}, 0, NULL}, /* some bucket was never full */
      {pool, 2, {0, 1, 2, 3, 4, 5}, 2, "before its turn"},
  };
  for (size_t i = 0; i < sizeof habits / sizeof habits[0]; ++i) {
    told = 0;
    run_on_comms(habits[i].ranks, live, &habits[i]);
    if (!CHECK(told == habits[i].times)) fprintf(stderr, "habit %zu: told %d times, last: %s\n", i, told, last_told);
    if (habits[i].sentence != NULL) CHECK(strstr(last_told, habits[i].sentence) != NULL);
  }
}

/* ── A weight that is used twice ── */

/* From the first step on its bucket is launched by its second arrival, never by its first. */
static void launched_by_the_second_arrival(mdp_comm* comm, const void* argument) {
  kind k = *(const kind*)argument;
  k.uses = 2;
  model m = model_on(comm, &k);
  for (int step = 0; step < 3; ++step) {
    for (int p = LAYERS - 1; p >= 0; --p) {
      const uint64_t before = launched(&m);
      put(&m, p, step, 0);
      CHECK(launched(&m) == before);
      put(&m, p, step, 1);
      CHECK(launched(&m) == before + 1);
      FAILS(MDP_E_STATE, "it came 2 of 2 times", try_put(&m, p, step, 2));
    }
    finish(&m);
  }
  model_drop(&m);
}

static void a_weight_that_is_used_twice(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    const kind k = {.sharding = sharding, .tp = 1};
    run_on_comms(2, launched_by_the_second_arrival, &k);
  }
}

/* ── A forward in any order, while parameters are gathered ── */

enum {
  BUCKETS = 3,
  A_BUCKET = LAYERS / BUCKETS
};

/* The bits of layer p, waited for by itself, are those of the model whose step was waited for whole. */
static int has_right_values(const model* m, const model* whole, int p, int by_view) {
  float left[LONGEST], right[LONGEST];
  const mdp_tensor from = tensor_of(MDP_DTYPE_F32, right, &lengths[p]), to = tensor_of(MDP_DTYPE_F32, left, &lengths[p]);
  OK(mdp_param_read(whole->buffer, (size_t)p, &from, NULL));
  if (!by_view || on_cuda) { /* a view on a device is not for the host to read */
    if (by_view) OK(mdp_param_wait(m->buffer, (size_t)p, NULL));
    OK(mdp_param_read(m->buffer, (size_t)p, &to, NULL));
    return memcmp(left, right, (size_t)lengths[p] * sizeof left[0]) == 0;
  }
  SIZED(mdp_tensor, view);
  OK(mdp_buffer_param_view(m->buffer, (size_t)p, &view));
  OK(mdp_param_wait(m->buffer, (size_t)p, NULL));
  return memcmp(view.data, right, (size_t)lengths[p] * sizeof right[0]) == 0;
}

static void forward_in_any_order(mdp_comm* comm, const void* argument) {
  static const int orders[][BUCKETS] = {{2, 1, 0}, {2, 0, 1}, {0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}};
  model m = model_on(comm, argument), whole = model_on(comm, argument);
  size_t params, buckets;
  OK(mdp_buffer_counts(m.buffer, &params, &buckets));
  CHECK(buckets == BUCKETS);
  for (int step = 0; step < 12; ++step) {
    mdp_request* stepped = NULL;
    put_all_in(&whole, BACKWARD, step, 0);
    finish(&whole);
    put_all_in(&m, BACKWARD, step, 0);
    OK(mdp_optimizer_step(m.optimizer, NULL, NULL, &stepped));
    for (int b = 0; b < BUCKETS; ++b) {
      for (int i = 0; i < A_BUCKET; ++i) CHECK(has_right_values(&m, &whole, A_BUCKET * orders[step % 6][b] + i, (step / 6 + b + i) % 2));
    }
    OK(mdp_request_wait(stepped, UINT64_MAX));
    mdp_request_free(stepped);
  }
  model_drop(&whole);
  model_drop(&m);
}

static void a_forward_in_any_order(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    const kind k = {.sharding = sharding, .tp = 1, .bucket_elements = 194};
    run_on_comms(3, forward_in_any_order, &k);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(a_model_registered_backwards),     TEST(what_a_step_shows),           TEST(orders_that_differ),     TEST(stages_and_experts),
      TEST(a_warning_where_nothing_overlaps), TEST(a_weight_that_is_used_twice), TEST(a_forward_in_any_order),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
