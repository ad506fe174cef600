// SPDX-License-Identifier: Apache-2.0
#include "cuda/stream.h"

#include <utility>

namespace megadp::cuda {

Result<std::unique_ptr<CudaStream>> CudaStream::create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, const char* name) {
  return create(std::move(gpu), std::move(watch), name, nullptr);
}

Result<std::unique_ptr<CudaStream>> CudaStream::create_another(const char* name) const {
  return create(gpu_, watch_, name, launcher_->timeline());
}

Result<std::unique_ptr<CudaStream>> CudaStream::create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, const char* name,
                                                       std::shared_ptr<Timeline> timeline) {
  void* stream = nullptr;
  // High priority: a bucket's reduction should not queue behind the backward pass it overlaps with.
  if (Status made = gpu->check(gpu->plugin().stream_create(gpu->device(), true, &stream), "creating a stream"); !made) return made;
  auto launcher = Launcher::create(gpu, watch, stream, name, std::move(timeline));
  if (!launcher) return launcher.status();
  return std::unique_ptr<CudaStream>(new CudaStream(std::move(gpu), std::move(watch), *std::move(launcher)));
}

CudaStream::~CudaStream() {
  if (gpu_->usable_here()) launcher_->close();
}

Result<std::shared_ptr<Event>> CudaStream::record(std::shared_ptr<Notice> notice) {
  auto event = launcher_->record();
  if (!event) return event.status();
  if (notice) watch_->notify(*event, std::move(notice));
  return std::shared_ptr<Event>(*std::move(event));
}

// Of a stream of this backend. The launcher waits until it is in that one.
Status CudaStream::wait_for(std::shared_ptr<Event> event) {
  return submit([ours = std::static_pointer_cast<CudaEvent>(std::move(event))](Launcher& on) {
    if (Status recorded = ours->wait_until_recorded(); !recorded) return recorded;
    on.comes_after(ours->raw_event());
    return on.gpu().check(on.gpu().plugin().stream_wait(on.gpu().device(), on.stream(), ours->raw()), "ordering a stream after another");
  });
}

Status CudaStream::make_caller_wait(void* consumer, Event& event) {
  auto& ours = static_cast<CudaEvent&>(event);
  // CUDA takes an event that was never recorded for one that has happened.
  if (Status recorded = ours.wait_until_recorded(); !recorded) return recorded;
  return gpu_->check(gpu_->plugin().stream_wait(gpu_->device(), consumer, ours.raw()), "ordering the caller's stream after ours");
}

Result<std::shared_ptr<Event>> CudaStream::follow_caller(void* producer) {
  if (gpu_->failed()) return gpu_->failure();
  auto reached = RawEvent::record(gpu_, producer);
  if (!reached) return reached.status();
  const Status submitted = submit([reached = *reached](Launcher& on) {
    const Gpu& gpu = on.gpu();
    on.comes_after(reached);
    return gpu.check(gpu.plugin().stream_wait(gpu.device(), on.stream(), reached->get()), "ordering our stream after the caller's");
  });
  if (!submitted) return submitted;
  return std::shared_ptr<Event>(CudaEvent::recorded(*std::move(reached), launcher_->timeline()));
}

}  // namespace megadp::cuda
