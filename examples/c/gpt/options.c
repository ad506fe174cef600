/* SPDX-License-Identifier: Apache-2.0
 * The command line: one table says names, ranges and help; every refusal is a sentence with the option and its value. */
#include "options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum {
  KIND_TEXT,
  KIND_COUNT,
  KIND_NUMBER,
  KIND_DTYPE,
  KIND_BACKEND,
  KIND_FORM,
  KIND_BUCKET,
  KIND_FLAG
} option_kind;

typedef struct {
  const char* name;
  option_kind kind;
  size_t offset;
  double low, high;
  const char *value, *help;
} option_row;

#define AT(field) offsetof(options, field)
static const option_row ROWS[] = {
    {"--text", KIND_TEXT, AT(text), 0, 0, "FILE",
     "what to learn; a directory: all files in it (default: the licenses in /usr/share/common-licenses)"},
    {"--steps", KIND_COUNT, AT(steps), 1, 1e9, "N", "optimizer steps (300)"},
    {"--batch", KIND_COUNT, AT(batch), 1, 65536, "GLOBAL", "sequences per step, over all ranks (24)"},
    {"--layers", KIND_COUNT, AT(layers), 1, 256, "N", "transformer blocks (2)"},
    {"--width", KIND_COUNT, AT(width), 1, 16384, "N", "size of the residual stream (96)"},
    {"--heads", KIND_COUNT, AT(heads), 1, 256, "N", "attention heads; must divide the width (4)"},
    {"--context", KIND_COUNT, AT(context), 2, 8192, "N", "characters the model looks back on (64)"},
    {"--seed", KIND_COUNT, AT(seed), 0, 9007199254740992.0, "N", "of parameters, batches and sample (1)"},
    {"--lr", KIND_NUMBER, AT(lr), 1e-12, 1e3, "X", "highest learning rate (0.008)"},
    {"--clip", KIND_NUMBER, AT(clip), 0, 1e12, "X", "largest global norm of the gradient; 0: no clipping (1)"},
    {"--dtype", KIND_DTYPE, AT(dtype), 0, 0, "f32|bf16|f16", "of the parameters (f32); gradients are f32, with f16 they are f16 too"},
    {"--backend", KIND_BACKEND, AT(backend), 0, 0, "auto|host|cuda",
     "where parameters, gradients and optimizer live (auto: the library decides); on cuda staged through the host, which computes forward "
     "and backward"},
    {"--bucket-size", KIND_BUCKET, AT(bucket_size), 0, 1e15, "N",
     "elements at which a bucket closes; 'all': one bucket (the library decides)"},
    {"--microbatches", KIND_COUNT, AT(microbatches), 1, 1e6, "N", "parts in which each rank computes its share of the batch (1)"},
    {"--no-overlap", KIND_FLAG, AT(no_overlap), 0, 0, NULL, "communicate after backward, not during it"},
    {"--no-shard", KIND_FLAG, AT(no_shard), 0, 0, NULL, "all optimizer state on every rank"},
    {"--zero-2", KIND_FLAG, AT(zero_2), 0, 0, NULL, "gradients pass through a small pool: each rank keeps the sums of what it owns"},
    {"--whole", KIND_FLAG, AT(whole), 0, 0, NULL, "each parameter is owned by one rank, which has all of its optimizer state"},
    {"--bf16-wire", KIND_FLAG, AT(bf16_wire), 0, 0, NULL, "f32 gradients are sent as bf16, and summed in f32"},
    {"--error-feedback", KIND_FLAG, AT(error_feedback), 0, 0, NULL,
     "with --bf16-wire: what rounding lost is added to the next step's gradient"},
    {"--check-finite", KIND_FLAG, AT(check_finite), 0, 0, NULL, "a gradient that is not finite is found and named before it is sent"},
    {"--bf16-state", KIND_FLAG, AT(bf16_state), 0, 0, NULL, "the optimizer's state is bf16, rounded to nearest"},
    {"--stochastic-state", KIND_FLAG, AT(stochastic_state), 0, 0, NULL,
     "with --bf16-state: rounded stochastically, by bits that follow from --seed"},
    {"--no-master", KIND_FLAG, AT(no_master), 0, 0, NULL, "with --dtype bf16: no fp32 masters, parameters are rounded stochastically"},
    {"--instances", KIND_COUNT, AT(instances), 1, 65536, "N",
     "cut the ranks into so many runs of neighbours, each with all optimizer state (1)"},
    {"--tp", KIND_COUNT, AT(tp), 1, 256, "N",
     "tensor-parallel ranks: so many neighbours share a model, each with some of its heads; must divide ranks and heads (1); f32 or bf16, "
     "on the host"},
    {"--sp", KIND_FLAG, AT(sp), 0, 0, NULL,
     "with --tp: sequence parallelism, outside of attention and mlp each of them has some of the rows; --tp must divide the context"},
    {"--vocab-parallel", KIND_FLAG, AT(vocab_parallel), 0, 0, NULL,
     "with --tp: each of them has some rows of the token embedding and of the head, padded to a multiple of 64, which --tp must divide"},
    {"--cp", KIND_COUNT, AT(cp), 1, 256, "N",
     "context-parallel ranks: so many share each sequence; twice as many must divide the context, --tp times --cp the ranks (1); on the "
     "host"},
    {"--cp-form", KIND_FORM, AT(cp_form), 0, 0, "auto|ring|all-to-all",
     "with --cp: keys and values go around a ring, or each gets all of some heads, which --cp must divide (auto: what sends less)"},
    {"--timeout", KIND_NUMBER, AT(timeout), 0, 1e6, "SECONDS", "how long a rank waits for another (five minutes)"},
    {"--threads", KIND_COUNT, AT(threads), 1, 1024, "N", "BLAS threads of each rank (1)"},
    {"--save", KIND_TEXT, AT(save), 0, 0, "DIR", "save checkpoints in this directory: one at the end"},
    {"--save-every", KIND_COUNT, AT(save_every), 1, 1e9, "N", "and one every so many steps, written while training goes on"},
    {"--keep", KIND_COUNT, AT(keep), 0, 1e9, "N", "checkpoints that stay, the newest ones; 0: all (3)"},
    {"--resume", KIND_FLAG, AT(resume), 0, 0, NULL, "go on from the newest checkpoint in --save, if there is one; on any number of ranks"},
    {"--json", KIND_FLAG, AT(json), 0, 0, NULL, "one JSON object a line instead of text"},
    {"--no-hash", KIND_FLAG, AT(no_hash), 0, 0, NULL,
     "with --json: hash the parameters at the end only, as each hash waits for all of them"},
};
enum {
  ROW_COUNT = sizeof ROWS / sizeof ROWS[0]
};
#undef AT

