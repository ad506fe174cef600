/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  DTYPE_F32,
  DTYPE_BF16,
  DTYPE_F16
} option_dtype;

typedef enum {
  BACKEND_AUTO,
  BACKEND_HOST,
  BACKEND_CUDA
} option_backend;

typedef enum { /* as mdp_cp_form numbers them */
  FORM_AUTO,
  FORM_RING,
  FORM_ALL_TO_ALL
} option_form;

typedef struct {
  const char* text; /* NULL: the license texts of Debian and Ubuntu */
  uint64_t steps, batch, layers, width, heads, context, seed;
  double lr, clip;
  option_dtype dtype;
  option_backend backend;
  uint64_t bucket_size; /* elements; 0: the library decides; UINT64_MAX: one bucket */
  uint64_t microbatches, instances, tp, cp;
  option_form cp_form;
  double timeout; /* seconds; 0: the library's */
  uint64_t threads;
  const char* save;          /* the directory of checkpoints; NULL: none are made */
  uint64_t save_every, keep; /* steps, 0: at the end only; checkpoints that stay, 0: all */
  int sp, vocab_parallel, no_overlap, no_shard, zero_2, whole, bf16_wire, error_feedback, check_finite, json, no_hash, resume;
  int bf16_state, stochastic_state, no_master;
} options;

typedef enum {
  OPTIONS_RUN,
  OPTIONS_HELP,
  OPTIONS_BAD
} options_outcome;

/* On OPTIONS_BAD `error` (of `size` bytes) holds a sentence naming option and value. */
options_outcome options_parse(options* out, int argc, char** argv, char* error, size_t size);
void options_help(void);
/* Rows of a token embedding and a head that --vocab-parallel cuts: the same with every --tp, so that a checkpoint goes on with another. */
size_t options_table_rows(size_t vocab);
const char* options_dtype_name(option_dtype dtype);
const char* options_backend_name(option_backend backend);
const char* options_form_name(option_form form);

#endif
