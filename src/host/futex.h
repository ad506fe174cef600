// SPDX-License-Identifier: Apache-2.0
// Sleeping on a 32-bit word until somebody changes and wakes it. Two scopes: words of one process, and words in memory shared between
// processes. A futex rather than a condition variable, because a condition variable can neither live in memory that several mappings
// show at different addresses, nor be destroyed in a forked child while a thread of the parent waited on it.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>

namespace megadp::host {

static_assert(sizeof(std::atomic<uint32_t>) == 4 && std::atomic<uint32_t>::is_always_lock_free);

enum class FutexScope : int {
  process = FUTEX_PRIVATE_FLAG,
  shared = 0
};

// Returns when woken, when the word was not `seen` to begin with, after timeout_ns, or for no reason: the caller looks again.
inline void futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, uint64_t timeout_ns, FutexScope scope) noexcept {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(timeout_ns / 1'000'000'000);
  limit.tv_nsec = static_cast<long>(timeout_ns % 1'000'000'000);
  syscall(SYS_futex, &word, FUTEX_WAIT | static_cast<int>(scope), seen, timeout_ns == UINT64_MAX ? nullptr : &limit, nullptr, 0);
}

inline void futex_wake_all(const std::atomic<uint32_t>& word, FutexScope scope) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE | static_cast<int>(scope), INT_MAX, nullptr, nullptr, 0);
}

// Tells the core that this is a waiting loop.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // the `yield` hint does nothing on most cores
#endif
}

}  // namespace megadp::host
