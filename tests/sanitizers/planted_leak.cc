// SPDX-License-Identifier: Apache-2.0
// A planted bug: forgets memory from the heap. LeakSanitizer must report it.
#include <cstdio>
#include <cstdlib>

namespace {
void* volatile last = nullptr;
}

int main() {
  for (int i = 0; i < 10; ++i) last = std::malloc(1000);
  last = nullptr;
  std::puts("done");
  return 0;
}
