// SPDX-License-Identifier: Apache-2.0
// A planted bug: two locks taken in both orders, one after the other, so that it never hangs. ThreadSanitizer must report it.
#include <cstdio>
#include <mutex>
#include <thread>

int main() {
  std::mutex a, b;
  std::thread([&] {
    std::lock_guard<std::mutex> first(a);
    std::lock_guard<std::mutex> second(b);
  }).join();
  std::thread([&] {
    std::lock_guard<std::mutex> first(b);
    std::lock_guard<std::mutex> second(a);
  }).join();
  std::puts("done");
  return 0;
}
