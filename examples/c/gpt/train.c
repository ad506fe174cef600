/* SPDX-License-Identifier: Apache-2.0
 * The training loop. Every replica of the model (a rank, or with --tp and --cp several) computes an equal share of each global batch, and
 * with --cp each rank of it an equal share of the positions, so that the mean over replicas and segments of their mean gradients is the
 * gradient of the global mean. */
#include "train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "layers.h"

double train_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int train_open(trainer* out, const options* opts, const corpus* text, gpt_model* model, parallel* ranks) {
  memset(out, 0, sizeof *out);
  out->opts = opts;
  out->text = text;
  out->model = model;
  out->ranks = ranks;
  out->share = opts->batch / ((size_t)ranks->replicas * opts->microbatches);
  const gpt_hooks hooks = parallel_hooks(ranks);
  if (gpt_set_segment(model, opts->context, &hooks, &out->time)) return -1;
  out->tokens = malloc(out->share * out->time);
  out->targets = malloc(out->share * out->time);
  out->whole = malloc(2 * opts->context);
  if (!out->tokens || !out->targets || !out->whole) {
    fprintf(stderr, "gpt: rank %d: out of memory\n", ranks->rank);
    return -1;
  }
  out->clock = train_clock();
  return parallel_stats(ranks, &out->before);
}

void train_close(trainer* t) {
  free(t->tokens);
  free(t->targets);
  free(t->whole);
  memset(t, 0, sizeof *t);
}

/* A short warm-up, then half a cosine down to a tenth. */
static double learning_rate(const options* opts, uint64_t step) {
  const double warm = fmin(40, ceil(0.1 * (double)opts->steps)), at = (double)step + 1;
  if (at <= warm) return opts->lr * at / warm;
  const double done = (at - warm) / fmax(1, (double)opts->steps - warm);
  return opts->lr * (0.1 + 0.45 * (1 + cos(3.141592653589793 * done)));
}

/* Of the logits that are here: the loss, which over all ranks adds up to that of the batch, and its gradient. */
static int loss_here(const trainer* t, size_t sequences, real scale, const gpt_hooks* hooks, double* sum) {
  size_t first = 0;
  double loss = 0;
  const size_t n = sequences * t->time, rows = gpt_own_rows(t->model, n, &first);
  const int whole = t->model->cut.vocab;
  if (whole) {
    if (hooks->linears->loss(hooks->linears->user, t->model->logits, t->targets, n, scale, &loss)) return -1;
  } else {
    loss = cross_entropy(t->model->logits, t->targets + first, rows, t->model->shape.vocab, scale);
  }
  if ((t->model->cut.rows && !whole) || t->model->cut.index == 0) *sum += loss; /* with all rows on each part one of them counts */
  return 0;
}

/* Puts this rank's segment of the sequence that is in t->whole at place i. */
static void take_sequence(trainer* t, size_t i) {
  gpt_take_segment(t->model, t->tokens + i * t->time, t->whole, t->time);
  gpt_take_segment(t->model, t->targets + i * t->time, t->whole + t->opts->context, t->time);
}

/* Sequence `i` of the global batch of a step is the same whatever the number of ranks; a replica takes a contiguous share. */
static int run_microbatch(trainer* t, uint64_t step, uint64_t number, double* loss) {
  const size_t context = t->opts->context, of_replica = t->share * t->opts->microbatches;
  const uint64_t first = (uint64_t)t->ranks->replica * of_replica + number * t->share;
  const real scale = (real)(parallel_loss_scale(t->ranks) / (double)(of_replica * t->time));
  const gpt_hooks hooks = parallel_hooks(t->ranks);
  for (size_t i = 0; i < t->share; i++) {
    corpus_sequence(t->text, t->opts->seed, step, first + i, context, t->whole, t->whole + context);
    take_sequence(t, i);
  }
  if (parallel_microbatch_begin(t->ranks, number + 1 == t->opts->microbatches)) return -1;
  if (gpt_forward(t->model, t->tokens, t->share, t->time, &hooks)) return -1;
  if (loss_here(t, t->share, scale, &hooks, loss)) return -1;
  return gpt_backward(t->model, t->tokens, t->share, t->time, &hooks);
}

static int note_times(trainer* t, train_step* out) {
  mdp_stats_report now;
  if (parallel_stats(t->ranks, &now)) return -1;
  out->comm = 1e-9 * (double)(now.comm_ns - t->before.comm_ns);
  out->exposed = 1e-9 * (double)(now.exposed_ns - t->before.exposed_ns);
  t->before = now;
  const double clock = train_clock();
  out->seconds = clock - t->clock;
  t->clock = clock;
  return 0;
}

int train_one(trainer* t, uint64_t step, train_step* out) {
  mdp_step_report report;
  double loss = 0;
  memset(out, 0, sizeof *out);
  out->step = step + 1;
  out->lr = learning_rate(t->opts, step);
  out->loss_scale = parallel_loss_scale(t->ranks);
  for (uint64_t i = 0; i < t->opts->microbatches; i++) {
    if (run_microbatch(t, step, i, &loss)) return -1;
  }
  /* The sum goes first: behind the step it would wait for the parameters, and forward would have nothing left to hide them. */
  if (parallel_reduce(t->ranks) || parallel_sum(t->ranks, &loss, 1) || parallel_step(t->ranks, out->lr, &report)) return -1;
  out->loss = loss / (double)(t->opts->batch * t->opts->context);
  out->grad_norm = report.grad_norm;
  out->skipped = (report.flags & MDP_STEPPED_SKIPPED) != 0;
  if (!isfinite(out->loss)) { /* the sum is the same on all ranks, so all of them stop here */
    if (t->ranks->rank == 0)
      fprintf(stderr, "gpt: the loss of step %llu is not finite; try a lower --lr than %g\n", (unsigned long long)out->step, t->opts->lr);
    return -1;
  }
  if (t->opts->json && !t->opts->no_hash && parallel_param_hash(t->ranks, &out->hash)) return -1;
  return note_times(t, out);
}

int train_held_out(trainer* t, double* out) {
  const size_t context = t->opts->context, windows = corpus_windows(t->text, context);
  const size_t begin = windows * (size_t)t->ranks->replica / (size_t)t->ranks->replicas;
  const size_t end = windows * (size_t)(t->ranks->replica + 1) / (size_t)t->ranks->replicas;
  const gpt_hooks hooks = parallel_hooks(t->ranks);
  double loss = 0;
  for (size_t at = begin; at < end; at += t->share) {
    const size_t count = end - at < t->share ? end - at : t->share;
    for (size_t i = 0; i < count; i++) {
      corpus_window(t->text, at + i, context, t->whole, t->whole + context);
      take_sequence(t, i);
    }
    if (gpt_forward(t->model, t->tokens, count, t->time, &hooks)) return -1;
    if (loss_here(t, count, 0, &hooks, &loss)) return -1;
  }
  if (parallel_sum(t->ranks, &loss, 1)) return -1;
  *out = loss / (double)(windows * context);
  return 0;
}
