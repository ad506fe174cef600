// SPDX-License-Identifier: Apache-2.0
// Arriving, waiting, and saying who is missing.
#include "host/sync.h"

#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/deadline.h"
#include "control/interrupt.h"
#include "host/futex.h"
#include "host/short_wait.h"

namespace megadp::host {
namespace {

// Whether every rank of the node that shares these processors can have one of its own. Ranks that are bound to different processors (as
// launchers do) are seen by the union of their masks; unbound ones compete with all other ranks of the node as well.
bool enough_cpus(const World& world, const std::vector<int>& members, const std::vector<ControlPage*>& pages) {
  constexpr size_t kWords = sizeof(ControlPage::cpus) / sizeof(uint64_t);
  uint64_t all[kWords] = {};
  bool equal = true;
  for (const ControlPage* page : pages) {
    for (size_t i = 0; i < kWords; ++i) all[i] |= page->cpus[i];
    equal = equal && std::memcmp(page->cpus, pages[0]->cpus, sizeof all) == 0;
  }
  size_t cpus = 0;
  for (const uint64_t word : all) cpus += static_cast<size_t>(std::popcount(word));
  size_t ranks = members.size();
  if (equal) {
    ranks = 0;
    for (int rank = 0; rank < world.size(); ++rank) ranks += world.node(rank) == world.node(world.rank()) ? 1 : 0;
  }
  return ranks <= cpus;
}

}  // namespace

void Sync::prepare(SharedMemory& control) noexcept {
  auto* const page = reinterpret_cast<ControlPage*>(control.own());
  for (ControlPage::Slot& slot : page->slots) slot.phase.store(kFirstPhase, std::memory_order_relaxed);
  uint64_t* const cpus = page->cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  static_assert(sizeof(cpu_set_t) == sizeof(ControlPage::cpus));
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    std::memcpy(cpus, &set, sizeof set);
    return;
  }
  // More processors than the set can name: all that it can name is more than enough.
  std::memset(cpus, 0xff, sizeof set);
}

Sync::Sync(std::shared_ptr<World> world, std::vector<int> members, std::shared_ptr<SharedMemory> control)
    : world_(std::move(world)), members_(std::move(members)), control_(std::move(control)) {
  for (int rank = 0; rank < control_->size(); ++rank) pages_.push_back(reinterpret_cast<ControlPage*>(control_->of(rank)));
  crowded_ = !enough_cpus(*world_, members_, pages_);
}

Status Sync::barrier(const Operation& operation, const Stop& stop) {
  if (operation.number == compared_) return arrive_and_wait(operation, stop);
  ControlPage& own = page(control_->rank());
  own.reason.operation[operation.number & 1] = operation;
  own.reason.number.store(operation.number, std::memory_order_relaxed);
  own.reason.inside.store(1, std::memory_order_relaxed);
  own.slots[next_slots()].digest.store(digest_of(operation), std::memory_order_relaxed);
  Status met = arrive_and_wait(operation, stop);
  if (!met.ok()) return met;
  compared_ = operation.number;
  return compare(operation);
}

Status Sync::arrive_and_wait(const Operation& operation, const Stop& stop) {
  phase_ += 1;
  // Sequentially consistent, as are the count of sleepers and what has_come() looks at: either the last rank to come sees the sleeper, or
  // the sleeper sees that all have come.
  slot(control_->rank()).phase.store(phase_);
  int first = 0;
  if (page(0).sleep.sleepers.load() != 0 && complete(&first)) wake();
  for (ShortWait wait(crowded_); wait.goes_on();) {
    if (complete(&first)) return {};
  }
  return sleep(first, operation, stop);
}

void Sync::wake() const noexcept {
  page(0).sleep.wakes.fetch_add(1);
  futex_wake_all(page(0).sleep.wakes, FutexScope::shared);
}

Status Sync::sleep(int first, const Operation& operation, const Stop& stop) {
  ControlPage::Sleep& word = page(0).sleep;
  const Deadline deadline = Deadline::after_ns(world_->timeout_ns() + std::min(kVerdictNs, UINT64_MAX - world_->timeout_ns()));
  for (;;) {
    word.sleepers.fetch_add(1);
    const uint32_t seen = word.wakes.load();
    const bool done = complete(&first);
    const uint64_t left_ns = ask_by(deadline).left_ns();
    if (!done) futex_wait(word.wakes, seen, std::min(kWaitSliceNs, left_ns), FutexScope::shared);
    word.sleepers.fetch_sub(1);
    if (done || complete(&first)) return {};
    (void)interrupted();  // on a caller's thread: then the World fails
    Status around = look_around(operation, stop);
    if (!around.ok()) return complete(&first) ? Status() : around;  // the last may have come in between, and then left
    if (deadline.passed()) return timed_out(operation);
  }
}

