/* SPDX-License-Identifier: Apache-2.0
 * What the operating system says this process takes, in bytes. */
#ifndef GPT_MEMORY_H
#define GPT_MEMORY_H

#include <stdint.h>

typedef struct {
  int64_t peak;   /* most resident memory so far                                        */
  int64_t shared; /* of it now in shared mappings: windows, the other ranks' included    */
  int64_t own;    /* and in memory of this process alone                                 */
} memory_use;

/* Zeros where /proc does not tell. */
memory_use memory_now(void);

#endif