/* As the enumerations number them. */
static const char* const DTYPES[] = {"f32", "bf16", "f16"};
static const char* const BACKENDS[] = {"auto", "host", "cuda"};
static const char* const FORMS[] = {"auto", "ring", "all-to-all"};

const char* options_dtype_name(option_dtype dtype) {
  return DTYPES[dtype];
}

const char* options_backend_name(option_backend backend) {
  return BACKENDS[backend];
}

const char* options_form_name(option_form form) {
  return FORMS[form];
}

void options_help(void) {
  printf(
      "gpt: trains a character-level GPT, data-, tensor- and context-parallel over the ranks that a launcher started (or alone).\n\n"
      "  gpt [options]\n\n");
  for (size_t i = 0; i < ROW_COUNT; i++) {
    char left[40];
    snprintf(left, sizeof left, "%s %s", ROWS[i].name, ROWS[i].value ? ROWS[i].value : "");
    printf("  %-22s %s\n", left, ROWS[i].help);
  }
  printf("  %-22s %s\n\nTry: megadp run -n 2 -- gpt\n", "--help", "this text");
}

static const option_row* find_row(const char* name, size_t length) {
  for (size_t i = 0; i < ROW_COUNT; i++) {
    if (strlen(ROWS[i].name) == length && strncmp(ROWS[i].name, name, length) == 0) return &ROWS[i];
  }
  return NULL;
}

/* 0, or -1 with a sentence in `error` */
static int read_count(const option_row* row, const char* value, uint64_t* out, char* error, size_t size) {
  char* end = NULL;
  errno = 0;
  const unsigned long long number = strtoull(value, &end, 10);
  if (value[0] < '0' || value[0] > '9' || *end || errno) {
    snprintf(error, size, "%s '%s' is not a whole number; it must be one from %.0f to %.0f", row->name, value, row->low, row->high);
    return -1;
  }
  if ((double)number < row->low || (double)number > row->high) {
    snprintf(error, size, "%s %s is out of range; it must be from %.0f to %.0f", row->name, value, row->low, row->high);
    return -1;
  }
  *out = number;
  return 0;
}

