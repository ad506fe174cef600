// SPDX-License-Identifier: Apache-2.0
#include "control/in_child.h"

#include <pthread.h>

namespace megadp {

// A list without memory of its own: a child of fork() may allocate none.
struct InChild::All {
  std::mutex mutex;
  InChild* first = nullptr;
};

// Never destroyed: a process may fork while it is exiting.
InChild::All& InChild::all() {
  static All* const made = [] {
    auto* const created = new All;
    ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                     [] {
                       for (const InChild* each = all().first; each != nullptr; each = each->after_) each->act_(each->of_);
                       all().mutex.unlock();
                     });
    return created;
  }();
  return *made;
}

std::unique_lock<std::mutex> InChild::no_fork() {
  return std::unique_lock(all().mutex);
}

InChild::InChild(void (*act)(void* of) noexcept, void* of) : act_(act), of_(of) {
  const auto lock = no_fork();
  InChild*& first = all().first;
  after_ = first;
  if (after_ != nullptr) after_->before_ = this;
  first = this;
}

InChild::~InChild() {
  const auto lock = no_fork();
  (before_ != nullptr ? before_->after_ : all().first) = after_;
  if (after_ != nullptr) after_->before_ = before_;
}

}  // namespace megadp
