// SPDX-License-Identifier: Apache-2.0
// Sync: where the ranks of one node meet during a collective, in memory that all of them see.
//
//   first page of each rank's part of the control memory
//     0   Sleep     { wakes, sleepers }       only rank 0's is used; a cache line of its own, which is only read while nobody sleeps
//     128 Slot [2]  { phase, digest, data }   written by its owner only, by the parity of the phase: what the others wait for
//     384 Reason    { gone, number, Operation [2] }   likewise: what the owner came for, in full, to say what is wrong
//     …   messages                            its messages with other ranks, see messages.h
//     …   cpus                                on which processors the owner may run
//     …   submissions                         what the owner submitted elsewhere, see submissions.h
//
// Each rank counts its barriers ("phase"), and writes the count into a slot as it arrives; the barrier is complete when all slots are as
// far. So ranks that come at the same time take nothing from each other, and the slots say who is missing. There is one word to sleep on,
// so however many ranks there are, each sleeps at most once, and only the last to come wakes anyone.
//
// A slot also says what its owner came for, and holds a few bytes of data: whoever has waited for its cache line has all of them. Two slots
// and two copies of the operation are enough: an owner overwrites the slot of phase p as it comes to p + 2, which it does only after
// everyone came to p + 1, having read what there was to read at p; of the operations, by their numbers, it is the same.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "control/world.h"
#include "host/messages.h"
#include "host/operation.h"
#include "host/shared_memory.h"
#include "host/stream.h"
#include "host/submissions.h"

namespace megadp::host {

struct ControlPage {
  struct alignas(64) Sleep {
    std::atomic<uint32_t> wakes;  // so far; what the sleepers watch
    std::atomic<uint32_t> sleepers;
  } sleep;
  struct alignas(128) Slot {
    std::atomic<uint32_t> phase;
    std::atomic<uint64_t> digest;  // of the operation, at its first barrier
    std::byte data[112];
  } slots[2];
  struct alignas(64) Reason {
    std::atomic<uint32_t> gone;    // 1: the owner has destroyed its group or given up; it will not come again
    std::atomic<uint64_t> number;  // of the operation it last came for
    std::atomic<uint32_t> inside;  // 1: it has not ended yet
    Operation operation[2];
  } reason;
  MessagePage messages;
  uint64_t cpus[16];
  SubmissionPage submissions;
};
static_assert(sizeof(ControlPage) <= 4096);

// Phases are compared by their difference and may wrap around; they start so that every group does, soon.
constexpr uint32_t kFirstPhase = UINT32_MAX - 5;

// Of a collective's data, what a slot has room for.
constexpr size_t kSlotBytes = sizeof(ControlPage::Slot::data);

class Sync {
 public:
  // `control` holds a ControlPage at the start of every part. `members` are ranks in the world. prepare() of every rank comes before any
  // other call of any rank.
  Sync(std::shared_ptr<World> world, std::vector<int> members, std::shared_ptr<SharedMemory> control);

  static void prepare(SharedMemory& control) noexcept;

  // Of the slots that the next barrier is about, which hold their data until this rank comes to the one after it: the number.
  size_t next_slots() const noexcept { return (phase_ + 1) & 1; }
  std::byte* data_of(int rank, size_t slots) const noexcept { return page(rank).slots[slots].data; }
  // The first barrier of `operation` compares what all ranks came for. Failures blame a rank; the caller adds the operation.
  Status barrier(const Operation& operation, const Stop& stop);

  // What this rank came for is over.
  void end() noexcept { page(control_->rank()).reason.inside.store(0, std::memory_order_relaxed); }

  // Sends, receives, or both at once (the other NULL), between this rank and others of the node; `half->peer` is a rank among them. In
  // pipe.cc.
  Status exchange(MessageHalf* send, MessageHalf* recv, const Stop& stop, const Describe& during);
  // Until has_come(rank) is true for all of these ranks of the node, which ring when that may have changed. In pipe.cc, as it is the bell
  // that it waits for.
  Status await(const std::vector<int>& ranks, const std::function<bool(int)>& has_come, const Describe& during);
  void ring(int rank) const noexcept;
  // " and waits in recv of 5 f32 from rank 3": what that rank, of those of the node, is busy with, as far as it says.
  std::string doing(int rank) const;

  // See Group::log_submission.
  void log_submission(uint64_t number, const std::string& what) noexcept {
    const std::lock_guard lock(logging_);
    host::log_submission(page(control_->rank()).submissions, number, what);
  }
  std::vector<Group::Submission> submissions(uint64_t number) const;
  // See Group::say.
  void say(Group::Word which, uint64_t number, uint64_t word) noexcept {
    host::say(page(control_->rank()).submissions, page(0).submissions, which, number, word);
  }
  uint64_t hear(Group::Word which, uint64_t number, const std::function<bool()>& give_up) const;

  // Tells the others that this rank will not come again.
  void leave() noexcept;

 private:
  ControlPage& page(int rank) const noexcept { return *pages_[static_cast<size_t>(rank)]; }
  ControlPage::Slot& slot(int rank) const noexcept { return page(rank).slots[phase_ & 1]; }
  bool has_come(int rank) const noexcept { return static_cast<int32_t>(slot(rank).phase.load() - phase_) >= 0; }
  bool has_gone(int rank) const noexcept {
    return page(rank).reason.gone.load(std::memory_order_acquire) != 0 || world_->has_left(members_[static_cast<size_t>(rank)]);
  }
  // All ranks have come; those before *first are known to have.
  bool complete(int* first) const noexcept {
    while (*first < control_->size() && has_come(*first)) ++*first;
    return *first == control_->size();
  }
  Status arrive_and_wait(const Operation& operation, const Stop& stop);
  Status sleep(int first, const Operation& operation, const Stop& stop);
  void wake() const noexcept;
  Status look_around(const Operation& operation, const Stop& stop) const;
  void wait_for_own_end(int member, const Stop& stop) const;
  Status compare(const Operation& operation) const;
  Status push(MessageHalf* half, bool* moved);
  Status pull(MessageHalf* half, bool* moved);
  Status match(MessageHalf* half, const MessagePage::Notice& theirs) const;
  void announce(MessagePage::Notice* notice, const MessageHalf& half);
  bool listen(uint32_t heard, Deadline deadline) const noexcept;
  Status look_around(const MessageHalf* send, const MessageHalf* recv, const Stop& stop, const Describe& during) const;
  Status timed_out(const MessageHalf* send, const MessageHalf* recv, const Describe& during) const;
  Status timed_out(const Operation& operation) const;
  Status look_around(const std::vector<int>& missing, const Describe& during) const;
  Status timed_out(const std::vector<int>& missing, const Describe& during) const;
  std::vector<int> missing() const;
  uint64_t largest_word(Group::Word which, uint64_t number) const noexcept;

  const std::shared_ptr<World> world_;
  const std::vector<int> members_;
  const std::shared_ptr<SharedMemory> control_;
  std::vector<ControlPage*> pages_;  // in it, by rank
  std::mutex logging_;
  bool crowded_ = false;          // the ranks of this node outnumber its processors
  uint32_t phase_ = kFirstPhase;  // one more for each barrier this rank has come to
  uint64_t compared_ = 0;         // number of the last operation that was compared
};

}  // namespace megadp::host
