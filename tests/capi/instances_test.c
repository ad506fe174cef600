/* SPDX-License-Identifier: Apache-2.0
 * Optimizer instances: the bits of one instance where an instance has a power of two of ranks; who owns what; norm, broadcast, comparison
 * and agreement over all instances; and what is refused. Vector 20 of the specification is here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

static const kind plain = {.sharding = MDP_SHARDING_ZERO_1, .tp = 1, .max_grad_norm = -1};

/* ── Vector 20 ── */

static void own_the_same(mdp_comm* comm, const void* argument) {
  kind k = plain;
  k.sharding = *(const mdp_sharding*)argument;
  k.instances = 2;
  model m = model_on(comm, &k);
  for (int p = LAYERS - 1; p >= 0; --p) {
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)m.rank;
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m.buffer, (size_t)p, &t, 0, NULL));
  }
  sync_and_wait(m.buffer);
  mdp_range ranges[LAYERS];
  const size_t count = owned_ranges(m.buffer, ranges, LAYERS);
  int64_t mine[2] = {0, 0}, all[8][2]; /* how much, and which */
  for (size_t n = 0; n < count; ++n) {
    mine[0] += ranges[n].end - ranges[n].begin;
    mine[1] = mine[1] * 31 + ranges[n].begin * 7 + ranges[n].param;
    SIZED(mdp_tensor, sum);
    OK(mdp_grad_owned(m.buffer, (size_t)ranges[n].param, &sum));
    CHECK(sum.shape[0] == ranges[n].end - ranges[n].begin && sum.dtype == MDP_DTYPE_F32);
    for (int64_t i = 0; i < sum.shape[0]; ++i) CHECK(((const float*)sum.data)[i] == 3.5F);
  }
  const int64_t two = 2, sixteen = 16;
  const mdp_tensor from = tensor_of(MDP_DTYPE_I64, mine, &two), to = tensor_of(MDP_DTYPE_I64, all, &sixteen);
  if (!on_cuda) { /* whose collectives take the device's memory */
    OK(mdp_all_gather(comm, &from, &to, NULL, NULL));
    int64_t owned = 0;
    for (int r = 0; r < 4; ++r) {
      owned += all[r][0];
      CHECK(all[r][0] == all[r + 4][0] && all[r][1] == all[r + 4][1]);
      for (int other = 0; other < r; ++other) CHECK(all[r][1] != all[other][1]);
    }
    CHECK(owned == 130 + 64 + 300 + 1 + 77 + 128);
  }
  model_drop(&m);
}

static void ranks_of_two_instances_own_the_same(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_1; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    run_on_comms(8, own_the_same, &sharding);
  }
}

/* ── The bits of one instance ── */

enum {
  EXACT, /* gradients whose sums are exact in every type */
  ANY
};

typedef struct {
  kind k;
  int gradients, microbatches;
  double tolerance; /* 0: the same bits */
} comparison;

static void put_one(const model* m, const comparison* c, int p, int step, int microbatch) {
  float values[LONGEST];
  const mdp_tensor t = values_of(m, p, step, microbatch, values);
  if (c->gradients == EXACT) {
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)(m->size * (((int64_t)m->rank * 5 + i + p + step + microbatch) % 7 - 3));
  }
  OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
}

static void backward(const model* m, const comparison* c, int step) {
  for (int b = 0; b < c->microbatches; ++b) {
    if (c->microbatches > 1) OK(mdp_microbatch_begin(m->buffer, b == c->microbatches - 1));
    for (int n = 0; n < LAYERS; ++n) put_one(m, c, step % 2 == 0 ? LAYERS - 1 - n : (n * 5 + m->rank + step) % LAYERS, step, b);
  }
}

static void check_alike(const model* a, const model* b, double tolerance) {
  if (tolerance == 0) {
    CHECK(same_params(a, b));
    return;
  }
  for (int p = 0; p < LAYERS; ++p) {
    float left[LONGEST], right[LONGEST];
    const mdp_tensor l = tensor_of(MDP_DTYPE_F32, left, &lengths[p]), r = tensor_of(MDP_DTYPE_F32, right, &lengths[p]);
    OK(mdp_param_read(a->buffer, (size_t)p, &l, NULL));
    OK(mdp_param_read(b->buffer, (size_t)p, &r, NULL));
    for (int64_t i = 0; i < lengths[p]; ++i) CHECK(fabs((double)left[i] - (double)right[i]) <= tolerance);
  }
}

