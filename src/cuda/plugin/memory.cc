// SPDX-License-Identifier: Apache-2.0
// Memory of the device and pinned memory of the host, and copies between all kinds.
#include "cuda/plugin/device.h"

namespace megadp::cuda {

int32_t zero_now(Device* device, void* data, size_t bytes) {
  const cudaStream_t stream = device != nullptr ? device->own : nullptr;
  cudaError_t error = cudaMemsetAsync(data, 0, bytes, stream);
  count_sync(device);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  return result_of(error);
}

int32_t allocate(Device* device, size_t bytes, void** out) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  void* memory = nullptr;
  count_sync(device);
  if (const int32_t failed = result_of(cudaMalloc(&memory, bytes > 0 ? bytes : 1)); failed != 0) return failed;
  if (const int32_t failed = zero_now(device, memory, bytes); failed != 0) {
    static_cast<void>(cudaFree(memory));
    return failed;
  }
  *out = memory;
  return 0;
}

int32_t release(Device* device, void* memory) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  count_sync(device);
  return result_of(cudaFree(memory));
}

int32_t allocate_pinned(Device* device, size_t bytes, void** out) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  void* memory = nullptr;
  count_sync(device);
  if (const int32_t failed = result_of(cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocPortable)); failed != 0) return failed;
  auto* const begin = static_cast<unsigned char*>(memory);
  for (size_t i = 0; i < bytes; i++) begin[i] = 0;
  *out = memory;
  return 0;
}

int32_t release_pinned(Device* device, void* memory) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  count_sync(device);
  return result_of(cudaFreeHost(memory));
}

int32_t access(Device* device, const void* memory, Access* out) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  cudaPointerAttributes attributes;
  if (const int32_t failed = result_of(cudaPointerGetAttributes(&attributes, memory)); failed != 0) return failed;
  switch (attributes.type) {
    case cudaMemoryTypeHost:
      *out = Access::host;
      return 0;
    case cudaMemoryTypeDevice:
      *out = Access::device;
      return 0;
    case cudaMemoryTypeManaged:
      *out = Access::managed;
      return 0;
    default:
      *out = Access::unknown;
      return 0;
  }
}

namespace {

bool is_ordinary(const void* memory) {
  cudaPointerAttributes attributes;
  return cudaPointerGetAttributes(&attributes, memory) != cudaSuccess || attributes.type == cudaMemoryTypeUnregistered;
}

}  // namespace

int32_t copy(Device* device, void* stream, void* to, const void* from, size_t bytes) {
  if (bytes == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (is_ordinary(to) || is_ordinary(from)) count_sync(device);
  return result_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
}

int32_t zero(Device* device, void* stream, void* data, size_t bytes) {
  if (bytes == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  return result_of(cudaMemsetAsync(data, 0, bytes, stream_of(stream)));
}

}  // namespace megadp::cuda
