// SPDX-License-Identifier: Apache-2.0
// HostBackend: the backend for CPUs. Memory is anonymous pages, streams are worker threads, windows are memfds, kernels are SIMD loops
// that run on the stream's worker.
#pragma once

#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "control/world.h"
#include "host/thread_pool.h"
#include "host/transport.h"

namespace megadp::host {

struct HostSettings {
  TransportKind transport = TransportKind::automatic;
  int threads = 0;              // that work together on a long array; 0: this rank's share of the processors, at most kMostDefaultThreads
  bool threads_always = false;  // also while no thread of the caller waits
  size_t piece_bytes = kPieceBytes;
};
// Few are enough for the bandwidth of a processor's memory.
constexpr int kMostDefaultThreads = 16;

class HostBackend final : public Backend {
 public:
  // Collective over the world when it spans nodes: prepares their network.
  static Result<std::shared_ptr<Backend>> open(std::shared_ptr<World> world, const HostSettings& settings = {});

  std::string_view name() const noexcept override { return "host"; }
  World& world() noexcept override { return *world_; }

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
  HostBackend(std::shared_ptr<World> world, std::shared_ptr<Network> network, const HostSettings& settings);
  // The processors of this rank, if the ranks of its node share them evenly.
  int processors() const;
  void share_processors() const;

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Network> network_;  // none when all ranks share one node
  const std::shared_ptr<ThreadPool> pool_;
  std::once_flag processors_shared_;
};

}  // namespace megadp::host
