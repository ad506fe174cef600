// SPDX-License-Identifier: Apache-2.0
// The one place where the library starts threads.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <functional>
#include <string>

#include "base/status.h"

namespace megadp {

// While it lives, the calling thread takes no signals, and threads started meanwhile never do: signals are for the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept;
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// Runs `body` on a new thread: without signals, rounding to nearest whatever its creator does, with the first 15 letters of `name` for
// debuggers. Whoever starts it joins or detaches it. `body` must not throw.
Result<pthread_t> start_thread(const std::string& name, std::function<void()> body);

// On which the calling thread may run, at least 1.
int usable_processors() noexcept;

}  // namespace megadp
