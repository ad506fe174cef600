// SPDX-License-Identifier: Apache-2.0
// Kernels that go over arrays: casts, reductions, copies with strides. What a thread does stands in thread_work.h and strided_work.h.
#include "cuda/plugin/launch.cuh"
#include "cuda/plugin/strided_work.h"

namespace megadp::cuda {
namespace {

// ── dense conversions ──

template <class To, class From, bool adds>
int32_t convert_array(void* stream, void* to, const void* from, uint64_t count) {
  return launch_for_each(Convert<To, From, adds>{static_cast<To*>(to), static_cast<const From*>(from)}, count,
                         {{to, sizeof(To)}, {from, sizeof(From)}}, stream);
}

template <class To, bool adds>
int32_t convert_to(void* stream, void* to, const void* from, DType from_type, uint64_t count) {
  switch (from_type) {
    case DType::f32:
      return convert_array<To, float, adds>(stream, to, from, count);
    case DType::bf16:
      return convert_array<To, Bf16, adds>(stream, to, from, count);
    case DType::f16:
      return convert_array<To, F16, adds>(stream, to, from, count);
    case DType::f64:
      return convert_array<To, double, adds>(stream, to, from, count);
    default:
      return kBadArgument;
  }
}

template <bool adds>
int32_t convert(void* stream, void* to, DType to_type, const void* from, DType from_type, uint64_t count) {
  switch (to_type) {
    case DType::f32:
      return convert_to<float, adds>(stream, to, from, from_type, count);
    case DType::bf16:
      return convert_to<Bf16, adds>(stream, to, from, from_type, count);
    case DType::f16:
      return convert_to<F16, adds>(stream, to, from, from_type, count);
    case DType::f64:
      return convert_to<double, adds>(stream, to, from, from_type, count);
    default:
      return kBadArgument;
  }
}

int32_t add_dense(void* stream, void* to, DType to_type, const void* from, DType from_type, uint64_t count) {
  if (converts(to_type) && converts(from_type)) return convert<true>(stream, to, to_type, from, from_type, count);
  if (to_type != from_type) return kBadArgument;
  if (to_type == DType::i64) return convert_array<int64_t, int64_t, true>(stream, to, from, count);
  return convert_array<uint8_t, uint8_t, true>(stream, to, from, count);
}

template <class T>
int32_t refresh_masters_from(void* stream, float* masters, const void* params, uint64_t count) {
  return launch_for_each(RefreshMasters<T>{masters, static_cast<const T*>(params)}, count, {{masters, sizeof(float)}, {params, sizeof(T)}},
                         stream);
}

// ── copies with strides ──

__global__ void __launch_bounds__(kTile* kTileRows) turn_tiles(TurnedCopy work) {
  __shared__ TurnedCopy::Tile tile;
  for (uint64_t number = blockIdx.x; number < work.tiles; number += gridDim.x) {
    const TurnedCopy::Corner corner = work.corner_of(number);
    const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
    work.take(corner, x, y, tile);
    __syncthreads();
    work.put(corner, x, y, tile);
    __syncthreads();
  }
}

int32_t launch_walk(void* stream, const Walk& walk, uint64_t count) {
  const bool dense = is_dense(walk);
  if (dense && walk.adds) return add_dense(stream, walk.to.data, walk.to.type, walk.from.data, walk.from.type, count);
  if (dense && walk.to.type != walk.from.type) {
    return convert<false>(stream, walk.to.data, walk.to.type, walk.from.data, walk.from.type, count);
  }
  if (dense) {
    const size_t bytes = count * static_cast<size_t>(walk.to.size);
    return result_of(cudaMemcpyAsync(walk.to.data, walk.from.data, bytes, cudaMemcpyDeviceToDevice, stream_of(stream)));
  }
  const int turned = transposed_dim(walk.dims, walk.count);
  if (turned >= 0) {
    const TurnedCopy work = turned_copy(walk, turned, count);
    return launch(turn_tiles, work.tiles, dim3(kTile, kTileRows), stream, work);
  }
  return launch_on_each_thread(StridedCopy{walk, count}, count, StridedCopy::kDepth, stream);
}

// ── reductions ──

template <class T, bool sums>
int32_t reduce_arrays(void* stream, void* to, const void* from, uint64_t stride, int parts, uint64_t count, bool largest, double divisor) {
  using Operation = Reduce<T, sums>;
  const Operation operation{
      static_cast<T*>(to), static_cast<const T*>(from), stride, parts, largest, static_cast<typename Operation::Value>(divisor)};
  // With one part the second address stands for the stride: it is not read.
  return launch_for_each(operation, count, {{to, sizeof(T)}, {from, sizeof(T)}, {operation.from + stride, sizeof(T)}}, stream);
}

template <bool sums>
int32_t reduce_by_type(void* stream, void* to, const void* from, uint64_t stride, int parts, uint64_t count, DType type, bool largest,
                       double divisor) {
  switch (type) {
    case DType::f32:
      return reduce_arrays<float, sums>(stream, to, from, stride, parts, count, largest, divisor);
    case DType::bf16:
      return reduce_arrays<Bf16, sums>(stream, to, from, stride, parts, count, largest, divisor);
    case DType::f16:
      return reduce_arrays<F16, sums>(stream, to, from, stride, parts, count, largest, divisor);
    case DType::f64:
      return reduce_arrays<double, sums>(stream, to, from, stride, parts, count, largest, divisor);
    case DType::i64:
      return reduce_arrays<int64_t, sums>(stream, to, from, stride, parts, count, largest, divisor);
    case DType::u8:
      return reduce_arrays<uint8_t, sums>(stream, to, from, stride, parts, count, largest, divisor);
  }
  return kBadArgument;
}

}  // namespace

int32_t cast(Device* device, void* stream, void* to, DType to_type, const void* from, DType from_type, size_t count) {
  if (to_type != from_type && !(converts(to_type) && converts(from_type))) return kBadArgument;
  if (count == 0 || (to == from && to_type == from_type)) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (to_type != from_type) return convert<false>(stream, to, to_type, from, from_type, count);
  return result_of(cudaMemcpyAsync(to, from, count * size_of(to_type), cudaMemcpyDeviceToDevice, stream_of(stream)));
}

int32_t round_with_feedback(Device* device, void* stream, void* to, const float* from, float* residual, size_t count) {
  if (count == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  return launch_for_each(RoundWithFeedback{static_cast<Bf16*>(to), from, residual}, count,
                         {{to, sizeof(Bf16)}, {from, sizeof(float)}, {residual, sizeof(float)}}, stream);
}

int32_t refresh_masters(Device* device, void* stream, float* masters, const void* params, DType type, size_t count) {
  if (type != DType::bf16 && type != DType::f16) return kBadArgument;
  if (count == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (type == DType::bf16) return refresh_masters_from<Bf16>(stream, masters, params, count);
  return refresh_masters_from<F16>(stream, masters, params, count);
}

int32_t copy_strided(Device* device, void* stream, const Strided* to, const Strided* from, bool add) {
  Walk walk{};
  uint64_t count = 0;
  if (const int32_t refused = plan_walk(*to, *from, add, &walk, &count); refused != 0 || count == 0) return refused;
  const Current current(device);
  if (current.result() != 0) return current.result();
  return launch_walk(stream, walk, count);
}

int32_t reduce(Device* device, void* stream, void* to, const void* from, size_t stride, int32_t parts, size_t count, DType type, Op op,
               double divisor) {
  const bool sums = op == Op::sum || op == Op::avg, integers = type == DType::i64 || type == DType::u8;
  if (parts < 1 || (!sums && op != Op::max && op != Op::min) || (divisor != 1 && (!sums || integers))) return kBadArgument;
  if (op == Op::avg) divisor *= parts;
  if (count == 0) return 0;
  const Current current(device);
  if (current.result() != 0) return current.result();
  if (sums) return reduce_by_type<true>(stream, to, from, stride, parts, count, type, false, divisor);
  return reduce_by_type<false>(stream, to, from, stride, parts, count, type, op == Op::max, divisor);
}

}  // namespace megadp::cuda
