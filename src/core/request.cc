// SPDX-License-Identifier: Apache-2.0
#include "core/request.h"

#include "core/comm.h"

namespace megadp {

Status Request::wait(Deadline deadline) {
  const Status reached = event_->wait(deadline);
  if (reached.code() == Code::pending) return reached;
  std::lock_guard lock(mutex_);
  if (!finished_) {
    outcome_ = !reached.ok() ? reached : complete_ ? complete_() : Status();
    complete_ = {};
    finished_ = true;
  }
  return outcome_;
}

Status Request::await() {
  const Status ended = wait(Deadline::never());
  return ended.code() == Code::pending ? interruption() : ended;
}

}  // namespace megadp
