/* SPDX-License-Identifier: Apache-2.0
 * Gradients and gathers have an order of their own: where they fall among the collectives of the caller's, and among those of another
 * buffer, may differ from rank to rank. Every value is checked, and a rank that would wait for ever ends by a short timeout. */
#include <string.h>

#include "channels.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static mdp_grid* cut(mdp_comm* comm, int32_t tp) {
  SIZED(mdp_grid_config, config);
  config.tp = tp;
  mdp_grid* grid = NULL;
  OK(mdp_grid_create(comm, &config, &grid));
  return grid;
}

/* A world, its grid, a communicator of the caller's and two models. */
typedef struct {
  mdp_comm *world, *own;
  mdp_grid* grid;
  room arrays;
  model a, b;
} job_of_many;

/* own: the tensor-parallel ranks; without these (tp 1) all ranks, as a communicator apart from the world. */
static job_of_many open_all(const mdp_unique_id* id, int32_t rank, int32_t n, int32_t tp) {
  job_of_many j = {.world = comm_in_time(id, rank, n)};
  j.grid = cut(j.world, tp);
  if (tp > 1) {
    OK(mdp_grid_comm(j.grid, MDP_AXIS_TP, &j.own));
  } else {
    OK(mdp_comm_split(j.world, 0, rank, &j.own));
  }
  j.arrays = room_open(j.world);
  j.a = model_open(j.grid, 0);
  j.b = model_open(j.grid, 1);
  return j;
}

static void close_all(job_of_many* j) {
  (void)lost(j->world);
  model_close(&j->a);
  model_close(&j->b);
  room_close(&j->arrays);
  mdp_comm_destroy(j->own);
  mdp_grid_destroy(j->grid);
  mdp_comm_destroy(j->world);
}

/* ── Gradients and an all-reduce of the tensor-parallel ranks, the one first on two ranks, the other on the other two ── */

static void cross_over(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int way = *(const int*)argument;
  dice d = dice_of(rank, way);
  job_of_many j = open_all(id, rank, n, 2);
  const int gradients_first = rank == 0 || rank == 3;
  for (int step = 0; step < 4 && !lost(j.world); ++step) {
    if (gradients_first) put_parts(&j.a, way % 2, &d);
    a_moment(&d);
    call_now(j.own, ALL_REDUCE, step, &j.arrays, step);
    if (!gradients_first) put_parts(&j.a, way % 2, &d);
    sync_and_check(&j.a);
    step_and_check(&j.a);
  }
  close_all(&j);
}

static void gradients_that_are_put_cross_the_callers_collectives(void** state) {
  (void)state;
  begin_test();
  for (int way = 0; way < 6 && go_on(); way += 2) run_ranks(4, cross_over, &way);
}

static void gradients_that_are_ready_cross_the_callers_collectives(void** state) {
  (void)state;
  begin_test();
  for (int way = 1; way < 6 && go_on(); way += 2) run_ranks(4, cross_over, &way);
}

/* ── Any order of gradients and collectives on one communicator ── */

typedef struct {
  int repetition, on_world, with_requests;
} mixture;

static void mix_a_step(job_of_many* j, const mixture* how, int step, dice* d) {
  enum {
    CALLS = 5
  };
  static const int lengths[2] = {PARTS, CALLS};
  int order[PARTS + CALLS], next[2] = {0, 0};
  call calls[CALLS];
  mdp_comm* const comm = how->on_world ? j->world : j->own;
  shuffle(d, lengths, 2, order);
  for (int at = 0; at < PARTS + CALLS; ++at) {
    const int i = next[order[at]]++;
    a_moment(d);
    if (order[at] == 0) {
      put_part(&j->a, PARTS - 1 - i, roll(d, 2));
      continue;
    }
    const kind what = (kind)((i + step) % KINDS);
    calls[i] = call_begin(comm, what, CALLS * step + i, &j->arrays, i, how->with_requests);
  }
  /* What a rank has asked for it may ask after whenever it likes. */
  const int when = roll(d, 3);
  for (int i = 0; when == 0 && i < CALLS; ++i) call_end(&calls[i]);
  sync_and_check(&j->a);
  for (int i = 0; when == 1 && i < CALLS; ++i) call_end(&calls[i]);
  step_and_check(&j->a);
  for (int i = CALLS; when == 2 && i-- > 0;) call_end(&calls[i]);
}

static void mix(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const mixture* how = argument;
  dice d = dice_of(rank, how->repetition);
  job_of_many j = open_all(id, rank, n, 1);
  for (int step = 0; step < 4 && !lost(j.world); ++step) mix_a_step(&j, how, step, &d);
  close_all(&j);
}

