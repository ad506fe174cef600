// SPDX-License-Identifier: Apache-2.0
// Request: one pending operation. `complete` runs once, in the first test or wait that finds the event done, and its status is the
// request's; it is how an operation turns what it received into a status on the caller's thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "backend/stream.h"
#include "base/deadline.h"
#include "base/status.h"

namespace megadp {

struct Context;

class Request {
 public:
  // notifies: the event was recorded with the context's event descriptor.
  Request(std::shared_ptr<Context> context, std::shared_ptr<Event> event, bool notifies, std::function<Status()> complete = {})
      : context_(std::move(context)), event_(std::move(event)), complete_(std::move(complete)), notifies_(notifies) {}

  // Well or not, without asking how.
  bool has_ended() const noexcept { return event_->done(); }
  // Code::pending (also if the caller is interrupted), or how it ended. Any thread; as often as wanted.
  Status test() { return wait(Deadline::after_ns(0)); }
  Status wait(Deadline deadline);
  // However long it takes, or interruption().
  Status await();

  // True once, where it notifies: the notification is now the caller's to take off the descriptor (see Context::event_fd).
  bool claim_notification() noexcept { return notifies_.exchange(false); }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<Event> event_;
  std::function<Status()> complete_;
  std::mutex mutex_;
  bool finished_ = false;
  Status outcome_;
  std::atomic<bool> notifies_;
};

}  // namespace megadp
