// SPDX-License-Identifier: Apache-2.0
// Watch: the thread that looks after what no caller waits for. A collective on a device whose peer is dead or never comes does not end by
// itself, and the caller's own work queues up behind it; so the watch polls what is under way, and when a rank is lost, NCCL reports an
// error, or a collective outlasts the timeout, it makes that known and aborts the communicators, upon which everything ends. It also frees
// what must not be freed by the caller because that may take long, and writes the event descriptors.
//
// It runs only while it has something to look after, and keeps what it is given alive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/group.h"
#include "cuda/event.h"

namespace megadp::cuda {

class Communicator;

class Watch {
  struct State;

 public:
  explicit Watch(World& world);
  ~Watch();  // lets the thread end by itself, soon
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // A collective that is about to be launched: its time runs from `begin`, so that work it had to wait for does not count. Its `end` is
  // recorded when it is in its stream, whatever became of it; `keep` lives until then and until the device has passed it. `name` says what
  // it is in the sentence of a failure; `timed_out`, if there is one, gives that of a timeout.
  struct Collective {
    std::shared_ptr<CudaEvent> begin, end;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Group> control;  // the host's group
    std::string name;
    int32_t bucket;
    uint64_t operation;
    std::shared_ptr<void> keep;
    std::function<Status()> timed_out;
  };
  // To be held while a collective is launched, from before its begin until its end was recorded. Freeing memory waits for the whole device:
  // were a collective put there meanwhile, the watch would wait for it instead of ending it. So the two take turns.
  class Turn {
   public:
    Turn(Turn&&) noexcept = default;
    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    friend Watch;
    explicit Turn(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
  };
  // Waits for what is being freed, so for what the device had to do then, which needs no other rank; at most for the timeout.
  Result<Turn> turn();
  void add(Collective collective);
  // Gives the notice when the event is done.
  void notify(std::shared_ptr<CudaEvent> event, std::shared_ptr<Notice> notice);
  // Drops `object` on the watch's thread, once the event (if any) is done, no collective is under way, and `ready` (if any) says so or the
  // owner's time is over.
  void drop(std::shared_ptr<void> object, std::shared_ptr<CudaEvent> after = nullptr, std::function<bool()> ready = {}) noexcept;
  // Allocates, and once more where memory lacked, which some that was destroyed may just be giving back.
  template <class Allocate>
  Status allocate(const Allocate& from_device) {
    Status done = from_device();
    if (done.code() != Code::memory) return done;
    await_freed();
    return from_device();
  }
  // The owner has gone: what is under way gets this long to end, then it is aborted.
  void abandon(uint64_t grace_ns) noexcept;

 private:
  // Until something has been freed, a moment at most: that may need other ranks, and there may be nothing.
  void await_freed();
  std::shared_ptr<State> state_;  // the thread holds another reference
};

}  // namespace megadp::cuda
