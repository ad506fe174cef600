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

struct Tree;

class Request {
 public:
  Request(std::shared_ptr<Tree> tree, std::shared_ptr<Event> event, std::function<Status()> complete = {})
      : tree_(std::move(tree)), event_(std::move(event)), complete_(std::move(complete)) {}

  // Code::pending, or how it ended. Any thread; as often as wanted.
  Status test() { return wait(Deadline::after_ns(0)); }
  Status wait(Deadline deadline);

 private:
  std::shared_ptr<Tree> tree_;
  std::shared_ptr<Event> event_;
  std::function<Status()> complete_;
  std::mutex mutex_;
  bool finished_ = false;
  Status outcome_;
};

}  // namespace megadp
