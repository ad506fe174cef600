// SPDX-License-Identifier: Apache-2.0
#include "host/roll.h"

#include <algorithm>
#include <cstring>

namespace megadp::host {

// All sequentially consistent: of two ranks that enter the same number at the same time, at least one sees the other's entry.
void enter(RollPage& own, uint64_t number, const std::string& what) noexcept {
  RollPage::Entry& entry = own.entry[number % RollPage::kEntries];
  uint64_t words[RollPage::kWords] = {};
  std::memcpy(words, what.data(), std::min(what.size(), sizeof words - 1));
  entry.number.store(0);
  for (size_t i = 0; i < RollPage::kWords; ++i) entry.words[i].store(words[i]);
  entry.number.store(number);
  own.last.store(number);
}

Group::Entered read_entry(const RollPage& page, int member, uint64_t number) {
  Group::Entered found{member, page.last.load(), {}};
  const RollPage::Entry& entry = page.entry[number % RollPage::kEntries];
  if (entry.number.load() != number) return found;
  uint64_t words[RollPage::kWords];
  for (size_t i = 0; i < RollPage::kWords; ++i) words[i] = entry.words[i].load();
  if (entry.number.load() != number) return found;  // a later one came in between
  char text[sizeof words];
  std::memcpy(text, words, sizeof words);
  found.what = text;
  return found;
}

}  // namespace megadp::host
