// SPDX-License-Identifier: Apache-2.0
// DefaultFloats: arithmetic on the caller's thread as on every thread of ours, while it lives.
#pragma once

#include <cfenv>

namespace megadp::host {

// How a thread rounds, whether it flushes what is subnormal, and what it traps.
class DefaultFloats {
 public:
  DefaultFloats() noexcept : changes_(!is_default()) {
    if (!changes_) return;
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() {
    if (changes_) std::fesetenv(&before_);
  }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  // Mostly it is, and to set it takes longer than a small collective.
  static bool is_default() noexcept {
#if defined(__x86_64__)
    // Of MXCSR, which is all that counts here, as nothing of ours is a long double.
    constexpr unsigned seen = 0x3f, all_masked = 0x1f80;  // what has come up so far; to nearest, nothing flushed, nothing trapped
    return (__builtin_ia32_stmxcsr() & ~seen) == all_masked;
#else
    return false;
#endif
  }
  const bool changes_;
  std::fenv_t before_;
};

}  // namespace megadp::host
