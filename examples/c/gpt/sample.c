/* SPDX-License-Identifier: Apache-2.0
 * Text from the trained model: one whole forward pass a character. Slow and plain; a paragraph takes a second. The parts of a model that is
 * cut do it together. */
#include "sample.h"

#include <math.h>
#include <string.h>

#include "random.h"

static const double TEMPERATURE = 0.8;

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

/* The token after window[0 .. filled). */
static int next_token(gpt_model* model, unsigned char* window, size_t filled, double uniform, const gpt_hooks* hooks, size_t* out) {
  /* Rows that are cut are made to divide: the last ones say nothing to those before. */
  const size_t parts = model->cut.rows ? model->cut.parts : 1, time = (filled + parts - 1) / parts * parts;
  memset(window + filled, 0, time - filled);
  const int stop = gpt_forward(model, window, 1, time, hooks);
  if (stop) return stop;
  size_t first = 0;
  const size_t own = gpt_own_rows(model, time, &first), row = filled - 1;
  int64_t token = 0;
  if (model->cut.vocab) { /* all draw the same of the same */
    real whole[512];      /* bytes have 256 values */
    const int failed =
        hooks->linears->whole_row(hooks->linears->user, whole, model->logits + row * (model->shape.table / model->cut.parts));
    *out = failed ? 0 : draw(whole, model->shape.vocab, uniform);
    return failed;
  }
  if (row >= first && row < first + own)
    token = (int64_t)draw(model->logits + (row - first) * model->shape.vocab, model->shape.vocab, uniform);
  const int failed = hooks->linears ? hooks->linears->take(hooks->linears->user, model->cut.rows ? row / own : 0, &token) : 0;
  *out = (size_t)token;
  return failed;
}

int sample_text(gpt_model* model, const corpus* text, uint64_t seed, const gpt_hooks* hooks, char* out, size_t count) {
  const size_t context = model->shape.context;
  unsigned char window[8192]; /* the largest context that the options allow */
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
