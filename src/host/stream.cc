// SPDX-License-Identifier: Apache-2.0
// The queue and the worker thread of a host stream.
#include "host/stream.h"

#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/leak.h"
#include "base/thread.h"
#include "host/default_floats.h"
#include "host/event.h"

namespace megadp::host {

struct HostStream::Item {  // one of the three
  Work work;
  std::shared_ptr<HostEvent> event;
  std::shared_ptr<void> kept;
};

struct HostStream::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> items;
  // Pieces of work in the queue, which get more under mutex only, and under way; and kOnCaller, while a caller's thread does one of them
  // and the worker rests.
  static constexpr size_t kOnCaller = ~(SIZE_MAX >> 1);
  std::atomic<size_t> unfinished{0};
  bool started = false;  // under mutex: whether there is a worker
  bool closing = false;
  std::atomic<bool> caller_waits{false};
  Status failure;                       // under mutex
  std::atomic<bool> has_failed{false};  // whether `failure` is set, to be looked at without the mutex
  Stop stop;
  std::string name;
  OnFailure on_failure;
  std::shared_ptr<ThreadPool> pool;
  Status out_of_memory, destroyed;  // made beforehand, for when there is no memory to make them

  // Work may allocate, and what the standard library throws must not end the thread.
  Status perform(const Work& work) noexcept {
    try {
      return work(stop);
    } catch (const std::bad_alloc&) {
      return out_of_memory;
    } catch (const std::exception& error) {
      try {
        return internal_error("work of a host stream threw: ", error.what());
      } catch (const std::bad_alloc&) {
        return out_of_memory;
      }
    }
  }
  void fail(const Status& why) noexcept {
    {
      const std::lock_guard lock(mutex);
      if (!failure.ok()) return;
      failure = why;
      has_failed.store(true, std::memory_order_release);
    }
    if (!on_failure || (why.code() == Code::aborted && stop.requested())) return;
    try {
      on_failure(why);
    } catch (const std::bad_alloc&) {  // who waits for this rank has a timeout
    }
  }
  Status current_failure() noexcept {
    if (!has_failed.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex);
    return failure;
  }
  // False when the stream is being destroyed and nothing is left.
  bool pop(Item* out) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return (unfinished.load(std::memory_order_acquire) & kOnCaller) == 0 && (!items.empty() || closing); });
    if (items.empty()) return false;
    *out = std::move(items.front());
    items.pop_front();
    return true;
  }
};

void HostStream::run(State& state) {
  for (;;) {
    {
      Item item;  // what the work holds is released before it counts as finished
      if (!state.pop(&item)) return;
      if (state.stop.passed()) state.fail(state.destroyed);
      if (item.event != nullptr) {
        item.event->complete(state.current_failure());
      } else if (item.work && !state.has_failed.load(std::memory_order_acquire)) {
        const Status status = state.perform(item.work);
        if (!status.ok()) state.fail(status);
      }
    }
    state.unfinished.fetch_sub(1, std::memory_order_release);
  }
}

Result<std::unique_ptr<HostStream>> HostStream::create(const char* name, OnFailure on_failure, std::shared_ptr<ThreadPool> pool) {
  std::unique_ptr<HostStream> stream(new HostStream);
  auto state = std::make_shared<State>();
  state->name = name == nullptr ? "" : name;
  state->on_failure = std::move(on_failure);
  state->pool = std::move(pool);
  state->out_of_memory = Status(Code::memory, text("out of memory in work of stream \"", state->name, "\""));
  state->destroyed = Status(Code::aborted, text("stream \"", state->name, "\" was destroyed before its work was done"));
  stream->pid_ = getpid();
  stream->state_ = std::move(state);
  return stream;
}

// Under the state's mutex.
Status HostStream::start() {
  auto thread = start_thread(state_->name, [state = state_] { run(*state); });
  if (!thread) return thread.status();
  thread_ = *thread;
  state_->started = true;
  return {};
}