static int read_number(const option_row* row, const char* value, double* out, char* error, size_t size) {
  char* end = NULL;
  const double number = strtod(value, &end);
  if (end == value || *end || !isfinite(number)) {
    snprintf(error, size, "%s '%s' is not a number; it must be one from %g to %g", row->name, value, row->low, row->high);
    return -1;
  }
  if (number < row->low || number > row->high) {
    snprintf(error, size, "%s %s is out of range; it must be from %g to %g", row->name, value, row->low, row->high);
    return -1;
  }
  *out = number;
  return 0;
}

/* Which of the three, or -1. */
static int read_choice(const option_row* row, const char* value, const char* const* names, char* error, size_t size) {
  for (int i = 0; i < 3; i++) {
    if (strcmp(value, names[i]) == 0) return i;
  }
  snprintf(error, size, "%s '%s' is unknown; it must be %s, %s or %s", row->name, value, names[0], names[1], names[2]);
  return -1;
}

static int read_value(options* out, const option_row* row, const char* value, char* error, size_t size) {
  void* at = (char*)out + row->offset;
  int choice;
  switch (row->kind) {
    case KIND_TEXT:
      *(const char**)at = value;
      return 0;
    case KIND_COUNT:
      return read_count(row, value, at, error, size);
    case KIND_NUMBER:
      return read_number(row, value, at, error, size);
    case KIND_DTYPE:
      choice = read_choice(row, value, DTYPES, error, size);
      if (choice >= 0) *(option_dtype*)at = (option_dtype)choice;
      return choice < 0 ? -1 : 0;
    case KIND_BACKEND:
      choice = read_choice(row, value, BACKENDS, error, size);
      if (choice >= 0) *(option_backend*)at = (option_backend)choice;
      return choice < 0 ? -1 : 0;
    case KIND_FORM:
      choice = read_choice(row, value, FORMS, error, size);
      if (choice >= 0) *(option_form*)at = (option_form)choice;
      return choice < 0 ? -1 : 0;
    case KIND_BUCKET:
      if (strcmp(value, "all") == 0) {
        *(uint64_t*)at = UINT64_MAX;
        return 0;
      }
      return read_count(row, value, at, error, size);
    default:
      snprintf(error, size, "%s takes no value, but '%s' was given", row->name, value);
      return -1;
  }
}

static options_outcome parse_all(options* out, int argc, char** argv, char* error, size_t size) {
  for (int i = 1; i < argc; i++) {
    const char* argument = argv[i];
    if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) return OPTIONS_HELP;
    const char* equals = strchr(argument, '=');
    const option_row* row = find_row(argument, equals ? (size_t)(equals - argument) : strlen(argument));
    if (!row) {
      snprintf(error, size, "unknown argument '%s'; --help lists the options", argument);
      return OPTIONS_BAD;
    }
    if (row->kind == KIND_FLAG && !equals) {
      *(int*)((char*)out + row->offset) = 1;
      continue;
    }
    if (!equals && i + 1 == argc) {
      snprintf(error, size, "%s needs a value (%s), but is the last argument", row->name, row->value);
      return OPTIONS_BAD;
    }
    if (read_value(out, row, equals ? equals + 1 : argv[++i], error, size)) return OPTIONS_BAD;
  }
  return OPTIONS_RUN;
}

enum {
  TABLE_MULTIPLE = 64
};

size_t options_table_rows(size_t vocab) {
  return (vocab + TABLE_MULTIPLE - 1) / TABLE_MULTIPLE * TABLE_MULTIPLE;
}

/* 0, or -1 with a sentence in `error` */
static int check_parts(const options* o, char* error, size_t size) {
  const unsigned long long tp = (unsigned long long)o->tp;
  if (o->heads % o->tp) {
    snprintf(error, size, "--tp %llu does not divide --heads %llu: each rank has as many of them", tp, (unsigned long long)o->heads);
  } else if (o->sp && o->tp == 1) {
    snprintf(error, size, "--sp needs --tp above 1, but --tp is 1: it cuts the rows over the tensor-parallel ranks");
  } else if (o->sp && o->context % o->tp) {
    snprintf(error, size, "--tp %llu does not divide --context %llu, which --sp cuts into as many parts", tp,
             (unsigned long long)o->context);
  } else if (o->vocab_parallel && o->tp == 1) {
    snprintf(error, size, "--vocab-parallel needs --tp above 1, but --tp is 1: it cuts the vocabulary over the tensor-parallel ranks");
  } else if (o->vocab_parallel && TABLE_MULTIPLE % o->tp) {
    snprintf(error, size, "--tp %llu does not divide %d, which --vocab-parallel makes the vocabulary a multiple of", tp, TABLE_MULTIPLE);
  } else if (o->tp > 1 && o->dtype == DTYPE_F16) {
    snprintf(error, size, "--dtype f16 does not go with --tp %llu: its layers multiply f32 and bf16", tp);
  } else if (o->tp > 1 && o->backend == BACKEND_CUDA) {
    snprintf(error, size, "--backend cuda does not go with --tp %llu: the model computes on the host, and its layers take parameters there",
             tp);
  } else {
    return 0;
  }
  return -1;
}

