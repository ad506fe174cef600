// SPDX-License-Identifier: Apache-2.0
// ShortWait: how often a thread looks whether other ranks have come before it sleeps. They are rarely further apart than a sleep and a
// wake-up take.
#pragma once

#include <sched.h>

#include <cstdint>

#include "base/deadline.h"
#include "host/futex.h"

namespace megadp::host {

class ShortWait {
 public:
  // crowded: there are more ranks than processors, so that who is waited for may need this one.
  explicit ShortWait(bool crowded) noexcept : crowded_(crowded) {}

  // Between two looks. False: it is time to sleep.
  bool goes_on() noexcept {
    looks_ += 1;
    if (looks_ < kEagerLooks) return true;
    if (crowded_) {
      sched_yield();
    } else {
      spin_pause();
      if (looks_ % kLooksPerTime != 0) return true;
    }
    const uint64_t now = now_ns();
    if (until_ns_ == 0) until_ns_ = now + kMostNs;
    return now < until_ns_;
  }

 private:
  static constexpr uint64_t kMostNs = 20'000;
  static constexpr uint32_t kEagerLooks = 64;    // before the first pause, which is long on some processors
  static constexpr uint32_t kLooksPerTime = 32;  // between two looks at the time

  const bool crowded_;
  uint32_t looks_ = 0;
  uint64_t until_ns_ = 0;
};

}  // namespace megadp::host
