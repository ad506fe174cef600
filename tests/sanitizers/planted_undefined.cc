// SPDX-License-Identifier: Apache-2.0
// A planted bug: overflows a signed integer. UndefinedBehaviorSanitizer must report it.
#include <climits>
#include <cstdio>

int main(int argc, char**) {
  volatile int large = INT_MAX;
  std::printf("%d\n", large + argc);
  return 0;
}
