// SPDX-License-Identifier: Apache-2.0
#include "control/net/not_in_child.h"

#include <pthread.h>

#include <mutex>
#include <utility>

namespace megadp {

// A list without memory of its own: a child of fork() may free none.
struct NotInChild::All {
  std::mutex mutex;
  NotInChild* first = nullptr;
};

// Never destroyed: a process may fork while it is exiting.
NotInChild::All& NotInChild::all() {
  static All* const made = [] {
    auto* const created = new All;
    ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                     [] {
                       for (NotInChild* each = all().first; each != nullptr; each = each->after_) each->fd_ = Fd();
                       all().mutex.unlock();
                     });
    return created;
  }();
  return *made;
}

NotInChild::NotInChild(Fd fd) : fd_(std::move(fd)) {
  All& others = all();
  const std::lock_guard lock(others.mutex);
  after_ = others.first;
  if (after_ != nullptr) after_->before_ = this;
  others.first = this;
}

NotInChild::~NotInChild() {
  All& others = all();
  const std::lock_guard lock(others.mutex);
  (before_ != nullptr ? before_->after_ : others.first) = after_;
  if (after_ != nullptr) after_->before_ = before_;
  fd_ = Fd();  // before a child could
}

Fd NotInChild::take() noexcept {
  const std::lock_guard lock(all().mutex);
  return std::move(fd_);
}

}  // namespace megadp
