// SPDX-License-Identifier: Apache-2.0
// What the ranks of one node have said they submitted to a group whose collectives run elsewhere (see Group::log_submission).
//
//   each rank's ControlPage:   entry[number % kEntries] { number, 0 while it is being written | text }      written by its owner only
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/group.h"
#include "host/shared_memory.h"

namespace megadp::host {

struct SubmissionPage {
  static constexpr size_t kEntries = 16, kWords = 15;
  struct alignas(64) Entry {
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> words[kWords];  // words, because another rank may read while this one writes
  };
  std::atomic<uint64_t> last;
  Entry entry[kEntries];
};

void log_submission(SubmissionPage& own, uint64_t number, const std::string& what) noexcept;
// Of the rank that owns the page.
Group::Submission read_submission(const SubmissionPage& page, int member, uint64_t number);

}  // namespace megadp::host
