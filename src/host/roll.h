// SPDX-License-Identifier: Apache-2.0
// Roll: what the ranks of one host have said they submitted to a group whose collectives run elsewhere (see Group::enter).
//
//   each rank's ControlPage:   entry[number % kEntries] { number, 0 while it is being written | text }      written by its owner only
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/group.h"
#include "host/parts.h"

namespace megadp::host {

struct RollPage {
  static constexpr size_t kEntries = 16, kWords = 15;
  struct alignas(64) Entry {
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> words[kWords];  // words, because another rank may read while this one writes
  };
  std::atomic<uint64_t> last;
  Entry entry[kEntries];
};

void enter(RollPage& own, uint64_t number, const std::string& what) noexcept;
// Of the rank that owns the page.
Group::Entered read_entry(const RollPage& page, int member, uint64_t number);

}  // namespace megadp::host
