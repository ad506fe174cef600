// SPDX-License-Identifier: Apache-2.0
// What the ranks of one node have said they submitted to a group whose collectives run elsewhere (see Group::log_submission).
//
//   each rank's ControlPage:   entry[by number] { number, 0 while it is being written | text }      written by its owner only
//                              said[kind of word] { number | word }                                        likewise
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
  struct alignas(64) Said {  // see Group::say
    std::atomic<uint64_t> number;
    std::atomic<uint64_t> word;
  } said[3];
  std::atomic<uint32_t> words;      // said so far by all ranks; only the first rank's is used
  std::atomic<uint32_t> listeners;  // who sleep until there are more; likewise
};

// One thread at a time.
void log_submission(SubmissionPage& own, uint64_t number, const std::string& what) noexcept;
// Of the rank that owns the page.
Group::Submission read_submission(const SubmissionPage& page, int member, uint64_t number);

void say(SubmissionPage& own, SubmissionPage& first, Group::Word which, uint64_t number, uint64_t word) noexcept;
// 0: the owner of the page has not said it yet.
uint64_t heard(const SubmissionPage& page, Group::Word which, uint64_t number) noexcept;

}  // namespace megadp::host
