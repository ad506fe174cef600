// SPDX-License-Identifier: Apache-2.0
#include "backend/notice.h"

#include <unistd.h>

#include <cstdint>
#include <thread>

#include "base/deadline.h"

namespace megadp {
namespace {

constexpr uint64_t kPatienceNs = 20'000'000;

}  // namespace

void Notice::give() noexcept {
  State was = State::waiting;
  if (!state_.compare_exchange_strong(was, State::giving)) return;
  const uint64_t one = 1;
  // A full counter (EAGAIN) is readable already, which is all that was promised.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
  was = State::giving;
  if (!state_.compare_exchange_strong(was, State::given)) take_off();
}

void Notice::take() noexcept {
  // So that the descriptor is not readable for a moment longer than there is something to find.
  for (const Deadline end = Deadline::after_ns(kPatienceNs); state_ == State::giving && !end.passed();) std::this_thread::yield();
  if (state_.exchange(State::taken) == State::given) take_off();
}

// All ones are alike: whichever comes first.
void Notice::take_off() noexcept {
  uint64_t one;
  [[maybe_unused]] const ssize_t taken = read(fd_, &one, sizeof one);
}

}  // namespace megadp
