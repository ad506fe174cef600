// SPDX-License-Identifier: Apache-2.0
// Comm: this rank in one ordered group of ranks, on a channel. Context: what a communicator shares with its splits and with everything made
// from them: the control plane, the backend, and the first failure.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "backend/backend.h"
#include "base/status.h"
#include "control/agreement.h"
#include "control/interrupt.h"
#include "control/one_call.h"
#include "control/world.h"
#include "core/channel.h"
#include "core/saves.h"
#include "core/scratch.h"

namespace megadp {

struct Context {
  std::shared_ptr<World> world;
  std::shared_ptr<Backend> backend;
  Interrupt interrupt;  // whom calls ask that wait
  // An eventfd with EFD_SEMAPHORE, invalid until asked for: each request that has ended, and that nobody has seen ended, has one in it.
  // Before `passing`, whose last events still write to it.
  Fd event_fd;                             // set once, under `mutex`
  std::atomic<int> notified_fd{-1};        // its number, once there is one
  std::shared_ptr<Notice> notice() const;  // null until the descriptor is asked for

  bool on_device() const noexcept { return &backend->control() != backend.get(); }

  // Channels that nobody holds any more, until what is in flight on them has passed.
  struct Passing {
    std::unique_ptr<Channel> channel;
    std::vector<std::shared_ptr<Event>> ends;
  };
  std::mutex mutex;
  std::vector<Passing> passing;  // under mutex
  void retire(std::unique_ptr<Channel> channel) noexcept;
  void drop_passed() noexcept;

  OneCall one_call;  // of what makes, compares, saves and loads: at most one call of the context's does

  Saves saves;  // goes first: it may still be writing

  // ok while the context is usable: not in a forked child, no rank lost, nothing aborted.
  Status usable() const;

  // What `work` submits other ranks count on, and nothing takes it back: if it fails on the way, for lack of memory say, so does the
  // context. Returns what it returns, a Status or a Result.
  template <class Work>
  std::invoke_result_t<Work&> commit(Work&& work) {
    auto done = with_others(*world, work);
    if (!done.ok()) world->fail(status_of(done));
    return done;
  }

 private:
  static const Status& status_of(const Status& status) { return status; }
  template <class T>
  static const Status& status_of(const Result<T>& result) {
    return result.status();
  }
};

class Comm {
 public:
  // Collective over the world: a communicator of all its ranks, in a context of its own.
  static Result<std::shared_ptr<Comm>> create(std::shared_ptr<World> world, std::shared_ptr<Backend> backend, const Interrupt& interrupt);
  // Collective over this communicator. A null pointer where color < 0.
  Result<std::shared_ptr<Comm>> split(int color, int key);
  // Collective over this communicator: a communicator of `members` (world ranks, this one among them). A null pointer where `members` is
  // empty.
  Result<std::shared_ptr<Comm>> subset(const std::vector<int>& members);
  // Collective over this communicator: these of its ranks, or all, on another channel.
  Result<std::shared_ptr<Comm>> subset(const std::vector<int>& members, std::shared_ptr<Channel> channel);
  Result<std::shared_ptr<Comm>> duplicate(std::shared_ptr<Channel> channel) { return subset(group_->members(), std::move(channel)); }

  int rank() const noexcept { return group_->rank(); }
  int size() const noexcept { return group_->size(); }
  Group& group() noexcept { return *group_; }
  const Channel& channel() const noexcept { return *channel_; }
  Context& context() noexcept { return *context_; }
  const std::shared_ptr<Context>& shared_context() const noexcept { return context_; }
  Scratch& scratch() noexcept { return scratch_; }
  OneCall& one_call() noexcept { return one_call_; }
  // This process's rank in the world.
  int world_rank() const noexcept { return context_->world->rank(); }

  // Ends a series of submissions to the channel: with `want_request` a request that reports their end; otherwise orders `consumer` after
  // them, which on the host means waiting here, and returns a null pointer.
  // `used` is the stream they were submitted to: the channel's, or its control(), whose consumer is the calling thread.
  Result<std::shared_ptr<Request>> finish(Stream& used, void* consumer, bool want_request);

  // Over, when all ranks have come to it and what this one submitted before has ended. As finish().
  Result<std::shared_ptr<Request>> barrier(bool want_request);

 private:
  Comm(std::shared_ptr<Context> context, std::shared_ptr<Channel> channel, std::shared_ptr<Group> group)
      : context_(std::move(context)), channel_(std::move(channel)), group_(std::move(group)) {}

  std::shared_ptr<Context> context_;  // in this order: groups go first
  std::shared_ptr<Channel> channel_;
  std::shared_ptr<Group> group_;
  Scratch scratch_;
  OneCall one_call_;
};

}  // namespace megadp
