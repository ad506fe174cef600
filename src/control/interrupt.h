// SPDX-License-Identifier: Apache-2.0
// Interrupting a call from inside: a caller may give a function (mdp_comm_config.interrupted) that is asked, on its own thread and about
// every 50 ms, while a call of it waits. Nothing else on that thread runs meanwhile: an interpreter looks for Ctrl-C there.
//
// The door of the library opens a CallInWait for each call, and says whom to ask once it knows the communicator. Every place where a
// caller's thread waits then sleeps no longer than ask_by(), holds no lock that others need, and looks at interrupted():
//   - In a collective call the World fails, and interrupted() stays false: every wait ends by the World's failure, as after an abort by
//     another thread, and so the work that uses the caller's arrays has ended before the call does.
//   - In a local call, and before there is a World, interrupted() is true from then on: the wait gives up with interruption().
// The library's own threads have no call and are never asked, but for the one that writes a checkpoint (core/saves.h).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>

#include "base/deadline.h"
#include "base/status.h"
#include "control/one_call.h"

namespace megadp {

class World;

struct Interrupt {
  int32_t (*asked)(void* context) = nullptr;  // null: nobody
  void* context = nullptr;
};

// One call of the library, on its caller's thread. A call inside of it (by a callback) has one of its own.
class CallInWait {
 public:
  explicit CallInWait(const char* name) noexcept;  // a literal
  ~CallInWait();
  CallInWait(const CallInWait&) = delete;
  CallInWait& operator=(const CallInWait&) = delete;

  // Before its end: what no other call may use meanwhile.
  void give_back() noexcept;

 private:
  friend void ask_while_waiting(const Interrupt& by, int rank, World* lost) noexcept;
  friend Deadline ask_by(Deadline deadline) noexcept;
  friend bool interrupted();
  friend Status interruption();
  friend class Uninterrupted;
  friend class OneCall;
  static CallInWait* here() noexcept;

  const char* const name_;
  CallInWait* const outer_;
  Interrupt by_;
  World* lost_ = nullptr;
  int rank_ = -1;
  uint64_t ask_at_ns_ = UINT64_MAX;
  bool ended_ = false;
  OneCall* taken_ = nullptr;
};

// Whom the call under way on this thread asks; `rank` is this process's in the world. lost: what fails if it is interrupted (it lives as
// long as the call can wait), null for a call that waits for nothing but its own rank's work.
void ask_while_waiting(const Interrupt& by, int rank, World* lost) noexcept;

// The earlier of the two: `deadline`, and when the caller is to be asked next.
Deadline ask_by(Deadline deadline) noexcept;
// Asks if it is time to. True: the wait gives up.
bool interrupted();
// The same within a wait that holds a lock, which is given up while the caller is asked.
template <class Mutex>
bool interrupted(std::unique_lock<Mutex>& lock) {
  if (ask_by(Deadline::never()).left_ns() > 0) return false;
  lock.unlock();
  const bool gives_up = interrupted();
  lock.lock();
  return gives_up;
}
// Locks, unless the wait for that gives up.
template <class Mutex>
Status lock_unless_interrupted(std::unique_lock<Mutex>& lock);
// Code::aborted: the sentence that names the call and this rank.
Status interruption();

// While it lives, nobody is asked: for the end of something that must not be done twice.
class Uninterrupted {
 public:
  Uninterrupted() noexcept;
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;

 private:
  CallInWait* const call_;
};

// A mutex has no wait with an end that all tools understand, so that it is tried again and again where somebody is to be asked.
template <class Mutex>
Status lock_unless_interrupted(std::unique_lock<Mutex>& lock) {
  if (ask_by(Deadline::never()).at_ns() == UINT64_MAX) {
    lock.lock();
    return {};
  }
  for (uint64_t nap_ns = 20'000; !lock.try_lock(); nap_ns = std::min<uint64_t>(2 * nap_ns, 1'000'000)) {
    if (interrupted()) return interruption();
    std::this_thread::sleep_for(std::chrono::nanoseconds(nap_ns));
  }
  return {};
}

}  // namespace megadp
