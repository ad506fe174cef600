// SPDX-License-Identifier: Apache-2.0
// Requests: any thread may test, wait and free.
#include "core/request.h"

#include "api/error.h"
#include "api/event.h"
#include "api/handle.h"

using namespace megadp;

namespace {

mdp_status wait_until(mdp_request* request, Deadline deadline, const char* call = __builtin_FUNCTION()) {
  return guard(
      [&]() -> Status {
        if (Status status = check_handle(request, "request", Need::anywhere); !status) return status;
        Status outcome = request->object->wait(deadline);
        if (outcome.code() != Code::pending) request->object->take_notice();
        return outcome;
      },
      call);
}

}  // namespace

mdp_status mdp_request_test(mdp_request* request) {
  return wait_until(request, Deadline::after_ns(0));
}

mdp_status mdp_request_wait(mdp_request* request, uint64_t timeout_ns) {
  return wait_until(request, timeout_ns == UINT64_MAX ? Deadline::never() : Deadline::after_ns(timeout_ns));
}

mdp_status mdp_request_peek(mdp_request* request) {
  return guard([&]() -> Status {
    if (Status status = check_handle(request, "request", Need::anywhere); !status) return status;
    return request->object->has_ended() ? Status() : Status(Code::pending, "the operation has not ended yet");
  });
}

void mdp_request_free(mdp_request* request) {
  if (has_mark(request, kRequestHandle) && !request->context->world->in_forked_child()) request->object->take_notice();
  destroy_handle(request);
}
