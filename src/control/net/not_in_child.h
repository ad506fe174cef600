// SPDX-License-Identifier: Apache-2.0
// NotInChild: a descriptor that a forked child gives up. As long as a child has a connection open too, nobody at its other end learns that
// the parent has died.
#pragma once

#include "base/fd.h"

namespace megadp {

class NotInChild {
 public:
  explicit NotInChild(Fd fd);
  ~NotInChild();
  NotInChild(const NotInChild&) = delete;
  NotInChild& operator=(const NotInChild&) = delete;

  int get() const noexcept { return fd_.get(); }
  Fd take() noexcept;  // children have what it becomes

 private:
  struct All;
  static All& all();

  Fd fd_;
  NotInChild *before_ = nullptr, *after_ = nullptr;
};

}  // namespace megadp
