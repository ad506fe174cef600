/* SPDX-License-Identifier: Apache-2.0
 * What the operating system says this process takes, in bytes. */
#ifndef GPT_MEMORY_H
#define GPT_MEMORY_H

#include <stdint.h>

typedef struct {
  int64_t share;  /* now, a page that several processes map counted in parts (Pss): what this rank adds to what its host needs */
  int64_t own;    /* of it in memory of this process alone                                                                     */
  int64_t shared; /* resident now in shared mappings: windows, the other ranks' included                                       */
  int64_t peak;   /* most resident memory so far, those windows included                                                       */
} memory_use;

/* Zeros where /proc does not tell. */
memory_use memory_now(void);

#endif
