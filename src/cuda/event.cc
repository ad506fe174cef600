// SPDX-License-Identifier: Apache-2.0
#include "cuda/event.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "control/interrupt.h"

namespace megadp::cuda {

Result<std::shared_ptr<RawEvent>> RawEvent::create(std::shared_ptr<Gpu> gpu) {
  auto event = gpu->take_event();
  if (!event) return event.status();
  return std::shared_ptr<RawEvent>(new RawEvent(std::move(gpu), *event));
}

Status RawEvent::record(void* stream) {
  recorded_ns_ = now_ns();
  return gpu_->check(gpu_->plugin().event_record(gpu_->device(), event_, stream), "recording an event");
}

Result<std::shared_ptr<RawEvent>> RawEvent::record(std::shared_ptr<Gpu> gpu, void* stream) {
  auto raw = create(std::move(gpu));
  if (!raw) return raw;
  if (Status recorded = (*raw)->record(stream); !recorded) return recorded;
  return raw;
}

RawEvent::~RawEvent() {
  if (gpu_->usable_here()) gpu_->give_back_event(event_);
}

Result<std::shared_ptr<Timeline>> Timeline::start(const std::shared_ptr<Gpu>& gpu, void* stream) {
  auto base = RawEvent::record(gpu, stream);
  if (!base) return base.status();
  if (Status reached = gpu->check(gpu->plugin().stream_synchronize(gpu->device(), stream), "starting a stream"); !reached) return reached;
  return std::shared_ptr<Timeline>(new Timeline(*std::move(base), now_ns()));
}

uint64_t Timeline::time_of(const std::shared_ptr<RawEvent>& event) {
  const std::lock_guard lock(mutex_);
  const Gpu& gpu = *event->gpu();
  float milliseconds = 0;
  if (gpu.plugin().event_elapsed(gpu.device(), base_->get(), event->get(), &milliseconds) != 0) return now_ns();
  const int64_t elapsed_ns = static_cast<int64_t>(static_cast<double>(milliseconds) * 1e6);
  const uint64_t time_ns = std::clamp(base_ns_ + static_cast<uint64_t>(elapsed_ns), event->recorded_ns(), now_ns());
  base_ns_ = time_ns - static_cast<uint64_t>(elapsed_ns);
  constexpr int64_t kRenewAfterNs = 1'000'000'000;
  if (elapsed_ns > kRenewAfterNs) {
    base_ = event;
    base_ns_ = time_ns;
  }
  return time_ns;
}

namespace {

// By asking again and again: CUDA's own wait has no deadline, and would not notice the death of another rank. False at the deadline, and if
// the caller is interrupted.
template <class Condition>
bool wait_until(const Condition& condition, Deadline deadline) {
  constexpr uint64_t kSpinNs = 100'000, kNapNs = 50'000;
  const uint64_t begin_ns = now_ns();
  while (!condition()) {
    const uint64_t left_ns = deadline.left_ns();
    if (left_ns == 0 || interrupted()) return false;
    if (now_ns() - begin_ns < kSpinNs) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(left_ns, kNapNs)));
    }
  }
  return true;
}

}  // namespace

Status RawEvent::await() const {
  const bool over = wait_until([this] { return asked() != kPending || gpu_->failed(); }, Deadline::never());
  return over ? Status() : interruption();
}

Result<std::shared_ptr<CudaEvent>> CudaEvent::create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Timeline> timeline) {
  auto raw = RawEvent::create(std::move(gpu));
  if (!raw) return raw.status();
  return std::shared_ptr<CudaEvent>(new CudaEvent(*std::move(raw), std::move(timeline)));
}

std::shared_ptr<CudaEvent> CudaEvent::recorded(std::shared_ptr<RawEvent> raw, std::shared_ptr<Timeline> timeline) {
  std::shared_ptr<CudaEvent> event(new CudaEvent(std::move(raw), std::move(timeline)));
  event->recorded_.store(true, std::memory_order_release);
  return event;
}

Status CudaEvent::record(void* stream) {
  Status recorded = raw_->record(stream);
  if (!recorded) raw_->gpu()->fail(recorded);  // before it can be asked about: to CUDA it would look as if it had happened
  recorded_.store(true, std::memory_order_release);
  return recorded;
}

Status CudaEvent::wait_until_recorded() const {
  const Gpu& gpu = *raw_->gpu();
  const auto over = [&] { return recorded_.load(std::memory_order_acquire) || gpu.failed(); };
  if (!wait_until(over, Deadline::never())) return interruption();
  return gpu.failed() ? gpu.failure() : Status();
}

bool CudaEvent::done() const noexcept {
  if (settled_.load(std::memory_order_acquire)) return true;
  const Gpu& gpu = *raw_->gpu();
  if (!gpu.usable_here()) return false;
  const bool recorded = recorded_.load(std::memory_order_acquire);
  const int32_t result = recorded ? gpu.plugin().event_query(gpu.device(), raw_->get()) : kPending;
  // Asked after the query: a failure is made known before the communicators are aborted, so an event reached by an abort is seen as failed.
  if (gpu.failed()) {
    settle(gpu.failure());
  } else if (result == 0) {
    settle({});
  } else if (result != kPending) {
    settle(gpu.check(result, "work of a stream"));
  }
  return settled_.load(std::memory_order_acquire);
}

bool CudaEvent::reached() const noexcept {
  const Gpu& gpu = *raw_->gpu();
  return gpu.usable_here() && recorded_.load(std::memory_order_acquire) && gpu.plugin().event_query(gpu.device(), raw_->get()) != kPending;
}

void CudaEvent::settle(Status status) const {
  const std::lock_guard lock(mutex_);
  if (settled_.load(std::memory_order_relaxed)) return;
  time_ns_.store(status.ok() ? timeline_->time_of(raw_) : now_ns(), std::memory_order_release);
  status_ = std::move(status);
  settled_.store(true, std::memory_order_release);
}

Status CudaEvent::status() const {
  if (!done()) return {Code::pending, "the event has not been reached yet"};
  return status_;
}

Status CudaEvent::wait(Deadline deadline) {
  if (deadline.left_ns() > 0) raw_->gpu()->count_wait();
  if (wait_until([this] { return done(); }, deadline)) return status_;
  return {Code::pending, "the event was not reached before the wait ended"};
}

}  // namespace megadp::cuda
