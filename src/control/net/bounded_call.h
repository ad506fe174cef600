// SPDX-License-Identifier: Apache-2.0
// BoundedCall: a call of a function that cannot be told when to give up (a name server, a launcher's daemon), on a thread of its own, so
// that whoever waits for it can stop waiting.
#pragma once

#include <functional>
#include <memory>

#include "base/deadline.h"
#include "base/status.h"

namespace megadp {

class BoundedCall {
 public:
  // The call may go on after everyone has stopped waiting: it owns what it uses, and its result is then thrown away.
  static Result<std::shared_ptr<BoundedCall>> start(std::function<Status()> call);

  // What the call returned; Code::pending at the deadline, and if the caller is interrupted. From any thread, and more than once.
  Status wait(Deadline deadline);

 private:
  struct State;
  explicit BoundedCall(std::shared_ptr<State> state) : state_(std::move(state)) {}
  static void run(State& state);

  std::shared_ptr<State> state_;  // the thread holds another reference
};

}  // namespace megadp
