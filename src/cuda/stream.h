// SPDX-License-Identifier: Apache-2.0
// CudaStream: a stream of our own, not synchronized with CUDA's default stream. Nothing here waits for the device. NULL, where a caller's
// stream is asked for, is CUDA's default stream.
#pragma once

#include <memory>

#include "backend/stream.h"
#include "cuda/event.h"
#include "cuda/watch.h"

namespace megadp::cuda {

class CudaStream final : public Stream {
 public:
  static Result<std::unique_ptr<CudaStream>> create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Result<std::shared_ptr<Event>> record(int notify_fd) override;
  Status wait_for(std::shared_ptr<Event> event) override;
  Status make_caller_wait(void* consumer, Event& event) override;
  Status wait_for_caller(void* producer) override;
  Status failure() const override { return gpu_->failure(); }
  void retain(std::shared_ptr<void> object) override;

  void* raw() const noexcept { return stream_; }
  Result<std::shared_ptr<CudaEvent>> mark();

 private:
  CudaStream(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, void* stream) noexcept
      : gpu_(std::move(gpu)), watch_(std::move(watch)), stream_(stream) {}

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  void* const stream_;
  std::shared_ptr<Timeline> timeline_;
};

}  // namespace megadp::cuda
