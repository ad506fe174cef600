/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoints.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void checkpoints_open(checkpoints* out, const options* opts, const corpus* text, parallel* ranks) {
  memset(out, 0, sizeof *out);
  out->opts = opts;
  out->text = text;
  out->ranks = ranks;
}

static mdp_checkpoint_part part_of(const checkpoints* c) {
  const mdp_checkpoint_part part = {.struct_size = sizeof part, .buffer = c->ranks->buffer, .optimizer = c->ranks->optimizer};
  return part;
}

static mdp_checkpoint_config config_of(const checkpoints* c, const mdp_checkpoint_part* part) {
  const mdp_checkpoint_config config = {
      .struct_size = sizeof config, .directory = c->opts->save, .parts = part, .part_count = 1, .keep = c->opts->keep};
  return config;
}

/* Rank 0 reads it, for all. */
typedef struct {
  int64_t good, step, clean_steps, text;
  double loss_scale;
} progress;

static void read_progress(const checkpoints* c, progress* out) {
  char text[256] = "";
  size_t length = 0;
  uint64_t hash = 0;
  if (parallel_check(c->ranks, mdp_checkpoint_data(c->opts->save, -1, text, sizeof text - 1, &length), "mdp_checkpoint_data")) return;
  const int found = sscanf(text, "step %" SCNd64 " clean_steps %" SCNd64 " loss_scale %lf text %" SCNx64, &out->step, &out->clean_steps,
                           &out->loss_scale, &hash);
  out->text = (int64_t)hash;
  out->good = found == 4;
  if (!out->good) fprintf(stderr, "gpt: what is saved in %s is not of this program: '%s'\n", c->opts->save, text);
}

static int check_progress(const checkpoints* c, const progress* found) {
  if (!found->good) return -1;
  const char* wrong = NULL;
  if ((uint64_t)found->text != c->text->hash) wrong = "it has learned another text; give the same --text";
  if ((uint64_t)found->step >= c->opts->steps) wrong = "it is through with that already; give more --steps";
  if (wrong && c->ranks->rank == 0) {
    fprintf(stderr, "gpt: --resume: the run in %s has taken %" PRId64 " of %" PRIu64 " steps: %s\n", c->opts->save, found->step,
            c->opts->steps, wrong);
  }
  return wrong ? -1 : 0;
}

/* Whether there is a checkpoint: as rank 0 sees it. */
static int any_saved(const checkpoints* c, int64_t* out) {
  size_t length = 0;
  if (c->ranks->rank == 0) {
    *out = mdp_checkpoint_info(c->opts->save, NULL, 0, &length) == MDP_OK;
    if (!*out) fprintf(stderr, "gpt: --resume: begins with step 1: %s\n", mdp_last_error());
  }
  return parallel_from_first(c->ranks, out, 1);
}

int checkpoints_resume(checkpoints* c, uint64_t* step) {
  const mdp_checkpoint_part part = part_of(c);
  const mdp_checkpoint_config config = config_of(c, &part);
  progress found;
  int64_t any = 0;
  memset(&found, 0, sizeof found);
  *step = 0;
  if (!c->opts->resume) return 0;
  if (any_saved(c, &any)) return -1;
  if (!any) return 0;
  if (parallel_check(c->ranks, mdp_checkpoint_load(&config), "mdp_checkpoint_load")) return -1;
  if (c->ranks->rank == 0) read_progress(c, &found);
  if (parallel_from_first(c->ranks, (int64_t*)&found, sizeof found / sizeof(int64_t)) || check_progress(c, &found)) return -1;
  *step = c->saved = (uint64_t)found.step;
  if (c->ranks->loss_scale > 0) { /* f16 */
    c->ranks->loss_scale = found.loss_scale > 0 ? found.loss_scale : c->ranks->loss_scale;
    c->ranks->clean_steps = (unsigned)found.clean_steps;
  }
  if (c->ranks->rank == 0 && !c->opts->json) printf("goes on after step %" PRIu64 ", from %s\n", *step, c->opts->save);
  return 0;
}

int checkpoints_step(checkpoints* c, uint64_t step) {
  const uint64_t every = c->opts->save_every;
  const mdp_checkpoint_part part = part_of(c);
  mdp_checkpoint_config config = config_of(c, &part);
  char text[256];
  if (!c->opts->save || (step != c->opts->steps && (every == 0 || step % every != 0))) return 0;
  if (checkpoints_finish(c)) return -1; /* so that its failure is heard of */
  config.shared_bytes = (uint64_t)snprintf(text, sizeof text, "step %" PRIu64 " clean_steps %u loss_scale %.17g text %016" PRIx64, step,
                                           c->ranks->clean_steps, c->ranks->loss_scale, c->text->hash);
  config.shared_data = text;
  c->saved = step;
  return parallel_check(c->ranks, mdp_checkpoint_save(&config, &c->writing), "mdp_checkpoint_save");
}

int checkpoints_finish(checkpoints* c) {
  const int failed = c->writing ? parallel_check(c->ranks, mdp_request_wait(c->writing, UINT64_MAX), "mdp_checkpoint_save") : 0;
  mdp_request_free(c->writing);
  c->writing = NULL;
  return failed;
}
