// SPDX-License-Identifier: Apache-2.0
#include "api/event.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

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

namespace {

// One of what is owed is claimed before it is read, so that two threads cannot take off more than that.
bool claim(std::atomic<int>& owed) noexcept {
  int value = owed.load();
  while (value > 0) {
    if (owed.compare_exchange_weak(value, value - 1)) return true;
  }
  return false;
}

}  // namespace

void settle_event(Context& context, bool finished) noexcept {
  context.event_owed.fetch_add(1);
  // A finished event is marked done a moment before its one is written. Wait for that moment, so that the descriptor is not left readable
  // with nothing to find; should the writer be slower than this, the next call settles it.
  int patience_ms = finished ? 20 : 0;
  while (claim(context.event_owed)) {
    uint64_t one;
    if (read(context.notified_fd, &one, sizeof one) == static_cast<ssize_t>(sizeof one)) continue;
    const int error = errno;
    context.event_owed.fetch_add(1);
    if (error == EINTR) continue;
    if (error != EAGAIN || patience_ms == 0) return;
    pollfd ready{context.notified_fd, POLLIN, 0};
    poll(&ready, 1, patience_ms);
    patience_ms = 0;
  }
}

}  // namespace megadp
