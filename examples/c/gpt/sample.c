/* SPDX-License-Identifier: Apache-2.0
 * Text from the trained model: one whole forward pass a character. Slow and plain; a paragraph takes a second. */
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

int sample_text(gpt_model* model, const corpus* text, uint64_t seed, const gpt_hooks* hooks, char* out, size_t count) {
  const size_t context = model->shape.context;
  unsigned char window[8192]; /* the largest context that the options allow */
  size_t filled = 1;
  const unsigned char* newline = memchr(text->symbols, '\n', text->vocab);
  window[0] = newline ? (unsigned char)(newline - text->symbols) : 0;
  for (size_t i = 0; i < count; i++) {
    const int stop = gpt_forward(model, window, 1, filled, hooks);
    if (stop) return stop;
    const real* last = model->logits + (filled - 1) * model->shape.vocab;
    const size_t next = draw(last, model->shape.vocab, random_uniform(seed, UINT64_C(1) << 33, i));
    out[i] = (char)text->symbols[next];
    if (filled == context) memmove(window, window + 1, --filled);
    window[filled++] = (unsigned char)next;
  }
  return 0;
}
