// SPDX-License-Identifier: Apache-2.0
#include "backend/notice.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace megadp {

void Notice::give() noexcept {
  if (state_.exchange(State::given) == State::taken) return;
  const uint64_t one = 1;
  // A full counter (EAGAIN) is readable already, which is all that was promised.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof one);
}

void Notice::take() noexcept {
  if (state_.exchange(State::taken) != State::given) return;
  // Given a moment before it is written. All ones are alike: another's may be taken meanwhile, whose place this one's then takes.
  uint64_t one;
  while (read(fd_, &one, sizeof one) != static_cast<ssize_t>(sizeof one)) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return;
    pollfd written{fd_, POLLIN, 0};
    poll(&written, 1, -1);
  }
}

}  // namespace megadp
