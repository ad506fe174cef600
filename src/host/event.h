// SPDX-License-Identifier: Apache-2.0
// HostEvent: a point in a host stream. Pending until the stream's worker completes it, once.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "backend/stream.h"
#include "host/thread_pool.h"

namespace megadp::host {

class HostEvent final : public Event {
 public:
  // notice: given when the event is done; may be null. pool: it helps while a caller waits; may be null.
  explicit HostEvent(std::shared_ptr<Notice> notice, std::shared_ptr<ThreadPool> pool = {}) noexcept
      : notice_(std::move(notice)), pool_(std::move(pool)) {}

  bool done() const noexcept override { return done_.load(std::memory_order_acquire) != 0; }
  Status status() const override;
  Status wait(Deadline deadline) override;
  Status wait_in_stream(Deadline deadline) override;
  uint64_t time_ns() const noexcept override { return time_ns_.load(std::memory_order_acquire); }

  // For the stream: the work before this point has finished (ok) or failed.
  void complete(Status status) noexcept;

 private:
  Status status_;  // written before done_, read after it
  std::atomic<uint64_t> time_ns_{0};
  std::atomic<uint32_t> done_{0};
  std::atomic<uint32_t> sleepers_{0};
  const std::shared_ptr<Notice> notice_;
  const std::shared_ptr<ThreadPool> pool_;
};

}  // namespace megadp::host
