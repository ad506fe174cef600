// SPDX-License-Identifier: Apache-2.0
// Device: one GPU and what calls on it share; Current: the device made current for the length of a call. With launch.cuh and device.cc all
// that knows how this plugin talks to the CUDA runtime.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "cuda/plugin.h"

namespace megadp::cuda {

struct Device {
  int index = 0;
  CUcontext context = nullptr;  // the primary one, which the runtime uses too
  int processors = 0;
  std::atomic<uint64_t> host_syncs{0};
  cudaStream_t own = nullptr;  // for what a call finishes before it returns: waits for nobody else's work
  // One scratch memory: whoever uses it makes its stream wait for `scratch_free`, and records that again afterwards, under the mutex.
  std::mutex scratch_mutex;
  cudaEvent_t scratch_free = nullptr;
  void* scratch = nullptr;
  // In pinned memory of the host, which the device reads: how poison() reaches kernels that were launched already, without waiting.
  uint32_t* poisoned = nullptr;
};

// The most CTAs that NCCL may use for a communicator, so that several communicators' kernels fit on a device.
constexpr int32_t kMaxCtas = 16;
constexpr size_t kScratchBytes = size_t{8} << 20;

inline int32_t result_of(cudaError_t error) {
  return error == cudaSuccess ? 0 : kCudaFailure + static_cast<int32_t>(error);
}

inline cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
inline cudaEvent_t event_of(void* event) {
  return static_cast<cudaEvent_t>(event);
}

// Contexts rather than device numbers are saved and put back: cudaSetDevice(0) on a thread that had no device would make a context on
// device 0, hundreds of megabytes that nobody asked for. And the thread tells CUDA that it takes care of itself: while the caller captures
// a graph somewhere, a query or an allocation on any other thread would otherwise fail, and spoil the capture.
class Current {
 public:
  explicit Current(const Device* device);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  int32_t result() const { return result_; }

 private:
  CUcontext before_ = nullptr;
  bool changed_ = false;
  bool relaxed_ = false;
  cudaStreamCaptureMode mode_before_ = cudaStreamCaptureModeGlobal;
  int32_t result_ = 0;
};

// Counts a call that made, or may have made, the host wait for the device.
inline void count_sync(Device* device) {
  if (device != nullptr) device->host_syncs.fetch_add(1, std::memory_order_relaxed);
}

// Zeroes memory and waits until that is done. The device is current.
int32_t zero_now(Device* device, void* data, size_t bytes);

// ── the entries of PluginTable, by their names ──

int32_t device_count(int32_t* count);
int32_t device_info(int32_t index, DeviceInfo* out);
int32_t device_open(int32_t index, Device** out);
void device_close(Device* device);
uint64_t host_syncs(const Device* device);
void poison(Device* device);

int32_t allocate(Device* device, size_t bytes, void** out);
int32_t release(Device* device, void* memory);
int32_t allocate_pinned(Device* device, size_t bytes, void** out);
int32_t release_pinned(Device* device, void* memory);
int32_t access(Device* device, const void* memory, Access* out);
int32_t copy(Device* device, void* stream, void* to, const void* from, size_t bytes);

int32_t stream_create(Device* device, bool high_priority, void** out);
int32_t stream_destroy(Device* device, void* stream);
int32_t stream_synchronize(Device* device, void* stream);
int32_t stream_wait(Device* device, void* stream, void* event);
int32_t event_create(Device* device, void** out);
int32_t event_destroy(Device* device, void* event);
int32_t event_record(Device* device, void* event, void* stream);
int32_t event_query(Device* device, void* event);
int32_t event_elapsed(Device* device, void* begin, void* end, float* milliseconds);

int32_t zero(Device* device, void* stream, void* data, size_t bytes);
int32_t cast(Device* device, void* stream, void* to, DType to_type, const void* from, DType from_type, size_t count);
int32_t copy_strided(Device* device, void* stream, const Strided* to, const Strided* from, bool add);
int32_t square_sum(Device* device, void* stream, const void* data, DType type, size_t count, double* sums);
int32_t round_with_feedback(Device* device, void* stream, void* to, const float* from, float* residual, size_t count);
int32_t refresh_masters(Device* device, void* stream, float* masters, const void* params, DType type, size_t count);
int32_t extremes(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest);
int32_t find_nonfinite(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t first, uint64_t* found);
int32_t scale(Device* device, void* stream, void* data, DType type, size_t count, float factor);
int32_t begin_step(Device* device, void* stream, StepScalars* scalars, const StepSettings* settings);
int32_t count_steps(Device* device, void* stream, const StepScalars* scalars, uint64_t* steps, size_t count);
int32_t update(Device* device, void* stream, const Update* update);
int32_t look_up(Device* device, void* stream, const Lookup* work, bool gradient);
int32_t cross_entropy(Device* device, void* stream, const CrossEntropy* work, CrossEntropyPass pass);
int32_t merge_attention(Device* device, void* stream, const AttentionMerge* work);
int32_t reduce(Device* device, void* stream, void* to, const void* from, size_t stride, int32_t parts, size_t count, DType type, Op op,
               double divisor);

}  // namespace megadp::cuda
