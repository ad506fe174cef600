// SPDX-License-Identifier: Apache-2.0
// AtWork: while one lives, a thread of the library's own is at work on a device. As the process exits, CUDA and NCCL tear themselves down,
// and a call that is under way then crashes the process. So the exit waits a moment for those at work, and no other one begins.
#pragma once

namespace megadp::cuda {

// What brings libraries into the process, the first time. They are torn down at the exit in the reverse order.
enum class Loaded {
  nccl,
  communicator,
  several_ranks,
  products
};

class AtWork {
 public:
  AtWork();  // once the process exits, it does not return
  ~AtWork();
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;

  // Whether the calling thread is one of them, and at it.
  static bool is_this_thread() noexcept;
  // To be called when it is there: what is registered last for the exit comes first in it.
  static void awaited_at_exit(Loaded what);
};

}  // namespace megadp::cuda
