// SPDX-License-Identifier: Apache-2.0
#include "cuda/watch.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/leak.h"
#include "base/log.h"
#include "base/thread.h"
#include "cuda/at_work.h"
#include "cuda/communicator.h"

namespace megadp::cuda {
namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(1);
constexpr auto kOthersInterval = std::chrono::milliseconds(10);

struct Awaited {
  std::shared_ptr<CudaEvent> event;
  std::shared_ptr<Notice> notice;
};

struct DeferredFree {
  std::shared_ptr<void> object;
  std::shared_ptr<CudaEvent> after;
  std::function<bool()> ready;
};

struct Running {
  Watch::Collective collective;
  uint64_t began_ns = 0;  // when its begin was seen; 0: not yet
  uint64_t left_ns = 0;   // when a member was first seen to have left
};

}  // namespace

struct Watch::State {
  explicit State(World& w) : timeout_ns(w.timeout_ns()) {}
  // A forked child has neither the thread nor, perhaps, the mutex: the thread may have held it in that moment.
  bool usable_here() const noexcept { return process == ::getpid(); }
  const pid_t process = ::getpid();
  const uint64_t timeout_ns;
  std::mutex mutex;
  std::condition_variable changed, freed;
  std::deque<Running> running;   // in the order of submission
  std::vector<Running> aborted;  // have failed, but may not be off the device yet
  std::vector<Awaited> awaited;
  std::vector<DeferredFree> doomed;
  uint64_t abandon_at_ns = UINT64_MAX;
  uint64_t troubled_ns = 0;  // when NCCL first reported a failure
  bool started = false, closing = false;
  bool freeing = false;      // nothing may be submitted
  uint64_t times_freed = 0;  // how often it was over
  int submitting = 0;        // nothing may be freed

  bool idle() const { return running.empty() && aborted.empty() && awaited.empty() && doomed.empty(); }
  // Nothing is left but what goes when other ranks are done, which may take them as long as they like.
  bool waits_for_others() const {
    return running.empty() && aborted.empty() && awaited.empty() &&
           std::all_of(doomed.begin(), doomed.end(), [](const DeferredFree& one) { return one.ready != nullptr; });
  }
  bool start(const std::shared_ptr<State>& self);
  void run();
  bool look();
  // What has ended: to be released, and to be aborted, without the mutex.
  struct Lost {
    std::shared_ptr<Communicator> communicator;
    Status why;
  };
  struct Ended {
    std::vector<std::shared_ptr<void>> dropped;
    std::vector<Lost> lost;
  };
  void take_off(Ended* ended);
  void take_off_collectives(Ended* ended);
  void take_off_memory(Ended* ended);
  Status trouble(std::shared_ptr<Gpu>* gpu);
  static Status missed_by(Running& one, const World& world);
  Status timed_out(const Running& one) const;
};

// Called with the mutex held. A thread that cannot be started is no reason to fail: what would have been watched is then only not watched.
bool Watch::State::start(const std::shared_ptr<State>& self) {
  if (started) {
    changed.notify_one();
    return true;
  }
  try {
    if (auto thread = start_thread("mdp-cuda-watch", [self] { self->run(); })) {
      pthread_detach(*thread);
      started = true;
    }
  } catch (const std::bad_alloc&) {  // then not
  }
  if (!started) log(LogLevel::error, "the thread that watches CUDA's work could not be started: a lost rank will not be noticed");
  return started;
}

void Watch::State::run() {
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return closing || !idle(); });
    if (idle()) return;
    lock.unlock();
    const bool moved = look();
    lock.lock();
    if (!moved && !idle()) changed.wait_for(lock, waits_for_others() ? kOthersInterval : kPollInterval);
  }
}

// Goes through the lists once. Whether something came off them.
bool Watch::State::look() {
  const AtWork at_work;
  std::unique_lock lock(mutex);
  std::shared_ptr<Gpu> gpu;
  const Status found = trouble(&gpu);
  lock.unlock();
  if (!found) gpu->fail(found);  // before anything is aborted: see CudaEvent::done()
  lock.lock();
  Ended ended;
  take_off(&ended);
  lock.unlock();
  for (const Lost& one : ended.lost) {
    // It may be the device's own, or another rank's of a moment ago: what is queued behind must know of it first.
    one.communicator->gpu()->fail(one.why);
    one.communicator->abort();
  }
  const bool moved = !ended.dropped.empty();
  ended = {};  // destructors may come back here
  gpu.reset();
  lock.lock();
  if (std::exchange(freeing, false)) ++times_freed;
  freed.notify_all();
  return moved;
}

