// SPDX-License-Identifier: Apache-2.0
// ThreadPool: the threads that a rank has beside those of its streams, for work on long arrays. A thread that has such work cuts it into
// pieces and begins with the first; threads of the pool take pieces as well, as long as they may: while a thread of the caller's waits
// inside the library. Otherwise the caller computes, and the processors are its own. So work that began during backward gets help as soon
// as the caller has nothing left to do but wait for it.
//
// Which thread has which piece depends on chance, so a piece must not depend on it: sums that cross pieces are combined in an order of
// their own.
#pragma once

#include <cstddef>
#include <memory>

namespace megadp::host {

// Large enough to wake a thread for, and so small that little is lost in the end, where one thread may have a last piece that the others
// wait for.
constexpr size_t kPieceBytes = 512 << 10;

class ThreadPool {
 public:
  // threads: how many work on an array together, the one that has the work among them; at least 1. always: also while no caller waits.
  // piece_bytes: about as many a piece reads and writes.
  ThreadPool(int threads, bool always, size_t piece_bytes = kPieceBytes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const noexcept { return threads_; }
  size_t piece_bytes() const noexcept { return piece_bytes_; }
  // Whether a thread beside the caller's may take a processor that the caller could compute on.
  bool may_help() const noexcept;

  // fn(begin, n) for pieces of `grain` elements, and what is left, that are together `count`: each once, on any thread, several at the same
  // time. Returns when all have ended. fn must neither fail nor throw. From any thread.
  template <class Fn>
  void split(size_t count, size_t grain, const Fn& fn) {
    if (threads() == 1 || count <= grain) return fn(size_t{0}, count);
    run(
        count, grain, [](const void* of, size_t begin, size_t n) { (*static_cast<const Fn*>(of))(begin, n); }, &fn);
  }

  // While it lives, a thread of the caller's waits for this rank's work, or does it itself. null: there is no pool.
  class CallerIdle {
   public:
    explicit CallerIdle(ThreadPool* pool) noexcept;
    ~CallerIdle();
    CallerIdle(const CallerIdle&) = delete;
    CallerIdle& operator=(const CallerIdle&) = delete;

   private:
    ThreadPool* const pool_;
  };

 private:
  using Piece = void (*)(const void* fn, size_t begin, size_t n);
  struct Job;
  struct State;
  void run(size_t count, size_t grain, Piece piece, const void* fn);

  const int threads_;
  const size_t piece_bytes_;
  const std::shared_ptr<State> state_;  // its threads hold other references, which a forked child keeps
};

}  // namespace megadp::host
