/* SPDX-License-Identifier: Apache-2.0
 * Text from the trained model: one whole forward pass a character. Slow and plain; a paragraph takes a second. The parts of a model that is
 * cut do it together. */
#include "sample.h"

#include <math.h>
#include <string.h>

#include "random.h"

static const double TEMPERATURE = 0.8;
enum {
  MOST_CONTEXT = 8192 /* that the options allow */
};

static size_t draw(const real* logits, size_t classes, double uniform) {
  double max = (double)logits[0], sum = 0;
  for (size_t i = 1; i < classes; i++) max = fmax(max, (double)logits[i]);
  for (size_t i = 0; i < classes; i++) sum += exp(((double)logits[i] - max) / TEMPERATURE);
  double left = uniform * sum;
  for (size_t i = 0; i < classes; i++) {
    left -= exp(((double)logits[i] - max) / TEMPERATURE);
    if (left < 0) return i;
  }
  return classes - 1;
}

/* One drawn from the logits of a row of so many. */
static int draw_of_row(const gpt_model* model, size_t row, size_t time, double uniform, const gpt_hooks* hooks, int64_t* out) {
  size_t first = 0;
  const size_t own = gpt_own_rows(model, time, &first);
  if (model->cut.vocab) { /* all draw the same of the same */
    real whole[512];      /* bytes have 256 values */
    const int failed =
        hooks->linears->whole_row(hooks->linears->user, whole, model->logits + row * (model->shape.table / model->cut.parts));
    if (!failed) *out = (int64_t)draw(whole, model->shape.vocab, uniform);
    return failed;
  }
  if (row >= first && row < first + own)
    *out = (int64_t)draw(model->logits + (row - first) * model->shape.vocab, model->shape.vocab, uniform);
  return hooks->linears ? hooks->linears->take(hooks->linears->user, model->cut.rows ? row / own : 0, out) : 0;
}

/* What sequences that are cut must be a multiple of: segments have two chunks, and rows are cut as well. */
static size_t least_cut(const gpt_model* model) {
  const size_t parts = model->cut.rows ? model->cut.parts : 1, segments = model->cut.segments;
  return segments * (segments > 1 && parts % 2 ? 2 * parts : parts);
}

/* The token after window[0 .. filled). */
static int next_token(gpt_model* model, unsigned char* window, size_t filled, double uniform, const gpt_hooks* hooks, size_t* out) {
  /* What is cut is made to divide: the last ones say nothing to those before. */
  const size_t least = least_cut(model), whole = (filled + least - 1) / least * least, last = filled - 1;
  unsigned char segment[MOST_CONTEXT];
  size_t time = 0, row = 0;
  int64_t token = 0;
  memset(window + filled, 0, whole - filled);
  int stop = gpt_set_segment(model, whole, hooks, &time);
  if (stop) return stop;
  gpt_take_segment(model, segment, window, time);
  stop = gpt_forward(model, segment, 1, time, hooks);
  if (stop) return stop;
  while (row < time && model->positions[row] != last) row++;
  stop = row < time ? draw_of_row(model, row, time, uniform, hooks, &token) : 0;
  if (!stop && hooks->attention) stop = hooks->attention->take(hooks->attention->user, whole, last, &token);
  *out = (size_t)token;
  return stop;
}

int sample_text(gpt_model* model, const corpus* text, uint64_t seed, const gpt_hooks* hooks, char* out, size_t count) {
  const size_t context = model->shape.context;
  unsigned char window[MOST_CONTEXT];
  size_t filled = 1;
  const unsigned char* newline = memchr(text->symbols, '\n', text->vocab);
  window[0] = newline ? (unsigned char)(newline - text->symbols) : 0;
  for (size_t i = 0; i < count; i++) {
    size_t next = 0;
    const int stop = next_token(model, window, filled, random_uniform(seed, UINT64_C(1) << 33, i), hooks, &next);
    if (stop) return stop;
    out[i] = (char)text->symbols[next];
    if (filled == context) memmove(window, window + 1, --filled);
    window[filled++] = (unsigned char)next;
  }
  return 0;
}