/* Likewise. */
static int check_segments(const options* o, char* error, size_t size) {
  const unsigned long long cp = (unsigned long long)o->cp, tp = (unsigned long long)o->tp, context = (unsigned long long)o->context;
  const unsigned long long heads = (unsigned long long)o->heads;
  if (o->cp == 1 && o->cp_form != FORM_AUTO) {
    snprintf(error, size, "--cp-form %s needs --cp above 1, but --cp is 1: nothing is sent for the attention of one rank",
             FORMS[o->cp_form]);
  } else if (o->cp == 1) {
    return 0;
  } else if (context % (2 * cp)) {
    snprintf(error, size,
             "--cp %llu does not cut --context %llu evenly: each rank has two chunks of it, so --context must be a multiple of %llu", cp,
             context, 2 * cp);
  } else if (o->sp && context / cp % tp) {
    snprintf(error, size,
             "--tp %llu does not divide the %llu characters that each rank of --cp %llu has of --context %llu: with --sp it must be a "
             "multiple of %llu",
             tp, context / cp, cp, context, cp * (tp % 2 ? 2 * tp : tp));
  } else if (o->cp_form == FORM_ALL_TO_ALL && heads / tp % cp) {
    snprintf(error, size,
             "--cp %llu does not divide the %llu heads of each rank (--heads %llu, --tp %llu), as --cp-form all-to-all needs; --cp-form "
             "ring does not",
             cp, heads / tp, heads, tp);
  } else if (o->backend == BACKEND_CUDA) {
    snprintf(error, size, "--backend cuda does not go with --cp %llu: the model computes on the host, and attention takes its arrays there",
             cp);
  } else {
    return 0;
  }
  return -1;
}

options_outcome options_parse(options* out, int argc, char** argv, char* error, size_t size) {
  const options defaults = {.steps = 300,
                            .batch = 24,
                            .layers = 2,
                            .width = 96,
                            .heads = 4,
                            .context = 64,
                            .seed = 1,
                            .lr = 0.008,
                            .clip = 1,
                            .microbatches = 1,
                            .instances = 1,
                            .tp = 1,
                            .cp = 1,
                            .threads = 1,
                            .keep = 3};
  *out = defaults;
  const options_outcome outcome = parse_all(out, argc, argv, error, size);
  if (outcome == OPTIONS_RUN && out->width % out->heads) {
    snprintf(error, size, "--heads %llu does not divide --width %llu", (unsigned long long)out->heads, (unsigned long long)out->width);
    return OPTIONS_BAD;
  }
  if (outcome == OPTIONS_RUN && out->no_shard + out->zero_2 + out->whole > 1) {
    snprintf(error, size, "--no-shard, --zero-2 and --whole exclude each other; give one of them");
    return OPTIONS_BAD;
  }
  if (outcome == OPTIONS_RUN && out->stochastic_state && !out->bf16_state) {
    snprintf(error, size, "--stochastic-state needs --bf16-state: f32 state is not rounded");
    return OPTIONS_BAD;
  }
  if (outcome == OPTIONS_RUN && out->no_master && out->dtype != DTYPE_BF16) {
    snprintf(error, size, "--no-master needs --dtype bf16, but --dtype is %s", options_dtype_name(out->dtype));
    return OPTIONS_BAD;
  }
  if (outcome == OPTIONS_RUN && !out->save && (out->resume || out->save_every)) {
    snprintf(error, size, "%s needs --save, the directory of checkpoints", out->resume ? "--resume" : "--save-every");
    return OPTIONS_BAD;
  }
  if (outcome == OPTIONS_RUN && (check_parts(out, error, size) || check_segments(out, error, size))) return OPTIONS_BAD;
  return outcome;
}
