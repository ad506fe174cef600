/* SPDX-License-Identifier: Apache-2.0
 * Checks the hand-written backward pass against finite differences, in float64, on every element of every parameter of a small model.
 *
 *   gpt_gradcheck           prints the largest error of each parameter; exit code 1 when one is too large
 *   gpt_gradcheck --spoil   spoils one element of each parameter in turn by one part in 10,000 and demands that the check notices
 *
 * It also checks what data-parallel training builds on: a parameter is asked for before it is read, a gradient that was announced does
 * not change any more, and gradients of parts of a batch add up to that of the whole. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"
#include "model.h"
#include "random.h"

enum {
  SEQUENCES = 2,
  TIME = 5,
  VOCAB = 7
};
static const double LIMIT = 1e-6;

typedef struct {
  gpt_model model;
  unsigned char tokens[SEQUENCES * TIME], targets[SEQUENCES * TIME];
  double* exact; /* the finite differences, all parameters one after the other */
} gradient_case;

static double loss_of(gradient_case* c) {
  const gpt_hooks none = {NULL, NULL, NULL, NULL, NULL};
  gpt_forward(&c->model, c->tokens, SEQUENCES, TIME, &none);
  return cross_entropy(c->model.logits, c->targets, SEQUENCES * TIME, VOCAB, 1.0 / (SEQUENCES * TIME)) / (SEQUENCES * TIME);
}

/* Every value away from its resting point: gains that are not 1, biases that are not 0, weights large enough to bend every curve. */
static int prepare(gradient_case* c) {
  const gpt_shape shape = {.layers = 2, .width = 8, .heads = 2, .context = TIME + 1, .vocab = VOCAB};
  const gpt_cut whole = {.parts = 1, .segments = 1};
  memset(c, 0, sizeof *c);
  if (gpt_create(&c->model, shape, whole, SEQUENCES)) return -1;
  size_t total = 0;
  for (size_t p = 0; p < c->model.nparams; p++) {
    gpt_param* param = &c->model.params[p];
    param->value = malloc(param->size * sizeof(real));
    param->grad = calloc(param->size, sizeof(real));
    if (!param->value || !param->grad) return -1;
    for (size_t i = 0; i < param->size; i++) param->value[i] = param->fill + 0.4 * random_normal(7, p, i);
    total += param->size;
  }
  c->exact = malloc(total * sizeof *c->exact);
  for (size_t i = 0; i < SEQUENCES * TIME; i++) {
    c->tokens[i] = (unsigned char)random_below(7, 10001, i, VOCAB);
    c->targets[i] = (unsigned char)random_below(7, 10002, i, VOCAB);
  }
  return c->exact ? 0 : -1;
}

static void release(gradient_case* c) {
  for (size_t p = 0; p < c->model.nparams; p++) {
    free(c->model.params[p].value);
    free(c->model.params[p].grad);
  }
  free(c->exact);
  gpt_destroy(&c->model);
}

static double moved(gradient_case* c, real* at, double by) {
  const real before = *at;
  *at = before + by;
  const double loss = loss_of(c);
  *at = before;
  return loss;
}

/* Five points: the error of the rule falls with the fourth power of the distance, and rounding stays far below the limit. */
static void differentiate(gradient_case* c) {
  const double h = 1e-3;
  double* out = c->exact;
  for (size_t p = 0; p < c->model.nparams; p++) {
    for (size_t i = 0; i < c->model.params[p].size; i++) {
      real* at = &c->model.params[p].value[i];
      *out++ = (8 * (moved(c, at, h) - moved(c, at, -h)) - (moved(c, at, 2 * h) - moved(c, at, -2 * h))) / (12 * h);
    }
  }
}

/* The largest difference of any element, relative to the element or to the parameter's root mean square, whichever is larger: the key
 * part of the qkv bias and the positions never reached have a gradient of exactly 0. */
static double error_of(const gpt_param* param, const double* exact) {
  double squares = 0, worst = 0;
  for (size_t i = 0; i < param->size; i++) squares += exact[i] * exact[i];
  const double typical = sqrt(squares / (double)param->size);
  for (size_t i = 0; i < param->size; i++) {
    const double size = fmax(fmax(fabs(param->grad[i]), fabs(exact[i])), typical);
    const double error = size > 0 ? fabs(param->grad[i] - exact[i]) / size : 0;
    if (!(error <= worst)) worst = error; /* a NaN is the worst of all */
  }
  return worst;
}

/* How many parameters are outside the limit; lists all of them unless `quiet`. */
static int count_wrong(gradient_case* c, int quiet) {
  int wrong = 0;
  const double* exact = c->exact;
  for (size_t p = 0; p < c->model.nparams; exact += c->model.params[p++].size) {
    const gpt_param* param = &c->model.params[p];
    const double error = error_of(param, exact);
    const int bad = !(error < LIMIT);
    wrong += bad;
    if (!quiet) printf("%-26s %6zu elements  relative error %.2e%s\n", param->name, param->size, error, bad ? "  WRONG" : "");
  }
  return wrong;
}

static int check_spoiled(gradient_case* c) {
  int missed = 0, tried = 0;
  for (size_t p = 0; p < c->model.nparams; p++) {
    gpt_param* param = &c->model.params[p];
    size_t largest = 0;
    for (size_t i = 0; i < param->size; i++) largest = fabs(param->grad[i]) > fabs(param->grad[largest]) ? i : largest;
    const real before = param->grad[largest];
    param->grad[largest] *= 1.0001;
    tried++;
    if (count_wrong(c, 1) != 1) {
      missed++;
      printf("a wrong gradient of %s went unnoticed\n", param->name);
    }
    param->grad[largest] = before;
  }
  printf("%d gradients spoiled one at a time, %d unnoticed\n", tried, missed);
  return missed;
}

