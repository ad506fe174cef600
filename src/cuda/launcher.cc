// SPDX-License-Identifier: Apache-2.0
#include "cuda/launcher.h"

#include <chrono>
#include <cstddef>
#include <ctime>
#include <exception>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "cuda/at_work.h"

namespace megadp::cuda {
namespace {

// How long the end of a stream may take for what could be launched at once. Longer than that it waits for nobody.
constexpr long kCloseNs = 25'000'000;

// For want of memory: better than freed under the device's hands.
void keep_for_ever(std::shared_ptr<void> object) noexcept {
  alignas(std::shared_ptr<void>) std::byte room[sizeof(std::shared_ptr<void>)];
  new (room) std::shared_ptr<void>(std::move(object));
}

}  // namespace

Result<std::shared_ptr<Launcher>> Launcher::create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, void* stream, const char* name,
                                                   std::shared_ptr<Timeline> timeline) {
  std::shared_ptr<Launcher> launcher(new Launcher(gpu, std::move(watch), stream, name));
  launcher->timeline_ = std::move(timeline);
  if (launcher->timeline_ != nullptr) return launcher;
  auto started = Timeline::start(gpu, stream);
  if (!started) return started.status();
  launcher->timeline_ = *std::move(started);
  return launcher;
}

// Under mutex_.
Status Launcher::start() {
  auto thread = start_thread(name_, [self = shared_from_this()]() mutable {
    self->run();
    const AtWork at_work;
    self.reset();  // perhaps the last reference
  });
  if (!thread) return thread.status();
  thread_ = *thread;
  started_ = true;
  return {};
}

bool Launcher::started() {
  const std::lock_guard lock(mutex_);
  return started_;
}

// Its last collective may still be on the device: the place goes back when none is.
Launcher::~Launcher() {
  if (place_ != nullptr) watch_->drop(std::move(place_));
  if (gpu_->usable_here()) gpu_->plugin().stream_destroy(gpu_->device(), stream_);
}

void Launcher::run() {
  for (;;) {
    Item item;
    if (!pop(&item)) return;
    const AtWork at_work;
    perform(item);
    item = {};  // what the work holds is released before the next wait
  }
}

Status Launcher::push(Item item) {
  {
    const std::lock_guard lock(mutex_);
    if (!started_) {
      if (Status started = start(); !started) return started;
    }
    items_.push_back(std::move(item));
  }
  changed_.notify_one();
  return {};
}

// False at the end.
bool Launcher::pop(Item* out) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !items_.empty() || closing_; });
  if (items_.empty()) return false;
  *out = std::move(items_.front());
  items_.pop_front();
  return true;
}

// What the standard library throws must not end the thread.
void Launcher::perform(Item& item) noexcept {
  static const Status& no_memory = *new Status(Code::memory, "no memory was left to submit work to a device");
  if (item.kept != nullptr) return give_up(std::move(item.kept));
  if (!item.always && gpu_->failed()) return;
  try {
    Status done;
    try {
      done = item.work(*this);
    } catch (const std::bad_alloc&) {
      done = no_memory;
    } catch (const std::exception& error) {
      done = internal_error("work of a device's stream threw: ", error.what());
    }
    if (!done) gpu_->fail(done);
  } catch (const std::bad_alloc&) {  // who waits for this rank has a timeout
  }
}

Status Launcher::submit(Work work) {
  if (gpu_->failed()) return gpu_->failure();
  return push({std::move(work), false});
}

Result<std::shared_ptr<CudaEvent>> Launcher::record() {
  if (!started()) return mark();
  auto event = this->event();
  if (!event) return event.status();
  Status pushed = push({[event = *event](Launcher& on) { return event->record(on.stream_); }, true});
  return pushed ? event : pushed;
}

Result<std::shared_ptr<CudaEvent>> Launcher::mark() {
  auto event = this->event();
  if (!event) return event.status();
  if (Status recorded = (*event)->record(stream_); !recorded) return recorded;
  return event;
}

void Launcher::comes_after(std::shared_ptr<RawEvent> event) {
  while (!others_.empty() && others_.front()->asked() != kPending) others_.pop_front();
  others_.push_back(std::move(event));
}

// By asking again and again, as CudaEvent does.
Status Launcher::wait_for_others() {
  constexpr auto kNap = std::chrono::microseconds(20);
  for (; !others_.empty(); others_.pop_front()) {
    int32_t asked = kPending;
    while ((asked = others_.front()->asked()) == kPending && !gpu_->failed()) std::this_thread::sleep_for(kNap);
    if (gpu_->failed()) return gpu_->failure();
    if (asked != 0) return gpu_->check(asked, "work that a collective comes after");
  }
  return {};
}

bool Launcher::has_place() {
  if (!std::exchange(asked_for_place_, true)) place_ = gpu_->order()->take_place();
  return place_ != nullptr;
}

// The caller has no reference left when the launcher has one: the last one frees memory, which waits for the device.
void Launcher::retain(std::shared_ptr<void> object) noexcept {
  if (object == nullptr) return;
  if (!started()) return give_up(std::move(object));
  try {
    {
      const std::lock_guard lock(mutex_);
      items_.emplace_back().kept = std::move(object);
    }
    changed_.notify_one();
  } catch (const std::bad_alloc&) {
    keep_for_ever(std::move(object));
  }
}

void Launcher::give_up(std::shared_ptr<void> object) noexcept {
  std::shared_ptr<CudaEvent> passed;
  try {
    auto marked = mark();
    // If not even an event can be recorded the device is lost, and nothing is under way any more.
    if (marked) passed = *std::move(marked);
  } catch (const std::bad_alloc&) {
    return keep_for_ever(std::move(object));
  }
  watch_->drop(std::move(object), std::move(passed));
}

void Launcher::close() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!started_) return;
    closing_ = true;
  }
  changed_.notify_one();
  // The last reference may be dropped by the launcher's own work; a thread cannot join itself.
  timespec until{};
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += kCloseNs;
  if (until.tv_nsec >= 1'000'000'000) {
    until.tv_nsec -= 1'000'000'000;
    until.tv_sec += 1;
  }
  const bool here = pthread_equal(pthread_self(), thread_) != 0;
  if (here || pthread_timedjoin_np(thread_, nullptr, &until) != 0) pthread_detach(thread_);
}

}  // namespace megadp::cuda
