/* SPDX-License-Identifier: Apache-2.0
 * What rank 0 prints: lines for people, or with --json one object a line:
 *
 *   {"config":{...},"plan":{...}}
 *   {"step":1,"loss":...,"grad_norm":...,"tokens_per_s":...,"comm_ms":...,"exposed_ms":...,"param_hash":"..."}     for every step (no hash
 * with --no-hash)
 *   {"summary":{...}} */
#ifndef GPT_REPORT_H
#define GPT_REPORT_H

#include <stddef.h>

#include "memory.h"
#include "train.h"

enum {
  REPORT_SAMPLE = 400
}; /* bytes */

typedef struct {
  double loss_first, loss_last, held_out, bigram;
  uint64_t first_step;    /* steps that were taken before this run */
  double seconds;         /* of training, all steps */
  mdp_stats_report stats; /* of training */
  uint64_t skipped;       /* steps that f16 left out */
  uint64_t hash;          /* of the parameters */
  memory_use* memory;     /* of every rank */
  char sample[REPORT_SAMPLE];
} report_summary;

typedef struct { /* between two progress lines */
  double clock, comm, exposed, seconds;
  uint64_t steps;
} report_progress;

void report_start(const trainer* t);
/* Prints a line when ten steps or two seconds have passed since the last one; with --json always. */
void report_step(report_progress* progress, const trainer* t, const train_step* step);
void report_end(const trainer* t, const report_summary* summary);
/* Whether all that was printed has reached stdout; says so on stderr if it has not, on a full disk for one. */
int report_written(void);

#endif
