/* SPDX-License-Identifier: Apache-2.0
 * What rank 0 prints. */
#include "report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "json.h"

static double mib(uint64_t bytes) {
  return (double)bytes / (1 << 20);
}

static size_t param_elements(const gpt_model* model) {
  size_t total = 0;
  for (size_t i = 0; i < model->nparams; i++) total += model->params[i].whole_size;
  return total;
}

static uint64_t plan_bytes(const mdp_plan_report* plan) {
  return plan->param_bytes + plan->grad_bytes + plan->grad_shard_bytes + plan->master_bytes + plan->state_bytes + plan->scratch_bytes;
}

static double hidden_seconds(const mdp_stats_report* stats) {
  return stats->comm_ns > stats->exposed_ns ? 1e-9 * (double)(stats->comm_ns - stats->exposed_ns) : 0;
}

/* ── The start ───────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void json_config(json_writer* json, const trainer* t) {
  const options* o = t->opts;
  const char *dtype = options_dtype_name(o->dtype), *backend = options_backend_name(o->backend), *form = options_form_name(o->cp_form);
  json_open(json, "config", '{');
  json_count(json, "nranks", (uint64_t)t->ranks->ranks);
  json_count(json, "tokens_per_rank", o->batch / (uint64_t)t->ranks->replicas * t->time);
  json_count(json, "parameters", param_elements(t->model));
  json_count(json, "vocab", t->model->shape.vocab);
  json_count(json, "text_bytes", t->text->count);
  json_count(json, "heldout_bytes", t->text->count - t->text->train);
  if (o->text) json_text(json, "text", o->text, strlen(o->text));
  json_count(json, "steps", o->steps);
  json_count(json, "batch", o->batch);
  json_count(json, "layers", o->layers);
  json_count(json, "width", o->width);
  json_count(json, "heads", o->heads);
  json_count(json, "context", o->context);
  json_count(json, "seed", o->seed);
  json_real(json, "lr", o->lr);
  json_real(json, "clip", o->clip);
  json_text(json, "dtype", dtype, strlen(dtype));
  json_text(json, "backend", backend, strlen(backend));
  json_count(json, "bucket_size", o->bucket_size);
  json_count(json, "microbatches", o->microbatches);
  json_flag(json, "overlap", !o->no_overlap);
  json_flag(json, "shard", !o->no_shard);
  json_flag(json, "zero_2", o->zero_2);
  json_flag(json, "whole", o->whole);
  json_flag(json, "bf16_wire", o->bf16_wire);
  json_flag(json, "error_feedback", o->error_feedback);
  json_flag(json, "check_finite", o->check_finite);
  json_flag(json, "bf16_state", o->bf16_state);
  json_flag(json, "stochastic_state", o->stochastic_state);
  json_flag(json, "no_master", o->no_master);
  json_count(json, "instances", o->instances);
  json_count(json, "tp", o->tp);
  json_count(json, "cp", o->cp);
  json_text(json, "cp_form", form, strlen(form));
  json_flag(json, "sp", o->sp);
  json_flag(json, "vocab_parallel", o->vocab_parallel);
  json_real(json, "timeout", o->timeout);
  json_count(json, "threads", o->threads);
  json_close(json, '}');
}

static void json_plan(json_writer* json, const mdp_plan_report* plan) {
  json_open(json, "plan", '{');
  json_count(json, "param_bytes", plan->param_bytes);
  json_count(json, "grad_bytes", plan->grad_bytes);
  json_count(json, "grad_shard_bytes", plan->grad_shard_bytes);
  json_count(json, "master_bytes", plan->master_bytes);
  json_count(json, "state_bytes", plan->state_bytes);
  json_count(json, "scratch_bytes", plan->scratch_bytes);
  json_count(json, "padding_elements", plan->padding_elements);
  json_count(json, "buckets", plan->buckets);
  json_count(json, "owned_elements", plan->owned_elements);
  json_count(json, "spill_bytes", plan->spill_bytes);
  json_close(json, '}');
}

void report_start(const trainer* t) {
  const options* o = t->opts;
  const mdp_plan_report* plan = &t->ranks->plan;
  if (o->json) {
    json_writer json = {0};
    json_open(&json, NULL, '{');
    json_config(&json, t);
    json_plan(&json, plan);
    json_close(&json, '}');
    json_end_line(&json);
    return;
  }
  printf("%d rank%s, %zu parameters (%s) in %" PRIu64 " buckets; %zu characters of text, the last %zu held out, %zu different ones\n",
         t->ranks->ranks, t->ranks->ranks == 1 ? "" : "s", param_elements(t->model), options_dtype_name(o->dtype), plan->buckets,
         t->text->count, t->text->count - t->text->train, t->model->shape.vocab);
  if (o->tp > 1 || o->cp > 1) {
    printf("%d replica%s of the model, each on %" PRIu64 " ranks", t->ranks->replicas, t->ranks->replicas == 1 ? "" : "s", o->tp * o->cp);
  }
  if (o->cp > 1) printf("; %" PRIu64 " share each sequence", o->cp);
  if (o->tp > 1) {
    printf("; %" PRIu64 " share its heads%s%s", o->tp, o->vocab_parallel ? ", its vocabulary" : "",
           o->sp ? ", and its rows where there are no heads" : "");
  }
  if (o->tp > 1 || o->cp > 1) printf("\n");
  printf("%" PRIu64 " layers of width %" PRIu64 ", %" PRIu64 " heads; %" PRIu64 " steps of %" PRIu64 " sequences of %" PRIu64
         " characters\n",
         o->layers, o->width, o->heads, o->steps, o->batch, o->context);
  printf(
      "plan for rank 0, MiB: parameters %.2f, gradients %.2f + %.2f, fp32 copy %.2f, optimizer state %.2f, scratch %.2f; in all %.2f\n\n",
      mib(plan->param_bytes), mib(plan->grad_bytes), mib(plan->grad_shard_bytes), mib(plan->master_bytes), mib(plan->state_bytes),
      mib(plan->scratch_bytes), mib(plan_bytes(plan)));
  fflush(stdout);
}

/* ── A step ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void json_step(const trainer* t, const train_step* step) {
  json_writer json = {0};
  char hash[17];
  snprintf(hash, sizeof hash, "%016" PRIx64, step->hash);
  json_open(&json, NULL, '{');
  json_count(&json, "step", step->step);
  json_real(&json, "loss", step->loss);
  json_real(&json, "grad_norm", step->grad_norm);
  json_real(&json, "lr", step->lr);
  json_real(&json, "tokens_per_s", (double)(t->opts->batch * t->opts->context) / step->seconds);
  json_real(&json, "comm_ms", 1e3 * step->comm);
  json_real(&json, "exposed_ms", 1e3 * step->exposed);
  if (t->opts->dtype == DTYPE_F16) {
    json_real(&json, "loss_scale", step->loss_scale);
    json_flag(&json, "skipped", step->skipped);
  }
  if (!t->opts->no_hash) json_text(&json, "param_hash", hash, 16);
  json_close(&json, '}');
  json_end_line(&json);
}

void report_step(report_progress* progress, const trainer* t, const train_step* step) {
  const options* o = t->opts;
  if (o->json) {
    json_step(t, step);
    return;
  }
  const double now = train_clock();
  progress->steps++;
  progress->seconds += step->seconds;
  progress->exposed += step->exposed;
  const int due = progress->steps >= 10 || now - progress->clock >= 2 || step->step == 1 || step->step == o->steps;
  if (!due && !step->skipped) return;
  const double per_step = progress->seconds / (double)progress->steps;
  printf("step %*" PRIu64 "/%" PRIu64 "  loss %.4f  %6.0f tokens/s  exposed communication %4.1f %%  %3.0f s to go%s\n",
         (int)snprintf(NULL, 0, "%" PRIu64, o->steps), step->step, o->steps, step->loss, (double)(o->batch * o->context) / per_step,
         100 * progress->exposed / progress->seconds, per_step * (double)(o->steps - step->step),
         step->skipped ? "  (skipped: a gradient overflowed)" : "");
  fflush(stdout);
  memset(progress, 0, sizeof *progress);
  progress->clock = now;
}

/* ── The end ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────── */

