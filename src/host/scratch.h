// SPDX-License-Identifier: Apache-2.0
// ScratchPool: memory for the time of a call, kept for the next one: as much as the calls that were ever under way at once have needed.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "host/memory.h"

namespace megadp::host {

class ScratchPool {
 public:
  // Memory that goes back to the pool, whose life is longer.
  class Scratch {
   public:
    Scratch(ScratchPool* pool, Mapping mapping) noexcept : pool_(pool), mapping_(std::move(mapping)) {}
    Scratch(Scratch&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), mapping_(std::move(other.mapping_)) {}
    Scratch& operator=(Scratch&&) = delete;
    ~Scratch() {
      if (pool_ != nullptr) pool_->give_back(std::move(mapping_));
    }
    void* data() noexcept { return mapping_.data(); }

   private:
    ScratchPool* pool_;
    Mapping mapping_;
  };

  // Not zeroed, aligned to a page.
  Result<Scratch> take(size_t bytes) {
    {
      std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        Mapping last = std::move(free_.back());
        free_.pop_back();
        if (last.bytes() >= bytes) return Scratch(this, std::move(last));
      }
    }
    auto pages = whole_pages(bytes > 0 ? bytes : 1, "scratch memory of a matrix product");
    if (!pages.ok()) return pages.status();
    auto mapping = Mapping::create(*pages, -1, "scratch memory of a matrix product");
    if (!mapping.ok()) return mapping.status();
    return Scratch(this, *std::move(mapping));
  }

 private:
  void give_back(Mapping mapping) {
    std::lock_guard lock(mutex_);
    free_.push_back(std::move(mapping));
  }

  std::mutex mutex_;
  std::vector<Mapping> free_;
};

}  // namespace megadp::host
