// SPDX-License-Identifier: Apache-2.0
#include "backend/notice.h"

#include <unistd.h>

#include <cstdint>

namespace megadp {

void Notice::give() noexcept {
  State was = State::waiting;
  if (!state_.compare_exchange_strong(was, State::giving)) return;
  const uint64_t one = 1;
  // A full counter (EAGAIN) is readable already, which is all that was promised.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
  state_ = State::given;
  state_.notify_all();
}

void Notice::take() noexcept {
  // Whoever writes may have lost its processor in between.
  State was = State::waiting;
  while (!state_.compare_exchange_strong(was, State::taken)) {
    if (was == State::taken) return;
    if (was != State::giving) continue;
    state_.wait(State::giving);
    was = State::given;
  }
  if (was != State::given) return;
  uint64_t one;  // all ones are alike: whichever comes first
  [[maybe_unused]] const ssize_t taken = read(fd_, &one, sizeof one);
}

}  // namespace megadp
