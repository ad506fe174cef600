// SPDX-License-Identifier: Apache-2.0
// Notice: tells an event loop that an operation has ended. Its one is in an eventfd with EFD_SEMAPHORE from the end of the operation until
// somebody has seen that end; what is seen, or given up, before has none.
#pragma once

#include <atomic>

namespace megadp {

class Notice {
 public:
  // fd: not blocking, and open as long as the notice is.
  explicit Notice(int fd) noexcept : fd_(fd) {}

  // The operation has ended. Once, by whoever did it; never blocks.
  void give() noexcept;
  // The end was seen, or is of no interest any more. Any thread, as often as wanted; waits while its one is being written, so that
  // when the first of these calls returns the descriptor is not readable by it.
  void take() noexcept;

 private:
  enum class State {
    waiting,
    giving,
    given,
    taken
  };
  const int fd_;
  std::atomic<State> state_{State::waiting};
};

}  // namespace megadp