Status HostStream::push(Item item) {
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->started) {
      if (Status started = start(); !started) return started;
    }
    state_->items.push_back(std::move(item));
    state_->unfinished.fetch_add(1, std::memory_order_relaxed);
  }
  state_->changed.notify_one();
  return {};
}

HostStream::~HostStream() {
  if (state_ == nullptr || pid_ != getpid()) return;
  state_->stop.request(kStopGraceNs);
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->started) return;
    state_->closing = true;
  }
  state_->changed.notify_one();
  // A stream may be dropped by the last reference inside its own work; a thread cannot join itself.
  if (pthread_equal(pthread_self(), thread_) != 0) {
    pthread_detach(thread_);
  } else {
    pthread_join(thread_, nullptr);
  }
}

Status HostStream::submit(Work work) {
  Status failed = state_->current_failure();
  if (!failed.ok()) return failed;
  if (do_here(work)) return {};
  return push({std::move(work), nullptr, nullptr});
}

bool HostStream::do_here(const Work& work) {
  if (!state_->caller_waits.load(std::memory_order_relaxed) || state_->has_failed.load(std::memory_order_acquire)) return false;
  State& state = *state_;
  constexpr size_t kOne = State::kOnCaller + 1;
  size_t none = 0;
  if (!state.unfinished.compare_exchange_strong(none, kOne, std::memory_order_acquire, std::memory_order_relaxed)) return false;
  const Status status = [&] {
    const DefaultFloats floats;  // the same bits whatever the caller has set
    const ThreadPool::CallerIdle idle(state.pool.get());
    return state.perform(work);
  }();
  if (!status.ok()) state.fail(status);
  if (state.unfinished.fetch_sub(kOne, std::memory_order_release) != kOne) {  // more has come, and its worker looks, or waits
    { const std::lock_guard lock(state.mutex); }
    state.changed.notify_one();
  }
  return true;
}

void HostStream::caller_waits(bool so) noexcept {
  state_->caller_waits.store(so, std::memory_order_relaxed);
}

bool HostStream::idle() const {
  return state_->unfinished.load(std::memory_order_acquire) == 0;
}

Result<std::shared_ptr<Event>> HostStream::record(std::shared_ptr<Notice> notice) {
  auto event = std::make_shared<HostEvent>(std::move(notice), state_->pool);
  if (idle()) {  // everything has passed
    event->complete(state_->current_failure());
  } else if (Status pushed = push({nullptr, event, nullptr}); !pushed) {
    return pushed;
  }
  return std::shared_ptr<Event>(std::move(event));
}

// In slices, so that destroying the stream is not held up.
Status HostStream::wait_for(std::shared_ptr<Event> event) {
  if (event->done() && event->status().ok()) return {};
  return submit([event = std::move(event)](const Stop& stop) {
    for (;;) {
      Status reached = event->wait_in_stream(Deadline::after_ns(kWaitSliceNs));
      if (reached.code() != Code::pending) return reached;
      if (stop.passed()) return Status(Code::aborted, "a stream was destroyed before its work was done");
    }
  });
}

Status HostStream::make_caller_wait_for_all(void* consumer) {
  return consumer == nullptr && idle() ? state_->current_failure() : Stream::make_caller_wait_for_all(consumer);
}

Status HostStream::make_caller_wait(void* consumer, Event& event) {
  if (consumer != nullptr) return invalid("stream is ", consumer, "; host streams are NULL");
  return event.await();
}

Result<std::shared_ptr<Event>> HostStream::follow_caller(void* producer) {
  if (producer != nullptr) return invalid("stream is ", producer, "; host streams are NULL");
  return std::shared_ptr<Event>();
}

void HostStream::retain(std::shared_ptr<void> object) noexcept {
  if (idle()) return;
  try {
    (void)push({nullptr, nullptr, object});
  } catch (const std::bad_alloc&) {
    leak(std::move(object));  // work that uses it may be in flight
  }
}

Status HostStream::failure() const {
  return state_->current_failure();
}

}  // namespace megadp::host
