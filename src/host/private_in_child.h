// SPDX-License-Identifier: Apache-2.0
// PrivateInChild: while it lives, a forked child has a mapping of shared memory as a private one, at the same address: it reads what its
// parent has there, and what it writes is its own. So a child that changes a parameter (a data loader, a model to evaluate) does not
// change the parent's, as it would not if this were ordinary memory.
#pragma once

#include <cstddef>

#include "base/fd.h"
#include "control/in_child.h"

namespace megadp::host {

class PrivateInChild {
 public:
  // Of a mapping of the first bytes of `fd`.
  PrivateInChild(void* data, size_t bytes, Fd fd);

 private:
  void make_private() noexcept;

  void* data_;
  const size_t bytes_;
  const Fd fd_;
  const InChild in_child_;
};

}  // namespace megadp::host
