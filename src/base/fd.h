// SPDX-License-Identifier: Apache-2.0
// Fd: an owned file descriptor, never 0, 1 or 2: where those are closed, what a program prints goes to whoever has their numbers then.
#pragma once

#include "base/status.h"

namespace megadp {

class Fd {
 public:
  Fd() noexcept = default;
  // Owns fd, or in the place of 0, 1 or 2 a duplicate. Not valid, with errno, if fd is not, or there is no room for that.
  explicit Fd(int fd) noexcept;
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();
  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }
  int release() noexcept {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_ = -1;
};

// The same descriptor once more, close-on-exec.
Result<Fd> duplicate(const Fd& fd);

// System, with the limit, if this process cannot open so many more.
Status check_descriptors(size_t count);

// Takes those of 0, 1 and 2 that are closed, and keeps them: for libraries that open descriptors of their own, with any number.
void occupy_standard_descriptors() noexcept;

}  // namespace megadp