static void mix_on_all_numbers_of_ranks(int with_requests) {
  begin_test();
  mixture how = {.with_requests = with_requests};
  for (int32_t n = 2; n <= MOST_RANKS; ++n) {
    for (how.on_world = 0; how.on_world < 2; ++how.on_world) {
      if (go_on()) run_ranks(n, mix, &how);
      ++how.repetition;
    }
  }
}

static void gradients_between_blocking_collectives(void** state) {
  (void)state;
  mix_on_all_numbers_of_ranks(0);
}

static void gradients_between_collectives_with_requests(void** state) {
  (void)state;
  mix_on_all_numbers_of_ranks(1);
}

/* ── Two buffers on one grid, as a generator and its discriminator have them ── */

static void interleave(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const int repetition = *(const int*)argument;
  static const int lengths[2] = {PARTS, PARTS};
  dice d = dice_of(rank, repetition);
  job_of_many j = open_all(id, rank, n, 1);
  model* const models[2] = {&j.a, &j.b};
  for (int step = 0; step < 4 && !lost(j.world); ++step) {
    int order[2 * PARTS], left[2] = {PARTS, PARTS};
    shuffle(&d, lengths, 2, order);
    for (int at = 0; at < 2 * PARTS; ++at) {
      a_moment(&d);
      put_part(models[order[at]], --left[order[at]], roll(&d, 2));
    }
    if (step % 2 == 0) {
      for (int i = 0; i < 2; ++i) DID(mdp_grad_sync(models[i]->buffer, NULL, NULL));
    }
    /* Syncs that only begin may begin in any order too. On a device it takes a request to know that they are over. */
    mdp_request* synced[2] = {NULL, NULL};
    const int first = step % 2 == 0 ? 0 : rank % 2;
    DID(mdp_grad_sync(models[first]->buffer, NULL, &synced[0]));
    a_moment(&d);
    DID(mdp_grad_sync(models[1 - first]->buffer, NULL, &synced[1]));
    for (int i = 0; i < 2; ++i) finish_request(synced[i]);
    for (int i = 0; i < 2; ++i) check_gradients(models[i]);
    for (int i = 0; i < 2; ++i) step_and_check(models[i]);
  }
  close_all(&j);
}

static void gradients_of_two_buffers_interleaved(void** state) {
  (void)state;
  begin_test();
  for (int repetition = 0; repetition < 6 && go_on(); ++repetition) run_ranks(2 + repetition % 3, interleave, &repetition);
}

/* ── A collective right after what only begins ── */

typedef enum {
  SYNC,
  STEP
} beginning;

/* One tensor-parallel rank begins to sync or to step and then waits in a collective; the other comes from the collective to the step. */
static void overtake(const mdp_unique_id* id, int32_t rank, int32_t n, void* argument) {
  const beginning what = *(const beginning*)argument;
  dice d = dice_of(rank, (int)what);
  job_of_many j = open_all(id, rank, n, n / 2);
  const int begins_first = mdp_comm_rank(j.own) == 0;
  for (int step = 0; step < 4 && !lost(j.world); ++step) {
    mdp_request* request = NULL;
    put_parts(&j.a, step % 2, &d);
    if (what == STEP) sync_and_check(&j.a);
    if (!begins_first) call_now(j.own, ALL_REDUCE, step, &j.arrays, step);
    a_moment(&d);
    if (what == SYNC) DID(mdp_grad_sync(j.a.buffer, NULL, &request));
    if (what == STEP) DID(mdp_optimizer_step(j.a.optimizer, NULL, NULL, &request));
    if (begins_first) call_now(j.own, ALL_REDUCE, step, &j.arrays, step);
    finish_request(request);
    if (what == SYNC) {
      check_gradients(&j.a);
      step_and_check(&j.a);
    } else {
      check_parameters(&j.a);
    }
  }
  close_all(&j);
}

static void a_collective_overtakes_a_sync(void** state) {
  (void)state;
  begin_test();
  beginning what = SYNC;
  for (int32_t n = 2; n <= MOST_RANKS && go_on(); n += 2) run_ranks(n, overtake, &what);
}

static void a_collective_overtakes_a_step(void** state) {
  (void)state;
  begin_test();
  beginning what = STEP;
  for (int32_t n = 2; n <= MOST_RANKS && go_on(); n += 2) run_ranks(n, overtake, &what);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(gradients_that_are_put_cross_the_callers_collectives),
      TEST(gradients_that_are_ready_cross_the_callers_collectives),
      TEST(gradients_between_blocking_collectives),
      TEST(gradients_between_collectives_with_requests),
      TEST(gradients_of_two_buffers_interleaved),
      TEST(a_collective_overtakes_a_sync),
      TEST(a_collective_overtakes_a_step),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
