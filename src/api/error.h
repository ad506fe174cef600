// SPDX-License-Identifier: Apache-2.0
// The door of the library: guard() runs the body of every exported function, lets no exception out, and remembers the failure for
// mdp_last_error on the same thread.
#pragma once

#include <exception>
#include <new>

#include "base/log.h"
#include "base/status.h"
#include "control/interrupt.h"
#include "megadp.h"

namespace megadp {

// Whether queued log messages are handed to the user's callback at the end of the call. Silent: mdp_grad_*, which finalizers of garbage
// collectors and hooks of autodiff systems call (destroys and frees do not use a guard), and what asks for the error of a call.
enum class Delivery {
  ordinary,
  silent
};

// Copies the failure into this thread's record; the text is cut between characters where it is too long. MDP_OK and MDP_PENDING leave
// the record as it is. Returns the code.
mdp_status remember(const Status& status) noexcept;
mdp_status remember(Code code, const char* sentence) noexcept;  // the same where nothing can be allocated

// This failure as the public struct, cut in the same way.
void fill_error_info(const Status& status, mdp_error_info* out) noexcept;

// call: the exported function's name, for the sentence of an interruption.
template <Delivery delivery = Delivery::ordinary, class Body>
mdp_status guard(Body&& body, const char* call = __builtin_FUNCTION()) noexcept {
  CallInWait in_wait(call);
  try {
    const Status status = body();
    // Before remembering: the callback may itself call the library, and on the same handle.
    in_wait.give_back();
    if constexpr (delivery == Delivery::ordinary) deliver_logs();
    return remember(status);
  } catch (const std::bad_alloc&) {
    return remember(Code::memory, "out of memory");
  } catch (const std::exception& defect) {
    return remember(Code::internal, defect.what());
  } catch (...) {
    return remember(Code::internal, "an exception of unknown type reached the C boundary");
  }
}

}  // namespace megadp
