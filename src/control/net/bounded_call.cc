// SPDX-License-Identifier: Apache-2.0
// The thread of a BoundedCall.
#include "control/net/bounded_call.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

#include "base/thread.h"
#include "control/interrupt.h"

namespace megadp {

struct BoundedCall::State {
  std::function<Status()> call;
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;  // under mutex, as is the result
  Status result;
};

void BoundedCall::run(State& state) {
  Status result;
  try {
    result = state.call();
  } catch (const std::exception&) {
    result = Status(Code::memory, "");
  }
  state.call = nullptr;  // it may hold whoever waits here
  {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.result = std::move(result);
    state.returned = true;
  }
  state.changed.notify_all();
}

Result<std::shared_ptr<BoundedCall>> BoundedCall::start(std::function<Status()> call) {
  auto state = std::make_shared<State>();
  state->call = std::move(call);
  std::shared_ptr<BoundedCall> started(new BoundedCall(state));
  auto thread = start_thread("megadp-call", [state = std::move(state)] { run(*state); });
  if (!thread.ok()) return thread.status();
  pthread_detach(*thread);
  return started;
}

Status BoundedCall::wait(Deadline deadline) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  while (!state_->returned) {
    if (deadline.passed()) return {Code::pending, "the call has not returned yet"};
    if (interrupted(lock)) return {Code::pending, "whoever waited was interrupted"};
    state_->changed.wait_until(lock, ask_by(deadline).time_point());
  }
  return state_->result;
}

}  // namespace megadp