static void json_memory(json_writer* json, const trainer* t, const report_summary* s) {
  json_open(json, "memory", '{');
  json_count(json, "plan_bytes", plan_bytes(&t->ranks->plan));
  json_count(json, "activation_bytes", t->model->memory_bytes);
  json_open(json, "ranks", '[');
  for (int r = 0; r < t->ranks->ranks; r++) {
    json_open(json, NULL, '{');
    json_count(json, "share_bytes", (uint64_t)s->memory[r].share);
    json_count(json, "own_bytes", (uint64_t)s->memory[r].own);
    json_count(json, "shared_bytes", (uint64_t)s->memory[r].shared);
    json_count(json, "peak_bytes", (uint64_t)s->memory[r].peak);
    json_close(json, '}');
  }
  json_close(json, ']');
  json_close(json, '}');
}

static void json_end(const trainer* t, const report_summary* s) {
  json_writer json = {0};
  char hash[17];
  snprintf(hash, sizeof hash, "%016" PRIx64, s->hash);
  json_open(&json, NULL, '{');
  json_open(&json, "summary", '{');
  json_real(&json, "loss_first", s->loss_first);
  json_real(&json, "loss_last", s->loss_last);
  json_real(&json, "heldout_loss", s->held_out);
  json_real(&json, "bigram_loss", s->bigram);
  json_real(&json, "seconds", s->seconds);
  json_count(&json, "steps_skipped", s->skipped);
  json_count(&json, "buckets", s->stats.buckets);
  json_count(&json, "launched_in_backward", s->stats.launched_in_backward);
  json_real(&json, "comm_ms", 1e-6 * (double)s->stats.comm_ns);
  json_real(&json, "exposed_ms", 1e-6 * (double)s->stats.exposed_ns);
  json_real(&json, "hidden_ms", 1e3 * hidden_seconds(&s->stats));
  json_text(&json, "param_hash", hash, 16);
  json_memory(&json, t, s);
  json_text(&json, "sample", s->sample, sizeof s->sample);
  json_close(&json, '}');
  json_close(&json, '}');
  json_end_line(&json);
}

