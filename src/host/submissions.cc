// SPDX-License-Identifier: Apache-2.0
#include "host/submissions.h"

#include <algorithm>
#include <cstring>

#include "host/futex.h"

namespace megadp::host {
namespace {

// Messages of several kinds that have the same number among theirs lie apart.
size_t place_of(uint64_t number) {
  return (number + number / Group::kMessageNumbers) % SubmissionPage::kEntries;
}

}  // namespace

// All sequentially consistent: of two ranks that log the same number at the same time, at least one sees the other's entry.
void log_submission(SubmissionPage& own, uint64_t number, const std::string& what) noexcept {
  SubmissionPage::Entry& entry = own.entry[place_of(number)];
  uint64_t words[SubmissionPage::kWords] = {};
  std::memcpy(words, what.data(), std::min(what.size(), sizeof words - 1));
  entry.number.store(0);
  for (size_t i = 0; i < SubmissionPage::kWords; ++i) entry.words[i].store(words[i]);
  entry.number.store(number);
  if (number < Group::kMessageNumbers) own.last.store(number);
}

Group::Submission read_submission(const SubmissionPage& page, int member, uint64_t number) {
  Group::Submission found{member, page.last.load(), {}};
  const SubmissionPage::Entry& entry = page.entry[place_of(number)];
  if (entry.number.load() != number) return found;
  uint64_t words[SubmissionPage::kWords];
  for (size_t i = 0; i < SubmissionPage::kWords; ++i) words[i] = entry.words[i].load();
  if (entry.number.load() != number) return found;  // a later one came in between
  char text[sizeof words];
  std::memcpy(text, words, sizeof words);
  found.what = text;
  return found;
}

// A listener counts itself before it looks at `words` for the last time: either it sees that there are more, or it is seen here.
void say(SubmissionPage& own, SubmissionPage& first, Group::Word which, uint64_t number, uint64_t word) noexcept {
  SubmissionPage::Said& said = own.said[static_cast<size_t>(which)];
  said.word.store(word);
  said.number.store(number);
  first.words.fetch_add(1);
  if (first.listeners.load() != 0) futex_wake_all(first.words, FutexScope::shared);
}

uint64_t heard(const SubmissionPage& page, Group::Word which, uint64_t number) noexcept {
  const SubmissionPage::Said& said = page.said[static_cast<size_t>(which)];
  return said.number.load() == number ? said.word.load() : 0;
}

}  // namespace megadp::host
