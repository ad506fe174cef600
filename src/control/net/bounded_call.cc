// SPDX-License-Identifier: Apache-2.0
// The thread of a BoundedCall.
#include "control/net/bounded_call.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <utility>

namespace megadp {

struct BoundedCall::State {
  std::function<Status()> call;
  std::mutex mutex;
  std::condition_variable changed;
  bool returned = false;  // under mutex, as is the result
  Status result;
};

void* BoundedCall::run(void* argument) {
  const std::unique_ptr<std::shared_ptr<State>> holder(static_cast<std::shared_ptr<State>*>(argument));
  State& state = **holder;
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
  return nullptr;
}

Result<std::shared_ptr<BoundedCall>> BoundedCall::start(std::function<Status()> call) {
  auto state = std::make_shared<State>();
  state->call = std::move(call);
  std::shared_ptr<BoundedCall> started(new BoundedCall(state));
  auto holder = std::make_unique<std::shared_ptr<State>>(std::move(state));
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  // The signals of the program are for its own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int error = ::pthread_create(&thread, &attributes, &BoundedCall::run, holder.get());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
  if (error != 0) return system_error("starting a thread", error);
  [[maybe_unused]] const auto* const taken_by_the_thread = holder.release();
  return started;
}

Status BoundedCall::wait(Deadline deadline) {
  std::unique_lock<std::mutex> lock(state_->mutex);
  while (!state_->returned) {
    if (deadline.passed()) return {Code::pending, "the call has not returned yet"};
    // Cut short: adding the far future to a time_point would overflow.
    const uint64_t left = std::min<uint64_t>(deadline.left_ns(), 3'600'000'000'000);
    state_->changed.wait_for(lock, std::chrono::nanoseconds(left));
  }
  return state_->result;
}

}  // namespace megadp
