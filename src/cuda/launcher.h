// SPDX-License-Identifier: Apache-2.0
// Launcher: the thread that puts what is submitted to a CudaStream on the device, in that order. It starts with the first work.
//
//   any thread ── submit(work) ──► [ work | event | collective | work | … ] ──► launcher's thread ──► cudaStream_t ──► device
//
// Putting a collective on a device may take as long as another rank: NCCL connects ranks when they first need it, and may say that a
// collective is not in its stream yet; then nothing that is to come after it may be put there. Nor may a collective come while memory is
// being freed. So it is not the caller who waits, but this thread; submitting never waits for anything.
//
// A failure of work is one of the whole context (Gpu::fail): later work is dropped, events and what is retained are not. The
// thread lives on without its CudaStream until the queue is empty; what another rank keeps from being launched then is given up by the
// watch (Watch::abandon).
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "cuda/event.h"
#include "cuda/watch.h"

namespace megadp::cuda {

class Launcher : public std::enable_shared_from_this<Launcher> {
 public:
  using Work = std::function<Status(Launcher& on)>;

  // Owns `stream`, also if it fails. `name` is seen in debuggers and /proc; the system keeps its first 15 bytes.
  // `timeline`: of any stream of the device; null: one is started, which waits for the stream.
  static Result<std::shared_ptr<Launcher>> create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, void* stream, const char* name,
                                                  std::shared_ptr<Timeline> timeline = nullptr);
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // The failure of the context, if there is one already; then the work is not taken.
  Status submit(Work work);
  Result<std::shared_ptr<CudaEvent>> record();
  void retain(std::shared_ptr<void> object) noexcept;
  // Nothing is submitted any more. Gives the thread a moment to finish.
  void close() noexcept;

  const std::shared_ptr<Timeline>& timeline() const noexcept { return timeline_; }

  // ── for work, on the launcher's thread ──
  const Gpu& gpu() const noexcept { return *gpu_; }
  void* stream() const noexcept { return stream_; }
  // What was submitted before may wait on the device for `event`, which others record: a caller's stream, or another of ours.
  void comes_after(std::shared_ptr<RawEvent> event);
  // Until nothing of others' holds back what comes next on stream(), but the ranks of its own collectives before it: at most until the
  // tree fails, which is then returned.
  Status wait_for_others();
  // Whether the stream's collectives have a place of their own on the device: taken with the first of them, if there is one.
  bool has_place();
  // An event that is still to be recorded, on stream(); and one at the point that the thread has come to.
  Result<std::shared_ptr<CudaEvent>> event() const { return CudaEvent::create(gpu_, timeline_); }
  Result<std::shared_ptr<CudaEvent>> mark();

 private:
  struct Item {  // work or an object to keep
    Work work = {};
    bool always = false;  // also after a failure
    std::shared_ptr<void> kept = {};
  };
  Launcher(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, void* stream, const char* name)
      : gpu_(std::move(gpu)), watch_(std::move(watch)), stream_(stream), name_(name == nullptr ? "" : name) {}
  void run();
  Status start();
  bool started();
  Status push(Item item);
  bool pop(Item* out);
  void perform(Item& item) noexcept;
  void give_up(std::shared_ptr<void> object) noexcept;

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  void* const stream_;
  const std::string name_;
  std::shared_ptr<Timeline> timeline_;
  std::deque<std::shared_ptr<RawEvent>> others_;  // on the launcher's thread: see comes_after()
  std::shared_ptr<void> place_;                   // likewise, see has_place()
  bool asked_for_place_ = false;                  // likewise
  pthread_t thread_{};                            // once started_
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;  // under mutex_
  bool started_ = false;    // likewise
  bool closing_ = false;    // likewise
};

}  // namespace megadp::cuda
