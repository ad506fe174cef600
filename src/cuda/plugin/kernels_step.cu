// SPDX-License-Identifier: Apache-2.0
// Kernels of an optimizer step: the sum of squares, a factor, the numbers that begin a step, the update rules. None of them waits for the
// host, or lets it wait.
#include "base/rules.h"
#include "cuda/plugin/launch.cuh"

namespace megadp::cuda {
namespace {

constexpr unsigned kExtremesBlocksPerProcessor = 4;

// ── the sum of squares ──
// Scratch memory: the running total, how many elements are not finite, then a sum for every block of elements of one round. The sum of a
// run takes the place of its first block's.

struct SquareScratch {
  double total;
  unsigned long long nonfinite;
  double sums[1];
};
constexpr uint64_t kRoundBlocks = (kScratchBytes - offsetof(SquareScratch, sums)) / sizeof(double) / kSquareRun * kSquareRun;
constexpr uint64_t kBlocksPerLaunchBlock = kThreads / kSquareLanes;

template <class T>
__global__ void __launch_bounds__(kThreads) sum_square_blocks(const T* data, uint64_t count, SquareScratch* scratch) {
  const uint64_t block = blockIdx.x * kBlocksPerLaunchBlock + threadIdx.x / kSquareLanes;
  const int lane = static_cast<int>(threadIdx.x % kSquareLanes);
  // Threads past the end stay: all of a warp hand each other their sums.
  const bool inside = block * kSquareBlock < count;
  const LaneSum mine = inside ? square_lane(data, count, block, lane) : LaneSum{0, 0};
  double sum = 0;
#pragma unroll
  for (int l = 0; l < kSquareLanes; l++) sum = add(sum, __shfl_sync(0xffffffffU, mine.sum, l, kSquareLanes));
  if (inside && lane == 0) scratch->sums[block] = sum;
  if (mine.nonfinite != 0) atomicAdd(&scratch->nonfinite, mine.nonfinite);
}

// total + sums[0] + sums[every] + ..., in this order, by the first thread of a block, which alone has it; the others fetch for it.
__device__ double add_in_order(double total, const double* sums, uint64_t count, uint64_t every) {
  __shared__ double fetched[kThreads];
  double mine = threadIdx.x < count ? sums[threadIdx.x * every] : 0;
  for (uint64_t begin = 0; begin < count; begin += kThreads) {
    fetched[threadIdx.x] = mine;
    __syncthreads();
    const uint64_t next = begin + kThreads + threadIdx.x;
    mine = next < count ? sums[next * every] : 0;  // under way while the first thread adds
    if (threadIdx.x == 0) {
      const int here = static_cast<int>(count - begin < kThreads ? count - begin : kThreads);
#pragma unroll 16
      for (int i = 0; i < here; i++) total = add(total, fetched[i]);
    }
    __syncthreads();
  }
  return total;
}

// A block for each run.
__global__ void __launch_bounds__(kThreads) add_runs(double* sums, uint64_t blocks) {
  const uint64_t first = blockIdx.x * kSquareRun, left = blocks - first;
  const double sum = add_in_order(0, &sums[first], left < kSquareRun ? left : kSquareRun, 1);
  if (threadIdx.x == 0) sums[first] = sum;
}

__global__ void __launch_bounds__(kThreads) add_square_sums(SquareScratch* scratch, uint64_t runs, double* sums, bool last) {
  const double total = add_in_order(scratch->total, scratch->sums, runs, kSquareRun);
  if (threadIdx.x != 0) return;
  scratch->total = total;
  if (!last) return;
  sums[0] = add(sums[0], total);
  sums[1] = add(sums[1], static_cast<double>(scratch->nonfinite));
}

template <class T>
int32_t sum_squares(void* stream, const void* data, uint64_t count, SquareScratch* scratch, double* sums) {
  constexpr uint64_t round = kRoundBlocks * kSquareBlock;
  for (uint64_t begin = 0; begin < count; begin += round) {
    const uint64_t here = count - begin < round ? count - begin : round;
    const uint64_t blocks = (here + kSquareBlock - 1) / kSquareBlock;
    const uint64_t grid = (blocks + kBlocksPerLaunchBlock - 1) / kBlocksPerLaunchBlock;
    int32_t result = launch(sum_square_blocks<T>, grid, dim3(kThreads), stream, static_cast<const T*>(data) + begin, here, scratch);
    const uint64_t runs = (blocks + kSquareRun - 1) / kSquareRun;
    if (result == 0) result = launch(add_runs, runs, dim3(kThreads), stream, scratch->sums, blocks);
    if (result == 0) result = launch(add_square_sums, 1, dim3(kThreads), stream, scratch, runs, sums, begin + here == count);
    if (result != 0) return result;
  }
  return 0;
}

int32_t sum_squares(void* stream, const void* data, DType type, uint64_t count, SquareScratch* scratch, double* sums) {
  const cudaError_t cleared = cudaMemsetAsync(scratch, 0, offsetof(SquareScratch, sums), stream_of(stream));
  if (cleared != cudaSuccess) return result_of(cleared);
  if (type == DType::f32) return sum_squares<float>(stream, data, count, scratch, sums);
  if (type == DType::bf16) return sum_squares<Bf16>(stream, data, count, scratch, sums);
  return sum_squares<F16>(stream, data, count, scratch, sums);
}

// ── zeros, and the largest magnitude ──

// Magnitudes are ordered as their bits are, so that the order in which threads come does not matter.
template <class T>
__global__ void __launch_bounds__(kThreads) find_extremes(const T* data, uint64_t count, uint64_t* zeros, float* largest) {
  Extremes mine{0, 0};
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) mine.look_at(to_f32(data[i]));
  for (int distance = 16; distance > 0; distance /= 2) {
    mine.zeros += __shfl_down_sync(0xffffffffU, mine.zeros, distance);
    const uint32_t other = __shfl_down_sync(0xffffffffU, mine.largest_bits, distance);
    mine.largest_bits = other > mine.largest_bits ? other : mine.largest_bits;
  }
  if (threadIdx.x % 32 != 0) return;
  if (mine.zeros != 0) atomicAdd(reinterpret_cast<unsigned long long*>(zeros), static_cast<unsigned long long>(mine.zeros));
  atomicMax(reinterpret_cast<unsigned int*>(largest), mine.largest_bits);
}

template <class T>
int32_t launch_extremes(Device* device, void* stream, const void* data, uint64_t count, uint64_t* zeros, float* largest) {
  const uint64_t needed = (count + kThreads - 1) / kThreads;
  const uint64_t most = uint64_t{kExtremesBlocksPerProcessor} * (device != nullptr ? static_cast<unsigned>(device->processors) : 1U);
  return launch(find_extremes<T>, needed < most ? needed : most, dim3(kThreads), stream, static_cast<const T*>(data), count, zeros,
                largest);
}

// ── what is not finite ──

template <class T>
int32_t launch_find(void* stream, const void* data, uint64_t count, uint64_t first, uint64_t* found) {
  return launch_for_each(FindNonfinite<T>{static_cast<const T*>(data), first, found}, count, {{data, sizeof(T)}}, stream);
}

// ── a factor ──

template <class T>
int32_t launch_scale(void* stream, void* data, uint64_t count, float factor) {
  return launch_for_each(Scale<T>{static_cast<T*>(data), factor}, count, {{data, sizeof(T)}}, stream);
}

// ── the numbers of a step ──

__global__ void begin_step_on_device(StepScalars* scalars, StepSettings settings, const volatile uint32_t* poisoned) {
  if (poisoned != nullptr && *poisoned != 0) {
    scalars->skip = 1;
  } else {
    megadp::begin_step(*scalars, settings);
  }
}

// ── update rules ──
// Every block computes the constants, which take divisions, a root and two powers in double (a product or two for every bit of the step
// count): some hundred operations of one thread, while what the others need is on its way from memory. Blocks that come one after another
// keep the memory busier than blocks that stay and go round; a kernel of its own for the constants would cost a launch.
template <class Rule, class Grad, class Param>
__global__ void __launch_bounds__(kThreads)
    update_on_device(ForEach<UpdateStep<Rule, Grad, Param>> work, Hyper hyper, const StepScalars* scalars, const uint64_t* steps) {
  __shared__ typename Rule::Constants constants;
  __shared__ uint64_t key;
  work.once(uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, [&](auto& operation) {
    if (scalars->skip != 0) return false;
    if (threadIdx.x == 0) {
      constants = Rule::constants(hyper, *steps);
      key = key_of_step(operation.random.key, *steps);
    }
    __syncthreads();
    operation.constants = constants;
    operation.key = key;
    operation.factor = scalars->grad_factor;
    operation.limit = scalars->grad_limit;
    return true;
  });
}

template <class Rule, class Grad, class Param>
int32_t launch_update(void* stream, const Update& u) {
  const auto work = update_work<Rule, Grad, Param>(u);
  const uint64_t blocks = (work.pieces() + kThreads - 1) / kThreads;
  if (blocks > kMostBlocks) return kBadArgument;  // more elements than fit on any device
  return launch(update_on_device<Rule, Grad, Param>, blocks, dim3(kThreads), stream, work, u.hyper, u.scalars, u.steps);
}

template <class Rule, class Grad>
int32_t launch_update(void* stream, const Update& u) {
  if (u.param_type == DType::f32) return launch_update<Rule, Grad, float>(stream, u);
  if (u.param_type == DType::bf16) return launch_update<Rule, Grad, Bf16>(stream, u);
  return launch_update<Rule, Grad, F16>(stream, u);
}

}  // namespace

