// SPDX-License-Identifier: Apache-2.0
// Streams and events: the order in which a backend does its work. A stream runs what is submitted to it one after another; an event marks
// a point in it. On the host a stream is one worker thread; on CUDA it is a cudaStream_t, and a thread that launches into it.
#pragma once

#include <cstdint>
#include <memory>

#include "backend/notice.h"
#include "base/deadline.h"
#include "base/status.h"
#include "control/interrupt.h"

namespace megadp {

class Event {
 public:
  virtual ~Event() = default;
  // True once everything submitted before the event has finished or failed. Never blocks.
  virtual bool done() const noexcept = 0;
  // ok, or the failure of the stream up to this point. Meaningful once done().
  virtual Status status() const = 0;
  // Code::pending at the deadline, or if the caller is interrupted (control/interrupt.h); otherwise status(). From any thread.
  virtual Status wait(Deadline deadline) = 0;
  // The same on a stream's thread, in its work: while backward computes, streams wait for one another though no caller waits.
  virtual Status wait_in_stream(Deadline deadline) { return wait(deadline); }
  // status(), however long it takes, or interruption().
  Status await() {
    const Status reached = wait(Deadline::never());
    return reached.code() == Code::pending ? interruption() : reached;
  }
  // now_ns() at the moment the stream reached the event; 0 until then.
  virtual uint64_t time_ns() const noexcept = 0;
};

// Work is submitted through Backend and Group, from any thread; the order of the calls is the order of the work. Submitting never waits,
// neither for the work nor for another rank. The first failure sticks: later work is dropped, its events are done with that failure, and
// submitting returns it.
class Stream {
 public:
  virtual ~Stream() = default;
  // An event at this point. When it is done the notice is given too, where there is one.
  virtual Result<std::shared_ptr<Event>> record(std::shared_ptr<Notice> notice = {}) = 0;
  // Orders later work of this stream after an event of another stream: of the same backend, or, if this is a stream of the host, of any.
  // Does not block the caller.
  virtual Status wait_for(std::shared_ptr<Event> event) = 0;
  // Orders `consumer`, a stream of the caller's, after the event. On the host it is NULL, the calling thread, which blocks until the event
  // is done and learns its failure. On a device NULL is the default stream, and the calling thread blocks until the event has been
  // launched: not for what the device does, but for collectives before it that wait to be launched, at most for the World's timeout.
  virtual Status make_caller_wait(void* consumer, Event& event) = 0;
  // The same, after what has been submitted so far.
  virtual Status make_caller_wait_for_all(void* consumer) {
    auto event = record();
    return event ? make_caller_wait(consumer, **event) : event.status();
  }
  // Orders later work of this stream after what the caller has put on `producer` so far: an event at that point of it, after which others
  // of his streams can be ordered. On the host, if it is NULL, nothing is to do, and the event is null.
  virtual Result<std::shared_ptr<Event>> follow_caller(void* producer) = 0;
  Status wait_for_caller(void* producer) { return follow_caller(producer).status(); }
  virtual Status failure() const = 0;
  // Keeps `object` alive until the stream has passed this point, or is destroyed: how an object is destroyed while work that uses its
  // memory is still in flight. For destructors: never throws; if there is no memory for it the object is never destroyed.
  virtual void retain(std::shared_ptr<void> object) = 0;
  // true: what is submitted next its caller waits for at once. A stream of the host that has nothing else to do then does it on the
  // caller's thread, which is spared two wake-ups. Only where one thread at a time submits.
  virtual void caller_waits(bool /*so*/) noexcept {}
};

// While it lives.
class CallerWaits {
 public:
  CallerWaits(Stream& stream, bool so) noexcept : stream_(stream), so_(so) {
    if (so_) stream_.caller_waits(true);
  }
  ~CallerWaits() {
    if (so_) stream_.caller_waits(false);
  }
  CallerWaits(const CallerWaits&) = delete;
  CallerWaits& operator=(const CallerWaits&) = delete;

 private:
  Stream& stream_;
  const bool so_;
};

}  // namespace megadp
