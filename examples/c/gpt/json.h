/* SPDX-License-Identifier: Apache-2.0
 * JSON objects, written straight to stdout. Numbers that JSON does not know (infinity, NaN) become null. */
#ifndef GPT_JSON_H
#define GPT_JSON_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
  int started; /* a comma is due before the next member; kept by the functions below */
} json_writer;

void json_open(json_writer* json, const char* name, char bracket); /* '{' or '['; name NULL: no name */
void json_close(json_writer* json, char bracket);                  /* '}' or ']' */
void json_count(json_writer* json, const char* name, uint64_t value);
void json_real(json_writer* json, const char* name, double value);
void json_flag(json_writer* json, const char* name, int value);
void json_text(json_writer* json, const char* name, const char* value, size_t length);
void json_end_line(json_writer* json);

#endif
