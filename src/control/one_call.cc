// SPDX-License-Identifier: Apache-2.0
#include "control/one_call.h"

#include <utility>

#include "control/interrupt.h"

namespace megadp {

std::optional<OneCall::Holder> OneCall::take(std::shared_ptr<void> owner) noexcept {
  CallInWait* const call = CallInWait::here();
  if (call == nullptr) return std::nullopt;  // nobody would give it back
  const CallInWait* holder = nullptr;
  if (!holder_.compare_exchange_strong(holder, call, std::memory_order_acquire)) {
    if (holder == call) return std::nullopt;
    return Holder{name_.load(std::memory_order_relaxed), thread_.load(std::memory_order_relaxed) == pthread_self()};
  }
  thread_.store(pthread_self(), std::memory_order_relaxed);
  name_.store(call->name_, std::memory_order_relaxed);
  owner_ = std::move(owner);
  next_ = call->taken_;
  call->taken_ = this;
  return std::nullopt;
}

void OneCall::give_back() noexcept {
  const std::shared_ptr<void> owner = std::move(owner_);  // goes last, and perhaps takes this with it
  name_.store(nullptr, std::memory_order_relaxed);
  holder_.store(nullptr, std::memory_order_release);
}

}  // namespace megadp
