// SPDX-License-Identifier: Apache-2.0
// Gpu: what all objects of one CUDA backend share: the plugin's table and device, NCCL, the control plane, and the first failure. Turns the
// plugin's numbers into statuses.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "control/world.h"
#include "cuda/launch_order.h"
#include "cuda/plugin.h"

namespace megadp::cuda {

class Gpu {
 public:
  static Result<std::shared_ptr<Gpu>> open(const PluginTable& plugin, std::shared_ptr<World> world, int32_t index);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const PluginTable& plugin() const noexcept { return *plugin_; }
  Device* device() const noexcept { return device_; }
  Nccl* nccl() const noexcept { return nccl_; }
  World& world() const noexcept { return *world_; }
  int32_t index() const noexcept { return index_; }
  // Nothing of CUDA may be touched in a forked child, not even to free it.
  bool usable_here() const noexcept { return !world_->in_forked_child(); }
  // Expires when this is gone, with its hold on the world.
  std::weak_ptr<const void> presence() const noexcept { return presence_; }

  // ok for 0, Code::memory, Code::unsupported or Code::backend otherwise; `what` is what was tried, as in "allocating 64 bytes".
  Status check(int32_t result, std::string_view what) const;

  // An event of the plugin, one that was given back if there is one: making and destroying them costs more than recording them.
  Result<void*> take_event();
  void give_back_event(void* event) noexcept;

  // The first failure of this rank's work on the device; sticks, reaches the other ranks, and stops parameters from being changed by what
  // is queued already.
  void fail(const Status& why);
  bool failed() const noexcept { return has_failed_.load(std::memory_order_acquire) || world_->failed(); }
  Status failure() const;

  const std::shared_ptr<LaunchOrder>& order() const noexcept { return order_; }
  // A line of the control plane (World::exchange) that was not taken yet among these members: to all of them the same, if they take them in
  // one order.
  uint64_t line_of(const std::vector<int>& members);

  // How often the host has waited for the device: in the plugin, or for an event.
  uint64_t host_syncs() const noexcept { return plugin_->host_syncs(device_) + waits_.load(std::memory_order_relaxed); }
  void count_wait() noexcept { waits_.fetch_add(1, std::memory_order_relaxed); }

 private:
  Gpu(const PluginTable& plugin, std::shared_ptr<World> world, int32_t index) : plugin_(&plugin), world_(std::move(world)), index_(index) {}

  const std::shared_ptr<const void> presence_ = std::make_shared<char>();  // declared first: it goes last
  const PluginTable* const plugin_;
  const std::shared_ptr<World> world_;
  const int32_t index_;
  Device* device_ = nullptr;
  Nccl* nccl_ = nullptr;
  std::shared_ptr<LaunchOrder> order_;
  std::atomic<uint64_t> waits_{0};
  std::atomic<bool> has_failed_{false};
  mutable std::mutex mutex_;
  std::mutex events_mutex_;
  std::vector<void*> idle_events_;              // under events_mutex_
  Status failure_;                              // under mutex_
  std::map<std::vector<int>, uint64_t> lines_;  // likewise: taken so far
};

}  // namespace megadp::cuda
