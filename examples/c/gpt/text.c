/* SPDX-License-Identifier: Apache-2.0
 * The text: files to tokens to sequences, and the bigram table. */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "random.h"

static const char DEFAULT_PATH[] = "/usr/share/common-licenses";

typedef struct {
  unsigned char* data;
  size_t count;
} bytes;

uint64_t hash_bytes(uint64_t hash, const void* data, size_t count) {
  const unsigned char* at = data;
  for (size_t i = 0; i < count; i++) hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* Appends the file to `to`. */
static int read_file(bytes* to, const char* path, char* error, size_t size) {
  FILE* file = fopen(path, "rb");
  size_t got = 0;
  if (!file) {
    snprintf(error, size, "the text '%s' cannot be opened: %s", path, strerror(errno));
    return -1;
  }
  do {
    unsigned char* larger = realloc(to->data, to->count + (1 << 16));
    if (!larger) {
      snprintf(error, size, "out of memory at byte %zu of the text '%s'", to->count, path);
      fclose(file);
      return -1;
    }
    to->data = larger;
    got = fread(to->data + to->count, 1, 1 << 16, file);
    to->count += got;
  } while (got);
  const int failed = ferror(file);
  if (failed) snprintf(error, size, "the text '%s' cannot be read: %s", path, strerror(errno));
  fclose(file);
  return failed ? -1 : 0;
}

/* Regular files whose names do not begin with a dot; links are other names of texts that are there already. */
static int wanted(const struct dirent* entry) {
  return entry->d_name[0] != '.';
}

/* alphasort compares by locale; ranks must agree whatever theirs is. */
static int by_bytes(const struct dirent** a, const struct dirent** b) {
  return strcmp((*a)->d_name, (*b)->d_name);
}

/* Appends `path` unless a file with the same content has been appended before. */
static int read_new(bytes* to, uint64_t* seen, size_t* nseen, const char* path, char* error, size_t size) {
  const size_t before = to->count;
  if (read_file(to, path, error, size)) return -1;
  const uint64_t hash = hash_bytes(HASH_START, to->data + before, to->count - before);
  for (size_t i = 0; i < *nseen; i++) {
    if (seen[i] == hash) {
      to->count = before;
      return 0;
    }
  }
  seen[(*nseen)++] = hash;
  return 0;
}

static int read_directory(bytes* to, const char* path, char* error, size_t size) {
  struct dirent** entries = NULL;
  size_t nseen = 0;
  const int n = scandir(path, &entries, wanted, by_bytes);
  if (n < 0) {
    snprintf(error, size, "the directory of texts '%s' cannot be read: %s", path, strerror(errno));
    return -1;
  }
  uint64_t* seen = malloc(((size_t)n + 1) * sizeof *seen); /* hashes */
  int failed = seen ? 0 : -1;
  if (failed) snprintf(error, size, "out of memory for the %d files of the directory '%s'", n, path);
  for (int i = 0; i < n; i++) {
    char name[4096];
    struct stat info;
    snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
    if (!failed && lstat(name, &info) == 0 && S_ISREG(info.st_mode)) {
      failed = read_new(to, seen, &nseen, name, error, size);
    }
    free(entries[i]);
  }
  free(entries);
  free(seen);
  return failed;
}

static void number_symbols(corpus* out) {
  int present[256] = {0}, number[256] = {0};
  for (size_t i = 0; i < out->count; i++) present[out->tokens[i]] = 1;
  for (int i = 0; i < 256; i++) {
    if (!present[i]) continue;
    number[i] = (int)out->vocab;
    out->symbols[out->vocab++] = (unsigned char)i;
  }
  for (size_t i = 0; i < out->count; i++) out->tokens[i] = (unsigned char)number[out->tokens[i]];
}

int corpus_load(corpus* out, const char* path, size_t context, char* error, size_t size) {
  const char* from = path ? path : DEFAULT_PATH;
  const size_t least = 20 * (context + 1); /* a tenth of it holds two windows of the context and their targets */
  bytes all = {NULL, 0};
  struct stat info;
  memset(out, 0, sizeof *out);
  if (stat(from, &info)) {
    snprintf(error, size, "%s '%s' cannot be read: %s%s", path ? "--text" : "the default text", from, strerror(errno),
             path ? "" : "; give a text with --text FILE, or install the package base-files of Debian or Ubuntu");
    return -1;
  }
  const int failed = S_ISDIR(info.st_mode) ? read_directory(&all, from, error, size) : read_file(&all, from, error, size);
  if (failed || all.count < least) {
    if (!failed) {
      snprintf(error, size, "%s '%s' is too small: %zu bytes, but --context %zu needs at least %zu", path ? "--text" : "the default text",
               from, all.count, context, least);
    }
    free(all.data);
    return -1;
  }
  out->tokens = all.data;
  out->count = all.count;
  out->train = all.count - all.count / 10;
  out->hash = hash_bytes(HASH_START, all.data, all.count);
  number_symbols(out);
  return 0;
}

void corpus_destroy(corpus* text) {
  free(text->tokens);
  memset(text, 0, sizeof *text);
}

void corpus_sequence(const corpus* text, uint64_t seed, uint64_t step, uint64_t index, size_t time, unsigned char* tokens,
                     unsigned char* targets) {
  const size_t start = (size_t)random_below(seed, (UINT64_C(1) << 32) + step, index, text->train - time);
  memcpy(tokens, text->tokens + start, time);
  memcpy(targets, text->tokens + start + 1, time);
}

size_t corpus_windows(const corpus* text, size_t time) {
  return (text->count - text->train - 1) / time;
}

void corpus_window(const corpus* text, size_t window, size_t time, unsigned char* tokens, unsigned char* targets) {
  const unsigned char* start = text->tokens + text->train + window * time;
  memcpy(tokens, start, time);
  memcpy(targets, start + 1, time);
}

double corpus_bigram_loss(const corpus* text, size_t time) {
  const size_t v = text->vocab, targets = corpus_windows(text, time) * time;
  const unsigned char *t = text->tokens, *held = t + text->train;
  double *counts = malloc(v * v * sizeof *counts), *rows = malloc(v * sizeof *rows), loss = 0;
  if (!counts || !rows) {
    free(counts);
    free(rows);
    return -1;
  }
  for (size_t i = 0; i < v * v; i++) counts[i] = 0.1;
  for (size_t i = 0; i < v; i++) rows[i] = 0.1 * (double)v;
  for (size_t i = 0; i + 1 < text->train; i++) {
    counts[t[i] * v + t[i + 1]] += 1;
    rows[t[i]] += 1;
  }
  for (size_t i = 0; i < targets; i++) loss += log(rows[held[i]] / counts[held[i] * v + held[i + 1]]);
  free(counts);
  free(rows);
  return loss / (double)targets;
}
