// SPDX-License-Identifier: Apache-2.0
// A program that includes this takes the place of malloc: the allocation with a number fails, alone or with all that follow, and blocks
// that were not freed are counted. Such a program exports its symbols (ENABLE_EXPORTS), so that the library finds them.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace failing_malloc {

enum class Fails {
  one,
  all_after
};

inline std::atomic<bool> armed{false};
inline std::atomic<int64_t> left{0};    // allocations until one fails
inline std::atomic<int64_t> failed{0};  // how many have
inline std::atomic<int64_t> blocks{0};  // that were taken and not given back
inline Fails mode = Fails::one;

inline void fail_at(int64_t number, Fails which) {
  mode = which;
  left.store(number);
  failed.store(0);
  armed.store(true);
}

// How many have failed.
inline int64_t stop_failing() {
  return armed.exchange(false) ? failed.load() : 0;
}

inline bool fails() {
  if (!armed.load()) return false;
  const int64_t before = left.fetch_sub(1);
  if (before > 0 || (before < 0 && mode == Fails::one)) return false;
  failed.fetch_add(1);
  errno = ENOMEM;
  return true;
}

inline void* taken(void* block) {
  if (block != nullptr) blocks.fetch_add(1);
  return block;
}

}  // namespace failing_malloc

#pragma GCC visibility push(default)
extern "C" {
void* malloc(size_t bytes) {
  return failing_malloc::fails() ? nullptr : failing_malloc::taken(__libc_malloc(bytes));
}
void* calloc(size_t count, size_t bytes) {
  return failing_malloc::fails() ? nullptr : failing_malloc::taken(__libc_calloc(count, bytes));
}
void* realloc(void* block, size_t bytes) {
  if (failing_malloc::fails()) return nullptr;
  void* const moved = __libc_realloc(block, bytes);
  return block == nullptr ? failing_malloc::taken(moved) : moved;
}
void* memalign(size_t alignment, size_t bytes) {
  return failing_malloc::fails() ? nullptr : failing_malloc::taken(__libc_memalign(alignment, bytes));
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  return memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  *out = memalign(alignment, bytes);
  return *out != nullptr ? 0 : ENOMEM;
}
void free(void* block) {
  if (block != nullptr) failing_malloc::blocks.fetch_sub(1);
  __libc_free(block);
}
}
#pragma GCC visibility pop
