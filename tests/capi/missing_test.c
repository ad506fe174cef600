/* SPDX-License-Identifier: Apache-2.0
 * A parameter that is put, skipped or left out, in all ways over the microbatches of a step and over ranks: every sharding judges it alike.
 * Gradients are small whole numbers, so that all orders of adding have the same bits. */
#include <string.h>

#include "layers.h"

static int setup(void** state) {
  (void)state;
  be_alone();
  return 0;
}

enum {
  MICROBATCHES = 3,
  PATTERNS = 27, /* of three choices in each of them */
  STEPS = 27
};
enum {
  LEFT_OUT,
  SKIPPED,
  PUT
};

/* What a rank does about a parameter: within STEPS steps all patterns, beside others of the other rank. */
static int choice(int32_t rank, int p, int step, int microbatch) {
  int pattern = (step + p * 5 + rank * (7 + 3 * p)) % PATTERNS;
  for (int i = 0; i < microbatch; ++i) pattern /= 3;
  return pattern % 3;
}

static void bring(const model* m, int step, int microbatch) {
  for (int p = LAYERS; p-- > 0;) {
    const int what = choice(m->rank, p, step, microbatch);
    if (what == SKIPPED) OK(mdp_grad_skip(m->buffer, (size_t)p));
    if (what != PUT) continue;
    float values[LONGEST];
    for (int64_t i = 0; i < lengths[p]; ++i) values[i] = (float)((i * 7 + p + step + m->rank * 5 + microbatch * 3) % 11 - 5);
    const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
    OK(mdp_grad_put(m->buffer, (size_t)p, &t, 0, NULL));
  }
}

/* Whether the step takes the parameter along: a rank has a gradient of it, or adds a zero that nobody told it to leave out. */
static int is_taken(const kind* k, int32_t ranks, int p, int step) {
  for (int32_t rank = 0; rank < ranks; ++rank) {
    int puts = 0, skips = 0;
    for (int b = 0; b < MICROBATCHES; ++b) {
      puts += choice(rank, p, step, b) == PUT;
      skips += choice(rank, p, step, b) == SKIPPED;
    }
    if (puts > 0 || (skips == 0 && k->missing == MDP_MISSING_ZERO)) return 1;
  }
  return 0;
}

static void train(mdp_comm* comm, const void* argument) {
  static const mdp_sharding shardings[] = {MDP_SHARDING_ZERO_0, MDP_SHARDING_ZERO_1, MDP_SHARDING_ZERO_2};
  kind kinds[3];
  model models[3];
  for (int i = 0; i < 3; ++i) {
    kinds[i] = *(const kind*)argument;
    kinds[i].sharding = shardings[i];
    models[i] = model_on(comm, &kinds[i]);
  }
  uint64_t expected[LAYERS] = {0};
  for (int step = 0; step < STEPS; ++step) {
    for (int i = 0; i < 3; ++i) {
      for (int b = 0; b < MICROBATCHES; ++b) {
        OK(mdp_microbatch_begin(models[i].buffer, b == MICROBATCHES - 1));
        bring(&models[i], step, b);
      }
      step_and_wait(models[i].optimizer);
    }
    for (int p = 0; p < LAYERS; ++p) {
      expected[p] += (uint64_t)is_taken(&kinds[0], models[0].size, p, step);
      for (int i = 0; i < 3; ++i) {
        uint64_t steps = 0;
        OK(mdp_optimizer_steps(models[i].optimizer, (size_t)p, &steps));
        if (CHECK(steps == expected[p])) continue;
        fprintf(stderr, "  policy %u, sharding %u, %d ranks, step %d, parameter %d: %d steps, not %d\n", kinds[i].missing,
                kinds[i].sharding, (int)models[0].size, step, p, (int)steps, (int)expected[p]);
      }
    }
    CHECK(same_params(&models[0], &models[1]));
    CHECK(same_params(&models[0], &models[2]));
  }
  for (int i = 0; i < 3; ++i) model_drop(&models[i]);
}

static void shardings_judge_alike(void** state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= 2; ++ranks) {
    for (mdp_missing missing = MDP_MISSING_ZERO; missing <= MDP_MISSING_SKIP; ++missing) {
      const kind k = {.missing = missing, .tp = 1, .max_grad_norm = -1};
      run_on_comms(ranks, train, &k);
    }
  }
}

/* What is wrong with a step: the lowest rank with something left out in its last microbatch, and which it is; -1: nothing. */
static int left_out(int32_t ranks, int step, int32_t* rank) {
  for (*rank = 0; *rank < ranks; ++*rank) {
    for (int p = LAYERS; p-- > 0;) {
      if (choice(*rank, p, step, MICROBATCHES - 1) == LEFT_OUT) return p;
    }
  }
  return -1;
}

static void try_to_train(mdp_comm* comm, const void* argument) {
  model m = model_on(comm, argument);
  for (int step = 0; step < STEPS; ++step) {
    for (int b = 0; b < MICROBATCHES; ++b) {
      OK(mdp_microbatch_begin(m.buffer, b == MICROBATCHES - 1));
      bring(&m, step, b);
    }
    int32_t rank = -1;
    const int p = left_out(m.size, step, &rank);
    if (p < 0) {
      OK(mdp_grad_sync(m.buffer, 0, NULL));
      step_and_wait(m.optimizer);
      continue;
    }
    FAILS(MDP_E_STATE, "never became ready", mdp_grad_sync(m.buffer, 0, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.rank == rank && info.param == p);
    OK(mdp_buffer_zero_grad(m.buffer, NULL));
  }
  model_drop(&m);
}

/* MDP_MISSING_ERROR asks for all parameters in the last microbatch, whatever earlier ones brought. */
static void shardings_miss_alike(void** state) {
  (void)state;
  for (int32_t ranks = 1; ranks <= 2; ++ranks) {
    for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
      const kind k = {.missing = MDP_MISSING_ERROR, .sharding = sharding, .tp = 1, .max_grad_norm = -1};
      run_on_comms(ranks, try_to_train, &k);
    }
  }
}

