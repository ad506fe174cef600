// SPDX-License-Identifier: Apache-2.0
// Completing an event and waiting for it.
#include "host/event.h"

#include <utility>

#include "base/deadline.h"
#include "control/interrupt.h"
#include "host/futex.h"

namespace megadp::host {

Status HostEvent::status() const {
  if (!done()) return {Code::pending, "the event has not been reached yet"};
  return status_;
}

Status HostEvent::wait(Deadline deadline) {
  if (done()) return status_;
  const ThreadPool::CallerIdle idle(pool_.get());
  return wait_in_stream(deadline);
}

Status HostEvent::wait_in_stream(Deadline deadline) {
  while (!done()) {
    const uint64_t left_ns = deadline.left_ns();
    if (left_ns == 0 || interrupted()) return {Code::pending, "the event was not reached before the wait ended"};
    // Counted first, then looked at by the kernel; complete() stores first, then looks at the count: one of the two sees the other.
    sleepers_.fetch_add(1);
    futex_wait(done_, 0, ask_by(deadline).left_ns(), FutexScope::process);
    sleepers_.fetch_sub(1);
  }
  return status_;
}

void HostEvent::complete(Status status) noexcept {
  status_ = std::move(status);
  time_ns_.store(now_ns(), std::memory_order_release);
  done_.store(1);
  if (sleepers_.load() != 0) futex_wake_all(done_, FutexScope::process);
  if (notice_) notice_->give();
}

}  // namespace megadp::host
