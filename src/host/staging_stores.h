// SPDX-License-Identifier: Apache-2.0
// StagingStores: whether a rank fills its half of the staging memory by ordinary stores, or past the caches (host/copy_past.h).
//
// Neither is always the faster: on two cores of an AMD EPYC an all-reduce of 1 MiB took 60 us by ordinary stores and 140 past the caches,
// and in another run of the same program 540 by ordinary stores. So both are tried, and again every now and then, for each kind of
// collective and size: what this rank takes to fill its half and to read those of the others, without the wait between. The ranks count the
// same turns, so they try the same at a time; if what they find differs, each does as it found.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>

#include "backend/group.h"
#include "base/deadline.h"
#include "host/copy_past.h"

namespace megadp::host {

class StagingStores {
 public:
  static constexpr uint32_t kTries = 4;     // of each: the fastest counts, as whatever else the processor does only adds
  static constexpr uint32_t kTurns = 1024;  // until they are tried again

  // Of the turn that next() began last.
  bool past_caches() const noexcept { return past_caches_; }

  // A turn begins, in which a half holds `bytes`.
  void next(Collective kind, size_t bytes) {
    if (tried_ != nullptr) note();
    tried_ = nullptr;
    if (bytes <= kThroughCaches) return;
    Trial& trial = trials_[{kind, std::bit_width(bytes)}];
    const uint32_t turn = trial.turns++ % kTurns;
    if (turn == 0) trial.ns_per_byte.fill(std::numeric_limits<double>::infinity());
    past_caches_ = turn < 2 * kTries ? turn < kTries : trial.ns_per_byte[1] <= trial.ns_per_byte[0];
    if (turn < 2 * kTries) tried_ = &trial;
    bytes_ = bytes;
    spent_ns_ = 0;
  }

  // The turn has taken so long, besides what was said before.
  void spend(uint64_t ns) noexcept { spent_ns_ += ns; }

  // While it lives, the turn takes time.
  class Working {
   public:
    explicit Working(StagingStores& stores) noexcept : stores_(stores), since_ns_(stores.tried_ != nullptr ? now_ns() : 0) {}
    ~Working() {
      if (stores_.tried_ != nullptr) stores_.spend(now_ns() - since_ns_);
    }
    Working(const Working&) = delete;
    Working& operator=(const Working&) = delete;

   private:
    StagingStores& stores_;
    const uint64_t since_ns_;
  };

 private:
  struct Trial {
    uint32_t turns = 0;
    std::array<double, 2> ns_per_byte;  // the fastest turn by ordinary stores, and past the caches
  };

  void note() noexcept {
    double& fastest = tried_->ns_per_byte[past_caches_ ? 1 : 0];
    fastest = std::min(fastest, static_cast<double>(spent_ns_) / static_cast<double>(bytes_));
  }

  std::map<std::pair<Collective, int>, Trial> trials_;
  Trial* tried_ = nullptr;  // by the turn that runs
  bool past_caches_ = true;
  size_t bytes_ = 0;
  uint64_t spent_ns_ = 0;
};

}  // namespace megadp::host
