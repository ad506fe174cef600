// SPDX-License-Identifier: Apache-2.0
// The handle inside every object of the shim. close() and a garbage collector's finalizer may come while another thread is inside a call:
// that call keeps its own reference, and the handle is destroyed, which is a local affair, when the last one is gone.
#pragma once

#include <memory>
#include <mutex>

#include "failure.h"

namespace megadp {

template <class T>
class Handle {
 public:
  Handle(const char* kind, T* pointer, void (*destroy)(T*)) : kind_(kind), pointer_(pointer, destroy) {}

  // For one call. Empty, and STATE, after close().
  std::shared_ptr<T> use(Failure& failure) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!pointer_) failure.refuse(MDP_E_STATE, "this %s is closed", kind_);
    return pointer_;
  }

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
  mutable std::mutex mutex_;
  std::shared_ptr<T> pointer_;
};

}  // namespace megadp
