// SPDX-License-Identifier: Apache-2.0
// Fd: an owned file descriptor.
#pragma once

#include "base/status.h"

namespace megadp {

class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
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

}  // namespace megadp
