// SPDX-License-Identifier: Apache-2.0
// HostStream: one worker thread that does what is submitted, in that order. The thread starts with the first work.
//
//   any thread ── submit(work) ──► [ work | work | event | work | … ] ──► worker thread
//
// A piece of work returns a Status. The first failure sticks: what comes later is dropped, and events complete with that failure.
// The queue is bounded by memory only, so submitting never waits.
//
// Work that its caller waits for at once (Stream::caller_waits) is done on that thread, if the queue is empty and the worker rests; what is
// submitted meanwhile waits for it.
//
// Destroying a stream does not wait for other ranks: work that is in the queue goes on for a short grace time, so that a rank that
// leaves right after its last collective does not take it away from its peers; then the rest is dropped and its events complete with
// Code::aborted. Work that waits for other ranks looks at the Stop it is given. In a forked child, where the worker does not exist, the
// destructor does nothing.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "backend/stream.h"

namespace megadp::host {

class ThreadPool;

// Says to a piece of work that its stream is being destroyed and when it must have given up.
class Stop {
 public:
  bool requested() const noexcept { return at_ns_.load(std::memory_order_relaxed) != UINT64_MAX; }
  bool passed() const noexcept {
    const uint64_t at_ns = at_ns_.load(std::memory_order_relaxed);
    return at_ns != UINT64_MAX && now_ns() >= at_ns;
  }
  void request(uint64_t grace_ns) noexcept { at_ns_.store(now_ns() + grace_ns, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> at_ns_{UINT64_MAX};
};

// A wait for other ranks sleeps at most this long before it looks at its Stop (and at the World) again; with the grace time below, a
// stream is destroyed within about 50 ms.
constexpr uint64_t kWaitSliceNs = 25'000'000;
// A wait that is over leaves the World this long to say who is stopped or dead: by itself it knows only whom it waited for, and that rank
// may be waiting for another.
constexpr uint64_t kVerdictNs = 1'000'000'000;
constexpr uint64_t kStopGraceNs = 25'000'000;

class HostStream final : public Stream {
 public:
  using Work = std::function<Status(const Stop& stop)>;

  using OnFailure = std::function<void(const Status& why)>;

  // `name` is seen in debuggers and /proc; the system keeps its first 15 bytes. `on_failure` is called once, on the worker, when work has
  // failed; not for work that is dropped because the stream is destroyed. `pool`: its work uses it; null: none does.
  static Result<std::unique_ptr<HostStream>> create(const char* name, OnFailure on_failure = {}, std::shared_ptr<ThreadPool> pool = {});
  ~HostStream() override;
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  // The failure of the stream, if there is one already; then the work is not taken.
  Status submit(Work work);
  // Does the work now, on the calling thread, if that waits (caller_waits) and there is no other work; a failure is the stream's. False: it
  // has not been done.
  bool do_here(const Work& work);

  Result<std::shared_ptr<Event>> record(std::shared_ptr<Notice> notice) override;
  Status wait_for(std::shared_ptr<Event> event) override;
  Status make_caller_wait_for_all(void* consumer) override;
  Status make_caller_wait(void* consumer, Event& event) override;
  Result<std::shared_ptr<Event>> follow_caller(void* producer) override;
  Status failure() const override;
  void retain(std::shared_ptr<void> object) noexcept override;
  void caller_waits(bool so) noexcept override;

 private:
  struct State;
  struct Item;
  HostStream() = default;
  static void run(State& state);
  bool idle() const;  // nothing is queued or under way
  Status push(Item item);
  Status start();

  std::shared_ptr<State> state_;  // the worker holds another reference
  pthread_t thread_{};            // once the state says that it has started
  pid_t pid_ = 0;
};

}  // namespace megadp::host
