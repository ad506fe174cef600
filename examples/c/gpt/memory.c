/* SPDX-License-Identifier: Apache-2.0
 * Memory of this process, from files in /proc/self, which count in KiB. */
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The line that begins with `name`, in bytes; 0 if there is none. */
static int64_t bytes_in(const char* path, const char* name) {
  FILE* file = fopen(path, "r");
  const size_t length = strlen(name);
  char line[256];
  int64_t bytes = 0;
  if (!file) return 0;
  while (!bytes && fgets(line, sizeof line, file)) {
    if (strncmp(line, name, length) == 0) bytes = 1024 * (int64_t)strtoll(line + length, NULL, 10);
  }
  fclose(file);
  return bytes;
}

memory_use memory_now(void) {
  const memory_use use = {.share = bytes_in("/proc/self/smaps_rollup", "Pss:"),
                          .own = bytes_in("/proc/self/status", "RssAnon:"),
                          .shared = bytes_in("/proc/self/status", "RssShmem:"),
                          .peak = bytes_in("/proc/self/status", "VmHWM:")};
  return use;
}
