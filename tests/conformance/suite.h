// SPDX-License-Identifier: Apache-2.0
// The conformance suite: cases that every backend must pass, written against backend/backend.h alone. conformance_test.cc lists the
// backends, with what each does not support and why.
#pragma once

#include <string>
#include <vector>

#include "ranks.h"

namespace megadp::test {

// Runs bodies and keeps what they found.
class Suite {
 public:
  explicit Suite(Setting setting) : setting_(std::move(setting)) {}

  // A backend's failures on `size` ranks, in this suite's setting or in a changed one.
  void run(int size, const std::function<void(Rank&)>& body) { run(setting_, size, body); }
  void run(const Setting& setting, int size, const std::function<void(Rank&)>& body);
  const Setting& setting() const { return setting_; }
  const Outcome& outcome() const { return outcome_; }
  // Runs of a rapidcheck property count as one check.
  void record(bool good, const std::string& what);

 private:
  Setting setting_;
  Outcome outcome_;
};

struct Case {
  const char* name;
  void (*run)(Suite& suite);
  bool needs_processes = false;
};

// One list per file *_cases.cc.
std::vector<Case> window_cases();
std::vector<Case> memory_cases();
std::vector<Case> random_cases();
std::vector<Case> group_cases();
std::vector<Case> order_cases();
std::vector<Case> failure_cases();
std::vector<Case> stream_cases();
std::vector<Case> kernel_cases();
std::vector<Case> lifetime_cases();
std::vector<Case> p2p_cases();
std::vector<Case> p2p_failure_cases();
std::vector<Case> uneven_cases();
std::vector<Case> exchange_cases();

// Rank counts that cases are tried with.
inline constexpr int kRankCounts[] = {1, 2, 3, 4, 5, 8};

// Waits for what was submitted so far and gives its outcome.
Status finish(Stream& stream);

// The same for a barrier, the group's operation 1, before a case that fails on purpose: another rank may have passed it and failed before
// this one has heard that it ended. The barrier itself is never the reason.
void finish_set_up(Rank& rank, Stream& stream);

}  // namespace megadp::test