static void train_beside_one(mdp_comm* comm, const void* argument) {
  const comparison* c = argument;
  kind single = c->k;
  single.instances = 1;
  if (c->k.sharding == MDP_SHARDING_ZERO_2 && c->microbatches > 1) single.sharding = MDP_SHARDING_ZERO_1;
  single.pool_buckets = single.sharding == MDP_SHARDING_ZERO_2 ? c->k.pool_buckets : 0;
  model many = model_on(comm, &c->k), one = model_on(comm, &single);
  for (int step = 0; step < 4; ++step) {
    backward(&many, c, step);
    backward(&one, c, step);
    double norms[2];
    sync_and_wait(many.buffer);
    sync_and_wait(one.buffer);
    OK(mdp_grad_norm(many.buffer, NULL, 0, &norms[0]));
    OK(mdp_grad_norm(one.buffer, NULL, 0, &norms[1]));
    CHECK(fabs(norms[0] - norms[1]) <= (c->tolerance == 0 ? 1e-13 : 1e-5) * norms[1]); /* other pieces are added up */
    step_and_wait(many.optimizer);
    step_and_wait(one.optimizer);
    check_alike(&many, &one, c->tolerance);
  }
  OK(mdp_buffer_verify(many.buffer));
  model_drop(&many);
  model_drop(&one);
}

static mdp_dtype dtype_of(int way) {
  return way % 3 == 0 ? MDP_DTYPE_F32 : way % 3 == 1 ? MDP_DTYPE_BF16 : MDP_DTYPE_F16;
}

/* Two and more instances of 1, 2 and 4 ranks, three of 2 among them; experts, who are fewer, likewise. */
static const struct {
  int32_t ranks, ep, instances;
} cuts[] = {{2, 1, 2}, {4, 1, 2}, {4, 1, 4}, {6, 1, 3}, {8, 1, 2}, {8, 2, 2}, {8, 2, 4}};

static void an_instance_of_a_power_of_two_changes_no_bit(void** state) {
  (void)state;
  for (size_t cut = 0; cut < sizeof cuts / sizeof cuts[0]; ++cut) {
    for (int way = 0; way < 8; ++way) {
      if (UNDER_SANITIZER && cuts[cut].ranks > 4 && way % 3 != 1) continue;
      if (UNDER_THREAD_SANITIZER && (cuts[cut].ranks > 4 || way % 2 != 0)) continue;
      if (on_cuda && cuts[cut].ranks > 4 && way % 3 != 0) continue; /* the stand-in is slow */
      comparison c = {.k = plain, .gradients = ANY, .microbatches = 1};
      c.k.ep = cuts[cut].ep;
      c.k.instances = cuts[cut].instances;
      c.k.dtype = dtype_of(way);
      c.k.grads = way % 2 == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_SAME;
      c.k.bucket_elements = way < 4 ? 1 : 200;
      c.k.flags = way == 3 || way == 6 ? MDP_BUFFER_NO_OVERLAP : 0;
      run_on_comms(cuts[cut].ranks, train_beside_one, &c);
      c.k.sharding = MDP_SHARDING_ZERO_0;
      if (way < 2) run_on_comms(cuts[cut].ranks, train_beside_one, &c);
      c.k.sharding = MDP_SHARDING_ZERO_2;
      c.k.pool_buckets = (uint64_t)way % 4;
      /* Half-width gradients are not rounded between the ranks and the sums: the same where no sum is rounded. */
      c.gradients = c.k.grads == MDP_DTYPE_SAME && c.k.dtype != MDP_DTYPE_F32 ? EXACT : ANY;
      run_on_comms(cuts[cut].ranks, train_beside_one, &c);
    }
  }
}

static void other_instances_differ_by_rounding(void** state) {
  (void)state;
  for (int way = 0; way < 6; ++way) {
    comparison c = {.k = plain, .gradients = way < 4 ? ANY : EXACT, .microbatches = 1, .tolerance = way < 4 ? 1e-3 : 0};
    c.k.instances = 2;
    c.k.sharding = way % 2 == 0 ? MDP_SHARDING_ZERO_1 : MDP_SHARDING_ZERO_2;
    run_on_comms(6, train_beside_one, &c);
  }
}

