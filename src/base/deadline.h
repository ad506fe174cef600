// SPDX-License-Identifier: Apache-2.0
// A moment after which a wait gives up, and the clock all time stamps are taken from (CLOCK_MONOTONIC, nanoseconds).
#pragma once

#include <chrono>
#include <cstdint>

namespace megadp {

inline uint64_t now_ns() noexcept {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

class Deadline {
 public:
  static Deadline after_ns(uint64_t ns) noexcept {
    const uint64_t now = now_ns();
    return Deadline(ns > UINT64_MAX - now ? UINT64_MAX : now + ns);
  }
  static Deadline never() noexcept { return Deadline(UINT64_MAX); }
  static Deadline earlier(Deadline one, uint64_t at_ns) noexcept { return Deadline(at_ns < one.at_ns_ ? at_ns : one.at_ns_); }

  bool passed() const noexcept { return at_ns_ != UINT64_MAX && now_ns() >= at_ns_; }
  uint64_t left_ns() const noexcept {
    if (at_ns_ == UINT64_MAX) return UINT64_MAX;
    const uint64_t now = now_ns();
    return now >= at_ns_ ? 0 : at_ns_ - now;
  }
  uint64_t at_ns() const noexcept { return at_ns_; }
  // For condition variables: an hour away at most, as adding the far future would overflow. Whoever waits looks at passed() again.
  std::chrono::steady_clock::time_point time_point() const noexcept {
    constexpr uint64_t hour_ns = 3'600'000'000'000;
    return std::chrono::steady_clock::now() + std::chrono::nanoseconds(left_ns() < hour_ns ? left_ns() : hour_ns);
  }

 private:
  explicit Deadline(uint64_t at_ns) noexcept : at_ns_(at_ns) {}
  uint64_t at_ns_;
};

}  // namespace megadp
