// SPDX-License-Identifier: Apache-2.0
// Staging: memory through which arrays of the host go to the device and back. It is kept for the next copy, since freeing memory waits for
// the whole device, and so for the ranks that a collective there waits for.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/memory.h"

namespace megadp::cuda {

class Staging {
  struct Pair {
    std::unique_ptr<CudaMemory> pinned, device;
  };

 public:
  static constexpr size_t kMostBytes = size_t{16} << 20;  // at a time

  Staging(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch) noexcept : gpu_(std::move(gpu)), watch_(std::move(watch)) {}

  // For one copy; from any thread, several at a time.
  class Loan {
   public:
    Loan(Loan&&) noexcept = default;
    Loan& operator=(Loan&&) = delete;
    ~Loan();
    void* pinned() const noexcept { return pair_->pinned->data(); }
    void* device() const noexcept { return pair_->device->data(); }

   private:
    friend Staging;
    Loan(Staging& from, std::unique_ptr<Pair> pair) noexcept : from_(&from), pair_(std::move(pair)) {}
    Staging* from_;
    std::unique_ptr<Pair> pair_;
  };
  Result<Loan> borrow(size_t bytes);

 private:
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Pair>> idle_;  // under mutex_
};

}  // namespace megadp::cuda
