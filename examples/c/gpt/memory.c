/* SPDX-License-Identifier: Apache-2.0
 * Memory of this process, from /proc/self/status, which counts in KiB. */
#include "memory.h"

#include <stdio.h>

memory_use memory_now(void) {
  memory_use use = {0, 0, 0};
  FILE* file = fopen("/proc/self/status", "r");
  char line[256];
  long kib = 0;
  if (!file) return use;
  while (fgets(line, sizeof line, file)) {
    if (sscanf(line, "VmHWM: %ld", &kib) == 1) use.peak = 1024 * (int64_t)kib;
    if (sscanf(line, "RssShmem: %ld", &kib) == 1) use.shared = 1024 * (int64_t)kib;
    if (sscanf(line, "RssAnon: %ld", &kib) == 1) use.own = 1024 * (int64_t)kib;
  }
  fclose(file);
  return use;
}
