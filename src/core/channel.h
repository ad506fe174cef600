// SPDX-License-Identifier: Apache-2.0
// Channel: the streams that carry one series of work, in one order on all of its ranks. Channels run side by side: what is submitted to one
// never waits for another, unless an event orders it so. A communicator of the caller's has one, and a buffer has two, for gradients and
// for gathers. The operations of a group run one after another, so each channel has groups of its own (Comm::duplicate).
#pragma once

#include <functional>
#include <memory>

#include "backend/backend.h"
#include "base/status.h"

namespace megadp {

class Request;
struct Context;

class Channel {
 public:
  // Its threads start with their first work. `name`: of the thread, at most 15 bytes. When the last reference goes, what is still in flight
  // goes on, and the context keeps the streams until it has passed.
  static Result<std::shared_ptr<Channel>> create(std::shared_ptr<Context> context, const char* name);

  Stream& stream() const noexcept { return *stream_; }
  // Of the host, beside stream() if the backend is a device: for what ranks tell each other.
  Stream& control() const noexcept { return control_ ? *control_ : *stream_; }
  // What comes next in control() comes after the event, which is in stream().
  Status order_control_after(const std::shared_ptr<Event>& event) const;

  // A request for the point that both streams have come to (the context's event fd included); see Request for `complete`.
  Result<std::shared_ptr<Request>> request(const std::shared_ptr<Context>& context, std::function<Status()> complete = {}) const;
  // Keeps `object` until both streams have passed this point; see Stream::retain.
  void retain(const std::shared_ptr<void>& object) const;

 private:
  friend struct Context;
  Channel() = default;
  std::unique_ptr<Stream> stream_, control_;
};

}  // namespace megadp
