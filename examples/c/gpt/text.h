/* SPDX-License-Identifier: Apache-2.0
 * The text: read from files, turned into tokens (one for each byte value that occurs), cut into a part to train on and the last tenth,
 * which is held out. Also what a reader of single characters makes of it: the bigram table to beat. */
#ifndef GPT_TEXT_H
#define GPT_TEXT_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  unsigned char* tokens;      /* tokens of the whole text                   */
  size_t count, train;        /* [0, train) to train on, [train, count) held out */
  unsigned char symbols[256]; /* token -> byte                              */
  size_t vocab;
  uint64_t hash;
} corpus;

/* `path` may be a file, a directory (all its regular files, sorted by name, each content once) or NULL for the default.
 * 0, or -1 with a sentence in `error`. */
int corpus_load(corpus* out, const char* path, size_t context, char* error, size_t size);
void corpus_destroy(corpus* text);

/* Sequence `index` of the global batch of `step`: `time` tokens and their successors. Does not depend on the number of ranks. */
void corpus_sequence(const corpus* text, uint64_t seed, uint64_t step, uint64_t index, size_t time, unsigned char* tokens,
                     unsigned char* targets);

/* The held-out part in windows of `time` tokens; every token but the first of the part is the target of exactly one window, short of the
 * last remainder. */
size_t corpus_windows(const corpus* text, size_t time);
void corpus_window(const corpus* text, size_t window, size_t time, unsigned char* tokens, unsigned char* targets);

/* Mean -log p, in nats, over the targets of all windows, of a table of pairs counted on the training part, smoothed by adding a tenth to
 * every count. -1: no memory. */
double corpus_bigram_loss(const corpus* text, size_t time);

/* FNV-1a, 64 bits; start with HASH_START. */
#define HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t hash_bytes(uint64_t hash, const void* bytes, size_t count);

#endif
