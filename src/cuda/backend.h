// SPDX-License-Identifier: Apache-2.0
// CudaBackend: the backend for NVIDIA GPUs, one device a rank: the plugin's kernels and NCCL in the form of the backend interface. Small
// messages between ranks go over the host backend that it is given.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "cuda/gemm.h"
#include "cuda/staging.h"
#include "cuda/stream.h"
#include "cuda/watch.h"

namespace megadp::cuda {

struct Options {
  int32_t device = -1;  // -1: this rank's number on its node, modulo the number of devices
  bool exact = false;   // sums as on the host (see group.h)
};

class CudaBackend final : public Backend {
 public:
  // Collective over the world of `host`.
  static Result<std::shared_ptr<Backend>> open(const PluginTable& plugin, std::shared_ptr<World> world, std::shared_ptr<Backend> host,
                                               const Options& options);
  ~CudaBackend() override;

  std::string_view name() const noexcept override { return "cuda"; }
  World& world() noexcept override { return gpu_->world(); }
  Backend& control() noexcept override { return *host_; }
  Place place() const noexcept override { return {DeviceType::cuda, gpu_->index()}; }
  uint64_t host_syncs() const noexcept override { return gpu_->host_syncs(); }

  Result<std::unique_ptr<Memory>> allocate(size_t bytes) override;
  Result<std::unique_ptr<Memory>> allocate_host(size_t bytes) override;
  Result<std::unique_ptr<Stream>> create_stream(const char* name) override;
  Result<std::shared_ptr<Group>> create_group(const std::vector<int>& members) override;

  Status zero(Stream& stream, void* data, size_t bytes) override;
  Status cast(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) override;
  Status add(Stream& stream, void* to, DType to_type, const void* from, DType from_type, size_t count) override;
  Status round_with_feedback(Stream& stream, void* to, const float* from, float* residual, size_t count) override;
  Status refresh_masters(Stream& stream, float* masters, const void* params, DType type, size_t count) override;
  Status square_sum(Stream& stream, const void* data, DType type, size_t count, double* sums) override;
  Status extremes(Stream& stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest) override;
  Status scale(Stream& stream, void* data, DType type, size_t count, float factor) override;
  Status begin_step(Stream& stream, StepScalars* scalars, const StepSettings& settings) override;
  Status count_steps(Stream& stream, const StepScalars* scalars, uint64_t* steps, size_t count) override;
  Status update(Stream& stream, const Update& update) override;

  Status fetch(Stream& stream, void* host_to, const void* from, size_t bytes) override;
  Status run(Stream& stream, std::function<void()> work) override;

  Status copy(const StridedArray& to, const StridedArray& from, bool add, void* caller) override;
  Status find_nonfinite(const void* data, DType type, size_t count, uint64_t first, uint64_t* found, void* caller) override;
  Status gemm(const Matrix& c, const Matrix& a, const Matrix& b, bool add, void* caller) override;
  Result<std::string> gemm_library() override;
  Status look_up(const Lookup& work, bool gradient, void* caller) override;
  Status cross_entropy(const CrossEntropy& work, CrossEntropyPass pass, void* caller) override;
  Status merge_attention(const AttentionMerge& work, void* caller) override;
  Status read(void* host_to, const void* from, size_t bytes) override;
  Status write(void* to, const void* host_from, size_t bytes) override;

 private:
  CudaBackend(std::shared_ptr<Gpu> gpu, std::shared_ptr<Backend> host, bool exact);
  Status check(int32_t result, const char* what) const { return gpu_->check(result, what); }
  Status move(void* to, const void* from, size_t bytes);

  // Waits a moment for the library's own threads, which may hold the device, and so the world, a little longer than its last user. The
  // world's goodbye comes after them, and a process that ended before it would seem to have died.
  struct LastHolders {
    std::weak_ptr<const void> gpu;
    ~LastHolders();
  };

  LastHolders others_;  // declared first: its turn is when the members below have let go
  const std::shared_ptr<Gpu> gpu_;
  const std::shared_ptr<Watch> watch_;
  const std::shared_ptr<Backend> host_;
  const bool exact_;
  Staging staging_;  // of copy()
  DeviceGemm gemm_;
  std::mutex moving_;
  void* moving_stream_ = nullptr;  // of read() and write()
};

}  // namespace megadp::cuda
