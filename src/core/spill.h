// SPDX-License-Identifier: Apache-2.0
// Spill: private memory for gradients that come while the slot of their bucket is another bucket's (ZeRO-2). Steps are alike, so a piece
// that was given back is kept for the next gradient of the same size; never more than the most that was in use at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "backend/backend.h"

namespace megadp {

class Spill {
 public:
  // limit: in bytes; 0: none.
  Spill(Backend& backend, uint64_t limit);

  // Memory of so many bytes, which comes back when its last reference goes, from any thread. What it holds is unspecified.
  // Code::memory beyond the limit. Not at the same time as leave().
  Result<std::shared_ptr<Memory>> take(size_t bytes);
  // Gives the reference up once `passed` is done: the next take() sees it, however late a stream drops what it retains. False, and
  // nothing happens, if there is no memory for that.
  bool leave(std::shared_ptr<Memory>& memory, const std::shared_ptr<Event>& passed) noexcept;
  struct Left {
    std::shared_ptr<Event> passed;
    std::shared_ptr<Memory> memory;
  };
  std::deque<Left>& left() noexcept { return left_; }  // what may still be read, oldest first
  uint64_t peak() const;                               // the most bytes in use at a time

 private:
  struct Store;
  Backend& backend_;
  const uint64_t limit_;
  const std::shared_ptr<Store> store_;  // outlived by what was taken
  std::deque<Left> left_;
};

}  // namespace megadp
