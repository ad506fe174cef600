/* SPDX-License-Identifier: Apache-2.0
 * Checks the hand-written backward pass against finite differences, in float64, on every element of every parameter of a small model.
 *
 *   gpt_gradcheck           prints the largest error of each kind of parameter; exit code 1 when one is too large
 *   gpt_gradcheck --spoil   spoils one element of each kind in turn by one part in 10,000 and demands that the check notices */
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
  const gpt_hooks none = {NULL, NULL, NULL};
  gpt_forward(&c->model, c->tokens, SEQUENCES, TIME, &none);
  return cross_entropy(c->model.logits, c->targets, SEQUENCES * TIME, VOCAB, 1.0 / (SEQUENCES * TIME)) / (SEQUENCES * TIME);
}

/* Every value away from its resting point: gains that are not 1, biases that are not 0, weights large enough to bend every curve. */
static int prepare(gradient_case* c) {
  const gpt_shape shape = {.layers = 2, .width = 8, .heads = 2, .context = TIME + 1, .vocab = VOCAB};
  memset(c, 0, sizeof *c);
  if (gpt_create(&c->model, shape, SEQUENCES)) return -1;
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

static const char* kind_of(const gpt_param* param) {
  const char* dot = strchr(param->name, '.');
  return strncmp(param->name, "block", 5) == 0 && dot ? dot + 1 : param->name;
}

/* Parameters outside the limit; prints the worst of each kind unless `quiet`. */
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
      printf("a wrong gradient of %s (%s) went unnoticed\n", kind_of(param), param->name);
    }
    param->grad[largest] = before;
  }
  printf("%d gradients spoiled one at a time, %d unnoticed\n", tried, missed);
  return missed;
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
  const gpt_hooks none = {NULL, NULL, NULL};
  differentiate(&c);
  loss_of(&c);
  gpt_backward(&c.model, c.tokens, SEQUENCES, TIME, &none);
  int failed = count_wrong(&c, spoil);
  printf("%zu parameters, %d with a relative error of %g or more\n", c.model.nparams, failed, LIMIT);
  if (spoil && !failed) failed = check_spoiled(&c);
  release(&c);
  return failed ? 1 : 0;
}
