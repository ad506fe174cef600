/* SPDX-License-Identifier: Apache-2.0
 * The training loop, and the loss on the held-out part of the text. */
#ifndef GPT_TRAIN_H
#define GPT_TRAIN_H

#include "options.h"
#include "parallel.h"
#include "text.h"

typedef struct { /* one step, the same on all ranks but for the times */
  uint64_t step;
  double loss, grad_norm, lr, loss_scale;
  double seconds;       /* since the step before ended */
  double comm, exposed; /* seconds, of this step       */
  uint64_t hash;        /* of the parameters; only with --json */
  int skipped;
} train_step;

typedef struct {
  const options* opts;
  const corpus* text;
  gpt_model* model;
  parallel* ranks;
  size_t share;                            /* sequences of this rank, or of those that share its model, in a microbatch */
  size_t time;                             /* of this rank's segment of each */
  unsigned char *tokens, *targets, *whole; /* the last: of one sequence both */
  mdp_stats_report before;
  double clock; /* when the last step ended */
} trainer;

/* Seconds on a clock that only goes forward. */
double train_clock(void);

int train_open(trainer* out, const options* opts, const corpus* text, gpt_model* model, parallel* ranks);
void train_close(trainer* t);
int train_one(trainer* t, uint64_t step, train_step* out);
/* Mean over the held-out part, in nats per character; each replica of the model computes its share. */
int train_held_out(trainer* t, double* out);

#endif