// Off the lists with what has ended. A collective that has ended with a failure may still be on the device: its communicator is aborted.
void Watch::State::take_off(Ended* ended) {
  take_off_collectives(ended);
  for (size_t i = 0; i < awaited.size();) {
    if (!awaited[i].event->done()) {
      ++i;
      continue;
    }
    awaited[i].notice->give();
    ended->dropped.push_back(std::move(awaited[i].event));
    awaited.erase(awaited.begin() + static_cast<std::ptrdiff_t>(i));
  }
  take_off_memory(ended);
}

// Those of one communicator begin one after another; others may be on streams that have come further.
void Watch::State::take_off_collectives(Ended* ended) {
  std::set<const Communicator*> behind;
  for (Running& one : running) {
    const Communicator* const communicator = one.collective.communicator.get();
    if (one.began_ns != 0 || behind.count(communicator) != 0) continue;
    if (one.collective.begin->done()) {
      one.began_ns = now_ns();
    } else {
      behind.insert(communicator);
    }
  }
  while (!running.empty() && running.front().collective.end->done()) {
    auto one = std::make_shared<Running>(std::move(running.front()));
    running.pop_front();
    if (Status why = one->collective.end->status(); !why) {
      ended->lost.push_back({one->collective.communicator, std::move(why)});
      aborted.push_back(std::move(*one));
      continue;
    }
    ended->dropped.push_back(std::move(one));
  }
}