/* ── What data-parallel training builds on ───────────────────────────────────────────────────────────────────────────────────── */

typedef struct { /* for each parameter: what the hooks saw */
  gradient_case* c;
  real **value, **grad;
  int *asked, *announced;
} witness;

/* Until it is asked for, a parameter is not there: all NaN, so that reading it spoils the loss. */
static int on_need(void* user, size_t p) {
  witness* w = user;
  memcpy(w->c->model.params[p].value, w->value[p], w->c->model.params[p].size * sizeof(real));
  w->asked[p]++;
  return 0;
}

static int on_final(void* user, size_t p) {
  witness* w = user;
  memcpy(w->grad[p], w->c->model.params[p].grad, w->c->model.params[p].size * sizeof(real));
  w->announced[p]++;
  return 0;
}

static int witness_open(witness* w, gradient_case* c) {
  const size_t n = c->model.nparams;
  w->c = c;
  w->value = calloc(n, sizeof *w->value);
  w->grad = calloc(n, sizeof *w->grad);
  w->asked = calloc(n, sizeof *w->asked);
  w->announced = calloc(n, sizeof *w->announced);
  if (!w->value || !w->grad || !w->asked || !w->announced) return -1;
  for (size_t p = 0; p < n; p++) {
    gpt_param* param = &c->model.params[p];
    w->value[p] = malloc(param->size * sizeof(real));
    w->grad[p] = malloc(param->size * sizeof(real));
    if (!w->value[p] || !w->grad[p]) return -1;
    memcpy(w->value[p], param->value, param->size * sizeof(real));
    for (size_t i = 0; i < param->size; i++) {
      param->value[i] = NAN;
      param->grad[i] = 0;
    }
  }
  return 0;
}

static void witness_close(witness* w) {
  for (size_t p = 0; p < w->c->model.nparams; p++) {
    if (w->value) free(w->value[p]);
    if (w->grad) free(w->grad[p]);
  }
  free(w->value);
  free(w->grad);
  free(w->asked);
  free(w->announced);
}

static int check_hooks(gradient_case* c) {
  const double loss = loss_of(c);
  witness w;
  const gpt_hooks hooks = {on_need, on_final, &w, NULL, NULL};
  int wrong = 0;
  memset(&w, 0, sizeof w);
  if (witness_open(&w, c)) {
    witness_close(&w);
    fprintf(stderr, "gpt_gradcheck: out of memory\n");
    return 1;
  }
  gpt_forward(&c->model, c->tokens, SEQUENCES, TIME, &hooks);
  const double again = cross_entropy(c->model.logits, c->targets, SEQUENCES * TIME, VOCAB, 1.0 / (SEQUENCES * TIME)) / (SEQUENCES * TIME);
  if (again != loss && ++wrong) printf("a parameter was read before it was asked for\n");
  gpt_backward(&c->model, c->tokens, SEQUENCES, TIME, &hooks);
  for (size_t p = 0; p < c->model.nparams; p++) {
    const gpt_param* param = &c->model.params[p];
    const int bad = w.asked[p] != 1 || w.announced[p] != 1 || memcmp(w.grad[p], param->grad, param->size * sizeof(real)) != 0;
    if (bad)
      printf("%s: asked for %d times, announced %d times, or its gradient changed after that\n", param->name, w.asked[p], w.announced[p]);
    wrong += bad;
  }
  printf("hooks: %zu parameters, %d wrong\n", c->model.nparams, wrong);
  witness_close(&w);
  return wrong;
}

/* The gradients of the sequences one at a time, added up, against the finite differences of all at once. */
static int check_parts(gradient_case* c) {
  const gpt_hooks none = {NULL, NULL, NULL, NULL, NULL};
  for (size_t p = 0; p < c->model.nparams; p++) memset(c->model.params[p].grad, 0, c->model.params[p].size * sizeof(real));
  for (size_t s = 0; s < SEQUENCES; s++) {
    gpt_forward(&c->model, c->tokens + s * TIME, 1, TIME, &none);
    cross_entropy(c->model.logits, c->targets + s * TIME, TIME, VOCAB, 1.0 / (SEQUENCES * TIME));
    gpt_backward(&c->model, c->tokens + s * TIME, 1, TIME, &none);
  }
  const int wrong = count_wrong(c, 1);
  printf("parts of the batch added up: %d parameters wrong\n", wrong);
  return wrong;
}

int main(int argc, char** argv) {
  const int spoil = argc == 2 && strcmp(argv[1], "--spoil") == 0;
  if (argc > 1 && !spoil) {
    fprintf(stderr, "gpt_gradcheck: unknown argument '%s'; the only one is --spoil\n", argv[1]);
    return 2;
  }
  gradient_case c;
  if (prepare(&c)) {
    fprintf(stderr, "gpt_gradcheck: out of memory\n");
    return 1;
  }
  const gpt_hooks none = {NULL, NULL, NULL, NULL, NULL};
  differentiate(&c);
  loss_of(&c);
  gpt_backward(&c.model, c.tokens, SEQUENCES, TIME, &none);
  int failed = count_wrong(&c, spoil);
  printf("%zu parameters, %d with a relative error of %g or more\n", c.model.nparams, failed, LIMIT);
  if (spoil && !failed) failed = check_spoiled(&c);
  if (!spoil) failed += check_parts(&c) + check_hooks(&c);
  release(&c);
  if (fflush(stdout) || ferror(stdout)) {
    fprintf(stderr, "gpt_gradcheck: what was to be printed could not be written completely\n");
    failed = 1;
  }
  return failed ? 1 : 0;
}
