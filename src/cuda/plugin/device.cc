// SPDX-License-Identifier: Apache-2.0
// Devices and what they are opened with.
#include "cuda/plugin/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/symbol.h"

namespace megadp::cuda {
namespace {

// The two functions of the driver itself that are used; the runtime has loaded it already.
struct Driver {
  Symbols find;
  decltype(&cuCtxGetCurrent) get_current = find("cuCtxGetCurrent");
  decltype(&cuCtxSetCurrent) set_current = find("cuCtxSetCurrent");
};

const Driver& driver() {
  static const Driver found{Symbols(dlopen("libcuda.so.1", RTLD_NOW))};
  return found;
}

// A CUresult has the number of the cudaError_t of the same meaning wherever both have one.
int32_t result_of_driver(CUresult result) {
  return result == CUDA_SUCCESS ? 0 : kCudaFailure + static_cast<int32_t>(result);
}

// The context that was current on this thread comes back, even if that was none.
class Restore {
 public:
  Restore() {
    if (driver().get_current != nullptr && driver().set_current != nullptr) known_ = driver().get_current(&before_) == CUDA_SUCCESS;
  }
  ~Restore() {
    if (known_) static_cast<void>(driver().set_current(before_));
  }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  CUcontext before_ = nullptr;
  bool known_ = false;
};

cudaError_t prepare(Device& device) {
  cudaError_t error = cudaDeviceGetAttribute(&device.processors, cudaDevAttrMultiProcessorCount, device.index);
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&device.own, cudaStreamNonBlocking);
  if (error == cudaSuccess) error = cudaEventCreateWithFlags(&device.scratch_free, cudaEventDisableTiming);
  if (error == cudaSuccess) error = cudaMalloc(&device.scratch, kScratchBytes);
  if (error == cudaSuccess) error = cudaHostAlloc(reinterpret_cast<void**>(&device.poisoned), sizeof(uint32_t), cudaHostAllocMapped);
  if (error == cudaSuccess) *device.poisoned = 0;
  return error;
}

// Failures are of no interest: the process may be past the driver's end, and there is nobody to tell.
void dismantle(Device& device) {
  if (device.poisoned != nullptr) static_cast<void>(cudaFreeHost(device.poisoned));
  if (device.scratch != nullptr) static_cast<void>(cudaFree(device.scratch));
  if (device.scratch_free != nullptr) static_cast<void>(cudaEventDestroy(device.scratch_free));
  if (device.own != nullptr) static_cast<void>(cudaStreamDestroy(device.own));
}

}  // namespace

Current::Current(const Device* device) {
  if (device == nullptr) return;
  result_ = result_of_driver(driver().get_current(&before_));
  if (result_ == 0 && before_ != device->context) {
    result_ = result_of_driver(driver().set_current(device->context));
    changed_ = result_ == 0;
  }
  if (result_ != 0) return;
  mode_before_ = cudaStreamCaptureModeRelaxed;
  result_ = result_of(cudaThreadExchangeStreamCaptureMode(&mode_before_));
  relaxed_ = result_ == 0;
}

Current::~Current() {
  if (relaxed_) static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_before_));
  if (changed_) static_cast<void>(driver().set_current(before_));
}

int32_t device_count(int32_t* count) {
  int devices = 0;
  if (const int32_t failed = result_of(cudaGetDeviceCount(&devices)); failed != 0) return failed;
  *count = devices;
  return 0;
}

namespace {

int32_t number_in(const char* variable, int32_t otherwise) {
  const char* const said = std::getenv(variable);
  const int32_t number = said == nullptr ? 0 : std::atoi(said);
  return number > 0 ? number : otherwise;
}

// A CTA of NCCL's takes a multiprocessor at most. And streams beyond the number of the device's queues share them, where one that waits
// holds up what is behind it: half of them are left to the program.
int32_t collectives(int32_t multiprocessors) {
  constexpr int32_t kQueues = 8;  // CUDA's, where the program does not say
  const int32_t fit = multiprocessors / number_in("NCCL_MAX_CTAS", kMaxCtas);
  return std::max(1, std::min(fit, number_in("CUDA_DEVICE_MAX_CONNECTIONS", kQueues) / 2));
}

}  // namespace

int32_t device_info(int32_t index, DeviceInfo* out) {
  int devices = 0;  // also wakes up the driver
  if (const int32_t failed = result_of(cudaGetDeviceCount(&devices)); failed != 0) return failed;
  if (index < 0 || index >= devices) return result_of(cudaErrorInvalidDevice);
  cudaDeviceProp properties;
  if (const int32_t failed = result_of(cudaGetDeviceProperties(&properties, index)); failed != 0) return failed;
  DeviceInfo info{};
  if (const int32_t failed = result_of(cudaDriverGetVersion(&info.driver)); failed != 0) return failed;
  if (const int32_t failed = result_of(cudaRuntimeGetVersion(&info.runtime)); failed != 0) return failed;
  std::snprintf(info.name, sizeof info.name, "%.127s", properties.name);
  size_t at = static_cast<size_t>(std::snprintf(info.uuid, sizeof info.uuid, "GPU-"));
  for (int i = 0; i < 16; i++) {
    const char* const dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
    const auto byte = static_cast<unsigned>(static_cast<unsigned char>(properties.uuid.bytes[i]));
    at += static_cast<size_t>(std::snprintf(info.uuid + at, sizeof info.uuid - at, "%s%02x", dash, byte));
  }
  info.major = properties.major;
  info.minor = properties.minor;
  info.memory_bytes = properties.totalGlobalMem;
  info.collectives = collectives(properties.multiProcessorCount);
  *out = info;
  return 0;
}

int32_t device_open(int32_t index, Device** out) {
  int devices = 0;  // also wakes up the driver
  if (const int32_t failed = result_of(cudaGetDeviceCount(&devices)); failed != 0) return failed;
  if (index < 0 || index >= devices) return result_of(cudaErrorInvalidDevice);
  if (driver().get_current == nullptr || driver().set_current == nullptr) return result_of(cudaErrorInsufficientDriver);
  std::unique_ptr<Device> device(new (std::nothrow) Device);
  if (device == nullptr) return kNoHostMemory;
  device->index = index;
  const Restore restore;
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaFree(nullptr);  // before CUDA 12 it is this that makes the context
  if (error != cudaSuccess) return result_of(error);
  if (const int32_t failed = result_of_driver(driver().get_current(&device->context)); failed != 0) return failed;
  error = prepare(*device);
  if (error != cudaSuccess) {
    dismantle(*device);
    return result_of(error);
  }
  *out = device.release();
  return 0;
}

void device_close(Device* device) {
  if (device == nullptr) return;
  {
    const Current current(device);
    dismantle(*device);
  }
  delete device;
}

uint64_t host_syncs(const Device* device) {
  return device == nullptr ? 0 : device->host_syncs.load(std::memory_order_relaxed);
}

void poison(Device* device) {
  if (device != nullptr) std::atomic_ref<uint32_t>(*device->poisoned).store(1, std::memory_order_release);
}

}  // namespace megadp::cuda