static void microbatches_are_summed_across_once(void** state) {
  (void)state;
  for (int way = 0; way < 6; ++way) {
    comparison c = {.k = plain, .gradients = EXACT, .microbatches = 3};
    c.k.instances = 2;
    c.k.dtype = dtype_of(way);
    c.k.grads = MDP_DTYPE_SAME;
    c.k.sharding = way < 3 ? MDP_SHARDING_ZERO_1 : MDP_SHARDING_ZERO_2;
    run_on_comms(4, train_beside_one, &c);
  }
}

/* With clipping the norm is of all elements once: the same factor but for its rounding. */
static void clipping_counts_every_element_once(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_1; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    comparison c = {.k = plain, .gradients = ANY, .microbatches = 1, .tolerance = 1e-6};
    c.k.instances = 2;
    c.k.sharding = sharding;
    c.k.max_grad_norm = 0.5;
    run_on_comms(4, train_beside_one, &c);
  }
}

/* ── What all instances do together ── */

static float first_of(const model* m, int p) {
  float values[LONGEST];
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
  OK(mdp_param_read(m->buffer, (size_t)p, &t, NULL));
  return values[lengths[p] - 1];
}

static void write_rank(const model* m, int p) {
  float values[LONGEST];
  for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)(m->rank * 10 + p);
  const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
  OK(mdp_param_write(m->buffer, (size_t)p, &t, NULL));
}

static void together(mdp_comm* comm, const void* argument) {
  kind k = plain;
  k.sharding = *(const mdp_sharding*)argument;
  k.instances = 2;
  model m = model_on(comm, &k);
  /* Any rank of any instance may be the root; a replica in another instance that differs is found. */
  for (int32_t root = 0; root < m.size; ++root) {
    for (int p = 0; p < LAYERS; ++p) write_rank(&m, p);
    OK(mdp_buffer_broadcast(m.buffer, root, NULL));
    for (int p = 0; p < LAYERS; ++p) CHECK(first_of(&m, p) == (float)(root * 10 + p));
  }
  FAILS(MDP_E_INVALID, "ranks 0 to 3", mdp_buffer_broadcast(m.buffer, 4, NULL));
  OK(mdp_buffer_verify(m.buffer));
  if (m.rank == 2) write_rank(&m, 2);
  FAILS(MDP_E_DESYNC, "layer2", mdp_buffer_verify(m.buffer));
  OK(mdp_buffer_broadcast(m.buffer, 0, NULL));

  /* Missing on one rank of the second instance: all are told, and the next step is taken. */
  for (int p = LAYERS - 1; p >= 0; --p) {
    if (m.rank != 2 || p != 1) put(&m, p, 0, 0);
  }
  FAILS(MDP_E_STATE, "layer1", mdp_grad_sync(m.buffer, NULL, NULL));
  SIZED(mdp_error_info, info);
  OK(mdp_last_error_info(&info));
  CHECK(info.rank == 2 && info.param == 1);
  OK(mdp_microbatch_begin(m.buffer, 1));
  /* Skipped on all but one: it is a parameter of the step, on the instance without it too. Skipped on all: it stays. */
  const float before = first_of(&m, 0), skipped = first_of(&m, 4);
  for (int p = LAYERS - 1; p >= 0; --p) {
    if (p == 4 || (p == 0 && m.rank != 3)) {
      OK(mdp_grad_skip(m.buffer, (size_t)p));
    } else {
      put(&m, p, 1, 0);
    }
  }
  step_and_wait(m.optimizer);
  CHECK(first_of(&m, 0) != before && first_of(&m, 4) == skipped);
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
}

static void instances_act_together(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) run_on_comms(4, together, &sharding);
}

/* A broadcast comes between other gradients on each rank: sums across instances must not stand in its way, nor it in theirs. */
static void broadcast_in_between(mdp_comm* comm, const void* argument) {
  kind k = plain;
  k.sharding = *(const mdp_sharding*)argument;
  k.instances = 2;
  model m = model_on(comm, &k);
  for (int step = 0; step < 4; ++step) {
    mdp_request* sent = NULL;
    for (int n = 0; n < LAYERS; ++n) {
      if (n == (m.rank * 2 + step) % LAYERS) OK(mdp_buffer_broadcast(m.buffer, 0, &sent));
      put(&m, LAYERS - 1 - n, step, 0);
    }
    OK(mdp_request_wait(sent, UINT64_MAX));
    mdp_request_free(sent);
    step_and_wait(m.optimizer);
  }
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
}

