// SPDX-License-Identifier: Apache-2.0
#include "host/thread_pool.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "base/text.h"
#include "base/thread.h"

namespace megadp::host {

// On the stack of the thread that has the work.
struct ThreadPool::Job {
  const Piece piece;
  const void* const fn;
  const size_t count, grain;
  std::atomic<size_t> next{0};
  int inside = 0;  // threads of the pool; under the state's mutex

  bool is_open() const noexcept { return next.load(std::memory_order_relaxed) < count; }
};

struct ThreadPool::State : std::enable_shared_from_this<State> {
  State(int threads, bool on_always) : always(on_always), owner(getpid()), wanted(static_cast<size_t>(threads - 1)) {}

  const bool always;
  const pid_t owner;
  std::mutex mutex;
  std::condition_variable changed, left;  // something may be taken; a thread of the pool has left a job
  std::vector<Job*> jobs;
  std::vector<pthread_t> started;
  size_t wanted;  // of these; fewer if the system has refused one
  bool closing = false;
  // Sequentially consistent: who adds a job then looks whether a caller waits, and who begins to wait then looks for jobs. One sees the
  // other.
  std::atomic<int> waiting{0}, open{0};

  bool may_help() const noexcept { return always || waiting.load() > 0; }
  // This and the next under the mutex.
  void start() {
    started.reserve(wanted);
    while (started.size() < wanted) {
      auto thread = start_thread("mdp-pool", [self = shared_from_this()] { self->help(); });
      if (thread.ok()) {
        started.push_back(*thread);
      } else {
        wanted = started.size();
        log(LogLevel::warning, text(thread.status().text(), "; this rank works on long arrays with ", wanted + 1, " threads"));
      }
    }
  }
  Job* open_job() const noexcept {
    const auto found = std::find_if(jobs.begin(), jobs.end(), [](const Job* job) { return job->is_open(); });
    return found != jobs.end() && may_help() ? *found : nullptr;
  }
  void take_pieces(Job* job, bool is_own) const noexcept {
    while (is_own || may_help()) {
      const size_t begin = job->next.fetch_add(job->grain, std::memory_order_relaxed);
      if (begin >= job->count) return;
      job->piece(job->fn, begin, std::min(job->grain, job->count - begin));
    }
  }
  void help() {
    std::unique_lock lock(mutex);
    for (;;) {
      Job* job = nullptr;
      changed.wait(lock, [&] { return closing || (job = open_job()) != nullptr; });
      if (closing) return;
      ++job->inside;
      lock.unlock();
      take_pieces(job, false);
      lock.lock();
      if (--job->inside == 0) left.notify_all();
    }
  }
};

ThreadPool::ThreadPool(int threads, bool always, size_t piece_bytes)
    : threads_(threads), piece_bytes_(piece_bytes), state_(std::make_shared<State>(threads, always)) {}

// A forked child has none of the threads.
ThreadPool::~ThreadPool() {
  if (state_->owner != getpid()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
  }
  state_->changed.notify_all();
  for (const pthread_t thread : state_->started) pthread_join(thread, nullptr);
}

void ThreadPool::run(size_t count, size_t grain, Piece piece, const void* fn) {
  State& state = *state_;
  Job job{piece, fn, count, grain};
  {
    const std::lock_guard lock(state.mutex);
    if (state.started.size() < state.wanted) state.start();
    state.jobs.push_back(&job);
    state.open.fetch_add(1);
  }
  if (state.may_help()) state.changed.notify_all();
  state.take_pieces(&job, true);
  std::unique_lock lock(state.mutex);
  state.open.fetch_sub(1);
  state.jobs.erase(std::find(state.jobs.begin(), state.jobs.end(), &job));
  state.left.wait(lock, [&] { return job.inside == 0; });
}

bool ThreadPool::may_help() const noexcept {
  return state_->may_help();
}

ThreadPool::CallerIdle::CallerIdle(ThreadPool* pool) noexcept : pool_(pool) {
  if (pool_ == nullptr) return;
  State& state = *pool_->state_;
  state.waiting.fetch_add(1);
  if (state.open.load() == 0) return;
  { const std::lock_guard lock(state.mutex); }  // a thread that has looked before now sleeps already
  state.changed.notify_all();
}

ThreadPool::CallerIdle::~CallerIdle() {
  if (pool_ != nullptr) pool_->state_->waiting.fetch_sub(1);
}

}  // namespace megadp::host
