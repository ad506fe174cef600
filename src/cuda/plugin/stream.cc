// SPDX-License-Identifier: Apache-2.0
// Streams and events.
#include "cuda/plugin/device.h"

namespace megadp::cuda {

int32_t stream_create(Device* device, bool high_priority, void** out) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  int least = 0, greatest = 0;
  if (const int32_t failed = result_of(cudaDeviceGetStreamPriorityRange(&least, &greatest)); failed != 0) return failed;
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? greatest : least);
  if (error != cudaSuccess) return result_of(error);
  *out = stream;
  return 0;
}

int32_t stream_destroy(Device* device, void* stream) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  return result_of(cudaStreamDestroy(stream_of(stream)));
}

int32_t stream_synchronize(Device* device, void* stream) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  count_sync(device);
  return result_of(cudaStreamSynchronize(stream_of(stream)));
}

int32_t stream_wait(Device* device, void* stream, void* event) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  return result_of(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
}

int32_t event_create(Device* device, void** out) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  cudaEvent_t event = nullptr;
  if (const int32_t failed = result_of(cudaEventCreate(&event)); failed != 0) return failed;
  *out = event;
  return 0;
}

int32_t event_destroy(Device* device, void* event) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  return result_of(cudaEventDestroy(event_of(event)));
}

int32_t event_record(Device* device, void* event, void* stream) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  return result_of(cudaEventRecord(event_of(event), stream_of(stream)));
}

int32_t event_query(Device* device, void* event) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  const cudaError_t error = cudaEventQuery(event_of(event));
  return error == cudaErrorNotReady ? kPending : result_of(error);
}

int32_t event_elapsed(Device* device, void* begin, void* end, float* milliseconds) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  const cudaError_t error = cudaEventElapsedTime(milliseconds, event_of(begin), event_of(end));
  return error == cudaErrorNotReady ? kPending : result_of(error);
}

}  // namespace megadp::cuda
