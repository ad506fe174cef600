// SPDX-License-Identifier: Apache-2.0
#include "cuda/stream.h"

#include <utility>

namespace megadp::cuda {

Result<std::unique_ptr<CudaStream>> CudaStream::create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch) {
  void* stream = nullptr;
  // High priority: a bucket's reduction should not queue behind the backward pass it overlaps with.
  if (Status made = gpu->check(gpu->plugin().stream_create(gpu->device(), true, &stream), "creating a stream"); !made) return made;
  std::unique_ptr<CudaStream> ours(new CudaStream(gpu, std::move(watch), stream));
  auto timeline = Timeline::start(gpu, stream);
  if (!timeline) return timeline.status();
  ours->timeline_ = *std::move(timeline);
  return ours;
}

CudaStream::~CudaStream() {
  if (gpu_->usable_here()) gpu_->plugin().stream_destroy(gpu_->device(), stream_);
}

Result<std::shared_ptr<CudaEvent>> CudaStream::mark() {
  auto raw = RawEvent::record(gpu_, stream_);
  if (!raw) return raw.status();
  return std::make_shared<CudaEvent>(*std::move(raw), timeline_);
}

Result<std::shared_ptr<Event>> CudaStream::record(int notify_fd) {
  auto event = mark();
  if (!event) return event.status();
  if (notify_fd >= 0) watch_->notify(*event, notify_fd);
  return std::shared_ptr<Event>(*std::move(event));
}

Status CudaStream::wait_for(std::shared_ptr<Event>) {
  return unsupported("a CUDA stream cannot be ordered after an event of another backend");
}

Status CudaStream::make_caller_wait(void* consumer, Event& event) {
  if (gpu_->failed()) return gpu_->failure();
  return gpu_->check(gpu_->plugin().stream_wait(gpu_->device(), consumer, static_cast<CudaEvent&>(event).raw()),
                     "ordering the caller's stream after ours");
}

Status CudaStream::wait_for_caller(void* producer) {
  if (gpu_->failed()) return gpu_->failure();
  auto reached = RawEvent::record(gpu_, producer);
  if (!reached) return reached.status();
  return gpu_->check(gpu_->plugin().stream_wait(gpu_->device(), stream_, (*reached)->get()), "ordering our stream after the caller's");
}

void CudaStream::retain(std::shared_ptr<void> object) {
  auto passed = mark();
  // Where not even an event can be recorded the device is lost, and nothing is under way any more.
  watch_->drop(std::move(object), passed ? *std::move(passed) : nullptr);
}

}  // namespace megadp::cuda