static void a_broadcast_may_come_in_between(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_1; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    run_on_comms(4, broadcast_in_between, &sharding);
  }
}

/* With a pool only the last microbatch is summed across: a rank that ends the step in another one must not be waited for in vain. */
static void sync_too_early(mdp_comm* comm, const void* argument) {
  (void)argument;
  kind k = plain;
  k.sharding = MDP_SHARDING_ZERO_2;
  k.instances = 2;
  model m = model_on(comm, &k);
  OK(mdp_microbatch_begin(m.buffer, m.rank != 1));
  put_all_in(&m, BACKWARD, 0, 0);
  FAILS(MDP_E_STATE, "on rank 1 mdp_grad_sync was called in a microbatch that was not the last", mdp_grad_sync(m.buffer, NULL, NULL));
  OK(mdp_microbatch_begin(m.buffer, 1));
  put_all_in(&m, BACKWARD, 1, 0);
  step_and_wait(m.optimizer);
  OK(mdp_buffer_verify(m.buffer));
  model_drop(&m);
}

static void a_sync_in_another_microbatch_is_told(void** state) {
  (void)state;
  run_on_comms(4, sync_too_early, NULL);
}

/* ── What it costs, and what is refused ── */

static void bytes(void** state) {
  (void)state;
  const int64_t count = 1 << 20;
  mdp_param param = {.struct_size = sizeof param, .name = "w", .dtype = MDP_DTYPE_BF16, .ndim = 1, .shape = &count};
  for (int way = 0; way < 4; ++way) {
    SIZED(mdp_buffer_config, config);
    config.bucket_elements = 1;
    config.sharding = way < 2 ? MDP_SHARDING_ZERO_1 : MDP_SHARDING_ZERO_2;
    config.grad_dtype = way % 2 == 0 ? MDP_DTYPE_F32 : MDP_DTYPE_SAME;
    SIZED(mdp_grid_config, grid);
    SIZED(mdp_plan_report, one);
    SIZED(mdp_plan_report, two);
    OK(mdp_plan(&grid, 8, 5, &config, &param, 1, NULL, &one));
    grid.instances = 2;
    OK(mdp_plan(&grid, 8, 5, &config, &param, 1, NULL, &two));
    CHECK(one.param_bytes == two.param_bytes && one.grad_bytes == two.grad_bytes);
    CHECK(two.master_bytes == 2 * one.master_bytes && two.state_bytes == 2 * one.state_bytes);
    CHECK(two.grad_shard_bytes == 2 * one.grad_shard_bytes && two.owned_elements == 2 * one.owned_elements);
    /* The f32 sums of half-width pieces, and three more groups. */
    const uint64_t wide = way % 2 == 0 ? 0 : (uint64_t)count / 4 * sizeof(float);
    CHECK(two.scratch_bytes - one.scratch_bytes == wide + 3 * (4096 + (UINT64_C(1) << 20)));
  }
}

static void refused(void** state) {
  (void)state;
  mdp_comm* const comm = comm_open(NULL, 0, 1, 0);
  mdp_grid* grid = NULL;
  SIZED(mdp_grid_config, config);
  config.instances = 2;
  FAILS(MDP_E_INVALID, "instances is 2; it must divide the 1 ranks of dp 1 x cp 1", mdp_grid_create(comm, &config, &grid));
  const int64_t count = 10;
  const mdp_param param = {.struct_size = sizeof param, .name = "w", .ndim = 1, .shape = &count};
  SIZED(mdp_plan_report, report);
  config.instances = 4;
  FAILS(MDP_E_INVALID, "instances is 4; it must divide the 6 ranks", mdp_plan(&config, 6, 0, NULL, &param, 1, NULL, &report));
  config.ep = 4;
  FAILS(MDP_E_INVALID, "instances is 4; it must divide the 2 data-parallel ranks of the expert grid",
        mdp_plan(&config, 8, 0, NULL, &param, 1, NULL, &report));
  mdp_comm_destroy(comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(ranks_of_two_instances_own_the_same),
      TEST(an_instance_of_a_power_of_two_changes_no_bit),
      TEST(other_instances_differ_by_rounding),
      TEST(microbatches_are_summed_across_once),
      TEST(clipping_counts_every_element_once),
      TEST(instances_act_together),
      TEST(a_broadcast_may_come_in_between),
      TEST(a_sync_in_another_microbatch_is_told),
      TEST(bytes),
      TEST(refused),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