// Mostly both ranks give up the operation, one a little later than the other: that is nobody's fault.
void Sync::wait_for_own_end(int member, const Stop& stop) const {
  const Deadline patience = Deadline::after_ns(kVerdictNs);
  while (!stop.requested() && !world_->failed() && !world_->has_left(member) && !patience.passed()) poll(nullptr, 0, 10);
}

Status Sync::look_around(const Operation& operation, const Stop& stop) const {
  if (world_->failed()) return world_->failure();
  const auto dropped = [&] { return Status(Code::aborted, text(describe(operation), ": its stream was destroyed")); };
  for (int rank = 0; rank < control_->size(); ++rank) {
    const int member = members_[static_cast<size_t>(rank)];
    if (!has_gone(rank)) continue;  // asked before its phase, which it may have moved just before it left
    if (has_come(rank)) continue;
    wait_for_own_end(member, stop);
    if (world_->failed()) continue;  // it failed and then left: its failure is looked at above, the next time round
    if (stop.requested()) return dropped();
    return {Code::peer, text(describe(operation), ": rank ", member, " has left and will not take part"), Blame{.rank = member}};
  }
  return stop.passed() ? dropped() : Status();
}

std::vector<int> Sync::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < control_->size(); ++rank) {
    if (!has_come(rank)) ranks.push_back(rank);
  }
  return ranks;
}

Status Sync::timed_out(const Operation& operation) const {
  const std::vector<int> ranks = missing();
  if (ranks.empty()) return {};  // the last came as the time ran out
  std::string sentence = text(describe(operation), ": waited ", static_cast<double>(world_->timeout_ns()) / 1e9, " s for ",
                              ranks.size() == 1 ? "a rank that did not come" : "ranks that did not come");
  for (const int rank : ranks) {
    const int member = members_[static_cast<size_t>(rank)];
    sentence += text("; ", world_->describe(member), ", and came to operation ", page(rank).reason.number.load(std::memory_order_relaxed),
                     " of the group", doing(rank));
  }
  return {Code::timeout, std::move(sentence), Blame{.rank = members_[static_cast<size_t>(ranks.front())]}};
}

Status Sync::compare(const Operation& operation) const {
  const uint64_t digest = slot(0).digest.load(std::memory_order_relaxed), parity = operation.number & 1;
  for (int rank = 1; rank < control_->size(); ++rank) {
    if (slot(rank).digest.load(std::memory_order_relaxed) == digest) continue;
    const Operation &first = page(0).reason.operation[parity], &other = page(rank).reason.operation[parity];
    const int member = members_[static_cast<size_t>(rank)];
    return {Code::desync,
            text("ranks ", members_[0], " and ", member, " called different operations: ", describe(first), " and ", describe(other)),
            Blame{.rank = member}};
  }
  return {};
}

std::vector<Group::Submission> Sync::submissions(uint64_t number) const {
  std::vector<Group::Submission> all;
  for (int rank = 0; rank < control_->size(); ++rank) {
    all.push_back(read_submission(page(rank).submissions, members_[static_cast<size_t>(rank)], number));
  }
  return all;
}

// 0 until all have said theirs.
uint64_t Sync::largest_word(Group::Word which, uint64_t number) const noexcept {
  uint64_t largest = 0;
  for (int rank = 0; rank < control_->size(); ++rank) {
    const uint64_t word = heard(page(rank).submissions, which, number);
    if (word == 0) return 0;
    largest = std::max(largest, word);
  }
  return largest;
}

uint64_t Sync::hear(Group::Word which, uint64_t number, const std::function<bool()>& give_up) const {
  SubmissionPage& first = page(0).submissions;
  for (ShortWait wait(crowded_);;) {
    if (const uint64_t largest = largest_word(which, number); largest != 0) return largest;
    if (give_up()) return 0;
    if (wait.goes_on()) continue;
    first.listeners.fetch_add(1);
    const uint32_t seen = first.words.load();
    if (largest_word(which, number) == 0) futex_wait(first.words, seen, kWaitSliceNs, FutexScope::shared);
    first.listeners.fetch_sub(1);
  }
}

void Sync::leave() noexcept {
  // After a failure (an abort, say) the World tells the others why; this mark would overtake it.
  if (!world_->failed()) page(control_->rank()).reason.gone.store(1, std::memory_order_release);
  wake();
}

}  // namespace megadp::host