/* In every third step one rank lacks gradients of one to three layers that follow one another, which its tensor-parallel neighbour has. */
static int is_left_out(int p, int step) {
  const int first = step % LAYERS, layers = 1 + step / 3 % 3;
  return step % 3 == 2 && p >= first && p < first + layers;
}

/* Whether a rank puts layer p: but for that as its neighbour does. */
static int tp_puts(int32_t tp, int32_t dp, int p, int step) {
  if (is_left_out(p, step) && dp == step % 2) return tp != step / 3 % 2;
  return (step * 3 + p * 5 + dp * 7) % 4 < 2;
}

/* Where a parameter is replicated over tensor-parallel ranks, these update it each by itself: they are to have gradients of the same. */
static void train_replicated(mdp_comm* comm, const void* argument) {
  const kind* k = argument;
  model m = model_on(comm, k);
  const int32_t tp = m.rank % 2, dp = m.rank / 2;
  for (int step = 0; step < STEPS; ++step) {
    int differ = -1;
    for (int b = 0; b < 2; ++b) { /* in which of the two they bring it is all one */
      OK(mdp_microbatch_begin(m.buffer, b));
      for (int p = 0; p < LAYERS; ++p) {
        float values[LONGEST];
        for (int64_t i = 0; i < lengths[p]; ++i) values[i] = gradient(dp, p, i, step, 0);
        const mdp_tensor t = tensor_of(MDP_DTYPE_F32, values, &lengths[p]);
        if (b == (p + tp) % 2 && tp_puts(tp, dp, p, step)) OK(mdp_grad_put(m.buffer, (size_t)p, &t, 0, NULL));
      }
    }
    for (int p = LAYERS; p-- > 0;) {
      if (is_left_out(p, step)) differ = p;
    }
    if (k->placement != MDP_PLACEMENT_REPLICATED) differ = -1;
    if (differ < 0) {
      OK(mdp_grad_sync(m.buffer, 0, NULL));
      step_and_wait(m.optimizer);
      continue;
    }
    FAILS(MDP_E_STATE, "replicated over tensor-parallel ranks", mdp_grad_sync(m.buffer, 0, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    const int32_t lacks = step % 2 * 2 + step / 3 % 2;
    CHECK(info.rank == lacks && info.param == differ && strstr(info.text, names[differ]) != NULL);
    OK(mdp_buffer_zero_grad(m.buffer, NULL));
  }
  model_drop(&m);
}

static void replicas_have_the_same_gradients(void** state) {
  (void)state;
  static const mdp_placement placements[] = {MDP_PLACEMENT_REPLICATED, MDP_PLACEMENT_SHARDED, MDP_PLACEMENT_PARTIAL_SUM};
  for (mdp_missing missing = MDP_MISSING_ZERO; missing <= MDP_MISSING_SKIP; ++missing) {
    for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
      for (int i = 0; i < 3; ++i) {
        const kind k = {.missing = missing, .sharding = sharding, .tp = 2, .placement = placements[i]};
        run_on_comms(4, train_replicated, &k);
      }
    }
  }
}

/* One skips it and its neighbour leaves it out, for which zero is taken: the one would stay, and the other decay. */
static void skip_or_zero(mdp_comm* comm, const void* argument) {
  const kind* k = argument;
  model m = model_on(comm, k);
  for (int step = 0; step < STEPS; ++step) {
    const int first = step % LAYERS, layers = 1 + step / LAYERS % 3;
    int skipped = -1;
    for (int p = LAYERS; p-- > 0;) {
      const int is_skipped = step % 2 == 1 && p >= first && p < first + layers;
      if (is_skipped) skipped = p;
      if (is_skipped && m.rank == step / 2 % 2) OK(mdp_grad_skip(m.buffer, (size_t)p));
      if (!is_skipped) put(&m, p, step, 0);
    }
    if (skipped < 0) {
      OK(mdp_grad_sync(m.buffer, 0, NULL));
      step_and_wait(m.optimizer);
      continue;
    }
    FAILS(MDP_E_STATE, "of ranks 0 and 1 one has skipped parameter", mdp_grad_sync(m.buffer, 0, NULL));
    SIZED(mdp_error_info, info);
    OK(mdp_last_error_info(&info));
    CHECK(info.param == skipped && strstr(info.text, names[skipped]) != NULL);
    OK(mdp_buffer_zero_grad(m.buffer, NULL));
  }
  model_drop(&m);
}

static void replicas_skip_the_same(void** state) {
  (void)state;
  for (mdp_sharding sharding = MDP_SHARDING_ZERO_0; sharding <= MDP_SHARDING_ZERO_2; ++sharding) {
    const kind k = {.missing = MDP_MISSING_ZERO, .sharding = sharding, .tp = 2, .placement = MDP_PLACEMENT_REPLICATED};
    run_on_comms(2, skip_or_zero, &k);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {TEST(shardings_judge_alike), TEST(shardings_miss_alike), TEST(replicas_have_the_same_gradients),
                                     TEST(replicas_skip_the_same)};
  return cmocka_run_group_tests(tests, setup, NULL);
}
