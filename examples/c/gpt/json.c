/* SPDX-License-Identifier: Apache-2.0
 * JSON objects, written straight to stdout. */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Length of the UTF-8 sequence at `at`, 0 if there is none: too long forms, surrogates and what is past U+10FFFF are none. */
static size_t utf8_length(const unsigned char* at, size_t left) {
  const unsigned char first = at[0];
  const size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (!length || length > left) return 0;
  for (size_t i = 1; i < length; i++) {
    if ((at[i] & 0xc0) != 0x80) return 0;
  }
  if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) || (first == 0xf0 && at[1] < 0x90) ||
      (first == 0xf4 && at[1] > 0x8f)) {
    return 0;
  }
  return length;
}

static void quote(const char* text, size_t length) {
  const unsigned char* at = (const unsigned char*)text;
  putchar('"');
  for (size_t i = 0; i < length;) {
    const size_t bytes = utf8_length(at + i, length - i);
    if (!bytes) {
      fputs("\\ufffd", stdout);
    } else if (bytes > 1) {
      fwrite(at + i, 1, bytes, stdout);
    } else if (at[i] == '"' || at[i] == '\\') {
      printf("\\%c", at[i]);
    } else if (at[i] == '\n') {
      fputs("\\n", stdout);
    } else if (at[i] < 0x20 || at[i] == 0x7f) {
      printf("\\u%04x", at[i]);
    } else {
      putchar(at[i]);
    }
    i += bytes ? bytes : 1;
  }
  putchar('"');
}

static void name_member(json_writer* json, const char* name) {
  if (json->started) putchar(',');
  json->started = 1;
  if (!name) return;
  quote(name, strlen(name));
  putchar(':');
}

void json_open(json_writer* json, const char* name, char bracket) {
  name_member(json, name);
  putchar(bracket);
  json->started = 0;
}

void json_close(json_writer* json, char bracket) {
  putchar(bracket);
  json->started = 1;
}

void json_count(json_writer* json, const char* name, uint64_t value) {
  name_member(json, name);
  printf("%" PRIu64, value);
}

void json_real(json_writer* json, const char* name, double value) {
  name_member(json, name);
  if (isfinite(value)) {
    printf("%.9g", value);
  } else {
    fputs("null", stdout);
  }
}

void json_flag(json_writer* json, const char* name, int value) {
  name_member(json, name);
  fputs(value ? "true" : "false", stdout);
}

void json_text(json_writer* json, const char* name, const char* value, size_t length) {
  name_member(json, name);
  quote(value, length);
}

void json_end_line(json_writer* json) {
  putchar('\n');
  fflush(stdout);
  json->started = 0;
}
