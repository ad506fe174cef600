// SPDX-License-Identifier: Apache-2.0
// CudaEvent: a point in a CUDA stream; and Timeline, which turns the device's relative times into the host's clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "backend/stream.h"
#include "cuda/gpu.h"

namespace megadp::cuda {

// An event of the plugin, which goes back to the others (Gpu::take_event).
class RawEvent {
 public:
  static Result<std::shared_ptr<RawEvent>> create(std::shared_ptr<Gpu> gpu);
  static Result<std::shared_ptr<RawEvent>> record(std::shared_ptr<Gpu> gpu, void* stream);
  ~RawEvent();
  RawEvent(const RawEvent&) = delete;
  RawEvent& operator=(const RawEvent&) = delete;
  Status record(void* stream);  // once
  // Returns when the device has passed it or failed, or interruption().
  Status await() const;
  int32_t asked() const { return gpu_->plugin().event_query(gpu_->device(), event_); }  // kPending: it has not happened
  void* get() const noexcept { return event_; }
  uint64_t recorded_ns() const noexcept { return recorded_ns_; }
  const std::shared_ptr<Gpu>& gpu() const noexcept { return gpu_; }

 private:
  RawEvent(std::shared_ptr<Gpu> gpu, void* event) noexcept : gpu_(std::move(gpu)), event_(event) {}
  const std::shared_ptr<Gpu> gpu_;
  void* const event_;
  uint64_t recorded_ns_ = 0;  // it happens after this
};

// CUDA only measures the time between two events, as a float of milliseconds. Here one event is known by the host's clock, and is replaced
// by a newer one every second, so that the float keeps its digits. The two clocks drift apart by some millionths, and the host may learn
// late that the first event has happened: what would lie before the event was recorded, or after it was seen, sets the base right.
class Timeline {
 public:
  // Waits for the stream: for when it is created.
  static Result<std::shared_ptr<Timeline>> start(const std::shared_ptr<Gpu>& gpu, void* stream);
  // now_ns() of the moment the event happened; it has.
  uint64_t time_of(const std::shared_ptr<RawEvent>& event);

 private:
  Timeline(std::shared_ptr<RawEvent> base, uint64_t base_ns) : base_(std::move(base)), base_ns_(base_ns) {}
  std::mutex mutex_;
  std::shared_ptr<RawEvent> base_;
  uint64_t base_ns_;
};

// A point in a CUDA stream, which the stream's launcher may not have come to yet: then it is not in the stream, and nothing may be asked
// about it.
class CudaEvent final : public Event {
 public:
  static Result<std::shared_ptr<CudaEvent>> create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Timeline> timeline);
  // In a stream of the caller's, where it is already.
  static std::shared_ptr<CudaEvent> recorded(std::shared_ptr<RawEvent> raw, std::shared_ptr<Timeline> timeline);
  // Puts it in the stream; once, by the launcher.
  Status record(void* stream);
  // Returns when it is in its stream, or with the failure of the device or world that keeps it from meaning anything.
  Status wait_until_recorded() const;

  // An event also ends with the failure of its device or world: what is behind an aborted collective is reached, but means nothing.
  bool done() const noexcept override;
  Status status() const override;
  Status wait(Deadline deadline) override;
  uint64_t time_ns() const noexcept override { return done() ? time_ns_.load(std::memory_order_acquire) : 0; }

  // It is in its stream and the device has passed it, whatever became of the work before it: nothing of that uses memory any more.
  bool reached() const noexcept;

  const std::shared_ptr<RawEvent>& raw_event() const noexcept { return raw_; }
  void* raw() const noexcept { return raw_->get(); }

 private:
  CudaEvent(std::shared_ptr<RawEvent> raw, std::shared_ptr<Timeline> timeline) : raw_(std::move(raw)), timeline_(std::move(timeline)) {}
  void settle(Status status) const;

  const std::shared_ptr<RawEvent> raw_;
  const std::shared_ptr<Timeline> timeline_;
  std::atomic<bool> recorded_{false};
  mutable std::mutex mutex_;
  mutable Status status_;                     // written before settled_, read after it
  mutable std::atomic<uint64_t> time_ns_{0};  // likewise
  mutable std::atomic<bool> settled_{false};
};

}  // namespace megadp::cuda
