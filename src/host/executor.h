// SPDX-License-Identifier: Apache-2.0
// Executor: what a kernel works with: instructions that this machine has, and a pool of threads, if there is one.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/checked.h"
#include "base/math.h"
#include "host/simd.h"
#include "host/thread_pool.h"

namespace megadp::host {

// A small object to hand around: what it names is somebody else's.
class Executor {
 public:
  // What this machine runs best, on the calling thread.
  Executor() noexcept : Executor(best_kernels()) {}
  Executor(const Kernels& kernels, ThreadPool* pool = nullptr) noexcept : kernels_(&kernels), pool_(pool) {}
  Executor(ThreadPool& pool) noexcept : Executor(best_kernels(), &pool) {}

  const Kernels& kernels() const noexcept { return *kernels_; }
  int threads() const noexcept { return pool_ != nullptr ? pool_->threads() : 1; }
  // ThreadPool::split() of `count` elements, for each of which so many bytes are read and written, in multiples of `unit`.
  template <class Fn>
  void split(size_t count, size_t bytes, const Fn& fn, size_t unit = kSquareBlock) const {
    if (pool_ == nullptr) return fn(size_t{0}, count);
    pool_->split(count, round_up(std::max<size_t>(pool_->piece_bytes() / bytes, 1), unit), fn);
  }

 private:
  const Kernels* kernels_;
  ThreadPool* pool_;
};

}  // namespace megadp::host