/* The sample may hold any byte of the text; a terminal should not have to obey them. */
static void print_sample(const report_summary* s) {
  printf("\nA sample:\n  | ");
  for (size_t i = 0; i < sizeof s->sample; i++) {
    const unsigned char c = (unsigned char)s->sample[i];
    if (c == '\n') {
      printf("\n  | ");
    } else {
      putchar(c >= 0x20 && c != 0x7f ? c : ' ');
    }
  }
  printf("\n");
}

void report_end(const trainer* t, const report_summary* s) {
  if (t->opts->json) {
    json_end(t, s);
    return;
  }
  const uint64_t tokens = (t->opts->steps - s->first_step) * t->opts->batch * t->opts->context;
  print_sample(s);
  printf("\nloss            %.4f at the first step, %.4f at the last; %.1f s, %.0f tokens/s\n", s->loss_first, s->loss_last, s->seconds,
         (double)tokens / s->seconds);
  printf("held-out text   %.4f nats per character; a bigram table gets %.4f: %s by %.4f\n", s->held_out, s->bigram,
         s->held_out < s->bigram ? "better" : "WORSE", fabs(s->bigram - s->held_out));
  printf("communication   %.3f s, of which %.3f s hidden behind computing; ranks waited %.3f s (%.1f %% of the time)\n",
         1e-9 * (double)s->stats.comm_ns, hidden_seconds(&s->stats), 1e-9 * (double)s->stats.exposed_ns,
         1e-7 * (double)s->stats.exposed_ns / s->seconds);
  printf("buckets         %" PRIu64 " launched, %" PRIu64 " of them while backward was still running\n", s->stats.buckets,
         s->stats.launched_in_backward);
  if (s->skipped) printf("skipped         %" PRIu64 " steps, for gradients that overflowed f16\n", s->skipped);
  printf("memory, MiB     planned for megadp %.2f, activations %.2f\n", mib(plan_bytes(&t->ranks->plan)), mib(t->model->memory_bytes));
  for (int r = 0; r < t->ranks->ranks; r++) {
    printf(
        "  rank %-3d      %.2f (Pss), of which its own %.2f; resident, with the windows of all ranks of its node: %.2f shared, at most "
        "%.2f\n",
        r, mib((uint64_t)s->memory[r].share), mib((uint64_t)s->memory[r].own), mib((uint64_t)s->memory[r].shared),
        mib((uint64_t)s->memory[r].peak));
  }
  fflush(stdout);
}

int report_written(void) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return 1;
  fprintf(stderr, "gpt: what was to be printed could not be written completely\n");
  return 0;
}
