// SPDX-License-Identifier: Apache-2.0
// The handle inside every object of the shim. close() and a garbage collector's finalizer may come while another thread is inside a call:
// that call keeps its own reference, and the handle is destroyed, which is a local affair, when the last one is gone.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "failure.h"

namespace megadp {

// How many operations were begun on a communicator and on what is made on it, a grid's groups among them. The parts of a split have counts
// of their own: another thread may use them.
using Operations = std::atomic<unsigned long long>;

template <class T>
class Handle {
 public:
  Handle(const char* kind, T* pointer, void (*destroy)(T*), std::shared_ptr<Operations> operations = nullptr)
      : kind_(kind), operations_(std::move(operations)), pointer_(pointer, destroy) {}

  // For one call. Empty, and STATE, after close().
  std::shared_ptr<T> use(Failure& failure) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!pointer_) failure.refuse(MDP_E_STATE, "this %s is closed", kind_);
    return pointer_;
  }

  // The same for a call that begins an operation; for handles of communicators and of what is made on them.
  std::shared_ptr<T> use_collectively(Failure& failure) const {
    ++*operations_;
    return use(failure);
  }
  const std::shared_ptr<Operations>& operations() const { return operations_; }

  void close() {
    std::shared_ptr<T> dropped;  // destroyed outside of the lock
    std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(pointer_);
  }

  bool closed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return !pointer_;
  }

 private:
  const char* const kind_;
  const std::shared_ptr<Operations> operations_;
  mutable std::mutex mutex_;
  std::shared_ptr<T> pointer_;
};

}  // namespace megadp