int32_t square_sum(Device* device, void* stream, const void* data, DType type, size_t count, double* sums) {
  if (!is_trainable(type)) return kBadArgument;
  if (count == 0) return 0;
  if (device == nullptr) return result_of(cudaErrorInvalidDevice);  // whose scratch memory is needed
  const Current current(device);
  if (current.result() != 0) return current.result();
  const std::lock_guard lock(device->scratch_mutex);
  cudaError_t error = cudaStreamWaitEvent(stream_of(stream), device->scratch_free, 0);
  if (error != cudaSuccess) return result_of(error);
  const int32_t result = sum_squares(stream, data, type, count, static_cast<SquareScratch*>(device->scratch), sums);
  error = cudaEventRecord(device->scratch_free, stream_of(stream));
  return result != 0 ? result : result_of(error);
}

int32_t extremes(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t* zeros, float* largest) {
  if (!is_trainable(type)) return kBadArgument;
  if (count == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (type == DType::f32) return launch_extremes<float>(device, stream, data, count, zeros, largest);
  if (type == DType::bf16) return launch_extremes<Bf16>(device, stream, data, count, zeros, largest);
  return launch_extremes<F16>(device, stream, data, count, zeros, largest);
}

int32_t find_nonfinite(Device* device, void* stream, const void* data, DType type, size_t count, uint64_t first, uint64_t* found) {
  if (!is_trainable(type)) return kBadArgument;
  if (count == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (type == DType::f32) return launch_find<float>(stream, data, count, first, found);
  if (type == DType::bf16) return launch_find<Bf16>(stream, data, count, first, found);
  return launch_find<F16>(stream, data, count, first, found);
}

int32_t scale(Device* device, void* stream, void* data, DType type, size_t count, float factor) {
  if (!is_trainable(type)) return kBadArgument;
  if (count == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (type == DType::f32) return launch_scale<float>(stream, data, count, factor);
  if (type == DType::bf16) return launch_scale<Bf16>(stream, data, count, factor);
  return launch_scale<F16>(stream, data, count, factor);
}

int32_t begin_step(Device* device, void* stream, StepScalars* scalars, const StepSettings* settings) {
  const Current current(device);
  if (current.result() != 0) return current.result();
  return launch(begin_step_on_device, 1, dim3(1), stream, scalars, *settings, device != nullptr ? device->poisoned : nullptr);
}

int32_t count_steps(Device* device, void* stream, const StepScalars* scalars, uint64_t* steps, size_t count) {
  if (count == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  return launch_on_each_thread(CountSteps{scalars, steps, count}, count, 1, stream);
}

int32_t update(Device* device, void* stream, const Update* update) {
  const Update& u = *update;
  if (!is_trainable(u.grad_type) || !is_trainable(u.param_type) || u.rule >= kRules) return kBadArgument;
  if (u.count == 0) return 0;
  if ((u.master == nullptr && u.param_type != DType::bf16) || (u.state_type != DType::f32 && u.state_type != DType::bf16))
    return kBadArgument;
  const Current current(device);
  if (current.result() != 0) return current.result();
  int32_t result = 0;
  with_rule(u.rule, [&](auto rule) {
    using Rule = decltype(rule);
    if (u.grad_type == DType::f32) {
      result = launch_update<Rule, float>(stream, u);
    } else if (u.grad_type == DType::bf16) {
      result = launch_update<Rule, Bf16>(stream, u);
    } else {
      result = launch_update<Rule, F16>(stream, u);
    }
  });
  return result;
}

}  // namespace megadp::cuda
