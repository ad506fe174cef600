/* SPDX-License-Identifier: Apache-2.0
 * Saving a run, and going on with it on any number of ranks. Parameters and the optimizer are the library's affair; batches and learning
 * rate follow from the number of the step. What is left is a line of text. */
#ifndef GPT_CHECKPOINTS_H
#define GPT_CHECKPOINTS_H

#include "options.h"
#include "parallel.h"
#include "text.h"

typedef struct {
  const options* opts;
  const corpus* text;
  parallel* ranks;
  mdp_request* writing; /* the last one, while training goes on */
  uint64_t saved;       /* the step after which that was made */
} checkpoints;

void checkpoints_open(checkpoints* out, const options* opts, const corpus* text, parallel* ranks);
/* With --resume: loads the newest one, if there is any; `step` becomes the number of steps that were taken. */
int checkpoints_resume(checkpoints* c, uint64_t* step);
/* After so many steps: if one is due it is copied, and written while training goes on. */
int checkpoints_step(checkpoints* c, uint64_t step);
/* Waits until the last one is there. */
int checkpoints_finish(checkpoints* c);

#endif