// Freeing waits for the whole device. While a collective is on it, or about to be, this thread must not: it could not end that collective
// any more.
void Watch::State::take_off_memory(Ended* ended) {
  for (size_t i = 0; i < aborted.size();) {
    if (!aborted[i].collective.end->reached()) {
      ++i;
      continue;
    }
    ended->dropped.push_back(std::make_shared<Running>(std::move(aborted[i])));
    aborted.erase(aborted.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (!running.empty() || !aborted.empty() || submitting > 0) return;
  for (size_t i = 0; i < doomed.size();) {
    const DeferredFree& one = doomed[i];
    if ((one.after != nullptr && !one.after->reached()) || (one.ready && !one.ready() && now_ns() < abandon_at_ns)) {
      ++i;
      continue;
    }
    freeing = true;
    ended->dropped.push_back(std::make_shared<DeferredFree>(std::move(doomed[i])));
    doomed.erase(doomed.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// A member that has left will not come. What it sent before may still be on its way, though: so it is given a moment.
Status Watch::State::missed_by(Running& one, const World& world) {
  for (const int member : one.collective.communicator->members()) {
    if (member == world.rank() || !world.has_left(member)) continue;
    if (one.left_ns == 0) one.left_ns = now_ns();
    if (now_ns() - one.left_ns < kMomentNs) return {};
    return {Code::peer, text(one.collective.name, ": rank ", member, " has left"),
            Blame{.rank = member, .bucket = one.collective.bucket, .operation = one.collective.operation}};
  }
  return {};
}

// Who has not come is known of the ranks of this node.
Status Watch::State::timed_out(const Running& one) const {
  const Watch::Collective& collective = one.collective;
  if (collective.timed_out) return collective.timed_out();
  std::string sentence = text(collective.name, " did not end within ", timeout_ns / 1'000'000, " ms: ");
  Blame blame{.bucket = collective.bucket, .operation = collective.operation};
  const std::vector<Group::Submission> told = collective.control->submissions(collective.operation);
  for (const Group::Submission& submission : told) {
    if (submission.last >= collective.operation) continue;
    sentence +=
        text(blame.rank < 0 ? "" : ", ", "rank ", submission.member, " has not come to it (its last operation was ", submission.last, ")");
    if (blame.rank < 0) blame.rank = submission.member;
  }
  if (blame.rank < 0) {
    const bool all = told.size() == collective.control->members().size();
    sentence +=
        all ? "all ranks have come to it, but their data cannot pass; threads of a rank may hold each other up on a stream that they share"
            : "a rank of another node has not come to it, or its data cannot pass";
  }
  return {Code::timeout, std::move(sentence), blame};
}

// What ends the collectives under way, if anything does, and on which device.
Status Watch::State::trouble(std::shared_ptr<Gpu>* gpu) {
  std::set<Communicator*> asked;
  for (Running& one : running) {
    Communicator& communicator = *one.collective.communicator;
    *gpu = communicator.gpu();
    if ((*gpu)->failed()) return (*gpu)->failure();
    if (one.collective.end->done()) continue;  // it waits in the list for one on another stream, and for nobody
    if (now_ns() >= abandon_at_ns) return {Code::aborted, "the communicator was destroyed before its collectives were done"};
    if (asked.insert(&communicator).second) {
      // Mostly the echo of what happened to another rank, whose own words say more.
      if (Status found = communicator.poll(); !found) {
        if (troubled_ns == 0) troubled_ns = now_ns();
        if (now_ns() - troubled_ns >= kMomentNs) return found;
      }
    }
    if (Status missed = missed_by(one, (*gpu)->world()); !missed) return missed;
    if (one.began_ns != 0 && now_ns() - one.began_ns >= timeout_ns) return timed_out(one);
  }
  return {};
}

Watch::Watch(World& world) : state_(std::make_shared<State>(world)) {}

Watch::~Watch() {
  if (!state_->usable_here()) return;
  const std::lock_guard lock(state_->mutex);
  state_->closing = true;
  state_->changed.notify_one();
}

Watch::Turn::~Turn() {
  if (state_ == nullptr) return;
  const std::lock_guard lock(state_->mutex);
  --state_->submitting;
  state_->changed.notify_one();
}

Result<Watch::Turn> Watch::turn() {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  constexpr auto kSlice = std::chrono::milliseconds(100);  // a timeout may be too long for the clock's arithmetic
  for (const Deadline deadline = Deadline::after_ns(s.timeout_ns); s.freeing && !deadline.passed();) s.freed.wait_for(lock, kSlice);
  if (s.freeing) {
    return Status(Code::timeout, text("freeing memory on the device was not done within ", s.timeout_ns / 1'000'000,
                                      " ms: it waits for work that other parts of this program have put there"));
  }
  ++s.submitting;
  return Turn(state_);
}

void Watch::add(Collective collective) {
  const std::lock_guard lock(state_->mutex);
  state_->running.push_back({std::move(collective)});
  state_->start(state_);
}

void Watch::notify(std::shared_ptr<CudaEvent> event, std::shared_ptr<Notice> notice) {
  const std::lock_guard lock(state_->mutex);
  state_->awaited.push_back({std::move(event), std::move(notice)});
  state_->start(state_);
}

// The caller has no reference left once the watch has one: the last one frees memory, which waits for the device.
void Watch::drop(std::shared_ptr<void> object, std::shared_ptr<CudaEvent> after, std::function<bool()> ready) noexcept {
  if (state_->usable_here()) {
    try {
      const std::lock_guard lock(state_->mutex);
      state_->doomed.push_back({nullptr, std::move(after), std::move(ready)});
      state_->doomed.back().object = std::move(object);
      if (state_->start(state_)) return;
      object = std::move(state_->doomed.back().object);
      state_->doomed.pop_back();
    } catch (...) {
      // Out of memory in a destructor: better kept for ever than freed under the device's hands.
    }
  }
  leak(std::move(object));
}

void Watch::await_freed() {
  constexpr auto kMost = std::chrono::milliseconds(300);
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  s.changed.notify_one();
  // What a stream is just letting go of has not come here yet.
  s.freed.wait_for(lock, kMost, [&s, before = s.times_freed] { return s.times_freed != before && s.doomed.empty() && !s.freeing; });
}

void Watch::abandon(uint64_t grace_ns) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->abandon_at_ns = now_ns() + grace_ns;
  state_->changed.notify_one();
}

}  // namespace megadp::cuda
