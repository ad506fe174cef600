/* SPDX-License-Identifier: Apache-2.0
 * Trains a character-level GPT, data-, tensor- and context-parallel. Exit code: 0 done, 1 something failed on the way, 2 the command line
 * or the text is wrong. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints.h"
#include "gemm.h"
#include "options.h"
#include "parallel.h"
#include "report.h"
#include "sample.h"
#include "text.h"
#include "train.h"

enum {
  EXIT_BAD_INPUT = 2
};

/* Loads the text on every rank; the first rank that could not says why. */
static int load_text(corpus* text, const options* opts, parallel* ranks) {
  char error[1024] = "";
  const int64_t failed = corpus_load(text, opts->text, opts->context, error, sizeof error) ? 1 : 0;
  int64_t* all = malloc((size_t)ranks->ranks * sizeof *all);
  if (!all || parallel_gather(ranks, &failed, 1, all)) {
    free(all);
    return EXIT_FAILURE;
  }
  int first = 0;
  while (first < ranks->ranks && !all[first]) first++;
  free(all);
  if (first < ranks->ranks) {
    if (first == ranks->rank) fprintf(stderr, "gpt: rank %d: %s\n", first, error);
    return EXIT_BAD_INPUT;
  }
  return parallel_same(ranks, text->hash, "the text") ? EXIT_FAILURE : 0;
}

static int check_ranks(const options* opts, const parallel* ranks) {
  const uint64_t of_model = opts->tp * opts->cp;
  char tp[32] = "", cp[32] = "";
  if (opts->tp > 1) snprintf(tp, sizeof tp, "--tp %" PRIu64, opts->tp);
  if (opts->cp > 1) snprintf(cp, sizeof cp, "--cp %" PRIu64, opts->cp);
  if ((uint64_t)ranks->ranks % of_model) {
    if (ranks->rank == 0) {
      fprintf(stderr, "gpt: %s%s%s does not divide the number of ranks, %d: each model takes so many\n", tp, *tp && *cp ? " times " : "",
              cp, ranks->ranks);
    }
    return EXIT_BAD_INPUT;
  }
  const uint64_t shares = (uint64_t)ranks->ranks / of_model * opts->microbatches;
  if (opts->batch % shares == 0) return 0;
  if (ranks->rank == 0) {
    fprintf(stderr,
            "gpt: --batch %" PRIu64 " cannot be shared out evenly: with %d ranks%s%s%s%s and --microbatches %" PRIu64
            " it must be a multiple of %" PRIu64 "\n",
            opts->batch, ranks->ranks, *tp ? ", " : "", tp, *cp ? ", " : "", cp, opts->microbatches, shares);
  }
  return EXIT_BAD_INPUT;
}

static int gather_memory(parallel* ranks, memory_use* out) {
  const memory_use mine = memory_now();
  return parallel_gather(ranks, (const int64_t*)&mine, sizeof mine / sizeof(int64_t), (int64_t*)out);
}

static int train_steps(trainer* t, checkpoints* saving, report_summary* summary) {
  report_progress progress = {.clock = train_clock()};
  for (uint64_t i = summary->first_step; i < t->opts->steps; i++) {
    train_step step;
    if (train_one(t, i, &step)) return -1;
    if (i == summary->first_step) summary->loss_first = step.loss;
    summary->loss_last = step.loss;
    summary->skipped += (uint64_t)step.skipped;
    if (t->ranks->rank == 0) report_step(&progress, t, &step);
    if (checkpoints_step(saving, i + 1)) return -1;
  }
  return parallel_finish(t->ranks) || checkpoints_finish(saving) ? -1 : 0;
}

/* All steps, then the summary; rank 0 prints. */
static int train_all(trainer* t, checkpoints* saving, report_summary* summary) {
  const options* opts = t->opts;
  if (t->ranks->rank == 0) report_start(t);
  if (checkpoints_resume(saving, &summary->first_step)) return -1;
  const double begin = train_clock();
  if (train_steps(t, saving, summary)) return -1;
  summary->seconds = train_clock() - begin;
  if (parallel_param_hash(t->ranks, &summary->hash) || parallel_stats(t->ranks, &summary->stats) || train_held_out(t, &summary->held_out) ||
      gather_memory(t->ranks, summary->memory))
    return -1;
  if (t->ranks->replica != 0) return 0; /* the ranks of the first one write a sample together */
  const gpt_hooks hooks = parallel_hooks(t->ranks);
  if (sample_text(t->model, t->text, opts->seed, &hooks, summary->sample, sizeof summary->sample)) return -1;
  if (t->ranks->rank != 0) return 0;
  summary->bigram = corpus_bigram_loss(t->text, opts->context);
  report_end(t, summary);
  return 0;
}

static int run_model(const options* opts, const corpus* text, gpt_model* model, parallel* ranks) {
  report_summary summary;
  trainer t;
  checkpoints saving;
  memset(&summary, 0, sizeof summary);
  checkpoints_open(&saving, opts, text, ranks);
  if (parallel_register(ranks, model, opts)) return EXIT_FAILURE;
  summary.memory = calloc((size_t)ranks->ranks, sizeof *summary.memory);
  const int failed = !summary.memory || train_open(&t, opts, text, model, ranks) || train_all(&t, &saving, &summary);
  mdp_request_free(saving.writing);
  if (summary.memory) train_close(&t);
  free(summary.memory);
  return failed ? EXIT_FAILURE : 0;
}

static int run(const options* opts, parallel* ranks) {
  corpus text;
  gpt_model model;
  int code = check_ranks(opts, ranks);
  if (code) return code;
  if (parallel_cut(ranks, opts)) return EXIT_FAILURE;
  code = load_text(&text, opts, ranks);
  if (!code) {
    const gpt_shape shape = {opts->layers,  opts->width, opts->heads,
                             opts->context, text.vocab,  opts->vocab_parallel ? options_table_rows(text.vocab) : text.vocab};
    const gpt_cut cut = {(size_t)ranks->parts, (size_t)ranks->part, opts->sp, opts->vocab_parallel, (size_t)ranks->segments};
    if (gpt_create(&model, shape, cut, opts->batch / ((size_t)ranks->replicas * opts->microbatches))) {
      fprintf(stderr, "gpt: rank %d: out of memory for %" PRIu64 " layers of width %" PRIu64 "\n", ranks->rank, opts->layers, opts->width);
      code = EXIT_FAILURE;
    } else {
      code = run_model(opts, &text, &model, ranks);
      gpt_destroy(&model);
    }
  }
  corpus_destroy(&text);
  return code;
}

int main(int argc, char** argv) {
  options opts;
  parallel ranks;
  char error[512];
  switch (options_parse(&opts, argc, argv, error, sizeof error)) {
    case OPTIONS_HELP:
      options_help();
      return report_written() ? 0 : EXIT_FAILURE;
    case OPTIONS_BAD:
      fprintf(stderr, "gpt: %s\n", error);
      return EXIT_BAD_INPUT;
    default:
      break;
  }
  gemm_set_threads((int)opts.threads);
  if (parallel_join(&ranks, &opts)) {
    parallel_leave(&ranks);
    return EXIT_FAILURE;
  }
  const int code = run(&opts, &ranks);
  parallel_leave(&ranks);
  const int written = report_written();
  return code ? code : written ? 0 : EXIT_FAILURE;
}
