// SPDX-License-Identifier: Apache-2.0
// How kernels are launched: each thread is handed its number, and how many there are.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/plugin/device.h"
#include "cuda/plugin/thread_work.h"

namespace megadp::cuda {

constexpr unsigned kThreads = 256;            // of a block
constexpr uint64_t kMostBlocks = 0x7fffffff;  // of a launch; the threads then take turns

// Launches are checked by what they return: the last error that the runtime keeps may be older.
template <class... Parameters, class... Arguments>
int32_t launch(void (*kernel)(Parameters...), uint64_t blocks, dim3 threads, void* stream, Arguments... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks));
  config.blockDim = threads;
  config.stream = stream_of(stream);
  return result_of(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

template <class Work>
__global__ void __launch_bounds__(kThreads) run_on_each_thread(Work work) {
  work(uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, uint64_t{gridDim.x} * blockDim.x);
}

// As many blocks as give every thread `units` pieces of work. What is left over when the last ones run is small against the whole, so that
// nothing is gained by fewer blocks that go round.
template <class Work>
int32_t launch_on_each_thread(const Work& work, uint64_t pieces, unsigned pieces_each, void* stream) {
  const uint64_t each = uint64_t{kThreads} * pieces_each;
  return launch(run_on_each_thread<Work>, (pieces + each - 1) / each, dim3(kThreads), stream, work);
}

// `operation` on elements [0, count) of these arrays.
template <class Operation>
int32_t launch_for_each(const Operation& operation, uint64_t count, std::initializer_list<Array> arrays, void* stream) {
  const ForEach<Operation> work{operation, split_evenly(count, Operation::kWidth, arrays)};
  return launch_on_each_thread(work, work.pieces(), Operation::kDepth, stream);
}

}  // namespace megadp::cuda
