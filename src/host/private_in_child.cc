// SPDX-License-Identifier: Apache-2.0
#include "host/private_in_child.h"

#include <pthread.h>
#include <sys/mman.h>

#include <mutex>
#include <utility>

namespace megadp::host {

// A list without memory of its own: a child of fork() may allocate none.
struct PrivateInChild::All {
  std::mutex mutex;
  PrivateInChild* first = nullptr;
};

// Never destroyed: a process may fork while it is exiting.
PrivateInChild::All& PrivateInChild::all() {
  static All* const made = [] {
    auto* const created = new All;
    ::pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                     [] {
                       for (PrivateInChild* each = all().first; each != nullptr; each = each->after_) each->make_private();
                       all().mutex.unlock();
                     });
    return created;
  }();
  return *made;
}

PrivateInChild::PrivateInChild(void* data, size_t bytes, Fd fd) : data_(data), bytes_(bytes), fd_(std::move(fd)) {
  All& others = all();
  const std::lock_guard lock(others.mutex);
  after_ = others.first;
  if (after_ != nullptr) after_->before_ = this;
  others.first = this;
}

PrivateInChild::~PrivateInChild() {
  All& others = all();
  const std::lock_guard lock(others.mutex);
  (before_ != nullptr ? before_->after_ : others.first) = after_;
  if (after_ != nullptr) after_->before_ = before_;
}

// Once: a child of that child has what it has written. Where that is not possible a store ends the child, rather than reach its parent.
void PrivateInChild::make_private() noexcept {
  if (data_ == nullptr) return;
  if (::mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd_.get(), 0) == MAP_FAILED) ::munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace megadp::host
