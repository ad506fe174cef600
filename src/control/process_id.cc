// SPDX-License-Identifier: Apache-2.0
#include "control/process_id.h"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace megadp {
namespace {

using Id = std::atomic<pid_t>;

// In a page that is empty in a forked child, however it was forked. Null where the kernel does not offer that (before 4.14). Never
// unmapped.
Id* page_that_forks_empty() noexcept {
  void* const page = mmap(nullptr, sizeof(Id), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (madvise(page, sizeof(Id), MADV_WIPEONFORK) == 0) return new (page) Id(0);
  munmap(page, sizeof(Id));
  return nullptr;
}

}  // namespace

pid_t process_id() noexcept {
  static Id* const kept = page_that_forks_empty();
  if (kept == nullptr) return getpid();
  pid_t id = kept->load(std::memory_order_relaxed);
  if (id == 0) {
    id = getpid();
    kept->store(id, std::memory_order_relaxed);
  }
  return id;
}

}  // namespace megadp
