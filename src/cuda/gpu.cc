// SPDX-License-Identifier: Apache-2.0
#include "cuda/gpu.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/fd.h"
#include "cuda/at_work.h"

namespace megadp::cuda {
namespace {

// How many collectives' kernels the device surely holds at once, unless the program says so.
Result<int32_t> collectives_at_once(const Gpu& gpu) {
  constexpr long kMost = 1024;
  if (const char* const said = std::getenv("MEGADP_COLLECTIVES_AT_ONCE"); said != nullptr && *said != '\0') {
    char* end = nullptr;
    const long number = std::strtol(said, &end, 10);
    if (*end == '\0' && number >= 1 && number <= kMost) return static_cast<int32_t>(number);
    return invalid("MEGADP_COLLECTIVES_AT_ONCE is \"", said, "\"; it must be a number from 1 to ", kMost);
  }
  DeviceInfo info{};
  if (Status known = gpu.check(gpu.plugin().device_info(gpu.index(), &info), "looking at the device"); !known) return known;
  return std::max(1, info.collectives);
}

}  // namespace

Result<std::shared_ptr<Gpu>> Gpu::open(const PluginTable& plugin, std::shared_ptr<World> world, int32_t index) {
  std::shared_ptr<Gpu> gpu(new Gpu(plugin, std::move(world), index));
  occupy_standard_descriptors();
  if (Status opened = gpu->check(plugin.device_open(index, &gpu->device_), text("opening CUDA device ", index)); !opened) return opened;
  char why[512] = "";
  if (plugin.nccl_open(nullptr, &gpu->nccl_, why, sizeof why) != 0) return unsupported("NCCL cannot be used: ", why);
  AtWork::awaited_at_exit(Loaded::nccl);
  auto places = collectives_at_once(*gpu);
  if (!places) return places.status();
  gpu->order_ = std::make_shared<LaunchOrder>(*places, gpu->world().rank());
  return gpu;
}

Gpu::~Gpu() {
  if (!usable_here()) return;
  for (void* const event : idle_events_) plugin_->event_destroy(device_, event);
  if (nccl_ != nullptr) plugin_->nccl_close(nccl_);
  if (device_ != nullptr) plugin_->device_close(device_);
}

Status Gpu::check(int32_t result, std::string_view what) const {
  if (result == 0) return {};
  char why[512] = "";
  plugin_->explain(result, nccl_, why, sizeof why);
  Code code = Code::backend;
  if (result == kOutOfMemory || result == kNoHostMemory || result == kCublasNoMemory) code = Code::memory;
  if (result == kBadArgument || result == kUnsupported) code = Code::unsupported;
  return Status(code, text(what, " on CUDA device ", index_, ": ", why), Blame{.rank = world_->rank()});
}

Result<void*> Gpu::take_event() {
  {
    const std::lock_guard lock(events_mutex_);
    if (!idle_events_.empty()) {
      void* const event = idle_events_.back();
      idle_events_.pop_back();
      return event;
    }
  }
  void* event = nullptr;
  if (Status made = check(plugin_->event_create(device_, &event), "creating an event"); !made) return made;
  return event;
}

// Work of a stream that waits for it may still be under way: what it waits for is what was recorded last when it was submitted.
void Gpu::give_back_event(void* event) noexcept {
  try {
    const std::lock_guard lock(events_mutex_);
    idle_events_.push_back(event);
  } catch (const std::bad_alloc&) {
    plugin_->event_destroy(device_, event);
  }
}

// After the last of them they begin anew, when what was on the first is long over.
uint64_t Gpu::line_of(const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  uint64_t& taken = lines_[members];
  taken = taken % (World::kFilesLine - 1) + 1;
  return taken;
}

void Gpu::fail(const Status& why) {
  if (why.ok()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
    plugin_->poison(device_);  // before anybody can see the failure, and abort what keeps the queue from going on
  }
  world_->fail(why);
  has_failed_.store(true, std::memory_order_release);  // who sees it here finds that the world knows
}

Status Gpu::failure() const {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  return world_->failed() ? world_->failure() : Status();
}

}  // namespace megadp::cuda
