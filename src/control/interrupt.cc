// SPDX-License-Identifier: Apache-2.0
#include "control/interrupt.h"

#include "control/world.h"

namespace megadp {
namespace {

constexpr uint64_t kAskEveryNs = 50'000'000;

// A plain pointer without a destructor: finalizers may still call the library while their thread is being torn down.
thread_local CallInWait* current = nullptr;

}  // namespace

CallInWait::CallInWait(const char* name) noexcept : name_(name), outer_(current) {
  current = this;
}

CallInWait::~CallInWait() {
  give_back();
  current = outer_;
}

void CallInWait::give_back() noexcept {
  while (taken_ != nullptr) {
    OneCall* const last = taken_;
    taken_ = last->next_;
    last->give_back();
  }
}

CallInWait* CallInWait::here() noexcept {
  return current;
}

void ask_while_waiting(const Interrupt& by, int rank, World* lost) noexcept {
  CallInWait* const call = current;
  if (call == nullptr || by.asked == nullptr) return;
  if (call->by_.asked == nullptr) call->ask_at_ns_ = Deadline::after_ns(kAskEveryNs).at_ns();
  call->by_ = by;
  call->rank_ = rank;
  call->lost_ = lost;
}

Deadline ask_by(Deadline deadline) noexcept {
  const CallInWait* const call = current;
  return call == nullptr ? deadline : Deadline::earlier(deadline, call->ask_at_ns_);
}

bool interrupted() {
  CallInWait* const call = current;
  if (call == nullptr || call->ask_at_ns_ == UINT64_MAX) return false;
  if (call->ended_) return true;
  if (now_ns() < call->ask_at_ns_) return false;
  current = nullptr;  // what the function calls is no part of this call
  const int32_t answer = call->by_.asked(call->by_.context);
  current = call;
  call->ask_at_ns_ = Deadline::after_ns(kAskEveryNs).at_ns();
  if (answer == 0) return false;
  if (call->lost_ == nullptr) {
    call->ask_at_ns_ = 0;
    call->ended_ = true;
    return true;
  }
  call->ask_at_ns_ = UINT64_MAX;
  call->lost_->fail(interruption());
  return false;
}

Status interruption() {
  const CallInWait* const call = current;
  if (call == nullptr) return {Code::aborted, "a call was interrupted"};
  return {Code::aborted, text(call->name_, " was interrupted on rank ", call->rank_), Blame{.rank = call->rank_}};
}

Uninterrupted::Uninterrupted() noexcept : call_(current) {
  current = nullptr;
}

Uninterrupted::~Uninterrupted() {
  current = call_;
}

}  // namespace megadp
