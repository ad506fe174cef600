// SPDX-License-Identifier: Apache-2.0
// CudaStream: a stream of our own, not synchronized with CUDA's default stream, which a Launcher fills. Submitting never waits; only
// make_caller_wait() waits, until the event has been put in the stream, and for the device nothing here does. NULL, where a caller's stream
// is asked for, is CUDA's default stream.
#pragma once

#include <memory>

#include "backend/stream.h"
#include "cuda/launcher.h"

namespace megadp::cuda {

class CudaStream final : public Stream {
 public:
  static Result<std::unique_ptr<CudaStream>> create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, const char* name);
  // Another one of the same device, which is made without waiting for it.
  Result<std::unique_ptr<CudaStream>> create_another(const char* name) const;
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  Result<std::shared_ptr<Event>> record(std::shared_ptr<Notice> notice) override;
  Status wait_for(std::shared_ptr<Event> event) override;
  Status make_caller_wait(void* consumer, Event& event) override;
  Result<std::shared_ptr<Event>> follow_caller(void* producer) override;
  Status failure() const override { return gpu_->failure(); }
  void retain(std::shared_ptr<void> object) noexcept override { launcher_->retain(std::move(object)); }

  Status submit(Launcher::Work work) { return launcher_->submit(std::move(work)); }

 private:
  static Result<std::unique_ptr<CudaStream>> create(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, const char* name,
                                                    std::shared_ptr<Timeline> timeline);
  CudaStream(std::shared_ptr<Gpu> gpu, std::shared_ptr<Watch> watch, std::shared_ptr<Launcher> launcher) noexcept
      : gpu_(std::move(gpu)), watch_(std::move(watch)), launcher_(std::move(launcher)) {}

  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Launcher> launcher_;  // its thread has another reference
};

}  // namespace megadp::cuda
