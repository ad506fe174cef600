// SPDX-License-Identifier: Apache-2.0
#include "api/event.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <mutex>
#include <utility>

#include "api/intake.h"

namespace megadp {

Result<int> event_descriptor(Context& context) {
  const std::lock_guard lock(context.mutex);
  if (!context.event_fd.valid()) {
    Fd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
    if (!fd.valid()) return system_error("eventfd", errno);
    context.notified_fd = fd.get();
    context.event_fd = std::move(fd);
  }
  return context.event_fd.get();
}

Status check_request_out(mdp_request** out) {
  return out == nullptr ? Status() : check_out(out, "out");
}

Status give_request(std::unique_ptr<mdp_request> request, std::shared_ptr<Request> pending, mdp_request** out) {
  if (out == nullptr) return {};
  request->object = std::move(pending);
  *out = request.release();
  return {};
}

}  // namespace megadp
