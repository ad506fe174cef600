// SPDX-License-Identifier: Apache-2.0
// A planted bug: reads one element past an array on the heap. AddressSanitizer must report it.
#include <cstdio>
#include <vector>

int main(int argc, char**) {
  std::vector<int> values(static_cast<size_t>(argc) + 7, 1);
  const int* data = values.data();
  std::printf("%d\n", data[values.size()]);
  return 0;
}
