// SPDX-License-Identifier: Apache-2.0
#include "cuda/staging.h"

#include <algorithm>
#include <bit>
#include <new>

namespace megadp::cuda {

// One that is too small gives way to a larger one: there are as many as copies at a time, and each has seen the largest of its arrays.
Result<Staging::Loan> Staging::borrow(size_t bytes) {
  std::unique_ptr<Pair> pair;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      pair = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (pair == nullptr || pair->pinned->bytes() < bytes) {
    constexpr size_t kLeastBytes = size_t{64} << 10;
    const size_t room = std::bit_ceil(std::max(bytes, kLeastBytes));
    pair = std::make_unique<Pair>();
    auto pinned = CudaMemory::allocate(gpu_, watch_, CudaMemory::Kind::pinned, room);
    if (!pinned) return pinned.status().with_context("staging an array");
    auto device = CudaMemory::allocate(gpu_, watch_, CudaMemory::Kind::device, room);
    if (!device) return device.status().with_context("staging an array");
    pair->pinned = *std::move(pinned);
    pair->device = *std::move(device);
  }
  return Loan(*this, std::move(pair));
}

Staging::Loan::~Loan() {
  if (pair_ == nullptr) return;
  try {
    const std::lock_guard lock(from_->mutex_);
    from_->idle_.push_back(std::move(pair_));
  } catch (const std::bad_alloc&) {  // then the watch frees it
  }
}

}  // namespace megadp::cuda
