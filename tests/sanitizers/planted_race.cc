// SPDX-License-Identifier: Apache-2.0
// A planted bug: two threads count in one variable without a lock. ThreadSanitizer must report it.
#include <cstdio>
#include <thread>

int main() {
  int count = 0;
  auto work = [&count] {
    for (int i = 0; i < 1000; ++i) ++count;
  };
  std::thread first(work), second(work);
  first.join();
  second.join();
  std::printf("%d\n", count);
  return 0;
}
