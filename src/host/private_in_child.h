// SPDX-License-Identifier: Apache-2.0
// PrivateInChild: while it lives, a forked child has a mapping of shared memory as a private one, at the same address: it reads what its
// parent has there, and what it writes is its own. So a child that changes a parameter (a data loader, a model to evaluate) does not
// change the parent's, as it would not if this were ordinary memory.
#pragma once

#include <cstddef>

#include "base/fd.h"

namespace megadp::host {

class PrivateInChild {
 public:
  // Of a mapping of the first bytes of `fd`.
  PrivateInChild(void* data, size_t bytes, Fd fd);
  ~PrivateInChild();
  PrivateInChild(const PrivateInChild&) = delete;
  PrivateInChild& operator=(const PrivateInChild&) = delete;

 private:
  struct All;
  static All& all();
  void make_private() noexcept;

  void* data_;
  const size_t bytes_;
  const Fd fd_;
  PrivateInChild *before_ = nullptr, *after_ = nullptr;  // in the list of all
};

}  // namespace megadp::host
