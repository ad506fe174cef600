// SPDX-License-Identifier: Apache-2.0
// Request: one pending operation. `complete` runs once, in the first test or wait that finds the event done, and its status is the
// request's; it is how an operation turns what it received into a status on the caller's thread.
#pragma once

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
  // notice: with which the event was recorded; may be null.
  Request(std::shared_ptr<Context> context, std::shared_ptr<Event> event, std::shared_ptr<Notice> notice,
          std::function<Status()> complete = {})
      : context_(std::move(context)), event_(std::move(event)), notice_(std::move(notice)), complete_(std::move(complete)) {}

  // Well or not, without asking how.
  bool has_ended() const noexcept { return event_->done(); }
  // Code::pending (also if the caller is interrupted), or how it ended. Any thread; as often as wanted.
  Status test() { return wait(Deadline::after_ns(0)); }
  Status wait(Deadline deadline);
  // However long it takes, or interruption().
  Status await();

  // No event loop need be told of its end any more.
  void take_notice() noexcept {
    if (notice_) notice_->take();
  }

 private:
  std::shared_ptr<Context> context_;
  std::shared_ptr<Event> event_;
  std::shared_ptr<Notice> notice_;
  std::function<Status()> complete_;
  std::mutex mutex_;
  bool finished_ = false;
  Status outcome_;
};

}  // namespace megadp
