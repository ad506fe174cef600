// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_order.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace megadp::cuda {
namespace {

// A stamp is a count and, below it, the rank: no two are the same, so what has the same largest stamp is the same collective.
constexpr int kRankBits = 24;

constexpr auto kLookAround = std::chrono::milliseconds(25);

}  // namespace

std::shared_ptr<void> LaunchOrder::take_place() {
  const std::lock_guard lock(mutex_);
  if (own_places_ <= 0) return nullptr;
  std::shared_ptr<void> place(this, [self = shared_from_this()](void*) {
    const std::lock_guard back(self->mutex_);
    ++self->own_places_;
  });
  --own_places_;
  return place;
}

LaunchOrder::InLine::InLine(std::shared_ptr<LaunchOrder> order) : order_(std::move(order)) {
  const std::lock_guard lock(order_->mutex_);
  stamp_ = (++order_->clock_ << kRankBits) | order_->rank_;
  at_ = order_->line_.insert(order_->line_.end(), stamp_);
}

LaunchOrder::InLine::~InLine() {
  {
    const std::lock_guard lock(order_->mutex_);
    order_->line_.erase(at_);
  }
  order_->moved_.notify_all();
}

bool LaunchOrder::InLine::wait_for_turn(uint64_t largest, const std::function<bool()>& give_up) {
  LaunchOrder& order = *order_;
  std::unique_lock lock(order.mutex_);
  // What is stamped here from now on goes behind it.
  order.clock_ = std::max(order.clock_, largest >> kRankBits);
  *at_ = largest;
  order.moved_.notify_all();
  // One whose largest stamp is not known counts by its own, which is no larger: it may turn out to come first.
  while (*std::min_element(order.line_.begin(), order.line_.end()) != largest) {
    if (give_up()) return false;
    order.moved_.wait_for(lock, kLookAround);
  }
  return true;
}

std::shared_ptr<CudaEvent> LaunchOrder::InLine::follow(const std::shared_ptr<CudaEvent>& end) {
  const std::lock_guard lock(order_->mutex_);
  return std::exchange(order_->last_end_, end).lock();
}

}  // namespace megadp::cuda
